"""Make the journal's publish records of messages, one or many at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from qindex.plain import CHECK_END, CHECK_START, PLAIN_HEAD, plain_parts
from qindex.record_format import row_sums

__all__ = ["plain_batch", "plain_record"]

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_ID_LOW_AT = 16
_STAMP_AT = PLAIN_HEAD.size - 13


def plain_record(seq_id: int, id_high: int, body: bytes, stamp: int) -> bytes:
    """Give the publish record of a plain message of any size, without its checksum."""
    first, second = plain_parts(len(body))
    words = (seq_id.to_bytes(8, "big"), id_high.to_bytes(8, "big"), seq_id.to_bytes(8, "big"))
    return b"".join((*words, first, stamp.to_bytes(8, "big"), second, body))


def plain_batch(
    first_seq: int, id_high: int, bodies: Sequence[bytes], stamp: int
) -> tuple[bytes | memoryview, I64]:
    """Give the publish records of plain messages with seq_ids from ``first_seq`` on, sealed.

    Also gives the offset of each record in them. About 0.15 us a message where all bodies have
    one length, 0.6 us else.
    """
    sizes = set(map(len, bodies))
    if len(sizes) == 1:
        return _equal_batch(first_seq, id_high, bodies, stamp, sizes.pop())
    parts: list[bytes] = []
    offsets = np.empty(len(bodies), np.int64)
    position = 0
    for index, body in enumerate(bodies):
        record = plain_record(first_seq + index, id_high, body, stamp)
        offsets[index] = position
        position += len(record)
        parts += (record[:CHECK_START], xxh3_64_digest(record), record[CHECK_END:])
    return b"".join(parts), offsets


def _equal_batch(
    first_seq: int, id_high: int, bodies: Sequence[bytes], stamp: int, size: int
) -> tuple[memoryview, I64]:
    count = len(bodies)
    template = plain_record(0, id_high, b"", stamp)
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
