"""Messages that wait for their dead-letter queue, and are too many to be kept in memory.

While that queue is full, messages that expire here, or were delivered too often, stay in their
places, are marked as being moved, and are tried again now and then. The first
:data:`MOST_WAITING` of them are kept whole, if they are small. Of the others the seq_id and the
reason are kept, nine bytes; their messages are read again when it is their turn.
"""

from __future__ import annotations

from array import array
from typing import get_args

from qindex.queue.dead_letter import Reason

MOST_WAITING = 1024
"""Messages of one queue that wait in memory for their dead-letter queue."""
_REASONS: tuple[Reason, ...] = get_args(Reason)


class Postponed:
    """seq_ids of messages that are marked as being moved, each with the reason, first come first.

    The queue's lock is held for every call.
    """

    def __init__(self) -> None:
        self._seqs = array("q")
        self._reasons = bytearray()

    def __len__(self) -> int:
        return len(self._seqs)

    def add(self, seq: int, reason: Reason) -> None:
        """Note one. Nine bytes."""
        self._seqs.append(seq)
        self._reasons.append(_REASONS.index(reason))

    def first(self, most: int) -> dict[int, Reason]:
        """Return up to ``most`` of the first, in ascending order; they stay until :meth:`drop`."""
        seqs = self._seqs[:most]
        end = next((at for at in range(1, len(seqs)) if seqs[at] < seqs[at - 1]), len(seqs))
        reasons = (_REASONS[one] for one in self._reasons[:end])
        return dict(zip(seqs[:end], reasons, strict=True))

    def drop(self, count: int) -> None:
        """Forget the first ``count``. O(all)."""
        del self._seqs[:count]
        del self._reasons[:count]
