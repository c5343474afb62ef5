"""Find the shortest sequence of steps that still fails, and write it down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tests.crash.driver import Step, Workload
from tests.crash.explorer import Explorer, Failure, Limits

__all__ = ["as_test", "shrink"]


def shrink(failure: Failure, limits: Limits, seconds: float) -> Failure:
    """Leave steps out of a workload while it fails, for ``seconds`` at the most; gives the failure
    of the shortest that was found."""
    end = time.monotonic() + seconds
    best = failure

    def fails(workload: Workload) -> bool:
        nonlocal best
        if time.monotonic() > end:
            return False
        found = Explorer(replace(limits, failures=1)).explore(workload).failures
        if found:
            best = found[0]
        return bool(found)

    _leave_out(failure.workload.steps, lambda steps: fails(_with_steps(best.workload, steps)))
    return best


def _with_steps(workload: Workload, steps: tuple[Step, ...]) -> Workload:
    return replace(workload, steps=steps)


def _leave_out(steps: tuple[Step, ...], fails: Callable[[tuple[Step, ...]], bool]) -> None:
    """Try without each run of steps, long runs first, from the end."""
    size = max(1, len(steps) // 2)
    while size:
        at = len(steps) - size
        while at >= 0:
            shorter = steps[:at] + steps[at + size :]
            if shorter and fails(shorter):
                steps = shorter
            at -= size
        size //= 2


def as_test(failure: Failure) -> str:
    """Give the text of a regression test for a workload."""
    workload = failure.workload
    parts = [f"{workload.name!r}", _tuple(workload.steps)]
    parts.append(f"setup={_tuple(workload.setup)}")
    if workload.options:
        parts.append(f"options={workload.options!r}")
    if workload.patches:
        parts.append(f"patches={workload.patches!r}")
    arguments = "".join(f"        {part},\n" for part in parts)
    what = "\n".join(f"#     {line}" for line in str(failure).splitlines())
    return f"{what}\n    Workload(\n{arguments}    ),\n"


def _tuple(steps: tuple[Step, ...]) -> str:
    inner = "".join(f"            {step!r},\n" for step in steps)
    return f"(\n{inner}        )" if steps else "()"
