"""Measure the cost of asyncio: publishing and confirming, beside the plain interface.

Figures are medians of interleaved rounds. ``asyncio_alone`` is what tasks that publish nothing
cost: a bound to any number of concurrent calls.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import qindex
import qindex.aio
from benchmarks.bodies import Bodies
from benchmarks.program import common_parser, fresh, parse_common, reporting
from benchmarks.report import OURS, Report
from benchmarks.stopwatch import Found

_BARS = (
    ("aio publish / plain publish", "aio_publish", "publish", 0.5),
    ("concurrent confirms / one at a time", "aio_confirmed", "aio_confirmed_one_by_one", 20.0),
    ("concurrent confirms / one fsync each", "aio_confirmed", "publish_fsync", 25.0),
)


def plain(found: Found, root: Path, figure: str, durability: Any, count: int) -> None:
    bodies = Bodies().take(count)
    with fresh(root) as directory, qindex.open(directory, durability=durability) as engine:
        queue = engine.queue("q")
        with found.rate(figure, OURS, count):
            for body in bodies:
                queue.publish(body)


async def twin(found: Found, root: Path, count: int, confirms: int) -> None:
    bodies = Bodies().take(max(count, confirms))
    few = bodies[: confirms // 10]
    with fresh(root) as directory:
        async with qindex.aio.open(directory) as engine:
            queue = await engine.queue("q")
            with found.rate("aio_publish", OURS, count):
                for body in bodies[:count]:
                    await queue.publish(body)
            with found.rate("aio_confirmed_one_by_one", OURS, len(few)):
                for body in few:
                    await queue.publish(body, confirm=True)
            with found.rate("aio_confirmed", OURS, confirms):
                calls = (queue.publish(body, confirm=True) for body in bodies[:confirms])
                await asyncio.gather(*calls)


async def alone(found: Found, count: int) -> None:
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    def resolve() -> None:
        for future in waiting:
            future.set_result(None)

    async def one(number: int) -> int:
        if not number:
            loop.call_soon(resolve)
        future = loop.create_future()
        waiting.append(future)
        await future
        return number

    with found.rate("asyncio_alone", OURS, count):
        await asyncio.gather(*map(one, range(count)))


def judge(report: Report) -> None:
    """Hold ratios of two figures of the same round against the bars."""
    for name, above, below, least in _BARS:
        pairs = zip(report.rounds[above], report.rounds[below], strict=True)
        report.rounds[name] = [{OURS: one[OURS], below: other[OURS]} for one, other in pairs]
        report.hold_ratio(name, below, least, name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = common_parser("aio", __doc__, rounds=5)
    parser.add_argument("--count", type=int, default=200_000, help="messages of a rate")
    parser.add_argument("--confirmed", type=int, default=10_000, help="confirms at a time")
    given = parse_common(parser, arguments)
    with reporting(given) as (report, directory):
        found, count, confirms = Found(), given.count, given.confirmed
        for _ in range(given.rounds):
            # The modules' own objects are no part of what a collection looks through.
            gc.collect()
            gc.freeze()
            plain(found, directory, "publish", "os", count)
            plain(found, directory, "publish_fsync", "fsync", confirms // 10)
            asyncio.run(twin(found, directory, count, confirms))
            asyncio.run(alone(found, confirms))
            gc.unfreeze()
        report.add_all(found, unit="1/s")
        judge(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
