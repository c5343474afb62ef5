"""The RocketMQ store: ours beside the real one in a warm JVM and beside the floor, in one run.

Groups: ``rates`` (puts, gets, queries, an IndexFile from five million keys), ``syncs`` (puts that
are on disk when they return), ``lookups`` (one lookup by key in stores of a thousand to ten million
messages).

A figure is the median of its rounds, with the spread beside it, and a bar holds the median of the
ratios within a round. The floor is a plain copy of the same bytes into a map (or a write and a
sync), so what the machine allows from Python without any store. Without Maven and Java the real
store is left out, and the reason is said.

The exit status is 0 when everything asked for was measured, 2 on wrong use. A bar that does not
hold is in the output and does not change the status.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import rocketstore
from benchmarks.program import common_parser, fresh, parse_common, reporting
from benchmarks.report import OURS, Report
from benchmarks.rocket_rates import REAL_SIZES, Counts, Real, judge, rates, syncs
from benchmarks.stopwatch import Found, Stopwatch
from tests.rocketstore.real_store import RealStore, class_path

GROUPS = ("rates", "syncs", "lookups")
_BATCH = 1000
_SMALLEST = 1000
_LOOKUPS = 5000
_SPANS = 5


def _real(stack: ExitStack, report: Report, directory: Path, counts: Counts) -> Real | None:
    path, reason = class_path()
    if not path:
        report.say(f"without the real store: {reason}")
        return None
    start = time.monotonic()
    process = RealStore(path, directory / "real-0", REAL_SIZES)
    stack.callback(process.kill)
    real = Real(process, directory, counts)
    report.say(f"the real store is warm: {time.monotonic() - start:.1f} s")
    return real


def lookups(report: Report, root: Path, largest: int) -> None:
    """One lookup by key in stores of 1,000 messages and ten times more up to ``largest``."""
    chance, found, count, size = random.Random(3), Found(), 0, _SMALLEST
    with fresh(root) as path, rocketstore.open(path, background=False) as store:
        while size <= largest:
            for first in range(count, size, _BATCH):
                keys = [f"order-{number}" for number in range(first, first + _BATCH)]
                store.put_many("G", [bytes(100)] * _BATCH, keys=keys)
            for _ in range(_SPANS):
                wanted = [f"order-{chance.randrange(size)}" for _ in range(_LOOKUPS)]
                watch = Stopwatch()
                with watch.running():
                    hits = sum(len(store.query("G", key)) for key in wanted)
                assert hits == _LOOKUPS
                found.note(f"lookup_by_key_{size}", OURS, watch.rate(hits))
            count, size = size, size * 10
    report.add_all(found, unit="1/s")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common_parser("rocketstore", __doc__, rounds=5)
    names = ", ".join(GROUPS)
    parser.add_argument(
        "--only", action="append", choices=GROUPS, metavar="GROUP", help=f"these only: {names}"
    )
    parser.add_argument("--messages", type=int, default=400_000, help="of a rate (400,000)")
    options = parse_common(parser, arguments)
    counts, rounds = Counts(options.messages), options.rounds
    groups = options.only or GROUPS
    with reporting(options) as (report, directory), ExitStack() as stack:
        real = None
        if set(groups) & {"rates", "syncs"}:
            real = _real(stack, report, directory, counts)
        if "rates" in groups:
            rates(report, directory, counts, rounds, real)
            judge(report)
        if "syncs" in groups:
            syncs(report, directory, min(rounds, 3), real)
        if "lookups" in groups:
            lookups(report, directory, 25 * options.messages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
