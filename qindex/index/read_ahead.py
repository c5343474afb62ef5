"""The entries that were read ahead, and the ones given back."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import MutableSequence
from typing import Any, TypeAlias

import numpy as np

from journal.memory import words
from journal.memory.arrays import I64
from qindex.format.entries import Entry, is_special
from qindex.index.segment import PUBLISHED, Segment

Extras: TypeAlias = MutableSequence[Any]
"""Of each message its timestamp or its :class:`Entry`: an array where all are timestamps, or a
list."""

_ROOM = 512 << 10
_EACH = 4 << 10
"""Bytes that a message takes of the room beside its body: there are 128 small messages at most."""


class Window:
    """Entries of one segment that were read ahead: columns of equal length, in order of seq_id.

    ``states``: :data:`qindex.index.segment.PUBLISHED`, or ``DELIVERED`` for an entry that was
    delivered before. ``extras``: of a plain message its timestamp (nanoseconds), of another the
    :class:`Entry`; ``plain``: all are plain (an array, as a rule). ``bodies``: empty for a message
    that is damaged.
    ``base``: seq_id of the segment's first entry.
    ``room``: bytes of messages that publishes may still add, each of which is the next; 0: none.
    """

    __slots__ = (
        "base",
        "bodies",
        "extras",
        "plain",
        "room",
        "segment",
        "seqs",
        "states",
    )

    def __init__(
        self,
        segment: Segment,
        seqs: I64,
        states: bytes,
        bodies: list[bytes],
        extras: Extras,
        plain: bool,
    ) -> None:
        self.room: int = 0
        self.segment: Segment = segment
        self.base: int = segment.base
        self.seqs: array[int] = array("q", seqs.tobytes())
        self.states: bytearray = bytearray(states)
        self.bodies: list[bytes] = bodies
        self.extras: Extras = extras
        self.plain: bool = plain

    @classmethod
    def few(
        cls, segment: Segment, seqs: range, bodies: list[bytes], extras: list[int | Entry]
    ) -> Window:
        """Of messages that were all read with their entries; without an array, which would cost
        more than the messages. A publish may add to them."""
        made = cls.__new__(cls)
        made.room = _ROOM
        made.segment = segment
        made.base = base = segment.base
        made.seqs = array("q", seqs)
        made.states = segment.states[seqs.start - base : seqs.stop - base]
        made.bodies = bodies
        made.extras = extras
        made.plain = Entry not in set(map(type, extras))
        return made

    def let_go(self, at: int) -> None:
        """Drop a message that was delivered."""
        self.bodies[at] = b""
        self.extras[at] = 0

    @classmethod
    def run(
        cls,
        segment: Segment,
        first_seq: int,
        bodies: list[bytes],
        stamps: array[int],
    ) -> Window:
        """Of plain messages from ``first_seq`` on that were never delivered."""
        made = cls.__new__(cls)
        made.room = 0
        made.segment = segment
        made.base = segment.base
        seqs = np.arange(first_seq, first_seq + len(bodies), dtype=np.int64)
        made.seqs = array("q", seqs.tobytes())
        made.states = bytearray((PUBLISHED,)) * len(bodies)
        made.bodies = bodies
        made.extras = stamps
        made.plain = True
        return made

    def part(self, start: int, end: int) -> Window:
        """Return the entries from index ``start`` to ``end`` as a window of their own."""
        made = Window.__new__(Window)
        made.room = 0
        made.segment = self.segment
        made.base = self.base
        made.seqs = self.seqs[start:end]
        made.states = self.states[start:end]
        made.bodies = self.bodies[start:end]
        made.extras = self.extras[start:end]
        made.plain = self.plain
        return made

    def __len__(self) -> int:
        return len(self.bodies)

    def as_they_are(self, at: int, most: int) -> int:
        """Count the entries from ``at`` on, up to ``most``, that can be delivered as they are: that
        never expire, and whose messages were read with them, sound."""
        end = min(len(self.bodies), at + most)
        if not self.plain:
            extras = self.extras
            end = next((each for each in range(at, end) if is_special(extras[each])), end)
        return end - at


# Its base is above each seq_id, so that nothing is looked for in it.
EMPTY_WINDOW = Window(Segment.unloaded(1 << 62, 1, 0, 0), np.empty(0, np.int64), b"", [], [], True)


class ReadAhead:
    """Where the next delivery comes from: messages that were given back, then the window.

    ``window``: read ahead; the entry at ``at`` of it is the next one. ``rest``: the window that
    follows it, from ``rest_at`` on. ``next_fetch``: the seq_id to read on from. ``returned``:
    seq_ids of messages that were given back, a heap; they come before the window.
    ``returned_by_seq``: body, and timestamp or entry, of each. ``staged``: a delayed message that
    is due, with body, and timestamp or entry; it comes first.
    """

    __slots__ = (
        "at",
        "next_fetch",
        "rest",
        "rest_at",
        "returned",
        "returned_by_seq",
        "staged",
        "window",
    )

    def __init__(self) -> None:
        self.window: Window = EMPTY_WINDOW
        self.at: int = 0
        self.rest: Window | None = None
        self.rest_at: int = 0
        self.next_fetch: int = 0
        self.staged: tuple[int, bytes, int | Entry] | None = None
        self.returned: list[int] = []
        self.returned_by_seq: dict[int, tuple[bytes, int | Entry]] = {}

    def is_empty(self) -> bool:
        """Return whether the next message has to be read first."""
        is_used_up = not self.returned and self.at == len(self.window.bodies)
        return is_used_up and self.staged is None

    def take(self, window: Window, next_fetch: int) -> None:
        """Go on with a window that was read, where the last one is used up."""
        self.window = window
        self.at = 0
        self.next_fetch = next_fetch

    def clip(self, at: int) -> None:
        """Let the window end before index ``at``. What follows comes back by :meth:`go_on`."""
        self.rest, self.rest_at = self.window, at
        self.window = self.window.part(self.at, at)
        self.at = 0

    def put_off(self) -> None:
        """Let the window end here, for a delayed message may come before the rest of it."""
        left = len(self.window.bodies) - self.at
        if self.rest is not None:
            self.rest_at -= left
        elif left:
            self.rest, self.rest_at = self.window, self.at
        self.window = EMPTY_WINDOW
        self.at = 0

    def go_on(self) -> bool:
        """Go on with what :meth:`clip` has put off, and return whether there was anything."""
        if self.rest is None:
            return False
        self.window, self.at, self.rest = self.rest, self.rest_at, None
        return True

    def keeps_up(self, segment: Segment, seq: int, size: int) -> bool:
        """Return whether the consumer keeps up with the publishers and there is room for the
        message of ``size`` bytes that was just published. Then it need not be read."""
        window = self.window
        return seq == self.next_fetch and size < window.room and window.segment is segment

    def add(self, seq: int, body: bytes, extra: int | Entry) -> None:
        """Add the message that was just published; see :meth:`keeps_up`."""
        window = self.window
        words.push(window.seqs, seq)
        window.bodies.append(body)
        window.extras.append(extra)
        window.states.append(PUBLISHED)
        window.room -= len(body) + _EACH
        self.next_fetch = seq + 1

    def give_back(self, seq: int, body: bytes, extra: int | Entry) -> None:
        """Let a message be delivered again, before all that was not delivered yet."""
        first = self._first_unread()
        if seq >= first:
            # A read comes by it again, also where that has passed it: some that were given back
            # before are in the window.
            self._read_again(first)
        elif seq not in self.returned_by_seq:
            self.returned_by_seq[seq] = body, extra
            heapq.heappush(self.returned, seq)

    def _read_again(self, first: int) -> None:
        if first < self.next_fetch:
            self.window = EMPTY_WINDOW
            self.at = 0
            self.rest = None
            self.next_fetch = first

    def take_returned(self) -> tuple[int, bytes, int | Entry]:
        """Take the staged message, or the first message given back: seq_id, body, and timestamp or
        entry."""
        if self.staged is not None:
            staged, self.staged = self.staged, None
            return staged
        seq = heapq.heappop(self.returned)
        return seq, *self.returned_by_seq.pop(seq)

    def first(self) -> tuple[int, int | Entry]:
        """Return the next message, which is here: seq_id, and timestamp or entry."""
        if self.staged is not None:
            return self.staged[0], self.staged[2]
        if self.returned:
            seq = self.returned[0]
            return seq, self.returned_by_seq[seq][1]
        return self.window.seqs[self.at], self.window.extras[self.at]

    def replace_first(self, extra: Entry) -> None:
        """Put another entry in the place of the next message's."""
        if self.staged is not None:
            self.staged = *self.staged[:2], extra
        elif self.returned:
            seq = self.returned[0]
            self.returned_by_seq[seq] = self.returned_by_seq[seq][0], extra
        else:
            self.window.extras[self.at] = extra

    def pass_first(self) -> None:
        """Skip the next message."""
        if self.returned or self.staged is not None:
            self.take_returned()
        else:
            self.at += 1

    def rewind(self) -> None:
        """Forget the messages that were read and not delivered, and those given back. A new read
        returns the same messages in the same order."""
        first = self._first_unread()
        self.forget(min(first, self.returned[0]) if self.returned else first)

    def _first_unread(self) -> int:
        """Return the first seq_id that was read and not delivered, or that is to be read next."""
        seqs = self.window.seqs
        if self.at < len(seqs):
            return min(self.next_fetch, seqs[self.at])
        return self.next_fetch if self.rest is None else self.rest.seqs[self.rest_at]

    def forget(self, next_fetch: int) -> None:
        """Forget all, and read on from ``next_fetch``."""
        self.window = EMPTY_WINDOW
        self.at = 0
        self.rest = None
        self.staged = None
        self.next_fetch = next_fetch
        self.returned = []
        self.returned_by_seq = {}

    def unread(self, seq: int) -> None:
        """Remove this entry from the entries read ahead, so that no forward read returns it."""
        if self.returned_by_seq.pop(seq, None) is not None:
            self.returned.remove(seq)
            heapq.heapify(self.returned)
        if seq < self.next_fetch:
            self._read_again(self._first_unread())
