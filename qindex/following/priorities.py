"""Follow a priority queue: a follower for the directory of each priority.

Each returns the messages of its priority in order. Among the messages that one look finds, those
of a higher priority come first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import monotonic

from journal.errors import ClosedError, UsageError
from journal.fs.files import FileSystem
from qindex.following.follower import Follower, QueueGoneError, Start
from qindex.following.gap import Gap
from qindex.following.waker import Waker
from qindex.format import layout
from qindex.format.priorities import LOW, SHIFT
from qindex.queue.delivery import Delivery
from qindex.queue.wake_ups import deadline_after
from qindex.view.reader import StoreReader

_LOOK = 0.25
"""Seconds between two looks for directories of further priorities."""


class PriorityFollower(Follower):
    """An iterator of the messages of a priority queue; as :class:`Follower`."""

    def __init__(
        self,
        directory: str,
        queue: str,
        start: Start,
        *,
        timeout: float | None,
        waker: Waker,
        on_gap: Callable[[Gap], None] | None,
        fs: FileSystem,
    ) -> None:
        self._priorities: dict[int, Follower] = {}
        self._looked_at = 0.0
        super().__init__(
            directory,
            queue,
            start,
            timeout=timeout,
            wait=False,
            waker=waker,
            on_gap=on_gap,
            fs=fs,
        )

    def _enter(self) -> None:
        if isinstance(self._start, int) and self._start >> SHIFT not in self._look_for_more():
            raise UsageError(
                f"{self.directory}: queue {self.name!r} has no messages of the priority that "
                f"seq_id {self._start} has"
            )
        self._look_for_more()

    def _look_for_more(self) -> dict[int, Follower]:
        """Follow the directories that have come since the last look."""
        first = not self._looked_at
        self._looked_at = monotonic()
        reader = StoreReader(self.directory, self._fs).queue(self.name)
        for one in reader.directories:
            if one.priority is not None and one.priority not in self._priorities:
                start = self._start_of(one.priority, first=first)
                self._priorities[one.priority] = self._follower(one.directory, one.priority, start)
        return self._priorities

    def _start_of(self, priority: int, *, first: bool) -> Start:
        """Return where to start in a priority; ``first``: its directory was there at the start."""
        if isinstance(self._start, int):
            return self._start & LOW if self._start >> SHIFT == priority else "earliest"
        return self._start if first else 0

    def _follower(self, name: str, priority: int, start: Start) -> Follower:
        def on_gap(gap: Gap) -> None:
            base = priority << SHIFT
            self._report(Gap(base + gap.first, base + gap.stop, gap.reason))

        return Follower(
            self.directory,
            name,
            start,
            timeout=None,
            wait=False,
            waker=Waker(1.0, events=False),
            on_gap=on_gap,
            fs=self._fs,
        )

    def __iter__(self) -> Iterator[Delivery]:
        while (delivery := self.get(self._timeout)) is not None:
            yield delivery

    def get(self, timeout: float | None = None) -> Delivery | None:
        """Return the next message, or ``None`` when none came within ``timeout`` seconds (``None``:
        wait for ever), or after :meth:`stop`. Raises as iteration does."""
        deadline = deadline_after(timeout)
        while not self._stopped:
            if isinstance(self._failure, ClosedError):
                raise self._failure
            delivery = self._next_of_any()
            if delivery is not None:
                self._waker.news()
                return delivery
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                break
            if monotonic() - self._looked_at > _LOOK:
                self._look_for_more()
            self._waker.wait(os.path.join(self.directory, layout.QUEUES), left)
        return None

    def _next_of_any(self) -> Delivery | None:
        for priority in sorted(self._priorities, reverse=True):
            try:
                delivery = self._priorities[priority].get(0)
            except QueueGoneError:
                what = f"{self.directory}: queue {self.name!r} was deleted"
                raise QueueGoneError(what) from None
            if delivery is not None:
                delivery.seq_id += priority << SHIFT
                return delivery
        return None

    def stop(self) -> None:
        """End iteration, and any wait that is under way. From any thread."""
        for one in list(self._priorities.values()):
            one.stop()
        super().stop()

    def close(self) -> None:
        """Stop, and let go of the files. From the thread that reads."""
        for one in self._priorities.values():
            one.close()
        super().close()
