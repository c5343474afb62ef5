"""The fixed parts of the publish record of a plain message, by the size of its body.

A plain message has neither key, headers nor properties, is persistent and never expires. Its
journal publish record is then a constant for each body size, but for seq_id, message id, timestamp
and checksum::

    word | message id | expiry 0, size, E, record head, checksum 0, timestamp tag | ts | nils, head
      8       16                      8 + 4 + 4 + 3 + 8 + 1 = 28                     8     3 + 2
"""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from journal.files import ReadBuffer
from journal.format import PAYLOAD_SIZE, PUBLISH_HEAD_SIZE
from qindex.record_format import (
    CHECK_OFFSET,
    MAGIC,
    PLAIN_HEAD_SIZE,
    column,
    embedded_is_sound,
    plain_body_head,
    plain_body_size,
    verify_rows,
)
from qindex.segment_format import STEP_SIZE

__all__ = [
    "CHECK_END",
    "CHECK_START",
    "PLAIN_HEAD",
    "PLAIN_HEADS",
    "Columns",
    "plain_parts",
    "read_plain",
    "read_plain_run",
    "read_verified_run",
]

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Columns = tuple[list[bytes], list[int]]
"""Bodies, and timestamps in nanoseconds."""

PLAIN_HEAD = struct.Struct(">QQQ28sQ5s")
"""Word, two halves of the message id, first constant part, timestamp, second constant part, for
bodies below 256 bytes."""

CHECK_START = PUBLISH_HEAD_SIZE + CHECK_OFFSET
CHECK_END = CHECK_START + 8

_SIZES = struct.Struct(">QII")
_MOST_BODY_HEAD = 5
_SIZES_AT = PAYLOAD_SIZE - _SIZES.size
_TAG = b"\xcf"
_TAG_AT = CHECK_OFFSET + 8
_STAMP_AT = _TAG_AT + 1
_SECOND_AT = _STAMP_AT + 8
_FIRST_AT = PUBLISH_HEAD_SIZE - _SIZES.size
_SHORTEST_RUN = 64


@lru_cache(maxsize=4096)
def plain_parts(size: int) -> tuple[bytes, bytes]:
    """Give the two constant parts of a plain record with a body of ``size`` bytes."""
    body_head = plain_body_head(size)
    record_size = PLAIN_HEAD_SIZE + len(body_head) + size
    first = _SIZES.pack(0, size, record_size) + MAGIC + bytes(8) + _TAG
    return first, b"\xc0\xc0\xc0" + body_head


PLAIN_HEADS = tuple(plain_parts(size) for size in range(256))
"""The constant parts of the sizes that :data:`PLAIN_HEAD` is for."""


def read_plain(
    data: ReadBuffer, payload: int, word: int, *, verified: bool = False
) -> tuple[bytes, int] | None:
    """Read the record of a plain message whose message id stands at offset ``payload`` of a journal
    or segment; ``word``: its type and seq_id as in a journal.

    Gives its body and timestamp (nanoseconds); ``None`` when it is of another kind, or when its
    checksum does not hold (``verified``: it is known to hold). About 0.8 us: for few records, and
    for those of many lengths, this is quicker than to make arrays of them
    (:func:`qindex.entries.plain_entries`).
    """
    head = bytes(data[payload : payload + PAYLOAD_SIZE])
    _, size, embedded = _SIZES.unpack_from(head, _SIZES_AT)
    if not 0 < embedded - size - PLAIN_HEAD_SIZE <= _MOST_BODY_HEAD:
        return None
    record = bytes(data[payload + PAYLOAD_SIZE : payload + PAYLOAD_SIZE + embedded])
    first, second = plain_parts(size)
    body_at = _SECOND_AT + len(second)
    if (
        head[_SIZES_AT:] != first[: _SIZES.size]
        or record[:CHECK_OFFSET] != MAGIC
        or record[_TAG_AT:_STAMP_AT] != _TAG
        or record[_SECOND_AT:body_at] != second
    ):
        return None
    if not verified and not embedded_is_sound(data, payload, word, embedded):
        return None
    return record[body_at:], int.from_bytes(record[_STAMP_AT:_SECOND_AT], "big")


def read_plain_run(data: ReadBuffer, offsets: I64, first_seq: int) -> Columns | None:
    """Read the records of plain messages with bodies of one length, which stand one behind the
    other in a journal, as publishers leave them: at ``offsets``, for seq_ids ``first_seq,
    first_seq + 1, ...``.

    Gives their bodies and timestamps (nanoseconds), of the first so many at least where something
    else stands between them; ``None`` when they are of another kind, too few, or when a checksum
    does not hold. About 0.25 us a record of 500: for one length, and without a search for where
    each part stands, a third less than :func:`qindex.entries.plain_entries`.
    """
    count = len(offsets)
    start = int(offsets[0])
    stride = int(offsets[1]) - start if count > 1 else 0
    size = plain_body_size(stride - PUBLISH_HEAD_SIZE)
    if start < 0 or size <= 0:
        return None
    first, _ = plain_parts(size)
    if data[start + _FIRST_AT : start + CHECK_START] != first[: CHECK_START - _FIRST_AT]:
        return None
    if int(offsets[-1]) - start != stride * (count - 1):
        count = int((np.diff(offsets) != stride).argmax()) + 1
    if count < _SHORTEST_RUN or start + count * stride > len(data):
        return None
    rows = np.frombuffer(data, np.uint8, count * stride, start).copy().reshape(count, stride)
    if (column(rows, 0, ">u8") != np.arange(first_seq, first_seq + count)).any():
        return None
    found = _columns(rows, PUBLISH_HEAD_SIZE - PAYLOAD_SIZE, size)
    return found if found is not None and verify_rows(rows).all() else None


def read_verified_run(data: ReadBuffer, payload: int, stride: int, count: int) -> Columns | None:
    """Read the records of a segment that are known to be sound, each ``stride`` bytes behind the
    one before; ``payload``: offset of the first one's message id.

    Gives what :func:`read_plain_run` gives, of all; about 0.07 us a record of 2,000.
    """
    size = plain_body_size(stride - STEP_SIZE - PAYLOAD_SIZE)
    if size <= 0:
        return None
    rows = np.ndarray((count, stride - STEP_SIZE), np.uint8, data, payload, (stride, 1))
    return _columns(rows, 0, size)


def _columns(rows: U8, payload: int, size: int) -> Columns | None:
    """Give bodies of ``size`` bytes and timestamps of rows in which a message id stands at byte
    ``payload``; ``None`` where one of them is not plain."""
    first, second = plain_parts(size)
    record = payload + PAYLOAD_SIZE
    constants = (
        (payload + _SIZES_AT, first[: _SIZES.size] + MAGIC),
        (record + _TAG_AT, _TAG),
        (record + _SECOND_AT, second),
    )
    for at, part in constants:
        if column(rows, at, f"V{len(part)}").tobytes() != part * len(rows):
            return None
    stamps: list[int] = column(rows, record + _STAMP_AT, ">u8").astype(np.uint64).tolist()
    bodies: list[bytes] = column(rows, rows.shape[1] - size, f"V{size}").tolist()
    return bodies, stamps
