"""The IndexFile of RocketMQ 4.9.3: a hash table on disk, from key hash to physical offset.

All integers are big-endian, signed. With ``S`` slots and ``N`` entries (5,000,000 and 20,000,000
by default; neither is in the file)::

    0            header, 40 bytes
                   8 begin timestamp   8 end timestamp
                   8 begin offset      8 end offset
                   4 slots in use      4 index count: number of the next entry
    40           S slots of 4 bytes: number of the newest entry of the chain, 0 if empty
    40 + 4 S     N entries of 20 bytes; entry 0 is never used
                   4 key hash   8 physical offset
                   4 seconds after the begin timestamp
                   4 number of the chain's next older entry, 0 at its end

The index count starts at 1 (0 in a file that has had no entry yet), so that a file of ``k``
entries says ``k + 1`` and holds at most ``N - 1``. A key's slot is its hash modulo ``S``, the hash
that of ``topic#key``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain, islice
from typing import Any

import numpy as np

from journal.fs.files import ReadBuffer

DEFAULT_SLOTS = 5_000_000
DEFAULT_ENTRIES = 20_000_000

HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
ENTRY = struct.Struct(">iqii")
HEADER_SIZE = HEADER.size
SLOT_SIZE = SLOT.size
ENTRY_SIZE = ENTRY.size
ENTRY_DTYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("prev", ">i4")])

_INT_MAX = 0x7FFFFFFF

_LENGTH_MAX = (1 << 31) - 1
"""Bytes of a file: RocketMQ maps it as one, which Java can't do with more."""
_STEP = ENTRY_SIZE << 15
_LEAST_HASHES = (1, 0)
"""Zeros look like an entry of the log's first message, with a hash that hardly any key has: such a
one is believed last."""
_MAX_TRIES = 10_000
"""Geometries that are tried in full: a damaged file may begin with anything."""

Read = Callable[[int, int], bytes]
"""Reads up to ``length`` bytes of a file: ``read(position, length)``."""


class IndexHeader:
    """The first 40 bytes. Times in ms, offsets physical, ``count`` the next entry's number."""

    __slots__ = (
        "begin_offset",
        "begin_timestamp",
        "count",
        "end_offset",
        "end_timestamp",
        "used_slots",
    )

    def __init__(
        self,
        begin_timestamp: int = 0,
        end_timestamp: int = 0,
        begin_offset: int = 0,
        end_offset: int = 0,
        used_slots: int = 0,
        count: int = 1,
    ) -> None:
        self.begin_timestamp: int = begin_timestamp
        self.end_timestamp: int = end_timestamp
        self.begin_offset: int = begin_offset
        self.end_offset: int = end_offset
        self.used_slots: int = used_slots
        self.count: int = count

    def fields(self) -> tuple[int, int, int, int, int, int]:
        """The six numbers, in their order on disk."""
        return (
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset,
            self.used_slots, self.count,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexHeader) and self.fields() == other.fields()

    def __repr__(self) -> str:
        return f"IndexHeader{self.fields()}"

    @classmethod
    def parse(cls, data: ReadBuffer) -> IndexHeader:
        """Read a header; an index count of 0 (a fresh file) reads as 1."""
        header = cls(*HEADER.unpack_from(data))
        header.count = max(header.count, 1)
        return header

    def matches(self, begin: int, end: int) -> bool:
        """Whether the file can hold a time from ``begin`` to ``end``: the real one's rule."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last


def file_size(slots: int, entries: int) -> int:
    """Length of a file with this many slots and entries: 420,000,040 by default."""
    return HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * entries


def entry_at(slots: int, number: int) -> int:
    """Where entry ``number`` is in the file."""
    return HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * number


def time_difference(store_timestamp: int, begin_timestamp: int) -> int:
    """The seconds an entry keeps: truncated toward zero, from 0 to 2**31 - 1."""
    if begin_timestamp <= 0 or store_timestamp <= begin_timestamp:
        return 0
    return min((store_timestamp - begin_timestamp) // 1000, _INT_MAX)


def index_name(now_ms: int) -> str:
    """A file's name: the local time of its creation, ``yyyyMMddHHmmssSSS``."""
    moment = datetime.fromtimestamp(now_ms // 1000)
    return moment.strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"


def find_geometry(
    read: Read, length: int, likely: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """Find the number of slots and entries of a file of ``length`` bytes that has entries; ``None``
    if it has none.

    They are configuration, not in the file, but its first and last entry must be where the
    header and the slots say. ``likely`` is tried first: five small pieces are read for it.
    Then the default, then every pair that gives the length.
    """
    header = IndexHeader.parse(read(0, HEADER_SIZE).ljust(HEADER_SIZE, b"\0"))
    if header.count <= 1:
        return None
    if (
        likely is not None
        and file_size(*likely) == length
        and header.count <= likely[1]
        and any(_fits(read, header, *likely, least) for least in _LEAST_HASHES)
    ):
        return likely
    if length > _LENGTH_MAX:
        return None
    default = [DEFAULT_SLOTS] if length == file_size(DEFAULT_SLOTS, DEFAULT_ENTRIES) else []
    for least in _LEAST_HASHES:
        others = islice(_slots_that_fit(read, header, length, least), _MAX_TRIES)
        for slots in chain(default, others):
            if _fits(read, header, slots, _entries(length, slots), least):
                return slots, _entries(length, slots)
    return None


def _slots_that_fit(read: Read, header: IndexHeader, length: int, least: int) -> Iterator[int]:
    """Yield the numbers of slots with which the first entry is where it has to. The next number
    that gives the length moves it by the length of one entry: all are looked at in columns."""
    slots = _candidates(length)
    for at in range(entry_at(slots.start, 1), length, _STEP):
        data = read(at, min(_STEP, length - at))
        entries = np.frombuffer(data, ENTRY_DTYPE, len(data) // ENTRY_SIZE)
        fit = (entries["offset"] == header.begin_offset) & (entries["prev"] == 0)
        fit &= entries["hash"] >= least
        first = (at - entry_at(slots.start, 1)) // ENTRY_SIZE
        for number in np.flatnonzero(fit[: len(slots) - first]).tolist():
            if header.count <= _entries(length, slots[first + number]):
                yield slots[first + number]


def _unpack(format: struct.Struct, read: Read, at: int) -> tuple[Any, ...]:
    """Bytes that a file has lost at its end read as zeros."""
    return format.unpack(read(at, format.size).ljust(format.size, b"\0"))


def empty_geometry(length: int) -> tuple[int, int] | None:
    """Return slots and entries for a file without entries: four to a slot, as by default, or else
    any that give the length; ``None`` where none do."""
    slots, rest = divmod(length - HEADER_SIZE, SLOT_SIZE + 4 * ENTRY_SIZE)
    if slots > 0 and rest == 0:
        return slots, 4 * slots
    for slots in _candidates(length):
        return slots, _entries(length, slots)
    return None


def _entries(length: int, slots: int) -> int:
    return (length - HEADER_SIZE - SLOT_SIZE * slots) // ENTRY_SIZE


def _candidates(length: int) -> range:
    """Return the numbers of slots with which some number of entries gives the length."""
    rest = length - HEADER_SIZE
    if rest < 0 or rest % 4:
        return range(0)
    # 4 S + 20 N = rest: S and rest / 4 have the same remainder modulo 5.
    return range(rest // 4 % 5 or 5, rest // 4 + 1, 5)


def _fits(read: Read, header: IndexHeader, slots: int, entries: int, least: int) -> bool:
    """Hold first and last entry against header and slots. ``least``: the lowest hash of the first.
    Beside a writer the slots may be ahead of the header."""
    first = _unpack(ENTRY, read, entry_at(slots, 1))
    if first[1] != header.begin_offset or first[3] != 0 or first[0] < least:
        return False
    if not _leads(read, first[0], slots, entries, 1, header.count):
        return False
    number = header.count - 1
    last = _unpack(ENTRY, read, entry_at(slots, number))
    if last[1] != header.end_offset or last[0] < 0:
        return False
    return _leads(read, last[0], slots, entries, number, header.count)


def _leads(read: Read, key_hash: int, slots: int, entries: int, number: int, count: int) -> bool:
    """Return whether the slot of an entry names it, or a later one of that slot."""
    at = HEADER_SIZE + SLOT_SIZE * (key_hash % slots)
    newest: int = _unpack(SLOT, read, at)[0]
    if newest < count:
        return number <= newest
    if newest >= entries:
        return False
    later: int = _unpack(ENTRY, read, entry_at(slots, newest))[0]
    return later % slots == key_hash % slots
