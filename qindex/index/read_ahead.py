"""Entries that were read ahead, as columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from journal.format import ACTION_WORD, DELIVER_BITS
from qindex.format.entries import Entry, is_special
from qindex.index.segment import PUBLISHED, Segment

__all__ = ["NOTHING_FETCHED", "Fetched"]

I64 = npt.NDArray[np.int64]

_MOST_ADDED = 128


class Fetched:
    """Entries of one segment that were read ahead: columns of equal length, in order of seq_id.

    ``states``: :data:`qindex.index.segment.PUBLISHED`, or ``DELIVERED`` for an entry that was
    delivered before. ``extras``: of a plain message its timestamp (nanoseconds), of another the
    :class:`Entry`; ``plain``: all are plain. ``bodies``: empty for a message that is damaged.
    ``delivers``: the deliver record of each. ``base``: seq_id of the segment's first entry.
    ``most``: up to so many entries a publish adds its own, which is the next; 0: none.
    """

    __slots__ = (
        "base",
        "bodies",
        "delivers",
        "extras",
        "most",
        "plain",
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
        extras: Sequence[int | Entry],
        plain: bool,
    ) -> None:
        self.most = 0
        self.segment = segment
        self.base = segment.base
        self.seqs: list[int] = seqs.tolist()
        self.states = bytearray(states)
        self.bodies = bodies
        self.extras: list[int | Entry] = list(extras)
        self.plain = plain
        words = seqs.astype(np.uint64) | np.uint64(DELIVER_BITS)
        self.delivers: list[bytes] = words.astype(">u8").view("V8").tolist()

    @classmethod
    def few(
        cls, segment: Segment, seqs: range, bodies: list[bytes], extras: list[int | Entry]
    ) -> Fetched:
        """Of messages that were all read with their entries; without an array, which would cost
        more than the messages. A publish may add to them."""
        made = cls.__new__(cls)
        made.most = _MOST_ADDED
        made.segment = segment
        made.base = base = segment.base
        made.seqs = list(seqs)
        made.states = segment.states[seqs.start - base : seqs.stop - base]
        made.bodies = bodies
        made.extras = extras
        made.plain = Entry not in set(map(type, extras))
        made.delivers = [ACTION_WORD.pack(DELIVER_BITS | seq) for seq in seqs]
        return made

    @classmethod
    def run(
        cls,
        segment: Segment,
        first_seq: int,
        bodies: list[bytes],
        stamps: list[int],
        delivers: list[bytes],
    ) -> Fetched:
        """Of plain messages from ``first_seq`` on that were never delivered."""
        made = cls.__new__(cls)
        made.most = 0
        made.segment = segment
        made.base = segment.base
        made.seqs = list(range(first_seq, first_seq + len(bodies)))
        made.states = bytearray((PUBLISHED,)) * len(bodies)
        made.bodies = bodies
        made.extras = [*stamps]
        made.plain = True
        made.delivers = delivers
        return made

    def __len__(self) -> int:
        return len(self.seqs)

    def as_they_are(self, at: int, most: int) -> int:
        """Count the entries from ``at`` on, up to ``most``, that can be delivered as they are: that
        never expire, and whose messages were read with them, sound."""
        end = min(len(self.seqs), at + most)
        if not self.plain:
            extras = self.extras
            end = next((each for each in range(at, end) if is_special(extras[each])), end)
        return end - at


NOTHING_FETCHED = Fetched(Segment(0, 0), np.empty(0, np.int64), b"", [], [], True)
