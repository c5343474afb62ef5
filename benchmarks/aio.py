"""Measure the cost of asyncio: publishing and confirming, beside the plain interface.

``python -m benchmarks.aio [--count N] [--confirmed N] [--rounds N] [--dir DIR] [--json FILE]``
prints a JSON line for each figure (medians of interleaved rounds) and for each bar.
``asyncio_alone`` is what tasks that publish nothing cost: a bound to any number of concurrent
calls.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import qindex
import qindex.aio
from benchmarks.bodies import Bodies
from benchmarks.program import common_parser, fresh, parse_common, reporting
from benchmarks.report import OURS, Report, Round, Sample

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
        self.figures: dict[str, list[Round]] = {}

    def note(self, figure: str, count: int, started: float) -> None:
        rate = Sample(count / (perf_counter() - started), count=count)
        self.figures.setdefault(figure, []).append({OURS: rate})

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
            started = perf_counter()
            for body in bodies:
                queue.publish(body)
            self.note(figure, len(bodies), started)

    async def _twin(self) -> None:
        bodies = Bodies().take(self._count)
        path = tempfile.mkdtemp(dir=self._directory)
        async with qindex.aio.open(path) as engine:
            queue = await engine.queue("q")
            started = perf_counter()
            for body in bodies:
                await queue.publish(body)
            self.note("aio_publish", len(bodies), started)
            confirmed = bodies[: self._confirmed]
            started = perf_counter()
            for body in confirmed[: self._confirmed // 10]:
                await queue.publish(body, confirm=True)
            self.note("aio_confirmed_one_by_one", self._confirmed // 10, started)
            await self._together(
                "aio_confirmed", lambda n: queue.publish(confirmed[n], confirm=True)
            )
        shutil.rmtree(path)

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

        await self._together("asyncio_alone", one)

    async def _together(self, figure: str, call: Callable[[int], Coroutine[Any, Any, int]]) -> None:
        started = perf_counter()
        await asyncio.gather(*(call(number) for number in range(self._confirmed)))
        self.note(figure, self._confirmed, started)


def judge(report: Report) -> None:
    """Hold ratios of two figures of the same round against the bars."""
    for name, above, below, least in _BARS:
        pairs = zip(report.rounds[above], report.rounds[below], strict=True)
        report.rounds[name] = [{OURS: one[OURS], below: other[OURS]} for one, other in pairs]
        report.judge([replace(report.hold_ratio(name, below, least), bar=name)])


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
        for name, rounds in run.figures.items():
            report.add(name, rounds, unit="1/s")
        judge(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
