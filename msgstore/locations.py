"""Where each message is and how many references it has, in memory.

Two parts. The *base* holds the messages of the open: rows sorted by message id, in flat columns
that are taken from a snapshot as they are, 40 bytes a message. The *overlay* holds later messages:
a dict from the id to one integer that packs file, offset, size and references. Both are invisible
to the garbage collector. Measured: 40 bytes a message after open, 130 to 175 in the
overlay (16-byte key, integer, and the dict's slot, whose share depends on how full the dict is).

Not thread-safe; the owner's lock guards it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from journal.errors import UsageError
from msgstore.format import ID_SIZE

_REFERENCE_BITS = 32
_SIZE_BITS = 40
_OFFSET_BITS = 40
MAX_REFERENCES = (1 << _REFERENCE_BITS) - 1
_SIZE_SHIFT = _REFERENCE_BITS
_OFFSET_SHIFT = _SIZE_SHIFT + _SIZE_BITS
_FILE_SHIFT = _OFFSET_SHIFT + _OFFSET_BITS
_SIZE_MASK = (1 << _SIZE_BITS) - 1
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1

Columns = tuple[bytes, bytes, bytes, bytes, bytes]
"""Ids (16 bytes each, ascending), files, offsets (u64), framed sizes, references (u32), native
byte order."""
_KINDS = (f"S{ID_SIZE}", "=u8", "=u8", "=u4", "=u4")


class Location(NamedTuple):
    """Where a message is: file key, offset of its header, framed size, references."""

    file: int
    offset: int
    total: int
    references: int


Place = tuple[int, int, int]
"""File key, offset of the header, framed size."""


def pack_place(file: int, offset: int, total: int) -> int:
    """A :data:`Place` in one integer."""
    return (file << _OFFSET_BITS | offset) << _SIZE_BITS | total


def unpack_place(packed: int) -> Place:
    """The reverse of :func:`pack_place`."""
    high = packed >> _SIZE_BITS
    return high >> _OFFSET_BITS, high & _OFFSET_MASK, packed & _SIZE_MASK


def _unpack(packed: int) -> Location:
    return Location(
        packed >> _FILE_SHIFT,
        packed >> _OFFSET_SHIFT & _OFFSET_MASK,
        packed >> _SIZE_SHIFT & _SIZE_MASK,
        packed & MAX_REFERENCES,
    )


class Locations:
    """The index: message id -> :class:`Location`.

    Each call is O(1) for the overlay and O(log n) for the base (2 to 3 us at a million rows).
    """

    def __init__(self) -> None:
        self._overlay: dict[bytes, int] = {}
        self._set_base((b"", b"", b"", b"", b""))

    def _set_base(self, columns: Columns) -> None:
        self._ids = columns[0]
        self._rows = len(columns[0]) // ID_SIZE
        self._files = memoryview(bytearray(columns[1])).cast("Q")
        self._offsets = memoryview(bytearray(columns[2])).cast("Q")
        self._totals = memoryview(bytearray(columns[3])).cast("I")
        self._references = memoryview(bytearray(columns[4])).cast("I")
        self._live_rows = self._rows

    @classmethod
    def load(cls, columns: Columns) -> Locations:
        """Take columns as :meth:`columns` gave them. Raises :class:`ValueError` for lengths that
        do not fit together."""
        rows, odd = divmod(len(columns[0]), ID_SIZE)
        if odd or [len(column) for column in columns[1:]] != [rows * w for w in (8, 8, 4, 4)]:
            raise ValueError("the columns of a location snapshot differ in length")
        locations = cls()
        locations._set_base(columns)
        return locations

    def __len__(self) -> int:
        return len(self._overlay) + self._live_rows

    def __contains__(self, msg_id: bytes) -> bool:
        return msg_id in self._overlay or self._row(msg_id) >= 0

    def get(self, msg_id: bytes) -> Location | None:
        """The location, or ``None`` for an unknown message."""
        packed = self._overlay.get(msg_id)
        if packed is not None:
            return _unpack(packed)
        row = self._row(msg_id)
        return None if row < 0 else self._location(row)

    def place(self, msg_id: bytes) -> Place | None:
        """File, offset and framed size: what a read needs, at half the cost of :meth:`get`."""
        packed = self._overlay.get(msg_id)
        if packed is not None:
            return unpack_place(packed >> _REFERENCE_BITS)
        row = self._row(msg_id)
        return None if row < 0 else (self._files[row], self._offsets[row], self._totals[row])

    def add(self, msg_id: bytes, file: int, offset: int, total: int, references: int) -> None:
        """Put in a message that is not there yet."""
        # As pack_place() does, without the call: this is the way of each message written.
        place = (file << _OFFSET_BITS | offset) << _SIZE_BITS | total
        self._overlay[msg_id] = place << _REFERENCE_BITS | references

    def take(self, places: Mapping[bytes, int], references: Mapping[bytes, int]) -> None:
        """Put in many messages at once, sorted; ``places`` are packed."""
        for msg_id, place in places.items():
            self._overlay[msg_id] = place << _REFERENCE_BITS | references[msg_id]
        self.settle()

    def refer(self, msg_id: bytes, count: int) -> bool:
        """Count ``count`` references more; ``False`` for an unknown message.

        Raises :class:`UsageError` beyond 2**32 - 1 references.
        """
        packed = self._overlay.get(msg_id)
        if packed is not None:
            references, row = packed & MAX_REFERENCES, -1
        elif (row := self._row(msg_id)) >= 0:
            references = self._references[row]
        else:
            return False
        if references + count > MAX_REFERENCES:
            raise UsageError(f"message {msg_id.hex()} has too many references")
        if packed is not None:
            self._overlay[msg_id] = packed + count
        else:
            self._references[row] += count
        return True

    def release(self, msg_id: bytes) -> Location | None:
        """Take one reference away; the location as it is after it (gone when it has 0
        references), ``None`` for an unknown message."""
        packed = self._overlay.get(msg_id)
        if packed is not None:
            packed -= 1
            if packed & MAX_REFERENCES:
                self._overlay[msg_id] = packed
            else:
                del self._overlay[msg_id]
            return _unpack(packed)
        row = self._row(msg_id)
        if row < 0:
            return None
        self._references[row] -= 1
        location = self._location(row)
        if not location.references:
            self._live_rows -= 1
            if self._live_rows * 2 < self._rows:
                self._squeeze()
        return location

    def is_at(self, msg_id: bytes, file: int, offset: int) -> bool:
        """Whether the message's record is this one."""
        packed = self._overlay.get(msg_id)
        if packed is not None:
            return packed >> _OFFSET_SHIFT == file << _OFFSET_BITS | offset
        row = self._row(msg_id)
        return row >= 0 and self._files[row] == file and self._offsets[row] == offset

    def move(self, msg_id: bytes, file: int, offset: int) -> None:
        """Record another place of a known message."""
        packed = self._overlay.get(msg_id)
        if packed is not None:
            place = pack_place(file, offset, packed >> _SIZE_SHIFT & _SIZE_MASK)
            self._overlay[msg_id] = place << _REFERENCE_BITS | packed & MAX_REFERENCES
            return
        row = self._row(msg_id)
        self._files[row] = file
        self._offsets[row] = offset

    def items(self) -> Iterator[tuple[bytes, Location]]:
        """All messages, base first; the index must not change meanwhile."""
        for row in range(self._rows):
            if self._references[row]:
                yield self._ids[row * ID_SIZE : (row + 1) * ID_SIZE], self._location(row)
        for msg_id, packed in self._overlay.items():
            yield msg_id, _unpack(packed)

    def columns(self) -> Columns:
        """All that is here as sorted columns, for a snapshot; O(n log n)."""
        self.settle()
        return (
            self._ids,
            bytes(self._files),
            bytes(self._offsets),
            bytes(self._totals),
            bytes(self._references),
        )

    def settle(self) -> None:
        """Merge the overlay into the base; O(n log n), meant for open and close."""
        if not self._overlay:
            self._squeeze()
            return
        ids = self._ids + b"".join(self._overlay)
        files, offsets = array("Q", self._files), array("Q", self._offsets)
        totals, references = array("I", self._totals), array("I", self._references)
        for packed in self._overlay.values():
            file, offset, total = unpack_place(packed >> _REFERENCE_BITS)
            files.append(file)
            offsets.append(offset)
            totals.append(total)
            references.append(packed & MAX_REFERENCES)
        self._set_live((ids, files, offsets, totals, references), sort=True)
        self._overlay.clear()

    def _squeeze(self) -> None:
        """Drop the dead rows of the base."""
        if self._live_rows == self._rows:
            return
        if not self._live_rows:
            self._set_base((b"", b"", b"", b"", b""))
            return
        columns = self._ids, self._files, self._offsets, self._totals, self._references
        self._set_live(columns, sort=False)

    def _set_live(self, columns: Sequence[bytes | array[int] | memoryview], sort: bool) -> None:
        """Make the rows that have references the base."""
        import numpy as np  # here: an import of 100 ms that a small store never needs

        arrays = [np.frombuffer(one, kind) for one, kind in zip(columns, _KINDS, strict=True)]
        rows = np.flatnonzero(arrays[-1])
        if sort:
            rows = rows[np.argsort(arrays[0][rows], kind="stable")]
        ids, files, offsets, totals, references = (one[rows].tobytes() for one in arrays)
        self._set_base((ids, files, offsets, totals, references))

    def _row(self, msg_id: bytes) -> int:
        """The base's live row of this id, or -1."""
        ids = self._ids
        low, high = 0, self._rows
        while low < high:
            middle = (low + high) >> 1
            if ids[middle << 4 : (middle << 4) + ID_SIZE] < msg_id:
                low = middle + 1
            else:
                high = middle
        if low == self._rows or ids[low << 4 : (low << 4) + ID_SIZE] != msg_id:
            return -1
        return low if self._references[low] else -1

    def _location(self, row: int) -> Location:
        return Location(
            self._files[row], self._offsets[row], self._totals[row], self._references[row]
        )

    def memory(self) -> int:
        """Bytes this index takes, its keys and values included."""
        overlay = sys.getsizeof(self._overlay)
        if self._overlay:
            key, value = next(iter(self._overlay.items()))
            # The allocator hands out multiples of 16 bytes.
            overlay += len(self._overlay) * sum(
                (sys.getsizeof(item) + 15) // 16 * 16 for item in (key, value)
            )
        return overlay + self._rows * (ID_SIZE + 8 + 8 + 4 + 4)
