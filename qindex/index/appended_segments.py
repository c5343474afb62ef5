"""Segments as RabbitMQ's version 1 has them: one file ``K.idx``, to which records are appended
(:mod:`qindex.format.segment`), with a file of checksums beside it.
"""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from journal.arrays import I64, U8
from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.block_sums import extent
from journal.files import FileSystem, ReadBuffer, replace_file, unlink_if_there, write_all
from journal.findings import Cause, Finding, Kind
from journal.format import PAYLOAD_SIZE, PUBLISH_TRANSIENT
from journal.poison import PASSING
from qindex.format.message_record import gather_bytes
from qindex.format.resynchronise import Elsewhere
from qindex.format.segment import (
    DEFAULT_ENTRY_COUNT,
    NEXT_STEP,
    PERSISTENT,
    PUBLISH,
    PUBLISH_HEAD_SIZE,
    STEP_SIZE,
    file_name,
    file_number,
)
from qindex.index.segment import ABSENT, ACKED, PUBLISHED
from qindex.index.segment_form import Known, Places, SegmentForm, SegmentPlan
from qindex.index.segment_scan import SegmentScan, read_healed, scan_segment

_JOURNAL_HEAD = 8
_EMBEDDED_AT = _JOURNAL_HEAD + PAYLOAD_SIZE - 4
_BATCH_BYTES = 4 << 20


class _Appended(SegmentForm):
    version = 1
    default_entry_count = DEFAULT_ENTRY_COUNT
    rereads = True
    overwrites = False

    def file_name(self, number: int) -> str:
        return file_name(number)

    def file_number(self, name: str) -> int | None:
        return file_number(name)

    def size(self, fs: FileSystem, directory: str, number: int) -> int:
        return size_of(fs, os.path.join(directory, file_name(number)))

    def place(self, rel: Places, offset: Places) -> Places:
        return offset

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
        path = os.path.join(directory, file_name(number))
        findings: list[Finding] = []
        healed = read_healed(fs, path, findings, power_lost=power_lost)
        complete = healed.end if at_rest else 0
        ahead = power_lost and healed.end > len(healed.data) and not at_rest
        if ahead or healed.torn:
            # Both files are written anew: what is appended next must not be held against these.
            what, lost = "the checksums are not those of the file", "nothing is lost"
            findings.append(Finding(path, 0, 0, Cause.CRASH, what, lost, Kind.UNFINISHED))
        scan = scan_segment(
            path, healed.data, number, entry_count, healed.sound, elsewhere, power_lost, complete
        )
        scan.findings[:0] = findings
        return scan

    def append(self, fs: FileSystem, directory: str, journal: ReadBuffer, plan: SegmentPlan) -> int:
        return _append(fs, os.path.join(directory, file_name(plan.number)), journal, plan)

    def stamp(self, fs: FileSystem, directory: str, number: int) -> int:
        return 0

    def forget_deliveries(self, fs: FileSystem, directory: str, number: int, count: int) -> None:
        pass  # RabbitMQ notes them there, too

    def delete(self, fs: FileSystem, directory: str, number: int) -> bool:
        path = os.path.join(directory, file_name(number))
        remove_sums(fs, path, durably=False)  # the flush syncs the directory
        return unlink_if_there(fs, path)

    def mended(self, directory: str, number: int, scan: SegmentScan) -> SegmentScan:
        path = os.path.join(directory, file_name(number))
        return scan_segment(path, scan.sound_bytes(), number, len(scan.filed))

    def mend(self, fs: FileSystem, directory: str, number: int, mended: SegmentScan) -> None:
        path = os.path.join(directory, file_name(number))
        remove_sums(fs, path)
        if not mended.data:
            fs.unlink(path)
        else:
            replace_file(fs, path, bytes(mended.data))
            append_sums(fs, path, [extent(mended.data, 0)])


def size_of(fs: FileSystem, path: str) -> int:
    """Give the bytes of a file, 0 where there is none. Raises :class:`OSError`."""
    try:
        return fs.stat(path).st_size
    except FileNotFoundError:
        return 0


APPENDED: SegmentForm = _Appended()
"""The form of all stores but those whose segments a RabbitMQ node of 4.x is to read."""


def _append(fs: FileSystem, path: str, journal: ReadBuffer, segment: SegmentPlan) -> int:
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    try:
        size = fs.fstat(fd).st_size
        segment.rewritten = size != segment.file_size
        if not size:
            _forget_removed(segment)
        start = segment.file_size
        segment.missing = max(start - size, 0)
        if size != start or not start:
            # Recovery has found the end of the file torn, or an earlier flush has left it so; or
            # these are the sums of a file that did not outlive a loss of power.
            remove_sums(fs, path)
        if size != start:
            fs.truncate(fd, start)
        states = np.frombuffer(segment.states, np.uint8)
        filed = np.frombuffer(segment.filed, np.uint8)
        fresh = segment.fresh()
        rels = np.flatnonzero(fresh)
        offsets = segment.offsets_in_journal(rels)
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
        fd = fs.open(path + SUMS_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        try:
            write_all(fs, fd, b"".join(sums))
        finally:
            fs.close(fd)


def remove_sums(fs: FileSystem, path: str, *, durably: bool = True) -> None:
    """Remove the sum file of `path`. Call this before changing the data it covers.

    The removal is synced, unless the caller syncs the directory itself before it lets anything go
    that the data is of. Otherwise a loss of power could bring back checksums of other bytes, and
    what they cover would pass for lost.
    """
    if unlink_if_there(fs, path + SUMS_SUFFIX) and durably:
        fs.sync_dir(os.path.dirname(path))


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
