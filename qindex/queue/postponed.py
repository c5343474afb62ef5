"""Messages that wait for their dead-letter queue, where more do than are kept in memory.

While that queue is full all that expires here, or was delivered too often, stays in its place, is
marked as being moved, and is tried again now and then. The first :data:`MOST_WAITING` of them are
kept as they are, if they are small; of the others the seq_id and the reason, nine bytes, and their
messages are read again when it is their turn.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, get_args

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError
from qindex.format.entries import Entry
from qindex.format.message import Message
from qindex.index.segment import MOVING
from qindex.queue.dead_letter import Letter, Reason

if TYPE_CHECKING:
    from qindex.index.queue_index import QueueIndex
    from qindex.queue.delivering import Consumer
    from qindex.queue.settling import Settler

__all__ = ["MOST_WAITING", "Postponed", "keeps_in_memory", "recall"]

I64 = npt.NDArray[np.int64]

_log = logging.getLogger("qindex.queue")

MOST_WAITING = 1024
"""Messages of one queue that wait in memory for their dead-letter queue."""
_MOST_BODY = 4096
"""What waits in memory beside others has a body of no more bytes."""
_MOST_BYTES = MOST_WAITING * _MOST_BODY
"""Bytes of bodies that are read again at a time: about so many, and one message more."""

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
        """Give up to ``most`` of the first, in ascending order; they stay until :meth:`drop`."""
        seqs = self._seqs[:most]
        end = next((at for at in range(1, len(seqs)) if seqs[at] < seqs[at - 1]), len(seqs))
        reasons = (_REASONS[one] for one in self._reasons[:end])
        return dict(zip(seqs[:end], reasons, strict=True))

    def drop(self, count: int) -> None:
        """Forget the first ``count``. O(all)."""
        del self._seqs[:count]
        del self._reasons[:count]


def keeps_in_memory(queue: Settler, message: Message) -> bool:
    """Tell whether a message that is to be moved may wait as it is. Lock held."""
    waiting = len(queue._to_move)
    if queue._postponed or waiting >= MOST_WAITING:
        return False
    return not waiting or len(message.body) <= _MOST_BODY


def recall(queue: Consumer) -> list[Letter]:
    """Read the next of the messages that were postponed again, as letters. Lock held.

    One that can't be read is set aside and dropped, as one that is about to be delivered is.
    Raises :class:`StorageError`; what was not read is still postponed then.
    """
    postponed = queue._postponed
    wanted = postponed.first(MOST_WAITING)
    seqs = np.array(list(wanted), np.int64)
    letters: list[Letter] = []
    size = 0
    for seq, body, extra in _read_again(queue._index, seqs):
        message = _message_of(queue, seq, body, extra)
        if message is not None:
            letters.append(queue._letter(seq, message, wanted[seq]))
            size += len(message.body)
        if size > _MOST_BYTES:
            postponed.drop(int(np.searchsorted(seqs, seq)) + 1)
            return letters
    postponed.drop(len(seqs))
    return letters


def _message_of(queue: Consumer, seq: int, body: bytes, extra: int | Entry) -> Message | None:
    if isinstance(extra, int):
        return Message(body, timestamp=extra)
    entry = queue._with_message(extra)
    if entry.stored:
        queue._stored_out[seq] = entry.msg_id
    if entry.message is None:
        path, offset = queue._set_aside(seq, entry)
        _log.error("%s: at offset %d: not moved, for it is damaged: %s", path, offset, entry.damage)
        queue._ack_all(np.array([seq]))
    return entry.message


def _read_again(index: QueueIndex, seqs: I64) -> Iterator[tuple[int, bytes, int | Entry]]:
    """Read those entries, in ascending order, that are still to be moved: body, and timestamp or
    entry, of each."""
    while len(seqs):
        with suppress(DamageError):  # reported; the sound entries are loaded
            index.segment_of(int(seqs[0]))
        segment = index.segment_of(int(seqs[0]))
        rels = seqs[seqs < segment.base + index.entry_count] - segment.base
        seqs = seqs[len(rels) :]
        rels = rels[np.frombuffer(segment.states, np.uint8)[rels] == MOVING]
        while len(rels):
            fetched, _ = index._read(segment, rels)
            yield from zip(fetched.seqs, fetched.bodies, fetched.extras, strict=True)
            rels = rels[len(fetched) :]
