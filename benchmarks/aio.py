"""Measure the cost of asyncio: publishing and confirming, beside the plain interface.

``python -m benchmarks.aio [--count N] [--confirmed N] [--rounds N] [--dir DIR] [--json FILE]``
prints a JSON line for each figure (medians of interleaved rounds) and for each bar.
``asyncio_alone`` is what tasks that publish nothing cost: a bound to any number of concurrent
calls.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import qindex
import qindex.aio
from benchmarks.bodies import Bodies
from benchmarks.program import common_parser, fresh, parse_common, reporting
from benchmarks.report import OURS, Found, Report
from benchmarks.stopwatch import Stopwatch

_BARS = (
    ("aio publish / plain publish", "aio_publish", "publish", 0.5),
    ("concurrent confirms / one at a time", "aio_confirmed", "aio_confirmed_one_by_one", 20.0),
    ("concurrent confirms / one fsync each", "aio_confirmed", "publish_fsync", 25.0),
)


class _Run:
    def __init__(self, directory: Path, count: int, confirmed: int) -> None:
        self._directory = directory
        self._count = count
        self._confirmed = confirmed
        self.found = Found()

    @contextmanager
    def rate(self, figure: str, count: int) -> Iterator[None]:
        """Note the rate of what the block does."""
        watch = Stopwatch()
        with watch.running(count):
            yield
        self.found.note(figure, OURS, watch.rate())

    def round(self) -> None:
        """Run each part once, on a store of its own."""
        # The modules' own objects are no part of what a collection looks through.
        gc.collect()
        gc.freeze()
        self._plain("publish", "os", self._count)
        self._plain("publish_fsync", "fsync", self._confirmed // 10)
        asyncio.run(self._twin())
        asyncio.run(self._alone())

    def _plain(self, figure: str, durability: Any, count: int) -> None:
        bodies = Bodies().take(count)
        path = fresh(self._directory)
        with path as directory, qindex.open(directory, durability=durability) as engine:
            queue = engine.queue("q")
            with self.rate(figure, count):
                for body in bodies:
                    queue.publish(body)

    async def _twin(self) -> None:
        bodies = Bodies().take(self._count)
        confirmed = bodies[: self._confirmed]
        with fresh(self._directory) as directory:
            async with qindex.aio.open(directory) as engine:
                queue = await engine.queue("q")
                with self.rate("aio_publish", self._count):
                    for body in bodies:
                        await queue.publish(body)
                few = confirmed[: self._confirmed // 10]
                with self.rate("aio_confirmed_one_by_one", len(few)):
                    for body in few:
                        await queue.publish(body, confirm=True)
                with self.rate("aio_confirmed", self._confirmed):
                    calls = (queue.publish(body, confirm=True) for body in confirmed)
                    await asyncio.gather(*calls)

    async def _alone(self) -> None:
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

        with self.rate("asyncio_alone", self._confirmed):
            await asyncio.gather(*map(one, range(self._confirmed)))


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
        run = _Run(directory, given.count, given.confirmed)
        try:
            for _ in range(given.rounds):
                run.round()
        finally:
            gc.unfreeze()
        report.add_all(run.found, unit="1/s")
        judge(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
