"""Numbers and bytes of a RocketMQ store in memory, for the interpreter.

The compiler never sees this file: it takes the same names from ``words.pxd``. These are the only
functions of this package that exist twice, so a test holds the two against each other
(:mod:`journal.words` has those of the other design).

``store_message`` is the commit of a put. Into a map that is no plain :class:`mmap.mmap` (tests
record the stores) both builds store by its own methods.
"""

from __future__ import annotations

import mmap
import struct
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from journal.words import now_ns, push
from rocketstore.commitlog_format import MESSAGE_MAGIC, NO_START, START
from rocketstore.consumequeue_format import UNIT
from rocketstore.crc import crc32
from rocketstore.index_format import (
    ENTRY,
    ENTRY_DTYPE,
    ENTRY_SIZE,
    HEADER_SIZE,
    SLOT,
    SLOT_SIZE,
)

__all__ = [
    "body_sum",
    "int32_at",
    "int64_at",
    "link_entries",
    "make_unit",
    "now_ns",
    "piece",
    "place_of",
    "push",
    "store_message",
    "text_hash",
]

Int64Array = npt.NDArray[np.int64]

_FEW = 24
"""Up to so many entries, one by one is faster than in columns."""
_INT = struct.Struct(">i").unpack_from
_LONG = struct.Struct(">q").unpack_from
_pack_fields = struct.Struct(">8sI8sqq").pack
"""A record up to its physical offset: size and magic, CRC, queue id and flag, ordinal, offset."""
_pack_start = START.pack
_pack_int = struct.Struct(">i").pack

_MASK = 0xFFFFFFFF
_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_TABLE = 512
_RISING = tuple(pow(31, power, 1 << 32) for power in range(_TABLE + 1))
"""Powers of 31 modulo 2**32."""
_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_REMAINDERS = bytes(_DIGITS[unit % 31] for unit in range(256))
_CARRIES = bytes(_DIGITS[unit // 31] for unit in range(256))


def body_sum(body: bytes) -> int:
    """CRC-32 of a body without its top bit; 0 if it is empty."""
    return crc32(body) & 0x7FFFFFFF


def int32_at(data: bytes, at: int) -> int:
    """The signed 32-bit number (big-endian) at a place. Raises :class:`IndexError` where the bytes
    end before it."""
    if at < 0 or at + 4 > len(data):
        raise IndexError("the number is not within the bytes")
    number: int = _INT(data, at)[0]
    return number


def int64_at(data: bytes, at: int) -> int:
    """The same of 64 bits."""
    if at < 0 or at + 8 > len(data):
        raise IndexError("the number is not within the bytes")
    number: int = _LONG(data, at)[0]
    return number


def piece(view: mmap.mmap, at: int, end: int) -> bytes:
    """A copy of the bytes of a map from ``at`` (not negative) to ``end``, as far as it has them."""
    return view[at:end]


def place_of(data: bytes, byte: int, at: int, end: int) -> int:
    """Where a byte stands first between two places of some bytes; ``end`` where it does not."""
    found = data.find(byte, at, end)
    return end if found < 0 else found


def store_message(
    into: mmap.mmap | bytearray,
    at: int,
    crc: int,
    start: bytes,
    ordinal: int,
    offset: int,
    stamp: bytes,
    body: bytes,
    tail: bytes,
) -> int:
    """Store a record (:mod:`rocketstore.commitlog_format`) at ``at``: its size and magic last, at
    once, and zeros in their place until then. Gives where it ends.

    ``start``: queue id and flag; ``stamp``: what stands between offset and length of the body;
    ``tail``: topic and properties with their lengths. Raises :class:`IndexError` where the map ends
    before it.
    """
    head = _pack_fields(NO_START, crc, start, ordinal, offset) + stamp + _pack_int(len(body))
    end = at + len(head) + len(body) + len(tail)
    if end > len(into):
        raise IndexError("a record does not fit into the map")
    into[at:end] = head + body + tail
    into[at : at + START.size] = _pack_start(end - at, MESSAGE_MAGIC)
    return end


def make_unit(offset: int, size: int, code: int) -> bytes:
    """A unit of a ConsumeQueue (:mod:`rocketstore.consumequeue_format`)."""
    return UNIT.pack(offset, size, code)


def link_entries(
    into: mmap.mmap | bytearray,
    slots: int,
    first: int,
    hashes: Int64Array,
    offsets: Int64Array,
    seconds: Int64Array,
) -> int:
    """Store entries, number ``first`` and those behind it, into an IndexFile of so many slots
    (:mod:`rocketstore.index_format`): each before the newest one of its slot, which names it then.

    A slot that names an entry that can't be (damage) counts as free. Gives how many were. Raises
    :class:`IndexError` where the map ends before the last entry, and for a negative hash.
    """
    count = len(hashes)
    at = HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * first
    if at + ENTRY_SIZE * count > len(into) or (hashes < 0).any():
        raise IndexError("the entries do not fit into the file")
    if count > _FEW:
        return _link_block(into, slots, at, first, hashes, offsets, seconds)
    used = 0
    for number in range(count):
        key_hash = int(hashes[number])
        slot_at = HEADER_SIZE + SLOT_SIZE * (key_hash % slots)
        previous: int = SLOT.unpack_from(into, slot_at)[0]
        if previous <= 0 or previous > first + number:
            previous = 0
            used += 1
        entry = ENTRY.pack(key_hash, int(offsets[number]), int(seconds[number]), previous)
        into[at : at + ENTRY_SIZE] = entry
        into[slot_at : slot_at + SLOT_SIZE] = SLOT.pack(first + number)
        at += ENTRY_SIZE
    return used


def _link_block(
    into: mmap.mmap | bytearray,
    slots_count: int,
    at: int,
    first: int,
    hashes: Int64Array,
    offsets: Int64Array,
    seconds: Int64Array,
) -> int:
    """The same of a few thousand: their chains come from one sort by slot and number."""
    count = len(hashes)
    slots: Any = np.ndarray((slots_count,), ">i4", into, HEADER_SIZE)
    entries: Any = np.ndarray((count,), ENTRY_DTYPE, into, at)
    entries["hash"] = hashes
    entries["offset"] = offsets
    entries["seconds"] = seconds
    # One word for slot and place: sorting words is several times faster than a stable argsort.
    places = hashes % slots_count
    places <<= 32
    places |= np.arange(count)
    places.sort()
    order = places & 0xFFFFFFFF
    places >>= 32
    numbers = (order + first).astype(np.int32)
    leads = np.empty(count, np.bool_)
    leads[0] = True
    np.not_equal(places[1:], places[:-1], out=leads[1:])
    older = np.empty(count, np.int32)
    older[1:] = numbers[:-1]
    before = slots[places[leads]].astype(np.int32)
    before[(before <= 0) | (before > numbers[leads])] = 0
    older[leads] = before
    previous = np.empty(count, np.int32)
    previous[order] = older
    entries["prev"] = previous
    ends = np.empty(count, np.bool_)
    ends[-1] = True
    ends[:-1] = leads[1:]
    slots[places[ends]] = numbers[ends]
    return int(np.count_nonzero(before == 0))


def text_hash(text: str, seed: int) -> int:
    """Java's ``String.hashCode`` of a text, signed; ``seed`` is the hash of a prefix. O(len).

    The dot product with powers of 31 is a number to the base of 31. Its digits are too large for
    it, so it is the sum of two such numbers, of their remainders and of what they carry over; and
    to read a number in any base is one call.
    """
    count = len(text)
    if 0 < count <= _TABLE and text.isascii():
        data = text.encode()
        total = int(data.translate(_REMAINDERS), 31) + 31 * int(data.translate(_CARRIES), 31)
        if seed:
            total += seed * _RISING[count]
    else:
        total = seed
        for unit in memoryview(text.encode(_UTF16, "surrogatepass")).cast("H"):
            total = (total * 31 + unit) & _MASK
    total &= _MASK
    return total - (1 << 32) if total & 0x80000000 else total
