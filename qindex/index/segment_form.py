"""The form of a queue's segments on disk: which files there are, and how they are read and written.

A flush (:mod:`qindex.index.flush`) decides what is to be in a segment, a form puts it there. All
forms give what they read as a segment file of RabbitMQ's version 1 would have it, so that entries
are read in one way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from journal.arrays import I64, Bools
from journal.files import FileSystem, ReadBuffer
from journal.format import ACK, DELIVER
from journal.replay import Walk
from qindex.format.resynchronise import Elsewhere
from qindex.index.segment import ABSENT, DELIVERED, PUBLISHED, Segment, as_filed, count_held
from qindex.index.segment_scan import SegmentScan

Places = TypeVar("Places", int, I64)


@dataclass(slots=True)
class SegmentPlan:
    """The part of a flush that one segment needs.

    ``states``: the state map now, ``filed``: that of the file, both as files know states.
    ``first_rel``, ``journal_offsets``: where in the journal the publish records of entries
    ``first_rel, first_rel + 1, ...`` stand (-1: not there). ``file_size``: bytes now.

    The results: ``offsets`` and ``lengths`` of the publish records that were appended, for the
    entries ``rels``; ``created``: a file was made; ``deleted``; ``rewritten``: what was read
    before is not what there is, because an earlier try of this flush had failed, say;
    ``missing``: bytes that were written before, and that another program has taken away;
    ``file_size`` after.
    """

    number: int
    states: bytearray
    filed: bytearray
    first_rel: int
    journal_offsets: I64
    file_size: int
    rels: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    offsets: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    lengths: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    created: bool = False
    deleted: bool = False
    rewritten: bool = False
    missing: int = 0

    @property
    def unacked(self) -> int:
        """Entries published less acknowledged."""
        return count_held(self.states)

    def fresh(self) -> Bools:
        """Tell which entries the files do not have, and are to have. Shape ``(entry_count,)``."""
        states = np.frombuffer(self.states, np.uint8)
        filed = np.frombuffer(self.filed, np.uint8)
        fresh: Bools = (filed == ABSENT) & ((states == PUBLISHED) | (states == DELIVERED))
        return fresh

    def offsets_in_journal(self, rels: I64) -> I64:
        """Give where the publish records of the entries ``rels`` stand in the journal."""
        return self.journal_offsets[rels - self.first_rel] if len(rels) else rels


def plan_segment(segment: Segment, first_rel: int, journal_offsets: I64) -> SegmentPlan:
    """Copy what a flush needs of a segment; see :class:`SegmentPlan`. The queue's lock is held."""
    return SegmentPlan(
        segment.number,
        bytearray(as_filed(segment.states)),
        bytearray(segment.filed),
        first_rel,
        journal_offsets,
        segment.file_size,
    )


class Known(NamedTuple):
    """The journal's part in a segment: which entries it publishes, and which it acknowledges.
    Shapes ``(entry_count,)``."""

    published: Bools
    acked: Bools

    @classmethod
    def of(cls, walk: Walk, number: int, entry_count: int) -> Known:
        """Give what the records of a journal tell of segment ``number``."""
        rels = walk.seqs - number * entry_count
        inside = (rels >= 0) & (rels < entry_count)
        masks = np.zeros((2, entry_count), np.bool_)
        masks[0, rels[inside & (walk.kinds < DELIVER)]] = True
        masks[1, rels[inside & (walk.kinds == ACK)]] = True
        return cls(masks[0], masks[1])


class SegmentForm(ABC):
    """See the module's text. Forms keep nothing; all calls raise :class:`OSError`.

    ``rereads``: a record can be read by itself, at its place in :meth:`file_name`. Otherwise all
    of a segment is read at once. ``overwrites``: a flush changes bytes that are there, so that the
    journal has to be durable before.
    """

    version: int
    default_entry_count: int
    rereads: bool
    overwrites: bool

    @abstractmethod
    def file_name(self, number: int) -> str:
        """Name the file that is there as long as the segment is."""

    @abstractmethod
    def file_number(self, name: str) -> int | None:
        """Give the number of the segment whose file this is, ``None`` for the name of another."""

    @abstractmethod
    def size(self, fs: FileSystem, directory: str, number: int) -> int:
        """Give the bytes of a segment's files, 0 where there are none."""

    @abstractmethod
    def place(self, rel: Places, offset: Places) -> Places:
        """Give the offset in :meth:`file_name` of the entry whose record stands at ``offset`` of
        what :meth:`scan` gave; numbers, or arrays of them."""

    @abstractmethod
    def scan(
        self,
        fs: FileSystem,
        directory: str,
        number: int,
        entry_count: int,
        *,
        elsewhere: Elsewhere | None = None,
        known: Known | None = None,
        power_lost: bool = False,
        at_rest: bool = False,
    ) -> SegmentScan:
        """Read a segment. No damage is an error: see the findings. Raises
        :class:`FileNotFoundError` where it has no file. ``elsewhere``, ``power_lost``: see
        :func:`qindex.format.record_layouts.segment_layout`. ``at_rest``: nobody is writing to the
        file, and no flush was cut short there, so its checksums tell what was synced. ``known``:
        for a form that overwrites, what a flush that was cut short may have left is passed
        over."""

    @abstractmethod
    def append(self, fs: FileSystem, directory: str, journal: ReadBuffer, plan: SegmentPlan) -> int:
        """Write what a flush has for a segment in which something is not acknowledged, durably but
        for the names; gives the bytes written, and fills in the plan's results."""

    @abstractmethod
    def stamp(self, fs: FileSystem, directory: str, number: int) -> int:
        """Give what tells, beside the size, that nobody has changed a segment: seconds since
        1970; 0 where the size alone tells."""

    @abstractmethod
    def forget_deliveries(self, fs: FileSystem, directory: str, number: int, count: int) -> None:
        """Take note, durably, that any entry of a segment may have been delivered, for somebody
        else has had it; where the files themselves do not tell."""

    @abstractmethod
    def delete(self, fs: FileSystem, directory: str, number: int) -> bool:
        """Remove the files of a segment; tells whether there was one."""

    @abstractmethod
    def mended(self, directory: str, number: int, scan: SegmentScan) -> SegmentScan:
        """Give what the files of a damaged or torn segment hold once they are mended. Nothing is
        written."""

    @abstractmethod
    def mend(self, fs: FileSystem, directory: str, number: int, mended: SegmentScan) -> None:
        """Put sound files in the place of damaged or torn ones, durably."""
