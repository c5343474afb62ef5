"""Samples of rates: the clock of all of them, and the rounds that they are noted in."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one contender in one round. ``cpu_us`` is process CPU for each operation."""

    value: float
    cpu_us: float | None = None
    count: int = 0


Round = dict[str, Sample]
"""The sample of each contender that was measured, in one round."""
Rounds = Sequence[Mapping[str, Sample]]


class Found(defaultdict[str, list[Round]]):
    """The rounds of each figure, as they are measured."""

    def __init__(self) -> None:
        super().__init__(list)

    def note(self, figure: str, who: str, sample: Sample) -> None:
        """Add a sample; the second one of a contender begins the next round of the figure."""
        rounds = self[figure]
        if not rounds or who in rounds[-1]:
            rounds.append({})
        rounds[-1][who] = sample

    @contextmanager
    def rate(self, figure: str, who: str, count: int) -> Iterator[None]:
        """Note the rate of the block, which does ``count`` operations."""
        watch = Stopwatch()
        with watch.running(count):
            yield
        self.note(figure, who, watch.rate())


class Stopwatch:
    """Adds up wall time and the process's CPU time over the parts that are to be measured, and
    the operations that were done in them."""

    __slots__ = ("count", "cpu", "wall")

    def __init__(self) -> None:
        self.wall = 0.0
        self.cpu = 0.0
        self.count = 0

    @contextmanager
    def running(self, count: int = 0) -> Iterator[None]:
        cpu = time.process_time()
        wall = time.perf_counter()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
        self.count += count

    def chunks(self, count: int, seconds: float, first: int, largest: int) -> Iterator[int]:
        """Sizes that double up to ``largest``, until ``count`` operations are done or this has
        run for ``seconds``: a slow contender can be stopped by the clock, and a fast one is not
        slowed down by being asked for little at a time."""
        done, size = 0, first
        while done < count and (self.wall < seconds or not done):
            part = min(size, count - done)
            yield part
            done += part
            size = min(size * 2, largest)

    def rate(self, count: int = 0) -> Sample:
        """The operations a second: ``count`` of them, or those that were counted."""
        done = count or self.count
        return Sample(done / self.wall, self.cpu / done * 1e6, done)
