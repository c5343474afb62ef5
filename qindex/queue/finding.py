"""Finding messages of one queue by their keys.

The index is made as it is asked for: each call reads the entries that were published since the last
one, so that each entry is read once. A queue whose messages nobody looks for pays nothing.
"""

from __future__ import annotations

from array import array
from contextlib import suppress

import numpy as np

from journal.errors import DamageError
from journal.memory.arrays import I64
from qindex.format.entries import Entry
from qindex.format.unique import hash_key
from qindex.index.segment import ABSENT, ACKED, DELIVERED, HELD, HELD_AGAIN, PUBLISHED
from qindex.queue.delivery import LOOKED_AT, Delivery, make_delivery
from qindex.queue.message_reader import MessageReader
from qindex.queue.state import QueueState

_READ_TOGETHER = 2048
_MOST_SPARE = 1 << 14
_WAITING = (PUBLISHED, DELIVERED, HELD, HELD_AGAIN)


class Finder:
    """Finds the messages of one queue by their keys. 16 bytes of memory a message with a key."""

    __slots__ = ("_hashes", "_reader", "_seqs", "_start", "_state")

    def __init__(self, state: QueueState, reader: MessageReader) -> None:
        self._state = state
        self._reader = reader
        self._start = 0
        self._hashes = array("q")
        self._seqs = array("q")

    def find(self, key: str, most: int) -> list[Delivery]:
        """See :meth:`qindex.queue.queue.Queue.find`."""
        found: list[Delivery] = []
        with self._state.lock, self._state as state:
            self._catch_up()
            hashes = np.frombuffer(self._hashes, np.int64)
            rows = np.flatnonzero(hashes == hash_key(key))
            for seq in np.frombuffer(self._seqs, np.int64)[rows].tolist():
                if len(found) >= most:
                    break
                now = self._state_of(seq)
                if now not in _WAITING:
                    continue
                body, extra = state.index.read_held(seq)
                if isinstance(extra, int):
                    continue
                entry = self._reader.with_message(extra)
                if entry.message is not None and entry.message.key == key:
                    again = now in (DELIVERED, HELD_AGAIN)
                    body = entry.message.body
                    found.append(make_delivery(LOOKED_AT, state.base + seq, body, again, entry))
        return found

    def _state_of(self, seq: int) -> int:
        index = self._state.index
        if seq // index.entry_count not in index.segments:
            return ABSENT
        return index.state_of(seq)

    def _catch_up(self) -> None:
        """Take in what was published since the last call."""
        index = self._state.index
        for number, segment in list(index.segments.items()):
            if (number + 1) * index.entry_count <= self._start:
                continue
            if not segment.loaded:
                with suppress(DamageError):  # reported; the sound entries are loaded
                    index.bring(segment)
            states = np.frombuffer(segment.states, np.uint8)
            rels = np.flatnonzero((states != ABSENT) & (states != ACKED))
            rels = rels[rels + segment.base >= self._start]
            while len(rels):
                window, _ = index.read(segment, rels[:_READ_TOGETHER])
                for seq, extra in zip(window.seqs, window.extras, strict=True):
                    self._add(seq, extra)
                rels = rels[max(len(window), 1) :]
        self._start = index.next_seq
        self._forget_gone()

    def _add(self, seq: int, extra: int | Entry) -> None:
        if isinstance(extra, int):
            return
        message = self._reader.with_message(extra).message
        if message is not None and message.key is not None:
            self._hashes.append(hash_key(message.key))
            self._seqs.append(seq)

    def _forget_gone(self) -> None:
        if len(self._seqs) <= 2 * self._state.index.live + _MOST_SPARE:
            return
        seqs: I64 = np.array(self._seqs, np.int64)
        kept = self._state.index.are_there(seqs)
        self._hashes = array("q", np.array(self._hashes, np.int64)[kept].tobytes())
        self._seqs = array("q", seqs[kept].tobytes())
