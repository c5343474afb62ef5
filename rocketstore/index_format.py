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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from journal.files import ReadBuffer

__all__ = [
    "DEFAULT_ENTRIES",
    "DEFAULT_SLOTS",
    "ENTRY",
    "ENTRY_DTYPE",
    "ENTRY_SIZE",
    "HEADER",
    "HEADER_SIZE",
    "SLOT",
    "SLOT_SIZE",
    "IndexHeader",
    "empty_geometry",
    "entry_at",
    "file_size",
    "find_geometry",
    "fitting_geometry",
    "index_name",
    "time_difference",
]

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

Read = Callable[[int, int], bytes]


@dataclass(slots=True)
class IndexHeader:
    """The first 40 bytes. Times in ms, offsets physical, ``count`` the next entry's number."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    count: int = 1

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
    """Where entry ``number`` stands in the file."""
    return HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * number


def time_difference(store_timestamp: int, begin_timestamp: int) -> int:
    """The seconds an entry keeps: truncated toward zero, from 0 to 2**31 - 1."""
    if begin_timestamp <= 0:
        return 0
    return min(max((store_timestamp - begin_timestamp) // 1000, 0), _INT_MAX)


def index_name(now_ms: int) -> str:
    """A file's name: the local time of its creation, ``yyyyMMddHHmmssSSS``."""
    moment = datetime.fromtimestamp(now_ms // 1000)
    return moment.strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"


def find_geometry(data: ReadBuffer) -> tuple[int, int] | None:
    """Find the number of slots and entries of a file that has entries; ``None`` if it has none.

    They are configuration, not in the file, but its first and last entry must stand where the
    header and the slots say. The default is tried first, then every pair that gives the length.
    """
    view = memoryview(data)

    def read(at: int, count: int) -> bytes:
        return bytes(view[at : at + count])

    pairs = [(slots, _entries(len(view), slots)) for slots in _candidates(len(view))]
    return fitting_geometry(read, len(view), pairs)


def fitting_geometry(
    read: Read, length: int, pairs: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """Find the first of ``pairs`` (slots, entries) that fits a file with entries, ``None`` if none
    does. ``read(at, count)`` gives its bytes; five small pieces are read for a pair."""
    header = IndexHeader.parse(read(0, HEADER_SIZE).ljust(HEADER_SIZE, b"\0"))
    if header.count <= 1:
        return None
    # Zeros look like an entry of the log's first message, with a hash that hardly any key has.
    for least in (1, 0):
        for slots, entries in pairs:
            fits = file_size(slots, entries) == length and header.count <= entries
            if fits and _fits(read, header, slots, entries, least):
                return slots, entries
    return None


def empty_geometry(length: int) -> tuple[int, int] | None:
    """Give slots and entries for a file without entries: four to a slot, as by default, or else
    any that give the length; ``None`` where none do."""
    slots, rest = divmod(length - HEADER_SIZE, SLOT_SIZE + 4 * ENTRY_SIZE)
    if slots > 0 and rest == 0:
        return slots, 4 * slots
    for slots in _candidates(length):
        if slots:
            return slots, _entries(length, slots)
    return None


def _entries(length: int, slots: int) -> int:
    return (length - HEADER_SIZE - SLOT_SIZE * slots) // ENTRY_SIZE


def _candidates(length: int) -> Iterator[int]:
    rest = length - HEADER_SIZE
    if length == file_size(DEFAULT_SLOTS, DEFAULT_ENTRIES):
        yield DEFAULT_SLOTS
    if rest < 0 or rest % 4:
        return
    # 4 S + 20 N = rest: S and rest / 4 have the same remainder modulo 5.
    yield from range(rest // 4 % 5, rest // 4 + 1, 5)


def _fits(read: Read, header: IndexHeader, slots: int, entries: int, least: int) -> bool:
    """Hold first and last entry against header and slots. ``least``: the lowest hash of the first.
    Beside a writer the slots may be ahead of the header."""
    if slots < 1:
        return False
    first = ENTRY.unpack(read(entry_at(slots, 1), ENTRY_SIZE))
    if first[1] != header.begin_offset or first[3] != 0 or first[0] < least:
        return False
    if not _leads(read, first[0], slots, entries, 1, header.count):
        return False
    number = header.count - 1
    last = ENTRY.unpack(read(entry_at(slots, number), ENTRY_SIZE))
    if last[1] != header.end_offset or last[0] < 0:
        return False
    return _leads(read, last[0], slots, entries, number, header.count)


def _leads(read: Read, key_hash: int, slots: int, entries: int, number: int, count: int) -> bool:
    """Tell whether the slot of an entry names it, or a later one of that slot."""
    at = HEADER_SIZE + SLOT_SIZE * (key_hash % slots)
    newest: int = SLOT.unpack(read(at, SLOT_SIZE))[0]
    if newest < count:
        return number <= newest
    if newest >= entries:
        return False
    later: int = ENTRY.unpack(read(entry_at(slots, newest), ENTRY_SIZE))[0]
    return later % slots == key_hash % slots
