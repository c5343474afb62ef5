"""Leases: deliveries that come back when they are not settled in time.

A lease ends with the run of the engine: after a restart all messages that were delivered and not
acknowledged are delivered again anyway. Times are of :func:`time.monotonic`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from journal.errors import UsageError
from qindex.queue.notes.entry_note import EntryNote, Lease

_MOST = 1e9
_SPARE = 1024


class Leases:
    """When the leases of one queue end, whose lock is held for every call. O(log n) each.

    The leases are in the notes on their entries. A lease is over once its note has another one, or
    none.
    """

    def __init__(self, noted: dict[int, EntryNote]) -> None:
        self._noted = noted
        # The heap may have old times: an entry counts only if its lease ends then.
        self._times: list[tuple[float, int]] = []
        self._most = _SPARE

    def add(self, lease: Lease) -> None:
        """Note when a lease ends, which its entry's note has by now."""
        heappush(self._times, (lease.ends, lease.seq_id))
        if len(self._times) > self._most:
            self._times = [one for one in self._times if self._ending(one) is not None]
            heapify(self._times)
            self._most = 2 * len(self._times) + _SPARE

    def due(self, now: float) -> list[Lease]:
        """Return the leases that have ended, each once."""
        ended: list[Lease] = []
        while self._times and self._times[0][0] <= now:
            lease = self._ending(heappop(self._times))
            # Extended to the same time, it is there twice, next to itself.
            if lease is not None and not (ended and ended[-1] is lease):
                ended.append(lease)
        return ended

    def next_end(self) -> float | None:
        """Return when to look again."""
        while self._times and self._ending(self._times[0]) is None:
            heappop(self._times)
        return self._times[0][0] if self._times else None

    def _ending(self, time: tuple[float, int]) -> Lease | None:
        ends, seq_id = time
        note = self._noted.get(seq_id)
        lease = None if note is None else note.lease
        return lease if lease is not None and lease.ends == ends else None


def check_lease(seconds: float) -> float:
    """Return the seconds of a lease. Raises :class:`UsageError` for any other value."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"a lease is a number of seconds, not {seconds!r}")
    if not 0 < seconds <= _MOST:
        raise UsageError(f"a lease must be above 0 and at most {_MOST:g} seconds, not {seconds!r}")
    return seconds
