"""Records of plain messages, read many at once; for the interpreter.

The compiler never sees this file: it takes the same name from ``plain_rows.pxd``, where it is a
loop over the records. This function exists twice, so a test holds the two against each other.
"""

from __future__ import annotations

from array import array

import numpy as np

from journal.format import PAYLOAD_SIZE, PUBLISH_HEAD_SIZE
from journal.fs.files import ReadBuffer
from journal.memory.arrays import I64, U8
from qindex.format.message_record import (
    CHECK_OFFSET,
    MAGIC,
    column,
    plain_body_size,
    verify_rows,
)
from qindex.format.plain_record import (
    SECOND_AT,
    SHORTEST_RUN,
    SIZES,
    SIZES_AT,
    STAMP_AT,
    TAG,
    TAG_AT,
    plain_parts,
)
from qindex.format.segment import STEP_SIZE

_Columns = tuple[list[bytes], "array[int]"]
"""Bodies, and timestamps in nanoseconds (type ``Q``)."""

_FIRST_SIZE = SIZES.size + CHECK_OFFSET


def read_run(
    data: ReadBuffer,
    offsets: array[int] | I64,
    start: int,
    count: int,
    first_seq: int,
    most_bytes: int,
    in_journal: bool,
    middle: bytes,
    /,
) -> _Columns:
    """Read the records of messages with this ``middle``, such as plain ones, at
    ``offsets[start : start + count]`` of a journal or segment, for seq_ids ``first_seq,
    first_seq + 1, ...``.

    Return their bodies and timestamps (nanoseconds); of the first so many where another kind is
    after them, or one whose checksum does not hold: those in a journal are verified, those in a
    segment are known to be sound. Of no more than about ``most_bytes``. Compiled 0.05 us a record.

    Interpreted, only of records with bodies of one length that are one after the other, as
    publishers or a flush left them, and :data:`SHORTEST_RUN` of them or more: 0.25 us a record of
    500 of a journal, 0.07 us one of 2,000 of a segment.
    """
    places = np.array(offsets[start : start + count])
    found = _read_rows(data, places, first_seq, most_bytes, in_journal, middle)
    return ([], array("Q")) if found is None else found


def _read_rows(
    data: ReadBuffer,
    offsets: I64,
    first_seq: int,
    most_bytes: int,
    in_journal: bool,
    middle: bytes,
) -> _Columns | None:
    before = PUBLISH_HEAD_SIZE - PAYLOAD_SIZE if in_journal else STEP_SIZE
    start = int(offsets[0])
    stride = int(offsets[1]) - start if len(offsets) > 1 else 0
    size = plain_body_size(stride - before - PAYLOAD_SIZE, middle)
    if start < 0 or size <= 0:
        return None
    at = start + before + SIZES_AT
    if data[at : at + _FIRST_SIZE] != plain_parts(size, middle)[0][:_FIRST_SIZE]:
        return None
    offsets = offsets[: max(1, most_bytes // stride)]
    count = len(offsets)
    if int(offsets[-1]) - start != stride * (count - 1):
        count = int((np.diff(offsets) != stride).argmax()) + 1
    if count < SHORTEST_RUN or start + count * stride > len(data):
        return None
    rows = np.frombuffer(data, np.uint8, count * stride, start).reshape(count, stride)
    if not in_journal:
        return _columns(rows, before, size, middle)
    rows = rows.copy()
    if (column(rows, 0, ">u8") != np.arange(first_seq, first_seq + count)).any():
        return None
    found = _columns(rows, before, size, middle)
    return found if found is not None and verify_rows(rows).all() else None


def _columns(rows: U8, payload: int, size: int, middle: bytes) -> _Columns | None:
    """Return bodies of ``size`` bytes and timestamps of rows in which a message id is at byte
    ``payload``; ``None`` where one of them has another middle."""
    first, second = plain_parts(size, middle)
    record = payload + PAYLOAD_SIZE
    constants = (
        (payload + SIZES_AT, first[: SIZES.size] + MAGIC),
        (record + TAG_AT, TAG),
        (record + SECOND_AT, second),
    )
    for at, part in constants:
        if column(rows, at, f"V{len(part)}").tobytes() != part * len(rows):
            return None
    stamps = array("Q", column(rows, record + STAMP_AT, ">u8").astype(np.uint64).tobytes())
    bodies: list[bytes] = column(rows, rows.shape[1] - size, f"V{size}").tolist()
    return bodies, stamps
