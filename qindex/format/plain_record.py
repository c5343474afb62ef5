"""The fixed parts of the publish record of a plain message, by the size of its body.

A plain message has neither key, headers nor properties, is persistent and never expires. Its
journal publish record is then a constant for each body size, but for seq_id, message id, timestamp
and checksum::

    word | message id | expiry 0, size, E, record head, checksum 0, timestamp tag | ts | nils, head
      8       16                      8 + 4 + 4 + 3 + 8 + 1 = 28                     8     3 + 2
"""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from journal.files import ReadBuffer
from journal.format import PAYLOAD_SIZE, PUBLISH_HEAD_SIZE
from qindex.format.message_record import (
    CHECK_OFFSET,
    MAGIC,
    NOTHING,
    PLAIN_HEAD_SIZE,
    column,
    embedded_is_sound,
    plain_body_head,
    plain_body_size,
    verify_rows,
)
from qindex.format.segment import STEP_SIZE

__all__ = [
    "CHECK_END",
    "CHECK_START",
    "PLAIN_TAILS",
    "SHORTEST_RUN",
    "plain_parts",
    "read_plain",
    "read_run",
]

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
_Columns = tuple[list[bytes], list[int]]
"""Bodies, and timestamps in nanoseconds."""

CHECK_START = PUBLISH_HEAD_SIZE + CHECK_OFFSET
CHECK_END = CHECK_START + 8

_SIZES = struct.Struct(">QII")
_MOST_BODY_HEAD = 5
_SIZES_AT = PAYLOAD_SIZE - _SIZES.size
_TAG = b"\xcf"
_TAG_AT = CHECK_OFFSET + 8
_STAMP_AT = _TAG_AT + 1
_SECOND_AT = _STAMP_AT + 8
_FIRST_SIZE = _SIZES.size + CHECK_OFFSET
SHORTEST_RUN = 64
"""Fewer plain messages than these before one that is not plain are read with it."""


@lru_cache(maxsize=4096)
def plain_parts(size: int) -> tuple[bytes, bytes]:
    """Give the two constant parts of a plain record with a body of ``size`` bytes."""
    body_head = plain_body_head(size)
    record_size = PLAIN_HEAD_SIZE + len(body_head) + size
    first = _SIZES.pack(0, size, record_size) + MAGIC + bytes(8) + _TAG
    return first, NOTHING + body_head


PLAIN_TAILS = tuple(NOTHING + plain_body_head(size) for size in range(256))
"""The second of these parts, for short bodies."""


def read_plain(
    data: ReadBuffer, payload: int, word: int, verified: bool, /
) -> tuple[bytes, int] | None:
    """Read the record of a plain message whose message id stands at offset ``payload`` of a journal
    or segment; ``word``: its type and seq_id as in a journal.

    Gives its body and timestamp (nanoseconds); ``None`` when it is of another kind, or when its
    checksum does not hold (``verified``: it is known to hold). About 0.8 us: for few records, and
    for those of many lengths, this is quicker than to make arrays of them
    (:func:`qindex.format.entries.plain_entries`).
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


def read_run(
    data: ReadBuffer,
    offsets: array[int] | I64,
    start: int,
    count: int,
    first_seq: int,
    most_bytes: int,
    in_journal: bool,
    /,
) -> _Columns:
    """Read the records of plain messages with bodies of one length that stand one behind the other,
    as publishers or a flush left them: at ``offsets[start : start + count]`` of a journal or
    segment, for seq_ids ``first_seq, first_seq + 1, ...``.

    Gives their bodies and timestamps (nanoseconds); of the first so many where something else
    stands behind them, and of no more than about ``most_bytes``. Nothing where they
    are of another kind, fewer than :data:`SHORTEST_RUN`, or where a checksum does not hold: those
    in a journal are verified, those in a segment are known to be sound. About 0.25 us a record of
    500 of a journal, 0.07 us one of 2,000 of a segment: for one length, and without a search for
    where each part stands, a third less than :func:`qindex.format.entries.plain_entries`.
    """
    places = np.array(offsets[start : start + count])
    found = _read_rows(data, places, first_seq, most_bytes, in_journal)
    if found is None:
        return [], []
    return found


def _read_rows(
    data: ReadBuffer, offsets: I64, first_seq: int, most_bytes: int, in_journal: bool
) -> _Columns | None:
    before = PUBLISH_HEAD_SIZE - PAYLOAD_SIZE if in_journal else STEP_SIZE
    start = int(offsets[0])
    stride = int(offsets[1]) - start if len(offsets) > 1 else 0
    size = plain_body_size(stride - before - PAYLOAD_SIZE)
    if start < 0 or size <= 0:
        return None
    at = start + before + _SIZES_AT
    if data[at : at + _FIRST_SIZE] != plain_parts(size)[0][:_FIRST_SIZE]:
        return None
    offsets = offsets[: max(1, most_bytes // stride)]
    count = len(offsets)
    if int(offsets[-1]) - start != stride * (count - 1):
        count = int((np.diff(offsets) != stride).argmax()) + 1
    if count < SHORTEST_RUN or start + count * stride > len(data):
        return None
    rows = np.frombuffer(data, np.uint8, count * stride, start).reshape(count, stride)
    if not in_journal:
        return _columns(rows, before, size)
    rows = rows.copy()
    if (column(rows, 0, ">u8") != np.arange(first_seq, first_seq + count)).any():
        return None
    found = _columns(rows, before, size)
    return found if found is not None and verify_rows(rows).all() else None


def _columns(rows: U8, payload: int, size: int) -> _Columns | None:
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
