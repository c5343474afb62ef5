"""One moment of a queue's files. The holder of the store's lock notes the state of the files
(:func:`at_rest`); anybody else pins it, while the writer may be at work (:func:`pin_queue`).

Pinning takes no lock and writes nothing. These steps make a moment of files that change:

1. note the segment files: number, inode, size, and the first bytes of each;
2. read the journal whole;
3. look again: when a segment file has come, gone or grown, or the journal does not start with the
   record it started with, a flush came in between, and all is done again.

A flush appends to segments before it empties the journal, so between 1 and 3 everything is in at
least one of them. Where no writer was at work, step 3 is left out. Segment files only grow until
they are deleted, so the pinned part of them can be read at leisure. A file that is gone by then
held acknowledged messages only. Another file in its place under the same number starts with another
record, because seq_ids never repeat.

Bytes at the end of the journal may be half written while they are read. They are recognised by
reading them again: bytes that change were being written, bytes that do not are damaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import sleep
from typing import NamedTuple

from journal import format as journal_format
from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.block_sums import Healed, heal, read_sums, without_room
from journal.errors import StorageError, StoreError
from journal.findings import Cause, Finding, Kind
from journal.format import MAX_SEQ_ID
from journal.fs.files import (
    FileSystem,
    is_zeros,
    map_optional,
    opened,
    pread_all,
    read_optional,
)
from journal.poison import Poison
from qindex.format.record_layouts import journal_layout
from qindex.format.resynchronise import Layout, Reading, read_soundly
from qindex.format.segment import PUBLISH_HEAD_SIZE, file_name, file_number
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.index.pair_scan import PinnedPairs, pin_pairs
from qindex.index.segment_file import segment_files
from qindex.index.segment_scan import healed_findings, read_healed
from qindex.index.seq_ids import SeqFile
from qindex.recovery.damage import lost_files
from qindex.recovery.delivery_rules import DirectoryRules

_ATTEMPTS = 200
_LONGEST_PAUSE = 0.02
_SETTLE_PAUSES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
"""Seconds. A publish that is under way is done within microseconds, or within a few time slices
when the machine is busy."""
_AT_ONCE = (0.0,)
"""Where nobody writes any more: a last look, at what a writer has left that ended meanwhile."""
_BEYOND = 64


class BusyError(StoreError):
    """The files changed faster than they could be looked at, again and again."""


class GivenOut(NamedTuple):
    """The seq_ids that a queue has given out, as its file of them says.

    ``limit``: none above it was. ``below``: all below it were before the journal's first record;
    ``None`` where that is unknown. ``power_lost``: the run of the operating system in which the
    queue was written to has ended, and writes that were not synced may be lost. ``incarnation``:
    of the queue, 0 where it has none.
    """

    limit: int = MAX_SEQ_ID
    below: int | None = None
    power_lost: bool = False
    incarnation: int = 0

    @classmethod
    def of(cls, file: SeqFile) -> GivenOut:
        """Return what ``file`` says. A file that says nothing leaves all unknown."""
        limit = file.reserved - 1 if file.reserved else MAX_SEQ_ID
        below = file.next_after_crash(0) if file.same_run else None
        return cls(limit, below, file.power_lost, file.incarnation)


UNKNOWN = GivenOut()


@dataclass(frozen=True, slots=True)
class PinnedSegment:
    """A segment file as it was: ``size`` in bytes, ``head`` its first bytes. At rest nothing of it
    is noted: it will be there."""

    number: int
    inode: int = 0
    size: int = 0
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A queue's directory as it was: its segments by number, and its journal, read soundly;
    also the segments of version 2, if it may have any."""

    directory: str
    segments: dict[int, PinnedSegment]
    journal_path: str
    journal_size: int
    reading: Reading
    given_out: GivenOut = UNKNOWN
    pairs: PinnedPairs = field(default_factory=dict)


def at_rest(
    fs: FileSystem, directory: str, names: Iterable[str], given_out: GivenOut, *, vouched: bool
) -> Pinned:
    """Read the journal of a queue to which nobody writes, and note its segments.

    ``names``: of its files. ``vouched``: the checksums are of these files. The journal is mapped,
    so that it takes no memory. Raises :class:`OSError`.
    """
    names = set(names)
    path = os.path.join(directory, journal_format.FILE_NAME)
    data = map_optional(fs, path)
    findings: list[Finding] = []
    healed = Healed(data or b"")
    # A node that writes to the journal leaves the checksums of the bytes before its own.
    if data is not None and vouched and journal_format.FILE_NAME + SUMS_SUFFIX in names:
        healed = read_healed(fs, path, findings, data, given_out.power_lost)
    elif given_out.below is not None and is_zeros(healed.data):
        healed = Healed(b"")  # one at rest, or just emptied, which keeps its room on disk
    how = _layout(given_out, healed, vouched=vouched)
    reading = read_soundly(path, healed.data, how, healed.sound)
    reading.findings[:0] = findings
    if vouched:
        reading.findings += lost_files(fs, directory, names, power_lost=given_out.power_lost)
    segments = {number: PinnedSegment(number) for number in segment_files(names)}
    return Pinned(directory, segments, path, len(healed.data), reading, given_out)


def _layout(given_out: GivenOut, healed: Healed, *, vouched: bool = True) -> Layout:
    lost = given_out.power_lost
    complete = healed.end if vouched and not lost else 0
    return journal_layout(given_out.limit, power_lost=lost, complete=complete)


def pin_queue(
    fs: FileSystem,
    directory: str,
    rules: DirectoryRules,
    *,
    trust_sums: bool = True,
    only: Callable[[int], bool] | None = None,
    busy: Callable[[], bool] = lambda: True,
) -> Pinned:
    """Pin the queue in ``directory``, which has these ``rules``.

    ``trust_sums``: records of blocks whose checksum holds are not looked into. ``only``: tells by
    its number whether a segment is wanted. ``busy``: returns whether a writer may be at work;
    without one nothing is waited for.

    Raises :class:`FileNotFoundError` when the directory is not there (any more),
    :class:`BusyError` when its files did not keep still, :class:`StorageError` when the system
    refuses. O(size of the journal + number of segments).
    """
    path = os.path.join(directory, journal_format.FILE_NAME)
    seq_path = os.path.join(directory, SEQ_FILE_NAME)
    of_node = rules.repeats_are_damage
    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(min(0.0002 * attempt, _LONGEST_PAUSE))
        try:
            still = not of_node and not busy()
            started = None if still else SeqFile(fs, seq_path, Poison()).incarnation
            before = _segments(fs, directory, only)
            # Read first, so that they are not ahead of the journal. A node that goes on with a
            # journal of ours leaves them as they were.
            sums = without_room(read_sums(fs, path) or b"") if rules.vouched else b""
            content = read_optional(fs, path)
            journal = content or b""
            sums = b"" if content is None else sums  # a missing file is a finding of its own
            if before is None:
                continue
            if not (still and not busy()):
                if not _same_start(fs, path, journal):
                    continue
                if _segments(fs, directory, only) != before:
                    continue
                if not (read_sums(fs, path) or b"").startswith(sums):
                    continue
            pairs = of_node or rules.journalled_pairs
            found = pin_pairs(fs, directory, fs.listdir(directory)) if pairs else {}
            # Read after the journal: a flush raises it before it drops anything from there.
            seq_file = SeqFile(fs, seq_path, Poison())
            given_out = GivenOut.of(seq_file)
            if of_node:  # which leaves our file as it was
                given_out = UNKNOWN._replace(incarnation=given_out.incarnation)
            if started not in (None, given_out.incarnation):
                continue  # another queue has the name now
            healed = heal(journal, sums, power_lost=given_out.power_lost)
            if not trust_sums:
                healed.sound = 0
            reading = _settled(fs, path, healed, journal, _layout(given_out, healed), busy)
            if reading is not None and rules.vouched:
                # A node that deletes a segment leaves its checksums.
                lost = given_out.power_lost
                names = fs.listdir(directory)
                reading.findings += lost_files(fs, directory, names, power_lost=lost)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(directory, "the queue can't be read", error) from error
        if reading is not None:
            return Pinned(directory, before, path, len(journal), reading, given_out, found)
    raise BusyError(f"{directory}: the files changed each of {_ATTEMPTS} times they were read")


def _segments(
    fs: FileSystem, directory: str, only: Callable[[int], bool] | None
) -> dict[int, PinnedSegment] | None:
    """Note the segment files; ``None`` when one went away meanwhile."""
    found = {}
    for name in fs.listdir(directory):
        number = file_number(name)
        if number is None or not (only is None or only(number)) or name != file_name(number):
            continue
        try:
            found[number] = _pin_segment(fs, os.path.join(directory, name), number)
        except FileNotFoundError:
            return None
    return found


def _pin_segment(fs: FileSystem, path: str, number: int) -> PinnedSegment:
    try:
        with opened(fs, path) as fd:
            stat = fs.fstat(fd)
            return PinnedSegment(
                number, stat.st_ino, stat.st_size, pread_all(fs, fd, PUBLISH_HEAD_SIZE, 0)
            )
    except FileNotFoundError:
        raise
    except OSError:
        # A reader of its entries gets the error; the other segments can be read.
        stat = fs.stat(path)
        return PinnedSegment(number, stat.st_ino, stat.st_size, b"")


def _same_start(fs: FileSystem, path: str, journal: bytes) -> bool:
    """Return whether the journal still starts with the record it started with.

    Each record is in a queue's journal once in its life, so another one comes first after
    the journal was emptied.
    """
    length = journal_format.PUBLISH_HEAD_SIZE
    if not any(journal[:length]):
        return True
    if journal[0] & 0x80:
        length = journal_format.ACTION_SIZE
    return _bytes_at(fs, path, 0, length) == journal[:length]


def _bytes_at(fs: FileSystem, path: str, offset: int, length: int) -> bytes:
    try:
        with opened(fs, path) as fd:
            return pread_all(fs, fd, length, offset)
    except FileNotFoundError:
        return b""


def _settled(
    fs: FileSystem,
    path: str,
    healed: Healed,
    journal: bytes,
    layout: Layout,
    busy: Callable[[], bool],
) -> Reading | None:
    """Read the journal, without records that were being written meanwhile; ``None`` if it was
    emptied meanwhile. ``journal``: its bytes as they were, ``healed``: as they should be."""
    reading = read_soundly(path, healed.data, layout, healed.sound)
    certain = healed_findings(path, healed, layout.power_lost)
    size = len(journal)
    findings = [
        one
        for one in reading.findings
        if one.cause is Cause.DAMAGE or journal.count(0, one.offset) < size - one.offset
    ]
    if len(findings) < len(reading.findings):
        # Zeros from here on are how an open journal looks, with nothing in it or after it.
        reading.findings[:] = findings
    if not findings:
        reading.findings[:0] = certain
        return reading
    first = min(findings, key=lambda one: one.offset)
    length = max(one.offset + one.length for one in findings) - first.offset + _BEYOND
    seen = journal[first.offset : first.offset + length]
    for pause in _SETTLE_PAUSES if busy() else _AT_ONCE:
        sleep(pause)
        if not _same_start(fs, path, journal):
            return None
        if _bytes_at(fs, path, first.offset, length) != seen:
            # All before it was there when it was read, so that is also a moment.
            reading = read_soundly(path, healed.data[: first.offset], layout)
            break
    reading.findings[:0] = certain
    return reading


def read_segment(fs: FileSystem, directory: str, pinned: PinnedSegment) -> bytes | None:
    """Read the pinned part of a segment file.

    ``None``: it is gone, for all its messages were acknowledged since. Raises :class:`OSError`.
    """
    data = _bytes_at(fs, os.path.join(directory, file_name(pinned.number)), 0, pinned.size)
    if data[: len(pinned.head)] != pinned.head:
        return None
    return data


def has_moved_on(
    fs: FileSystem,
    directory: str,
    pinned: PinnedSegment,
    findings: list[Finding],
    busy: Callable[[], bool],
) -> bool:
    """Return whether ``findings`` only come of the file's having moved on: a torn record at the
    pinned end of a file that has grown since, or anything in a deleted file. ``busy``: as
    :func:`pin_queue` has it."""
    path = os.path.join(directory, file_name(pinned.number))
    if _bytes_at(fs, path, 0, len(pinned.head)) != pinned.head:
        return True
    torn = all(
        one.offset + one.length == pinned.size
        and (one.cause is Cause.CRASH or one.kind is Kind.TORN or not one.length)
        for one in findings
    )
    if not torn:
        return False
    for pause in _SETTLE_PAUSES if busy() else _AT_ONCE:
        sleep(pause)
        try:
            if fs.stat(path).st_size != pinned.size:
                return True
        except FileNotFoundError:
            return True
    return False
