"""Numbers and bytes of a RocketMQ store in memory, for the interpreter.

The compiler never sees this file: it takes the same names from ``words.pxd``. These are the only
functions of this package that exist twice, so a test holds the two against each other
(:mod:`journal.memory.words` has those of the other design).

``store_message`` is the commit of a put. Into a map that is not a plain :class:`mmap.mmap` (tests
record the stores) both builds store by its own methods.
"""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from journal.memory.crc import crc32
from journal.memory.words import now_ns as now_ns
from rocketstore.format.commitlog_format import MESSAGE_MAGIC, NO_START, START
from rocketstore.format.consumequeue_format import UNIT
from rocketstore.format.index_format import (
    ENTRY,
    ENTRY_DTYPE,
    ENTRY_SIZE,
    HEADER_SIZE,
    SLOT,
    SLOT_SIZE,
)

Int64Array = npt.NDArray[np.int64]
Data = bytes | mmap.mmap

_new_tuple = tuple.__new__

push: Callable[[array[int], int], None] = array.append
"""As :func:`journal.memory.words.push`, without a call of Python."""

_FEW = 24
"""Up to this many entries, one by one is faster than in columns."""
_INT = struct.Struct(">i").unpack_from
_LONG = struct.Struct(">q").unpack_from
_pack_fields = struct.Struct(">8sI8sqq").pack
"""A record up to its physical offset: size and magic, CRC, queue id and flag, ordinal, offset."""
_pack_start = START.pack
_pack_int = struct.Struct(">i").pack
_pack_length = struct.Struct(">H").pack

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


def int32_at(data: Data, at: int) -> int:
    """The signed 32-bit number (big-endian) at a place. Raises :class:`IndexError` where the bytes
    end before it."""
    if at < 0 or at + 4 > len(data):
        raise IndexError("the number is not within the bytes")
    number: int = _INT(data, at)[0]
    return number


def int64_at(data: Data, at: int) -> int:
    """The same of 64 bits."""
    if at < 0 or at + 8 > len(data):
        raise IndexError("the number is not within the bytes")
    number: int = _LONG(data, at)[0]
    return number


int32_in: Callable[[Data, int], int] = int32_at
int64_in: Callable[[Data, int], int] = int64_at
"""The same of a map: compiled these are others."""


def has_nul(data: bytes, at: int, end: int) -> bool:
    """Return whether a byte between two places is zero."""
    return data.find(0, at, end) >= 0


def piece(view: mmap.mmap, at: int, end: int) -> bytes:
    """A copy of the bytes of a map from ``at`` (not negative) to ``end``, as far as it has them."""
    return view[at:end]


def place_of(data: Data, byte: int, at: int, end: int) -> int:
    """Where a byte is first between two places of some bytes; ``end`` where it does not."""
    found = data.find(bytes((byte,)), at, end)
    return end if found < 0 else found


def stands_at(data: Data, at: int, name: bytes) -> bool:
    """Return whether these bytes are at a place."""
    return data[at : at + len(name)] == name


def number_at(numbers: array[int], at: int) -> int:
    """A number of 64 bits out of an array of them."""
    return numbers[at]


def store_message(
    into: mmap.mmap | bytearray,
    at: int,
    crc: int,
    start: bytes,
    ordinal: int,
    offset: int,
    stamp: bytes,
    body: bytes,
    field: bytes,
    properties: bytes,
) -> int:
    """Store a record (:mod:`rocketstore.format.commitlog_format`) at ``at`` and return its end.

    Its size and magic are stored last, at once. Until then there are zeros in their place.

    ``start``: queue id and flag; ``stamp``: the bytes between offset and length of the body;
    ``field``: the topic after its length. Raises :class:`IndexError` where the map ends before it.
    """
    head = _pack_fields(NO_START, crc, start, ordinal, offset) + stamp + _pack_int(len(body))
    tail = _pack_length(len(properties)) + properties if properties else b"\0\0"
    record = head + body + field + tail
    end = at + len(record)
    if end > len(into):
        raise IndexError("a record does not fit into the map")
    into[at:end] = record
    into[at : at + START.size] = _pack_start(end - at, MESSAGE_MAGIC)
    return end


def measure(bodies: Sequence[bytes], lengths: Int64Array, sums: Int64Array) -> bool:
    """Set the length and the :func:`body_sum` of each body; false if one of them is not
    plain bytes: nothing that was set counts then."""
    if set(map(type, bodies)) - {bytes}:
        return False
    lengths[:] = np.fromiter(map(len, bodies), np.int64, len(bodies))
    sums[:] = np.fromiter(map(crc32, bodies), np.int64, len(bodies)) & 0x7FFFFFFF
    return True


@lru_cache(maxsize=8)
def _head_format(stamp_size: int) -> tuple[np.dtype[np.void], struct.Struct]:
    fields = [
        ("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("ordinal", ">i8"), ("offset", ">i8"), ("stamp", f"V{stamp_size}"), ("body_length", ">i4"),
    ]  # fmt: skip
    dtype = np.dtype(fields)
    return dtype, struct.Struct(f"{dtype.itemsize}s")


def batch_records(
    bodies: Sequence[bytes],
    properties: Sequence[bytes] | bytes,
    sizes: Int64Array,
    sums: Int64Array,
    flags: Int64Array | None,
    first: int,
    last: int,
    base: int,
    start: bytes,
    ordinals: int,
    stamp: bytes,
    field: bytes,
) -> bytes:
    """The records of messages ``first`` to ``last``, as :func:`store_message` makes each of them,
    one after the other from the offset ``base`` on. ``sizes`` are theirs, ``ordinals`` is that of
    message 0, ``properties`` may be the same for all; ``flags``, if there are any, count in place
    of the one in ``start``."""
    count = last - first
    dtype, one_head = _head_format(len(stamp))
    heads: Any = np.empty(count, dtype)
    part = sizes[first:last]
    heads["size"] = part
    heads["magic"] = MESSAGE_MAGIC
    heads["crc"] = sums[first:last]
    heads["queue_id"], heads["flag"] = _INT(start, 0)[0], _INT(start, 4)[0]
    if flags is not None:
        heads["flag"] = flags[first:last]
    heads["ordinal"] = np.arange(ordinals + first, ordinals + last)
    heads["offset"] = np.cumsum(part) - part + base
    heads["stamp"] = np.void(stamp)
    heads["body_length"] = np.fromiter(map(len, bodies[first:last]), np.int64, count)
    parts: list[bytes] = [b""] * (4 * count)
    parts[0::4] = chain.from_iterable(one_head.iter_unpack(heads.tobytes()))
    parts[1::4] = bodies[first:last]
    if isinstance(properties, bytes):
        parts[2::4] = repeat(field + len(properties).to_bytes(2, "big") + properties, count)
    else:
        lengths = list(map(len, properties[first:last]))
        leads = {length: field + length.to_bytes(2, "big") for length in set(lengths)}
        parts[2::4] = map(leads.__getitem__, lengths)
        parts[3::4] = properties[first:last]
    return b"".join(parts)


def new_message(kind: type[tuple[Any, ...]], raw: bytes, offset: int) -> Any:
    """A named tuple of these."""
    return _new_tuple(kind, (raw, offset))


def new_result(
    kind: type[tuple[Any, ...]],
    offset: int,
    size: int,
    queue_id: int,
    ordinal: int,
    now: int,
    host: bytes,
) -> Any:
    """A named tuple of these."""
    return _new_tuple(kind, (offset, size, queue_id, ordinal, now, host))


def join_usual(keys: str, unique_key: str, tags: str) -> bytes | None:
    """The properties KEYS, UNIQ_KEY and TAGS as they are stored, without empty ones.
    ``None`` for values with letters beyond ASCII, separators or NUL."""
    if keys and unique_key:
        text = f"KEYS\x01{keys}\x02UNIQ_KEY\x01{unique_key}"
        wrong = "\x02" in keys or "\x02" in unique_key
    elif keys:
        text, wrong = f"KEYS\x01{keys}", "\x02" in keys
    elif unique_key:
        text, wrong = f"UNIQ_KEY\x01{unique_key}", "\x02" in unique_key
    else:
        text, wrong = "", False
    if tags:
        text = f"{text}\x02TAGS\x01{tags}" if text else f"TAGS\x01{tags}"
        wrong = wrong or "\x02" in tags
    return None if wrong or "\0" in text or not text.isascii() else text.encode()


def add_unit(units: bytearray, offset: int, size: int, code: int) -> None:
    """Append a unit of a ConsumeQueue (:mod:`rocketstore.format.consumequeue_format`)."""
    units += UNIT.pack(offset, size, code)


def link_entries(
    into: mmap.mmap | bytearray,
    slots: int,
    first: int,
    hashes: Int64Array,
    offsets: Int64Array,
    seconds: Int64Array,
) -> int:
    """Store entries, number ``first`` and those after it, into an IndexFile of this many slots
    (:mod:`rocketstore.format.index_format`). Each goes before the newest one of its slot, which
    then names it.

    A slot that names an entry that can't be (damage) counts as free. Returns how many were. Raises
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


def piece_hash(data: Data, at: int, end: int, seed: int) -> int:
    """:func:`text_hash` of a text that is in UTF-8 from ``at`` to ``end``."""
    return text_hash(data[at:end].decode("utf-8", "replace"), seed)


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


def property_columns(
    data: Data, starts: Int64Array, ends: Int64Array, /
) -> tuple[bytes, array[int], array[int], bytearray]:
    """Decode the properties ``data[starts[i]:ends[i]]`` of many messages; compiled only.

    Return four values: the text of all as JSON; the position where each begins and the last one
    ends; six numbers for each message, the bounds of the values of ``KEYS``, ``UNIQ_KEY`` and
    ``TAGS``; and a byte for each message that is 1 if it was decoded. The caller decodes the others
    by :func:`rocketstore.format.properties.decode_properties`: in this version, all of them.
    """
    count = len(starts)
    if count and not 0 <= starts.min() <= ends.max() <= len(data):
        raise IndexError("the properties lie outside of the data")
    bounds, spans = array("i", bytes(4 * count + 4)), np.repeat(starts, 6)
    return b"", bounds, array("q", spans.tobytes()), bytearray(count)
