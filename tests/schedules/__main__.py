"""One workload under every schedule, in a process of its own::

    python -m tests.schedules NAME... [--delays N] [--seconds S] [--slices N --turn T]
    python -m tests.schedules NAME --schedule 17:1,42:2
    python -m tests.schedules list

The first prints a line of JSON for each workload; the second runs one schedule, and tells what
happens in it. ``--plant`` plants a defect (tests/schedules/planted.py).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from contextlib import nullcontext

from tests.schedules import scheduler

scheduler.install()

from tests.schedules import (  # noqa: E402
    aio_workloads,
    engine_workloads,
    handler_workloads,
    lock_workloads,
    planted,
    rocket_workloads,
)
from tests.schedules.explorer import explore, read_schedule, written  # noqa: E402
from tests.schedules.registry import WORKLOADS, Workload  # noqa: E402
from tests.schedules.strict_order import strict_order  # noqa: E402
from tests.schedules.world import judge_with  # noqa: E402

_TAKEN_IN = (
    aio_workloads,
    engine_workloads,
    handler_workloads,
    lock_workloads,
    rocket_workloads,
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+", choices=[*WORKLOADS, "list"])
    parser.add_argument("--delays", type=int)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--slices", type=int, default=1)
    parser.add_argument("--turn", type=int, default=0)
    parser.add_argument("--schedule")
    parser.add_argument("--preemptive", action="store_true")
    parser.add_argument("--plant", choices=planted.DEFECTS)
    given = parser.parse_args()
    if given.names == ["list"]:
        print("\n".join(WORKLOADS))
        return 0
    logging.disable(logging.CRITICAL)
    if given.plant:
        planted.DEFECTS[given.plant]()
    code = 0
    for name in given.names:
        one = WORKLOADS[name]
        # Handlers do take locks out of order: there the check is what they would wait for.
        strict = one.handler is None and not given.plant
        with strict_order() if strict else nullcontext():
            code |= work(one, given)
    return code


def work(one: Workload, given: argparse.Namespace) -> int:
    if given.schedule:
        return again(one, given.schedule)
    result = explore(
        one.body,
        judge_with({}),
        delays=one.delays if given.delays is None else given.delays,
        seconds=given.seconds,
        kinds=one.kinds,
        handler=one.handler,
        slices=given.slices,
        turn=given.turn,
        stop_at_first=given.plant is not None,
        waits_are_free=given.preemptive,
    )
    found = {what: (written(one.schedule), one.count) for what, one in result.found.items()}
    told = {
        "name": one.name,
        "runs": result.runs,
        "whole": result.is_whole,
        "seconds": round(result.seconds, 2),
        "found": found,
    }
    print(json.dumps(told), flush=True)
    return 1 if found or not result.is_whole else 0


def again(one: Workload, schedule: str) -> int:
    """Run one schedule, and tell its story."""
    run = scheduler.Run(
        read_schedule(schedule), kinds=one.kinds, handler=one.handler, explains=True
    ).go(one.body)
    print("\n".join(run.story))
    if run.failure is not None:
        print(run.failure.kind)
        for name, (state, lines) in run.failure.stacks.items():
            print(f"{name} is {state} at", *lines, sep="\n    ")
    for name, error in run.errors:
        print(name, "raised", *traceback.format_exception(error))
    wrong = judge_with({})(run)
    print(f"wrong: {wrong}")
    return 0 if wrong is None else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads of runs that came to no end are still there.
    os._exit(code)
