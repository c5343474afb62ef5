"""Walk the CommitLog from file to file, record by record, to where it ends."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from rocketstore.commitlog import CommitLog
from rocketstore.commitlog_format import MESSAGE_MAGIC
from rocketstore.mapped_files import MappedFile, data_ranges
from rocketstore.scan import Records, Stop, scan_records

__all__ = ["LogWalk", "find_survivor"]

_MAGIC = MESSAGE_MAGIC.to_bytes(4, "big", signed=True)


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
        strict: bool = False,
        keep_bad_bodies: bool = False,
        limit: int | None = None,
    ) -> None:
        self._log = commitlog
        self._check_crc = check_crc
        self._strict = strict
        self._keep_bad_bodies = keep_bad_bodies
        self._limit = limit
        self.end = offset
        self.stop = Stop.END
        self.last = (0, 0)
        self.last_store_time = 0
        self.bad_bodies: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, Records]]:
        files = self._log.files
        file = files.find(self.end)
        position = self.end - file.start if file is not None else 0
        while file is not None:
            yield from self._walk_file(file, position)
            if self.stop is Stop.BAD or (self._limit is not None and self.end >= self._limit):
                return
            file = files.files.get(file.start + file.size)
            position = 0

    def _walk_file(self, file: MappedFile, position: int) -> Iterator[tuple[int, Records]]:
        check_crc = self._check_crc
        end = file.size
        if self._limit is not None:
            end = max(position, min(end, self._limit - file.start))
        while True:
            records, position, self.stop = self._scan(file, position, end, check_crc, 8192)
            self.end = file.start + position
            if len(records):
                self.last = (file.start + int(records.positions[-1]), int(records.sizes[-1]))
                self.last_store_time = int(records.store_times[-1])
                yield file.start, records
            if self.stop is Stop.LIMIT:
                continue
            if (
                self.stop is Stop.BAD
                and self._keep_bad_bodies
                and self._is_bad_body(file, position)
            ):
                self.bad_bodies.append(file.start + position)
                records, position, _ = self._scan(file, position, end, False, 1)
                self.end = file.start + position
                yield file.start, records
                continue
            return

    def _scan(
        self, file: MappedFile, position: int, end: int, check_crc: bool, limit: int
    ) -> tuple[Records, int, Stop]:
        return scan_records(
            self._log.files.mapped(file),
            file.start,
            position,
            end,
            check_crc=check_crc,
            strict=self._strict,
            limit=limit,
        )

    def _is_bad_body(self, file: MappedFile, position: int) -> bool:
        """Whether only the body of this record is wrong, and the log goes on behind it."""
        records, after, _ = self._scan(file, position, file.size, False, 1)
        if len(records) == 0 or int(records.offsets[0]) != file.start + position:
            return False
        following, _, stop = self._scan(file, after, file.size, False, 1)
        if len(following):
            return int(following.offsets[0]) == file.start + after
        return stop is Stop.BLANK and file.start + file.size in self._log.files.files


def find_survivor(commitlog: CommitLog, offset: int) -> int | None:
    """Offset of the first sound record at or after ``offset``: one that says itself that it
    stands there, with a sound body. ``None`` if there is none. O(bytes)."""
    for file in list(commitlog.files.files.values()):
        if file.start + file.size <= offset:
            continue
        buffer = commitlog.files.mapped(file)
        for first, end in data_ranges(file.fd, max(offset - file.start, 0), file.size):
            found = _sound_record(buffer, file, first, end)
            if found is not None:
                return file.start + found
    return None


def _sound_record(buffer: mmap.mmap, file: MappedFile, position: int, end: int) -> int | None:
    while True:
        found = buffer.find(_MAGIC, position + 4, end)
        if found < 0:
            return None
        position = found - 4
        records, _, _ = scan_records(
            buffer, file.start, position, file.size, check_crc=True, strict=True, limit=1
        )
        if len(records):
            return position
        position += 1
