"""Finding messages of one queue by their keys.

The index grows with each lookup: it reads the entries that were published since the last lookup, so
that each entry is read once. A queue whose messages nobody looks for pays nothing.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from journal.errors import DamageError
from journal.memory.arrays import I64
from qindex.format.entries import Entry
from qindex.format.headers import hash_key
from qindex.index.segment import ABSENT, ACKED, DELIVERED, HELD, HELD_AGAIN, PUBLISHED
from qindex.queue.delivery import LOOKED_AT, Delivery, make_delivery
from qindex.queue.message_reader import MessageReader
from qindex.queue.notes.entry_note import next_count
from qindex.queue.state import QueueState

_READ_TOGETHER = 2048
_FEW = 16
"""New entries up to this number are read one by one."""
_MAX_RECENT = 4096
_RECENT_SHARE = 16
_WAITING = (PUBLISHED, DELIVERED, HELD, HELD_AGAIN)
_GONE = (ABSENT, ACKED)


class Finder:
    """Finds the messages of one queue by their keys.

    Recent entries are in a dictionary. When there are many, they join the older ones, which are
    sorted by the hashes of their keys: 16 bytes of memory each. The queue's lock is held.
    """

    __slots__ = ("_hashes", "_reader", "_recent", "_recent_count", "_seqs", "_start", "_state")

    def __init__(self, state: QueueState, reader: MessageReader) -> None:
        self._state = state
        self._reader = reader
        self._start = 0
        self._hashes: I64 = np.empty(0, np.int64)
        self._seqs: I64 = np.empty(0, np.int64)
        self._recent: dict[int, list[int]] = {}
        self._recent_count = 0

    def work(self, key: str) -> int:
        """Return how many entries a search for this key would read, at most."""
        older, recent = self._places(hash_key(key))
        return self._state.index.next_seq - self._start + len(older) + len(recent)

    def find(self, key: str, most: int) -> list[Delivery]:
        found: list[Delivery] = []
        state = self._state
        if self._start < state.index.next_seq:
            self._catch_up()
        hashed = hash_key(key)
        older, recent = self._places(hashed)
        if recent:
            there = [seq for seq in recent if self._state_of(seq) not in _GONE]
            self._recent_count -= len(recent) - len(there)
            self._recent[hashed] = recent = there
            if not there:
                del self._recent[hashed]
        for seq in (*older, *recent):
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
                shown = make_delivery(LOOKED_AT, state.base + seq, body, again, entry)
                shown._count = next_count(state.noted.get(seq))
                found.append(shown)
        return found

    def _places(self, hashed: int) -> tuple[list[int], list[int]]:
        """Return the older and the recent entries whose keys have this hash, each ascending."""
        older: list[int] = []
        if len(self._hashes):
            first, end = np.searchsorted(self._hashes, (hashed, hashed + 1))
            older = self._seqs[first:end].tolist()
        return older, self._recent.get(hashed, [])

    def _state_of(self, seq: int) -> int:
        index = self._state.index
        if seq // index.entry_count not in index.segments:
            return ABSENT
        return index.state_of(seq)

    def _catch_up(self) -> None:
        """Take in the messages published since the last call."""
        index = self._state.index
        if index.next_seq - self._start <= _FEW and self._start >= index.tail.base:
            for seq in range(self._start, index.next_seq):
                if self._state_of(seq) not in _GONE:
                    self._add(seq, index.read_held(seq)[1])
            self._merge_many()
        else:
            self._read_on()
        self._start = index.next_seq

    def _read_on(self) -> None:
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
                self._merge_many()

    def _add(self, seq: int, extra: int | Entry) -> None:
        if isinstance(extra, int):
            return
        message = self._reader.with_message(extra).message
        if message is not None and message.key is not None:
            self._recent.setdefault(hash_key(message.key), []).append(seq)
            self._recent_count += 1

    def _merge_many(self) -> None:
        """Sort the recent entries into the older ones once there are many, and forget those that
        are gone."""
        if self._recent_count <= max(_MAX_RECENT, len(self._seqs) // _RECENT_SHARE):
            return
        recent = [(hashed, seq) for hashed, seqs in self._recent.items() for seq in seqs]
        pairs: I64 = np.array(recent, np.int64).reshape(-1, 2)
        hashes = np.concatenate((self._hashes, pairs[:, 0]))
        seqs = np.concatenate((self._seqs, pairs[:, 1]))
        there = self._state.index.are_there(seqs)
        hashes, seqs = hashes[there], seqs[there]
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._seqs = hashes[order], seqs[order]
        self._recent, self._recent_count = {}, 0
