"""Calls that a loop is to make later. One that is taken back leaves nothing behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedDict

Owner = TypeVar("Owner")
Timer = tuple[float, int]
"""When a call is due, by :func:`time.monotonic`, and its number."""


class Timers(Generic[Owner]):
    """Calls by their times, each with the owner that it is for. ``first``: when the next one is
    due, which a loop looks at all the time."""

    __slots__ = ("_calls", "_count", "first")

    def __init__(self) -> None:
        self._calls: SortedDict[Timer, tuple[Owner, Callable[[], None]]] = SortedDict()
        self._count = 0
        self.first: float = math.inf

    def add(self, deadline: float, owner: Owner, call: Callable[[], None]) -> Timer:
        """Have a call made at a time. Return what takes it back."""
        self._count += 1
        timer = deadline, self._count
        self._calls[timer] = owner, call
        self.first = min(self.first, deadline)
        return timer

    def forget(self, timer: Timer | None) -> None:
        """Take a call back, if it is not made yet."""
        if timer is not None and self._calls.pop(timer, None) is not None:
            self._find_first()

    def due(self, now: float) -> Iterator[tuple[Owner, Callable[[], None]]]:
        """Take the calls whose time has come, each as it is asked for."""
        while self.first <= now:
            found = self._calls.popitem(0)[1]
            self._find_first()
            yield found

    def _find_first(self) -> None:
        self.first = self._calls.peekitem(0)[0][0] if self._calls else math.inf
