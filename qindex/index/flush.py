"""A flush: bring what the journal holds into the segment files, so that the journal can be emptied.

A flush has three parts, so that publishers wait for none of the disk's work:

1. *Plan*, under the queue's lock: copy the state maps of the dirty segments (16 KiB each) and note
   how far the journal goes. Publishers go on appending behind that point.
2. *Write*, without the lock (:func:`write_plan`): delete the files of segments in which nothing is
   unacknowledged (first, for the disk may be full); append to the others, in ascending order, what
   their files do not have, and sync them.
   Then sync the directory if a file was created or deleted. Nothing of this changes what the queue
   is: until part 3, the journal says the same.
3. *Finish*, under the lock: drop the front of the journal (the commit point) and take over the new
   file states.

A crash in part 2 leaves entries in both journal and segments, or a segment file cut in its last
record: recovery merges the former and cuts the latter, the journal still has them.

A message that was published and acknowledged within one journal is never written to a segment.
Within one append the publish records come first, in order of seq_id, then the next-step records:
RabbitMQ reads that as well, and a run of equal publish records is read at once.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.block_sums import extent
from journal.errors import StorageError
from journal.files import FileSystem, ReadBuffer, unlink_if_there, write_all
from journal.format import PAYLOAD_SIZE, PUBLISH_TRANSIENT
from journal.poison import PASSING
from qindex.format.message_record import gather_bytes
from qindex.format.segment import (
    NEXT_STEP,
    PERSISTENT,
    PUBLISH,
    PUBLISH_HEAD_SIZE,
    STEP_SIZE,
    file_name,
)
from qindex.index.segment import ABSENT, ACKED, DELIVERED, PUBLISHED, Segment, as_filed

__all__ = ["FlushPlan", "SegmentPlan", "append_sums", "plan_segment", "remove_sums", "write_plan"]

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

_JOURNAL_HEAD = 8
_EMBEDDED_AT = _JOURNAL_HEAD + PAYLOAD_SIZE - 4
_BATCH_BYTES = 4 << 20


@dataclass(slots=True)
class SegmentPlan:
    """The part of a flush that one segment needs.

    ``states``: the state map now, ``filed``: that of the file, both as files know states.
    ``first_rel``, ``journal_offsets``: where in the journal the publish records of entries
    ``first_rel, first_rel + 1, ...`` stand (-1: not there). ``file_size``: bytes now.

    The results: ``offsets`` and ``lengths`` of the publish records that were appended, for the
    entries ``rels``; ``deleted``; ``rewritten``: bytes that were read from the file
    before are gone, because an earlier try of this flush had failed; ``file_size`` after.
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
    deleted: bool = False
    rewritten: bool = False

    @property
    def unacked(self) -> int:
        """Entries published less acknowledged."""
        return len(self.states) - self.states.count(ABSENT) - self.states.count(ACKED)


@dataclass(slots=True)
class FlushPlan:
    """All that one flush does. ``front``: bytes of ``journal`` that it makes superfluous.

    ``actions``: the queue's actions up to there; ``next_seq``: first seq_id not covered.
    """

    directory: str
    journal: ReadBuffer
    front: int
    actions: int
    next_seq: int
    segments: list[SegmentPlan]


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


def write_plan(fs: FileSystem, plan: FlushPlan) -> int:
    """Do part 2 of a flush; gives the bytes written.

    All of it is durable on return. Raises :class:`StorageError`: then the
    journal must stay, and the segment's file may end in a part of a record.
    """
    written = 0
    names_changed = False
    unacked = {segment.number: segment.unacked for segment in plan.segments}
    for segment in sorted(plan.segments, key=lambda one: unacked[one.number] > 0):
        path = os.path.join(plan.directory, file_name(segment.number))
        try:
            if not unacked[segment.number]:
                # An earlier try of this flush, which failed later on, may have removed the file,
                # or have made one that the index does not know.
                remove_sums(fs, path)
                names_changed |= unlink_if_there(fs, path) or segment.file_size > 0
                segment.deleted = True
                segment.file_size = 0
                continue
            names_changed |= segment.file_size == 0
            written += _append(fs, path, plan.journal, segment)
        except OSError as error:
            raise StorageError(path, "the segment can't be written", error) from error
    if names_changed:
        # The removal of a file is synced, too. If the file came back after a loss of power, with
        # the journal of its acks emptied, acknowledged messages would come back.
        try:
            fs.sync_dir(plan.directory)
        except OSError as error:
            raise StorageError(plan.directory, "the directory can't be synced", error) from error
    return written


def _append(fs: FileSystem, path: str, journal: ReadBuffer, segment: SegmentPlan) -> int:
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = fs.fstat(fd).st_size
        segment.rewritten = size != segment.file_size
        if not size:
            _forget_removed(segment)
        start = segment.file_size
        if size != start or not start:
            # Recovery has found the end of the file torn, or an earlier flush has left it so; or
            # these are the sums of a file that did not outlive a loss of power.
            remove_sums(fs, path)
        if size != start:
            fs.truncate(fd, start)
        states = np.frombuffer(segment.states, np.uint8)
        filed = np.frombuffer(segment.filed, np.uint8)
        fresh = (filed == ABSENT) & ((states == PUBLISHED) | (states == DELIVERED))
        rels = np.flatnonzero(fresh)
        offsets = segment.journal_offsets[rels - segment.first_rel] if len(rels) else rels
        steps = _step_records(states, filed, fresh)
        appender = _Appender(fs, fd, start)
        lengths = _append_publishes(appender, journal, rels, offsets)
        if len(steps):
            appender.append(steps)
        fs.fdatasync(fd)
    except OSError as error:
        if error.errno in PASSING:
            # The part that was written may have taken the last of the disk. Where it can't be
            # given back, the next flush does it.
            with suppress(OSError):
                fs.truncate(fd, segment.file_size)
        raise
    finally:
        fs.close(fd)
    append_sums(fs, path, appender.sums)
    size = appender.size
    segment.rels = rels
    segment.lengths = lengths
    segment.offsets = start + np.cumsum(lengths) - lengths
    segment.file_size = size
    return size - start


def _forget_removed(segment: SegmentPlan) -> None:
    """Take note that an earlier try of this flush has removed the file, and failed later on: all
    in it was acknowledged, and nothing of that is to be written again."""
    states = np.frombuffer(segment.states, np.uint8)
    filed = np.frombuffer(segment.filed, np.uint8)
    if (states[filed != ABSENT] == ACKED).all():
        segment.filed = bytearray(len(segment.filed))
        segment.file_size = 0


class _Appender:
    """Appends to a segment file and takes the checksums of what it appends."""

    def __init__(self, fs: FileSystem, fd: int, size: int) -> None:
        self._fs = fs
        self._fd = fd
        self.size = size
        self.sums: list[bytes] = []

    def append(self, data: bytes | memoryview) -> None:
        write_all(self._fs, self._fd, data)
        self.sums.append(extent(data, self.size))
        self.size += len(data)


def append_sums(fs: FileSystem, path: str, sums: list[bytes]) -> None:
    """Append extents to the sum file of ``path``; see :mod:`journal.block_sums`."""
    if sums:
        fd = fs.open(
            path + SUMS_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        try:
            write_all(fs, fd, b"".join(sums))
        finally:
            fs.close(fd)


def remove_sums(fs: FileSystem, path: str) -> None:
    """Remove the sum file of ``path``; done before the bytes it is of change."""
    unlink_if_there(fs, path + SUMS_SUFFIX)


def _step_records(states: U8, filed: U8, fresh: npt.NDArray[np.bool_]) -> bytes:
    """Give the next-step records: one for each step from the filed state to the present one."""
    had = np.where(fresh, PUBLISHED, filed)
    counts = np.where((had == ABSENT) | (states < had), 0, states - had)
    rels = np.repeat(np.arange(len(states)), counts)
    return (rels | NEXT_STEP).astype(">u2").tobytes()


def _append_publishes(appender: _Appender, journal: ReadBuffer, rels: I64, offsets: I64) -> I64:
    """Append the publish records that stand at ``offsets`` of the journal; gives their lengths in
    the segment."""
    if not len(rels):
        return rels
    heads, lengths = _heads_and_lengths(journal, rels, offsets)
    ends = np.cumsum(lengths)
    first = 0
    while first < len(rels):
        done = int(ends[first] - lengths[first])
        last = max(first + 1, int(np.searchsorted(ends, done + _BATCH_BYTES, side="right")))
        part = slice(first, last)
        if (lengths[part] == lengths[first]).all():
            length = int(lengths[first])
            appender.append(_equal_records(journal, heads[part], offsets[part], length))
        else:
            appender.append(_unequal_records(journal, heads[part], offsets[part], lengths[part]))
        first = last
    return lengths


def _heads_and_lengths(journal: ReadBuffer, rels: I64, offsets: I64) -> tuple[I64, I64]:
    """Give the first two bytes (as numbers) and the length of each record in the segment."""
    stride = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 0
    if stride > 0 and (np.diff(offsets) == stride).all():
        # A run of records: read in place, without an index for each byte.
        shape, strides, first = (len(offsets),), (stride,), int(offsets[0])
        kinds = np.ndarray(shape, np.uint8, journal, first, strides) >> 6
        embedded = np.ndarray(shape, ">u4", journal, first + _EMBEDDED_AT, strides)
    else:
        kinds = np.frombuffer(journal, np.uint8)[offsets] >> 6
        embedded = gather_bytes(journal, offsets + _EMBEDDED_AT, 4).view(">u4").ravel()
    heads = PUBLISH | np.where(kinds == PUBLISH_TRANSIENT, 0, PERSISTENT) | rels
    return heads, embedded.astype(np.int64) + PUBLISH_HEAD_SIZE


def _equal_records(journal: ReadBuffer, heads: I64, offsets: I64, length: int) -> memoryview:
    block = np.empty((len(heads), length), np.uint8)
    block[:, STEP_SIZE:] = gather_bytes(journal, offsets + _JOURNAL_HEAD, length - STEP_SIZE)
    block[:, :STEP_SIZE] = heads.astype(">u2").view(np.uint8).reshape(-1, STEP_SIZE)
    return block.ravel().data


def _unequal_records(journal: ReadBuffer, heads: I64, offsets: I64, lengths: I64) -> bytes:
    view = memoryview(journal)
    parts: list[bytes | memoryview] = []
    packed = heads.astype(">u2").tobytes()
    starts = (offsets + _JOURNAL_HEAD).tolist()
    ends = (offsets + _JOURNAL_HEAD + lengths - STEP_SIZE).tolist()
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        parts.append(packed[2 * index : 2 * index + 2])
        parts.append(view[start:end])
    return b"".join(parts)
