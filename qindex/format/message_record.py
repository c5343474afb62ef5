"""The bytes of our own message record: a msgpack array with a checksum (version 1).

::

    0    1    2    3              11   12             20
    +----+----+----+--------------+----+--------------+-----+---------+------------+------+
    | 97 | 01 | cf | checksum (8) | cf | timestamp(8) | key | headers | properties | body |
    +----+----+----+--------------+----+--------------+-----+---------+------------+------+
      |    |                             ns since 1970   |    map|nil    map|nil      bin
      |    version                                       str|nil
      array of 7

The first byte tells it from RabbitMQ's record, which starts with 83. The checksum is xxh3 (64
bits, big-endian) and covers more than the record, so that a flipped bit anywhere is found:

* embedded in a journal or segment: the whole *journal publish record* (type, seq_id, message id,
  expiry, size, length, record) with the eight checksum bytes zero. In a segment, which has
  two bytes in place of the first eight, those eight are put back before the sum is taken.
* in the message store: the 16 bytes of message id, then the record with its checksum zero.

A sound record can therefore be found again after damaged bytes: :data:`MAGIC` tells where one may
start, the checksum whether one does.

Checksums are taken of many records at once: rows of equal length are made one numpy array, and
the C hash function is mapped over its rows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64, xxh3_64_digest

from journal.errors import StoreError, UsageError
from journal.format import PAYLOAD_SIZE, PUBLISH_HEAD_SIZE
from journal.fs.files import ReadBuffer
from journal.memory import words
from journal.memory.arrays import I64, U8, U64, Bools
from journal.memory.rows import rows_at
from journal.packed import unpack
from qindex.format import json_tables, tables
from qindex.format.message import Message, make_message

MAGIC = b"\x97\x01\xcf"
"""How each record of this version starts."""

CHECK_OFFSET = 3
CHECK_SIZE = 8
_CHECK_IN_ROW = PUBLISH_HEAD_SIZE + CHECK_OFFSET
_ZERO_CHECK = bytes(CHECK_SIZE)
_FIXED_HEAD = struct.Struct(">3s8sBQ")
NOTHING = b"\xc0\xc0\xc0"
"""Neither key, headers nor properties, as a record has them."""
_MAGIC_NUMBER = int.from_bytes(MAGIC, "big")
_NOTHING_NUMBER = int.from_bytes(NOTHING, "big")
_NOTHING_AT = _FIXED_HEAD.size
PLAIN_HEAD_SIZE = _NOTHING_AT + len(NOTHING)
"""Bytes of a record without key, headers and properties, up to its body's own head."""

_SHORT_BODY_HEADS = tuple(b"\xc4%c" % size for size in range(1 << 8))

_pack = partial(msgpack.packb, use_bin_type=True)

_MAX_BODY = (1 << 32) - 1
MAX_OVERHEAD = 1 << 20
"""Bytes of a record beside its body: key, headers and properties take no more than this."""


class RecordError(StoreError):
    """Bytes that are not a message record; the message says why."""


def plain_body_head(size: int) -> bytes:
    """Return the msgpack head of a body of ``size`` bytes (bin 8, 16 or 32)."""
    if size < 1 << 8:
        return _SHORT_BODY_HEADS[size]
    if size < 1 << 16:
        return b"\xc5" + size.to_bytes(2, "big")
    return b"\xc6" + size.to_bytes(4, "big")


def plain_body_size(length: int, middle: bytes = NOTHING) -> int:
    """Return the size of the body of a record of ``length`` bytes with this middle, as without key,
    headers and properties; nothing or less where it has none."""
    size = 0
    for head_size, most in ((2, 0xFF), (3, 0xFFFF), (5, _MAX_BODY)):
        size = length - _NOTHING_AT - len(middle) - head_size
        if size <= most:
            break
    return size


def encode_record(message: Message) -> bytes:
    """Return the record of ``message`` with a zero checksum (see :func:`seal_embedded`).

    Raises :class:`UsageError` for headers or properties that msgpack can't hold.
    """
    return encode_front(message) + message.body


def encode_front(message: Message) -> bytes:
    """Return the record of ``message``, with a zero checksum, up to the bytes of its body.

    Raises as :func:`encode_record`.
    """
    middle = encode_middle(message.key, message.headers, message.properties)
    return join_front(message.timestamp, middle, len(message.body))


def join_front(timestamp: int, middle: bytes, size: int) -> bytes:
    """Return a record up to the ``size`` bytes of its body, with a zero checksum.

    ``middle``: see :func:`encode_middle`. Raises :class:`UsageError` for too large a body.
    """
    if size > _MAX_BODY:
        raise UsageError(f"a body may have at most {_MAX_BODY} bytes, not {size}")
    head = _FIXED_HEAD.pack(MAGIC, _ZERO_CHECK, 0xCF, timestamp)
    return b"".join((head, middle, plain_body_head(size)))


def encode_middle(
    key: str | None, headers: Mapping[str, Any], properties: Mapping[str, Any]
) -> bytes:
    """Return the bytes of a record between timestamp and body.

    Raises as :func:`encode_record`.
    """
    try:
        middle = tables.pack_usual(key, headers, properties)
        if middle is None:
            middle = _pack(key) + _pack_table(headers) + _pack_table(properties)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
        msgpack.exceptions.UnpackException,
    ) as error:
        raise UsageError(f"key, headers or properties can't be stored: {error}") from error
    if len(middle) > MAX_OVERHEAD:
        raise UsageError(
            f"key, headers and properties may take {MAX_OVERHEAD} bytes, not {len(middle)}"
        )
    return middle


def _pack_table(table: Mapping[str, Any]) -> bytes:
    if not table:
        return b"\xc0"
    packed: bytes = _pack(dict(table))
    # msgpack packs what it can't unpack: maps with lists as keys, values nested deeper.
    msgpack.unpackb(b"\x91" + packed, strict_map_key=False)
    return packed


def tables_as_json(data: ReadBuffer, starts: I64, ends: I64) -> json_tables.JsonTables:
    """See :func:`qindex.format.json_tables.json_tables`."""
    return json_tables.json_tables(data, starts, ends)


def seal_embedded(publish_record: bytes) -> bytes:
    """Put the checksum into a journal publish record whose embedded record has none yet."""
    return words.seal(publish_record, _CHECK_IN_ROW)


def seal_stored(msg_id: bytes, front: bytes, body: bytes = b"") -> bytes:
    """Return a record for the message store, with its checksum; ``front`` and ``body`` are its
    parts, so that a large body is copied once."""
    return b"".join(sealed_parts(msg_id, front, body))


def sealed_parts(msg_id: bytes, front: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Return such a record in two parts, the second of them ``body``."""
    hashed = xxh3_64(msg_id)
    hashed.update(front)
    hashed.update(body)
    rest = front[CHECK_OFFSET + CHECK_SIZE :]
    return b"".join((front[:CHECK_OFFSET], hashed.digest(), rest)), body


def stored_is_sound(msg_id: bytes, record: bytes) -> bool:
    """Return whether a record from the message store is as it was written under ``msg_id``."""
    at = CHECK_OFFSET
    if record[:at] != MAGIC or len(record) < PLAIN_HEAD_SIZE:
        return False
    hashed = xxh3_64(b"".join((msg_id, MAGIC, _ZERO_CHECK)))
    hashed.update(memoryview(record)[at + CHECK_SIZE :])
    return hashed.digest() == record[at : at + CHECK_SIZE]


def gather_rows(data: ReadBuffer, payloads: I64, words: U64, row_length: int) -> U8:
    """Copy publish records of one length into rows, as they are in a journal.

    ``payloads``: offsets of the message ids in ``data`` (shape ``(n,)``), in a journal or a
    segment. ``words``: the first eight bytes of each as a number. ``row_length``: bytes of the
    whole journal record. Returns shape ``(n, row_length)``; O(n * row_length).
    """
    rows = np.empty((len(payloads), row_length), np.uint8)
    column(rows, 0, ">u8")[:] = words
    rest = f"V{row_length - 8}"
    column(rows, 8, rest)[:] = column(gather_bytes(data, payloads, row_length - 8), 0, rest)
    return rows


def column(rows: U8, start: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the field of type ``kind`` that is at byte ``start`` of each row: a view, shape
    ``(n,)``, unaligned. As opaque items (``V20``), fields are copied in one piece each."""
    dtype = np.dtype(kind)
    field: npt.NDArray[Any] = rows[:, start : start + dtype.itemsize].view(dtype)[:, 0]
    return field


def gather_bytes(data: ReadBuffer, offsets: I64, width: int) -> U8:
    """Return ``width`` bytes from each of ``offsets`` on, as rows: shape ``(n, width)``.

    Where the offsets are one apart from the other by the same step, a view of ``data``.
    """
    if not len(offsets):
        return np.empty((0, width), np.uint8)
    steps = np.diff(offsets)
    stride = int(steps[0]) if len(steps) else width
    if stride >= 0 and (not len(steps) or (steps == stride).all()):
        return np.ndarray((len(offsets), width), np.uint8, data, int(offsets[0]), (stride, 1))
    rows: U8 = rows_at(np.frombuffer(data, np.uint8), offsets, width)
    return rows


def row_sums(rows: U8) -> U64:
    """Return the xxh3 of each row. Shape ``(n,)``."""
    sums = np.empty(len(rows), np.uint64)
    words.row_sums(rows, sums)
    return sums


def verify_rows(rows: U8) -> Bools:
    """Return for each row (a journal publish record of ours) whether its checksum holds.

    The checksum bytes of ``rows`` are zero on return. Shape ``(n,)``.
    """
    count, width = rows.shape
    if width < PUBLISH_HEAD_SIZE + PLAIN_HEAD_SIZE:
        return np.zeros(count, np.bool_)
    at = _CHECK_IN_ROW
    field = column(rows, at, ">u8")
    checks = field.astype(np.uint64)
    field[:] = 0
    sound: Bools = row_sums(rows) == checks
    return sound


def embedded_is_sound(data: ReadBuffer, payload: int, word: int, embedded: int) -> bool:
    """Return whether the checksum of one publish record of ours holds.

    ``payload``: offset of the message id in ``data``, ``word``: type and seq_id as in a journal,
    ``embedded``: bytes of the record. About 0.7 us; see :func:`verify_rows`.
    """
    if embedded < PLAIN_HEAD_SIZE:
        return False
    end = payload + PAYLOAD_SIZE + embedded
    check = payload + PAYLOAD_SIZE + CHECK_OFFSET
    behind = check + CHECK_SIZE
    parts = (word.to_bytes(8, "big"), data[payload:check], _ZERO_CHECK, data[behind:end])
    return xxh3_64_digest(b"".join(parts)) == bytes(data[check:behind])


def all_plain(rows: U8, middle: bytes = NOTHING) -> bool:
    """Return whether every row embeds a record of ours with this middle, as without key, headers
    and properties."""
    starts = column(rows, PUBLISH_HEAD_SIZE, ">u4").astype(np.uint32) >> 8
    if not (starts == _MAGIC_NUMBER).all():
        return False
    at = PUBLISH_HEAD_SIZE + _NOTHING_AT
    if middle is not NOTHING:
        return column(rows, at, f"V{len(middle)}").tobytes() == middle * len(rows)
    middles = column(rows, at, ">u4").astype(np.uint32) >> 8
    return bool((middles == _NOTHING_NUMBER).all())


def timestamps(rows: U8) -> list[int]:
    """Return the timestamps of rows, in nanoseconds."""
    start = PUBLISH_HEAD_SIZE + CHECK_OFFSET + CHECK_SIZE + 1
    stamps: list[int] = column(rows, start, ">u8").astype(np.uint64).tolist()
    return stamps


def embedded_length(data: ReadBuffer, start: int) -> int | None:
    """Find the length of the record at ``start`` from its own structure, or ``None``.

    This is a second witness of the length beside the index entry's field.
    """
    view = memoryview(data)[start:]
    if view[:3] != MAGIC:
        return None
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=len(view) or 1)
    unpacker.feed(view[: min(len(view), 1 << 20)])
    try:
        unpacker.skip()
    except (msgpack.exceptions.UnpackException, ValueError):
        return None
    return int(unpacker.tell())


def decode_record(record: bytes) -> Message:
    """Decode a record. Its checksum is the caller's affair; raises :class:`RecordError`."""
    if record[:3] != MAGIC:
        raise RecordError(f"not a message record of version 1: starts with {record[:3].hex()}")
    try:
        _version, _check, timestamp, key, headers, properties, body = unpack(record)
    except ValueError as error:
        raise RecordError(f"not a message record: {error}") from error
    if (
        timestamp.__class__ is int
        and (key is None or key.__class__ is str)
        and (headers is None or headers.__class__ is dict)
        and (properties is None or properties.__class__ is dict)
        and body.__class__ is bytes
    ):
        return make_message(body, key, headers or {}, properties or {}, timestamp)
    kinds = ", ".join(type(one).__name__ for one in (timestamp, key, headers, properties, body))
    raise RecordError(f"not a message record: {kinds} in place of its fields")
