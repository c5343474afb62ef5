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
from collections.abc import Iterator
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
    "entry_at",
    "file_size",
    "find_geometry",
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
    length = len(data)
    header = IndexHeader.parse(data)
    if header.count <= 1:
        return None
    for slots in _candidates(length):
        entries = (length - HEADER_SIZE - SLOT_SIZE * slots) // ENTRY_SIZE
        if header.count <= entries and _fits(data, header, slots):
            return slots, entries
    return None


def _candidates(length: int) -> Iterator[int]:
    rest = length - HEADER_SIZE
    if length == file_size(DEFAULT_SLOTS, DEFAULT_ENTRIES):
        yield DEFAULT_SLOTS
    if rest < 0 or rest % 4:
        return
    # 4 S + 20 N = rest: S and rest / 4 have the same remainder modulo 5.
    yield from range(rest // 4 % 5, rest // 4 + 1, 5)


def _fits(data: ReadBuffer, header: IndexHeader, slots: int) -> bool:
    if slots < 1:
        return False
    first = ENTRY.unpack_from(data, entry_at(slots, 1))
    if first[1] != header.begin_offset or first[3] != 0 or first[0] < 0:
        return False
    newest = SLOT.unpack_from(data, HEADER_SIZE + SLOT_SIZE * (first[0] % slots))[0]
    if not 0 < newest < header.count:
        return False
    last = ENTRY.unpack_from(data, entry_at(slots, header.count - 1))
    if last[1] != header.end_offset or last[0] < 0:
        return False
    at = HEADER_SIZE + SLOT_SIZE * (last[0] % slots)
    return bool(SLOT.unpack_from(data, at)[0] == header.count - 1)
