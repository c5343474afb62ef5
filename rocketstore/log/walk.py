"""Walk the CommitLog from file to file, record by record, to where it ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

from rocketstore.format.commitlog_format import MESSAGE_MAGIC, NO_START
from rocketstore.log.commitlog import MAX_COPIED, CommitLog
from rocketstore.log.mapped_files import MappedFile, holds_data
from rocketstore.log.scan import Records, Stop, scan_file

_MAGIC = MESSAGE_MAGIC.to_bytes(4, "big", signed=True)
_PIECE = 1 << 20
"""Bytes that are looked through at a time."""


class OnDamage(Protocol):
    """A walk calls it at bytes that are not a sound record."""

    def __call__(self, walk: LogWalk, /) -> int | None:
        """Return the offset where the walk goes on from ``walk.end``; ``None`` ends the walk."""

    def bad_body(self, file: MappedFile, start: int, end: int, store_timestamp: int, /) -> bool:
        """Whether a record of which only the body is bad was replaced by something sound."""


class LogWalk:
    """Iterate over ``(start of file, records)`` from an offset on.

    Afterwards ``end`` is the offset where the walk stopped, ``stop`` why, ``last`` offset and
    size of the last record before it (zeros if none), ``bad_bodies`` the offsets of records
    whose frame is sound and whose body is not: with ``keep_bad_bodies`` such a record is part of
    the log if a sound record follows it.
    """

    def __init__(
        self,
        commitlog: CommitLog,
        offset: int,
        *,
        check_crc: bool = True,
        placed: bool = False,
        strict: bool = False,
        keep_bad_bodies: bool = False,
        limit: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> None:
        self._log = commitlog
        self._check_crc = check_crc
        self._placed = placed
        self._strict = strict
        self._keep_bad_bodies = keep_bad_bodies
        self._limit = limit
        self._on_damage = on_damage
        self.end: int = offset
        self.stop: Stop = Stop.END
        self.last: tuple[int, int] = (0, 0)
        self.last_store_time: int = 0
        self.bad_bodies: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, Records]]:
        files = self._log.files
        file = files.find(self.end)
        position = self.end - file.start if file is not None else 0
        while file is not None:
            yield from self._walk_file(file, position)
            if self._limit is not None and self.end >= self._limit:
                return
            if self.stop is not Stop.BAD:
                file = files.files.get(file.start + file.size)
                position = 0
                continue
            after = self._on_damage(self) if self._on_damage is not None else None
            if after is None:
                return
            self.end = after
            file = files.find(after)
            position = after % files.size

    def _walk_file(self, file: MappedFile, position: int) -> Iterator[tuple[int, Records]]:
        end = file.held
        if self._limit is not None:
            end = max(position, min(end, self._limit - file.start))
        while True:
            records, position, stop = self._scan(file, position, end, self._check_crc, 8192)
            # Judged before anything is given away: a writer goes on meanwhile.
            bad = None
            if stop is Stop.BAD and self._keep_bad_bodies:
                bad = self._bad_body(file, position, end)
            self.stop = stop
            self.end = file.start + position
            if len(records):
                self.last = (file.start + int(records.positions[-1]), int(records.sizes[-1]))
                self.last_store_time = int(records.store_times[-1])
                yield file.start, records
            if bad is None:
                if stop is Stop.LIMIT:
                    continue
                return
            if not len(bad):
                continue  # it was written while it was looked at
            after = position + int(bad.sizes[0])
            if self._is_replaced(file, position, after, bad):
                continue
            self.bad_bodies.append(file.start + position)
            position = after
            self.end = file.start + position
            yield file.start, bad

    def _is_replaced(self, file: MappedFile, position: int, after: int, records: Records) -> bool:
        return self._on_damage is not None and self._on_damage.bad_body(
            file, file.start + position, file.start + after, int(records.store_times[0])
        )

    def _scan(
        self, file: MappedFile, position: int, end: int, check_crc: bool, limit: int
    ) -> tuple[Records, int, Stop]:
        return scan_file(
            partial(self._log.files.read, file),
            file.start,
            position,
            end,
            check_crc=check_crc,
            placed=self._placed,
            strict=self._strict,
            limit=limit,
        )

    def _bad_body(self, file: MappedFile, position: int, end: int) -> Records | None:
        """Return the record at ``position`` if only its body is wrong and the log goes on after it.

        Return ``None`` if there is no such record, and empty `Records` if the record is sound now.
        The next record was put after this one. So this one is read again once the next was seen: a
        body that is wrong then is not being written.
        """
        record, after, _ = self._scan(file, position, end, False, 1)
        if len(record) == 0 or int(record.offsets[0]) != file.start + position:
            return None
        following, _, stop = self._scan(file, after, file.held, False, 1)
        if len(following):
            goes_on = int(following.offsets[0]) == file.start + after
        else:
            goes_on = stop is Stop.BLANK and file.start + file.size in self._log.files.files
        if not goes_on:
            return None
        again, _, _ = self._scan(file, position, end, True, 1)
        return again.take(slice(0, 0)) if len(again) else record


class SkipDamage:
    """Goes on at the next sound record, changing nothing; ``skipped`` are the offsets where there
    was none. A record that a writer has put there meanwhile is not skipped."""

    def __init__(self, commitlog: CommitLog) -> None:
        self._commitlog = commitlog
        self.skipped: list[int] = []

    def __call__(self, walk: LogWalk, /) -> int | None:
        """The next sound record's offset."""
        after = find_survivor(self._commitlog, walk.end)
        if after != walk.end:
            self.skipped.append(walk.end)
        return after

    def bad_body(self, file: MappedFile, start: int, end: int, store_timestamp: int, /) -> bool:
        """Bad bodies stay where they are."""
        return False


def find_survivor(commitlog: CommitLog, offset: int, *, returned: bool = False) -> int | None:
    """Return the offset of the first sound record at or after ``offset``: its own field has that
    offset, and its body is sound. ``None`` if there is none, or if the only bytes there are an
    append that never returned (``returned``: the append is known to have returned). O(bytes).

    Beside a writer, this also finds a record at ``offset`` that was put while the records after it
    were read."""
    if not returned and is_cut_short(commitlog, offset):
        return None
    for file in list(commitlog.files.files.values()):
        if file.start + file.size <= offset:
            continue
        found = first_sound_record(commitlog, file, max(offset - file.start, 0), file.held)
        if found is not None:
            return offset if _stands_at(commitlog, offset) else file.start + found
    return None


def first_sound_record(commitlog: CommitLog, file: MappedFile, first: int, end: int) -> int | None:
    """Return the position of the first sound record of a file that begins from ``first`` to before
    ``end``, ``None`` if there is none. O(bytes)."""
    for start, stop in commitlog.files.data_ranges(file, first):
        if start >= end:
            return None
        found = _sound_record(commitlog, file, start, min(stop, end))
        if found is not None:
            return found
    return None


def _stands_at(commitlog: CommitLog, offset: int) -> bool:
    file = commitlog.files.find(offset)
    if file is None:
        return False
    return _is_sound(commitlog, file, offset - file.start)


def _is_sound(commitlog: CommitLog, file: MappedFile, position: int) -> bool:
    read = partial(commitlog.files.read, file)
    records, _, _ = scan_file(
        read, file.start, position, file.held, check_crc=True, strict=True, limit=1
    )
    return len(records) == 1


def is_cut_short(commitlog: CommitLog, offset: int) -> bool:
    """Return whether the bytes from ``offset`` on are the log's last append, under way or left by
    a process that died meanwhile: its start is stored last (:meth:`CommitLog.write`)."""
    file = commitlog.files.find(offset)
    if file is None or file is not commitlog.files.last:
        return False
    at = offset - file.start
    read = partial(commitlog.files.read, file)
    if read(at, len(NO_START)) != NO_START:
        return False
    ranges = commitlog.files.data_ranges(file, min(at + MAX_COPIED, file.held))
    return not any(holds_data(read, first, end) for first, end in ranges)


def _sound_record(commitlog: CommitLog, file: MappedFile, position: int, end: int) -> int | None:
    """Look for the magic of a record, piece by piece; each has the last 3 bytes of the one before
    it."""
    at = position + 4
    while at + len(_MAGIC) <= end:
        piece = commitlog.files.read(file, at, min(_PIECE, end - at))
        found = piece.find(_MAGIC)
        while found >= 0:
            if _is_sound(commitlog, file, at + found - 4):
                return at + found - 4
            found = piece.find(_MAGIC, found + 1)
        if len(piece) < len(_MAGIC):
            return None
        at += len(piece) - len(_MAGIC) + 1
    return None
