"""Segment files: ``K.idx``, to which records are appended (:mod:`qindex.format.segment`), with a
file of checksums beside it.

A flush (:mod:`qindex.index.flush`) decides the content of a segment; these functions read and
write it. All of them raise :class:`OSError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.block_sums import extent
from journal.findings import Cause, Finding, Kind
from journal.format import PAYLOAD_SIZE, PUBLISH_TRANSIENT
from journal.fs.files import FileSystem, ReadBuffer, replace_file, unlink_if_there, write_all
from journal.memory.arrays import I64, U8
from journal.poison import PASSING
from qindex.format.message_record import gather_bytes
from qindex.format.resynchronise import Elsewhere
from qindex.format.segment import (
    NEXT_STEP,
    PERSISTENT,
    PUBLISH,
    PUBLISH_HEAD_SIZE,
    STEP_SIZE,
    file_name,
    file_number,
)
from qindex.index.segment import ABSENT, ACKED, DELIVERED, PUBLISHED, Segment, as_filed, count_held
from qindex.index.segment_scan import SegmentScan, read_healed, scan_segment

_JOURNAL_HEAD = 8
_EMBEDDED_AT = _JOURNAL_HEAD + PAYLOAD_SIZE - 4
_BATCH_BYTES = 4 << 20


def segment_path(directory: str, number: int) -> str:
    """Return the path of a segment's file."""
    return os.path.join(directory, file_name(number))


def segment_files(names: Iterable[str]) -> list[int]:
    """Return the numbers of the segments that have a file among these ``names``, ascending."""
    return sorted({number for number in map(file_number, names) if number is not None})


def size_of(fs: FileSystem, path: str) -> int:
    """Return the size of a file in bytes, 0 if there is none. Raises :class:`OSError`."""
    try:
        return fs.stat(path).st_size
    except FileNotFoundError:
        return 0


# -- read -----------------------------------------------------------------------------------------


def scan_file(
    fs: FileSystem,
    directory: str,
    number: int,
    entry_count: int,
    *,
    data: bytes | None = None,
    trust_sums: bool = True,
    elsewhere: Elsewhere | None = None,
    power_lost: bool = False,
    at_rest: bool = False,
    synced: bool = False,
) -> SegmentScan:
    """Read a segment. Damage is not an error: see the findings.

    ``data``: the file's bytes as they were, beside a writer. ``trust_sums``: records of blocks
    whose checksum holds are not looked into. ``elsewhere``, ``power_lost``: see
    :func:`qindex.format.record_layouts.segment_layout`. ``at_rest``: no flush was cut short there,
    so the file's checksums cover everything that was synced. ``synced``: the whole file was, so no
    crash has cut anything short. Raises :class:`FileNotFoundError` if there is no file.
    """
    path = segment_path(directory, number)
    findings: list[Finding] = []
    healed = read_healed(fs, path, findings, data, power_lost=power_lost)
    complete = healed.end if at_rest else 0
    ahead = power_lost and healed.end > len(healed.data) and not at_rest
    if ahead or (healed.torn and data is None):
        # Both files are written anew: these sums must not be held against the next append.
        what, lost = "the checksums are not those of the file", "nothing is lost"
        findings.append(Finding(path, 0, 0, Cause.CRASH, what, lost, Kind.UNFINISHED))
    if data is not None and complete > len(data) and size_of(fs, path) > len(data):
        # A flush has written to the file since, and may have been half-way when it was pinned.
        complete = healed.sound
    if synced:
        complete = len(healed.data)
    verified = healed.sound if trust_sums else 0
    scan = scan_segment(
        path, healed.data, number, entry_count, verified, elsewhere, power_lost, complete
    )
    scan.findings[:0] = findings
    return scan


# -- repair ---------------------------------------------------------------------------------------


def repaired(directory: str, number: int, scan: SegmentScan) -> SegmentScan:
    """Return what a damaged or torn segment holds once :func:`rewrite` has repaired it."""
    return scan_segment(
        segment_path(directory, number), scan.sound_bytes(), number, len(scan.filed)
    )


def rewrite(fs: FileSystem, directory: str, number: int, scan: SegmentScan) -> None:
    """Replace a damaged or torn segment file by what :func:`repaired` returned, durably."""
    path = segment_path(directory, number)
    remove_sums(fs, path)
    if not scan.data:
        fs.unlink(path)
    else:
        replace_file(fs, path, bytes(scan.data))
        append_sums(fs, path, [extent(scan.data, 0)])


def delete(fs: FileSystem, directory: str, number: int) -> bool:
    """Remove the file of a segment, and return whether there was one. The caller syncs the
    directory."""
    path = segment_path(directory, number)
    remove_sums(fs, path, durably=False)
    return unlink_if_there(fs, path)


# -- append ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class SegmentPlan:
    """The part of a flush that one segment needs.

    ``states``: the state map now, ``filed``: that of the file, both as files know states.
    ``first_rel``, ``journal_offsets``: where in the journal the publish records of entries
    ``first_rel, first_rel + 1, ...`` are (-1: not there). ``file_size``: bytes now.

    The results: ``offsets`` and ``lengths`` of the publish records that were appended, for the
    entries ``rels``; ``deleted``; ``rewritten``: the file was not as long as it should be, because
    an earlier try of this flush had failed, say; ``missing``: bytes that were written before, and
    that another program has taken away; ``file_size`` after.
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
    missing: int = 0

    @property
    def unacked(self) -> int:
        """Entries published less acknowledged."""
        return count_held(self.states)


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


def append(fs: FileSystem, directory: str, journal: ReadBuffer, segment: SegmentPlan) -> int:
    """Append a flush's records to a segment with unacknowledged entries, and sync it.

    Fill in the results of the plan, and return the bytes written. The caller syncs the directory.
    """
    path = segment_path(directory, segment.number)
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
    """Appends to a segment file and takes the checksums of the appended bytes."""

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
    the bytes that they cover would pass for lost.
    """
    if unlink_if_there(fs, path + SUMS_SUFFIX) and durably:
        fs.sync_dir(os.path.dirname(path))


def _step_records(states: U8, filed: U8, fresh: npt.NDArray[np.bool_]) -> bytes:
    """Return the next-step records: one for each step from the filed state to the present one."""
    had = np.where(fresh, PUBLISHED, filed)
    counts = np.where((had == ABSENT) | (states < had), 0, states - had)
    rels = np.repeat(np.arange(len(states)), counts)
    return (rels | NEXT_STEP).astype(">u2").tobytes()


def _append_publishes(appender: _Appender, journal: ReadBuffer, rels: I64, offsets: I64) -> I64:
    """Append the publish records that are at ``offsets`` of the journal; return their lengths in
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
    """Return the first two bytes (as numbers) and the length of each record in the segment."""
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
