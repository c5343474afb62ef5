"""A priority queue beside a queue without priorities, in one run.

    python -m benchmarks.priorities [--messages 100000] [--rounds 5] [--dir DIR] [--json FILE]

prints one JSON line for each figure and for the bar on standard output (or into FILE), and tables
on standard error. Rates are of messages that are published, one call each, and then taken, one call
each, in ten priorities in turn. The bar is the share of the plain queue's rate in the same round.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time

import qindex
from benchmarks.bodies import Bodies
from benchmarks.program import common_parser, fresh, parse_common, reporting
from benchmarks.report import OURS, Round, Sample

PRIORITIES = 10
SHARE = 0.6
PLAIN = "without priorities"
PUBLISH = "publish"
GET = "get"
BOTH = "publish + get"


def _measure(messages: int, work: Callable[[], None]) -> Sample:
    wall, cpu = perf_counter(), process_time()
    work()
    wall, cpu = perf_counter() - wall, process_time() - cpu
    return Sample(messages / wall, cpu / messages * 1e6, messages)


def one_queue(root: Path, bodies: Sequence[bytes], highest: int | None) -> dict[str, Sample]:
    """Measure one queue, with priorities up to ``highest`` or without."""
    count = len(bodies)
    with fresh(root) as directory, qindex.open(directory) as engine:
        queue = engine.queue("jobs", max_priority=highest)

        # Directories are made with the first message of each priority.
        for priority in range(PRIORITIES if highest is not None else 0):
            queue.publish(b"first", priority=priority)
            queue.get().ack()

        def publish() -> None:
            if highest is None:
                for body in bodies:
                    queue.publish(body)
                return
            for number, body in enumerate(bodies):
                queue.publish(body, priority=number % PRIORITIES)

        taken: list[bytes] = []

        def get() -> None:
            for _ in range(count):
                taken.append(queue.get().body)

        published, gotten = _measure(count, publish), _measure(count, get)
        expected = list(bodies)
        if highest is not None:
            expected = [
                body
                for priority in reversed(range(PRIORITIES))
                for body in bodies[priority::PRIORITIES]
            ]
        if taken != expected:
            raise RuntimeError("the messages did not come in their order")
    assert published.cpu_us is not None
    assert gotten.cpu_us is not None
    both = Sample(
        1 / (1 / published.value + 1 / gotten.value), published.cpu_us + gotten.cpu_us, count
    )
    return {PUBLISH: published, GET: gotten, BOTH: both}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common_parser("priorities", __doc__, rounds=5)
    parser.add_argument("--messages", type=int, default=100_000, help="of each queue (100,000)")
    options = parse_common(parser, arguments)
    rounds: dict[str, list[Round]] = {PUBLISH: [], GET: [], BOTH: []}
    with reporting(options) as (report, root):
        bodies = Bodies().take(options.messages)
        for _ in range(options.rounds):
            plain = one_queue(root, bodies, None)
            ours = one_queue(root, bodies, PRIORITIES)
            for name, samples in rounds.items():
                samples.append({OURS: ours[name], PLAIN: plain[name]})
        for name, samples in rounds.items():
            report.add(name, samples, comparable=[PLAIN])
        report.judge([report.hold_ratio(BOTH, PLAIN, SHARE)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
