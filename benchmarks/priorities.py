"""A priority queue beside a queue without priorities, in one run.

Rates are of messages that are published, one call each, and then taken, one call each, in ten
priorities in turn. The bar is the share of the plain queue's rate in the same round.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import qindex
from benchmarks.bodies import Bodies
from benchmarks.program import common_parser, fresh, parse_common, reporting
from benchmarks.report import OURS
from benchmarks.stopwatch import Found, Sample, Stopwatch

PRIORITIES = 10
SHARE = 0.6
PLAIN = "without priorities"


def one_queue(root: Path, bodies: Sequence[bytes], highest: int | None) -> dict[str, Sample]:
    """Measure one queue, with priorities up to ``highest`` or without."""
    published, gotten, both = Stopwatch(), Stopwatch(), Stopwatch()
    with fresh(root) as directory, qindex.open(directory) as engine:
        queue = engine.queue("jobs", max_priority=highest)
        # Directories are made with the first message of each priority.
        for priority in range(PRIORITIES if highest is not None else 0):
            queue.publish(b"first", priority=priority)
            queue.get().ack()
        with both.running(), published.running():
            if highest is None:
                for body in bodies:
                    queue.publish(body)
            else:
                for number, body in enumerate(bodies):
                    queue.publish(body, priority=number % PRIORITIES)
        with both.running(), gotten.running():
            taken = [queue.get().body for _ in bodies]
    expected = list(bodies)
    if highest is not None:
        highest_first = reversed(range(PRIORITIES))
        expected = [body for priority in highest_first for body in bodies[priority::PRIORITIES]]
    if taken != expected:
        raise RuntimeError("the messages did not come in their order")
    watches = {"publish": published, "get": gotten, "publish + get": both}
    return {name: watch.rate(len(bodies)) for name, watch in watches.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common_parser("priorities", __doc__, rounds=5)
    parser.add_argument("--messages", type=int, default=100_000, help="of each queue (100,000)")
    options = parse_common(parser, arguments)
    found = Found()
    with reporting(options) as (report, root):
        bodies = Bodies().take(options.messages)
        for _ in range(options.rounds):
            for who, highest in ((OURS, PRIORITIES), (PLAIN, None)):
                for name, sample in one_queue(root, bodies, highest).items():
                    found.note(name, who, sample)
        report.add_all(found, comparable=[PLAIN])
        report.hold_ratio("publish + get", PLAIN, SHARE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
