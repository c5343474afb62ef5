"""Durations of one kind of work that waits for the disk: counts in fixed buckets.

Nothing on the path of a publish, delivery or ack is timed: that would cost as much as a part of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds of the buckets, in seconds; one more holds what took longer."""


@dataclass(frozen=True, slots=True)
class Durations:
    """``counts``: how many took as long as each of :data:`BOUNDS` at most and longer than the one
    before, and how many took longer than all; ``seconds``: their sum."""

    counts: tuple[int, ...]
    seconds: float

    def __add__(self, other: Durations) -> Durations:
        """Return the durations of both."""
        counts = tuple(map(int.__add__, self.counts, other.counts))
        return Durations(counts, self.seconds + other.seconds)

    @property
    def count(self) -> int:
        """Count them."""
        return sum(self.counts)


NO_DURATIONS = Durations((0,) * (len(BOUNDS) + 1), 0.0)


class Stopwatch:
    """Takes times, one at a time: the caller sees to it that no two run at once."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time a block, if it does not raise."""
        started = perf_counter()
        yield
        self.took(perf_counter() - started)

    def took(self, seconds: float) -> None:
        """Count something that was timed."""
        if not self._counts:
            self._counts = [0] * (len(BOUNDS) + 1)
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def durations(self) -> Durations:
        """Return the durations taken so far."""
        return Durations(tuple(self._counts), self._seconds) if self._counts else NO_DURATIONS
