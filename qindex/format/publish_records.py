"""Make the journal's publish records of messages, one or many at once."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from journal import words
from qindex.format.message_record import (
    CHECK_SIZE,
    MAGIC,
    NOTHING,
    PLAIN_HEAD_SIZE,
    plain_body_head,
    row_sums,
)
from qindex.format.plain_record import CHECK_END, CHECK_START, PLAIN_HEADS, plain_parts

__all__ = ["framed_batch", "framed_record", "plain_batch", "plain_record"]

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_FIRST = struct.Struct(">QII12s")
"""Expiry, size, E, the record's start: what stands between message id and timestamp."""
_RECORD_START = MAGIC + bytes(CHECK_SIZE) + b"\xcf"
_RECORD_HEAD_SIZE = PLAIN_HEAD_SIZE - len(NOTHING)
_ID_LOW_AT = 16


def framed_record(
    seq_id: int, id_high: int, body: bytes, stamp: int, middle: bytes, expiry: int = 0
) -> bytes:
    """Give the publish record of a persistent message of any size, without its checksum.

    ``middle``: its key, headers and properties
    (:func:`qindex.format.message_record.encode_middle`),
    ``stamp``: when it was published, in nanoseconds, ``expiry``: microseconds, 0 = never.
    """
    size = len(body)
    body_head = plain_body_head(size)
    record_size = _RECORD_HEAD_SIZE + len(middle) + len(body_head) + size
    first = _FIRST.pack(expiry, size, record_size, _RECORD_START)
    return words.join_record(seq_id, id_high, first, stamp, middle + body_head, body)


def plain_record(seq_id: int, id_high: int, body: bytes, stamp: int) -> bytes:
    """Give the publish record of a plain message, without its checksum; see
    :func:`framed_record`."""
    size = len(body)
    if size < len(PLAIN_HEADS):
        first, second = PLAIN_HEADS[size]
        return words.join_record(seq_id, id_high, first, stamp, second, body)
    return framed_record(seq_id, id_high, body, stamp, NOTHING)


def framed_batch(
    first_seq: int,
    id_high: int,
    bodies: Sequence[bytes],
    stamps: Iterable[int],
    middles: Iterable[bytes],
    expiry: int = 0,
) -> tuple[bytes, I64]:
    """Give the publish records of messages with seq_ids from ``first_seq`` on, sealed, and the
    offset of each in them; see :func:`framed_record`. About 0.7 us a message."""
    parts: list[bytes] = []
    offsets: list[int] = []
    position = 0
    seq_ids = range(first_seq, first_seq + len(bodies))
    for seq_id, body, stamp, middle in zip(seq_ids, bodies, stamps, middles, strict=False):
        record = framed_record(seq_id, id_high, body, stamp, middle, expiry)
        offsets.append(position)
        position += len(record)
        parts += (record[:CHECK_START], xxh3_64_digest(record), record[CHECK_END:])
    return b"".join(parts), np.array(offsets, np.int64)


def plain_batch(
    first_seq: int, id_high: int, bodies: Sequence[bytes], stamp: int
) -> tuple[bytes | memoryview, I64]:
    """Give the publish records of plain messages with seq_ids from ``first_seq`` on, sealed.

    Also gives the offset of each record in them. About 0.15 us a message where all bodies have
    one length, 0.7 us else.
    """
    sizes = set(map(len, bodies))
    if len(sizes) == 1:
        return _equal_batch(first_seq, id_high, bodies, stamp, sizes.pop())
    return framed_batch(first_seq, id_high, bodies, repeat(stamp), repeat(NOTHING))


def _equal_batch(
    first_seq: int, id_high: int, bodies: Sequence[bytes], stamp: int, size: int
) -> tuple[memoryview, I64]:
    count = len(bodies)
    template = framed_record(0, id_high, b"", stamp, NOTHING)
    first, second = plain_parts(size)
    head = b"".join((template[:24], first, stamp.to_bytes(8, "big"), second))
    width = len(head) + size
    rows = np.empty((count, width), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    seqs = np.arange(first_seq, first_seq + count, dtype=np.int64).astype(">u8")
    seq_bytes = seqs.view(np.uint8).reshape(count, 8)
    rows[:, :8] = seq_bytes
    rows[:, _ID_LOW_AT : _ID_LOW_AT + 8] = seq_bytes
    if size:
        rows[:, len(head) :] = np.frombuffer(b"".join(bodies), np.uint8).reshape(count, size)
    rows[:, CHECK_START:CHECK_END] = row_sums(rows).astype(">u8").view(np.uint8).reshape(count, 8)
    return rows.ravel().data, np.arange(0, count * width, width, dtype=np.int64)
