"""Leases: deliveries that come back when they are not settled in time.

A lease ends with the run of the engine: after a restart all messages that were delivered and not
acknowledged are delivered again anyway. Times are of :func:`time.monotonic`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from journal.errors import UsageError
from qindex.format.entries import Entry

if TYPE_CHECKING:
    from qindex.queue.delivery import Delivery


_MOST = 1e9
_SPARE = 1024


@dataclass(slots=True)
class Lease:
    """A lease, with all that gives its message back: ``delivery`` loses it (``None``: one of a
    batch, which finds out by itself); ``count``: how often the message was delivered, this time
    included."""

    ends: float
    seq_id: int
    body: bytes
    extra: int | Entry
    count: int
    delivery: Delivery | None


class Leases:
    """The leases of one queue, whose lock is held for every call. O(log n) each."""

    def __init__(self) -> None:
        self._held: dict[int, Lease] = {}
        # The heap may have old times: an entry counts only if its lease ends then.
        self._times: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._held)

    def add(self, lease: Lease) -> None:
        """Begin a lease; one of the same message before it has ended."""
        self._held[lease.seq_id] = lease
        heapq.heappush(self._times, (lease.ends, lease.seq_id))
        if len(self._times) > 2 * len(self._held) + _SPARE:
            self._times = [(one.ends, seq) for seq, one in self._held.items()]
            heapq.heapify(self._times)

    def extend(self, seq_id: int, ends: float) -> bool:
        """Let a lease end at another time; false when there is none."""
        lease = self._held.get(seq_id)
        if lease is None:
            return False
        lease.ends = ends
        self.add(lease)
        return True

    def end_of(self, seq_id: int) -> float | None:
        """Return when the lease of a message ends; ``None``: it has none."""
        lease = self._held.get(seq_id)
        return None if lease is None else lease.ends

    def drop(self, seq_id: int) -> None:
        """Forget the lease of a message that was settled, if it has one."""
        self._held.pop(seq_id, None)

    def due(self, now: float) -> list[Lease]:
        """Take out the leases that have ended."""
        ended = []
        while self._times and self._times[0][0] <= now:
            ends, seq_id = heapq.heappop(self._times)
            lease = self._held.get(seq_id)
            if lease is not None and lease.ends == ends:
                ended.append(self._held.pop(seq_id))
        return ended

    def next_end(self) -> float | None:
        """Return when to look again."""
        return self._times[0][0] if self._held else None


def check_lease(seconds: float) -> float:
    """Return the seconds of a lease. Raises :class:`UsageError` for any other value."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"a lease is a number of seconds, not {seconds!r}")
    if not 0 < seconds <= _MOST:
        raise UsageError(f"a lease must be above 0 and at most {_MOST:g} seconds, not {seconds!r}")
    return seconds
