"""One IndexFile: put keys (one, or many at once), and select the offsets of a key.

Behaves as the real 4.9.3 class, quirks included. Its owner holds a lock.
"""

from __future__ import annotations

import os
from array import array
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from journal.errors import StorageError, storage_errors
from journal.fs.files import FileSystem, close_quietly, read_file
from rocketstore.format import words
from rocketstore.format.index_format import (
    ENTRY_DTYPE,
    ENTRY_SIZE,
    HEADER,
    HEADER_SIZE,
    SLOT_SIZE,
    IndexHeader,
    entry_at,
    file_size,
    time_difference,
)
from rocketstore.format.javahash import BLOCK
from rocketstore.log.mapped_files import MappedFile, create_file
from rocketstore.log.watch import Watch

_READ_STEP = 1 << 20
_INT_MAX = 0x7FFFFFFF
_FAR = 1 << 62

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Numbers: TypeAlias = "Int64Array | array[int]"


class IndexFile(MappedFile):
    """An index file, mapped by the writer and read by others. ``header`` is authoritative in
    memory and stored after each put."""

    __slots__ = ("_entries_at", "entries", "header", "name", "slots")

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        slots: int,
        entries: int,
        *,
        writable: bool,
        watch: Watch | None = None,
    ) -> None:
        size = file_size(slots, entries)
        super().__init__(fs, path, 0, size, writable=writable, watch=watch)
        self.name: str = os.path.basename(path)
        self.slots: int = slots
        self._entries_at = entry_at(slots, 0)
        self.entries: int = entries
        self.header: IndexHeader = IndexHeader()

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        path: str,
        slots: int,
        entries: int,
        previous: IndexHeader | None,
        watch: Watch | None = None,
    ) -> IndexFile:
        """Make a new file; its header begins and ends where the previous file ended.

        Raises :class:`StorageError`.
        """
        file = cls(fs, path, slots, entries, writable=True, watch=watch)
        close_quietly(fs, create_file(fs, path, file.size), path)
        if previous is not None:
            header = file.header
            header.begin_timestamp = header.end_timestamp = previous.end_timestamp
            header.begin_offset = header.end_offset = previous.end_offset
            try:
                file._make_room(1)
            except StorageError:
                file.close()
                with storage_errors(path, "can't be removed"):
                    fs.unlink(path)
                raise
            # A file without entries has count 0 on disk; only the times and offsets are seeded.
            HEADER.pack_into(
                file.map(),
                0,
                header.begin_timestamp,
                header.end_timestamp,
                header.begin_offset,
                header.end_offset,
                0,
                0,
            )
            file.dirty = True
        return file

    def load(self) -> None:
        """Read the header. Raises :class:`StorageError`."""
        with storage_errors(self.path, "can't be read"):
            data = read_file(self._fs, self.path, HEADER_SIZE)
        self.header = IndexHeader.parse(data.ljust(HEADER_SIZE, b"\0"))
        # Nothing may be read past the file's end, whatever a damaged count says.
        self.header.count = min(self.header.count, self.entries)

    def read(self, position: int, length: int) -> bytes:
        """``length`` bytes of the file; bytes that it has lost at its end read as zeros, as
        the ones never written. Raises :class:`StorageError`."""
        if self._map is not None:
            return words.piece(self._map, position, position + length)
        return MappedFile.read(self, position, length).ljust(length, b"\0")

    def _copy(self, at: int, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return ``count`` values from a place on, read step by step."""
        values = np.zeros(count, dtype)
        data = values.view(np.uint8)
        for start in range(0, len(data), _READ_STEP):
            length = min(_READ_STEP, len(data) - start)
            data[start : start + length] = np.frombuffer(self.read(at + start, length), np.uint8)
        return values

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more (a file of ``N`` entries holds ``N - 1``)."""
        return self.header.count >= self.entries

    # Writing

    def _make_room(self, count: int) -> None:
        end = entry_at(self.slots, self.header.count + count)
        if end > self.reserved:
            self.reserve(end)

    def _store_header(self) -> None:
        HEADER.pack_into(self.map(), 0, *self.header.fields())
        self.dirty = True

    def put_many(self, hashes: Numbers | Int32Array, offsets: Numbers, times: Numbers) -> int:
        """Add entries in order, as the real ``putKey`` one by one; return how many fitted. O(n).

        Raises :class:`StorageError`.
        """
        count = min(len(hashes), self.entries - self.header.count)
        if count <= 0:
            return 0
        self._make_room(count)
        hashes = np.asarray(hashes, np.int64)
        offsets, times = np.asarray(offsets, np.int64), np.asarray(times, np.int64)
        for at in range(0, count, BLOCK):
            part = slice(at, min(at + BLOCK, count))
            self._put_block(hashes[part], offsets[part], times[part])
        self._store_header()
        return count

    def _put_block(self, hashes: Int64Array, offsets: Int64Array, times: Int64Array) -> None:
        header = self.header
        first = header.count
        seconds = self._seconds(times)
        used = words.link_entries(self.map(), self.slots, first, hashes, offsets, seconds)
        if first <= 1:
            header.begin_offset = int(offsets[0])
            header.begin_timestamp = int(times[0])
        header.used_slots += used
        header.count = first + len(hashes)
        header.end_offset = int(offsets[-1])
        header.end_timestamp = int(times[-1])

    def _seconds(self, times: Int64Array) -> Int64Array:
        header = self.header
        begin = header.begin_timestamp
        if header.count > 1:
            if begin <= 0:
                return np.zeros(len(times), np.int64)
            return np.clip((times - begin) // 1000, 0, _INT_MAX)
        # The first entry of a file still counts from the end of the file before (a quirk).
        head = time_difference(int(times[0]), begin)
        begin = int(times[0])
        if begin <= 0:
            seconds = np.zeros(len(times), np.int64)
        else:
            seconds = np.clip((times - begin) // 1000, 0, _INT_MAX)
        seconds[0] = head
        return seconds

    def cut_back(self, header: IndexHeader) -> None:
        """Forget the entries from number ``header.count`` on: chains are laid anew from the
        entries before it, whose own links hold. O(slots + entries)."""
        self._make_room(0)
        self.header = header
        data = self.map()
        count = header.count - 1
        hashes = np.ndarray((count,), ENTRY_DTYPE, data, entry_at(self.slots, 1))["hash"]
        heads = np.zeros(self.slots, np.int32)
        numbers = np.arange(1, count + 1, dtype=np.int32)
        np.maximum.at(heads, hashes.astype(np.int64) % self.slots, numbers)
        np.ndarray((self.slots,), ">i4", data, HEADER_SIZE)[:] = heads
        self._store_header()

    def chains_are_sound(self) -> bool:
        """Whether slots and links are what putting the entries one by one would give.
        O(n log n)."""
        entries = self.entries_from(1, self.header.count - 1)
        count = len(entries)
        if count != self.header.count - 1:
            return False
        hashes = entries["hash"].astype(np.int64)
        if (hashes < 0).any():
            return False
        places = ((hashes % self.slots) << 32) | np.arange(1, count + 1)
        places.sort()
        numbers = places & 0xFFFFFFFF
        slots = places >> 32
        older = np.zeros(count, np.int64)
        older[1:][slots[1:] == slots[:-1]] = numbers[:-1][slots[1:] == slots[:-1]]
        if not np.array_equal(entries["prev"][numbers - 1], older):
            return False
        heads = np.zeros(self.slots, np.int64)
        if count:
            ends = np.append(slots[1:] != slots[:-1], True)
            heads[slots[ends]] = numbers[ends]
        return np.array_equal(self.slot_table(), heads)

    # Reading

    def _newest(self, key_hash: int) -> int:
        """Number of the newest entry of a hash's chain, as its slot says."""
        at = HEADER_SIZE + SLOT_SIZE * (key_hash % self.slots)
        return words.int32_at(self.read(at, SLOT_SIZE), 0)

    def _entry(self, number: int) -> bytes:
        return self.read(self._entries_at + ENTRY_SIZE * number, ENTRY_SIZE)

    def select(self, out: list[int], key_hash: int, limit: int, begin: int, end: int) -> None:
        """Append offsets of entries with this hash and a time from ``begin`` to ``end`` (ms),
        newest first, until ``out`` has ``limit``: the real one's ``selectPhyOffset``."""
        header = self.header
        count = header.count
        number = self._newest(key_hash)
        if number <= 0 or number > count or number >= self.entries or count <= 1:
            return
        first_time = header.begin_timestamp
        while len(out) < limit:
            entry = self._entry(number)
            seconds, previous = words.int32_at(entry, 12), words.int32_at(entry, 16)
            if seconds < 0:
                return
            moment = first_time + seconds * 1000
            if words.int32_at(entry, 0) == key_hash and begin <= moment <= end:
                out.append(words.int64_at(entry, 4))
            # A link to a newer entry is damage: the real one can go round in a circle there.
            if previous <= 0 or previous >= number or moment < begin:
                return
            number = previous

    def candidates(self, key_hash: int, begin: int, end: int) -> list[int]:
        """Offsets of all entries with this hash that can have been stored from ``begin`` to
        ``end`` (ms), newest first.

        Entry times are whole seconds, and that of a file's first entry can be too late; those of a
        file that begins before 1970, as damage can make it, are all 0. The time in the stored
        message decides; this only leaves out entries that can't match. A chain that does not run
        toward older entries is damaged and ends the search.
        """
        count = self.header.count
        number = self._newest(key_hash)
        # A damaged one may be of any time: of one, too, to which no more seconds can be added.
        first_time = max(-_FAR, min(self.header.begin_timestamp, _FAR))
        out: list[int] = []
        last = count
        while 0 < number < last:
            entry = self._entry(number)
            seconds = words.int32_at(entry, 12)
            moment = first_time + seconds * 1000
            if number > 1 and moment + 1000 <= begin and first_time > 0 and seconds < _INT_MAX:
                break
            if words.int32_at(entry, 0) == key_hash and (moment <= end or number == 1):
                out.append(words.int64_at(entry, 4))
            last = number
            number = words.int32_at(entry, 16)
        return out

    def entries_from(self, number: int, count: int) -> npt.NDArray[np.void]:
        """Copy up to ``count`` valid entries from ``number`` on."""
        last = min(self.header.count, self.entries)
        count = max(0, min(count, last - number))
        return self._copy(entry_at(self.slots, number), count, ENTRY_DTYPE)

    def slot_table(self) -> Int32Array:
        """A copy of all slots."""
        return self._copy(HEADER_SIZE, self.slots, ">i4").astype(np.int32)
