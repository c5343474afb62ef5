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

from journal.format import PAYLOAD_SIZE, PUBLISH_HEAD_SIZE
from journal.fs.files import ReadBuffer
from qindex.format.message_record import (
    CHECK_OFFSET,
    MAGIC,
    NOTHING,
    PLAIN_HEAD_SIZE,
    embedded_is_sound,
    plain_body_head,
)

CHECK_START = PUBLISH_HEAD_SIZE + CHECK_OFFSET
CHECK_END = CHECK_START + 8
SHORTEST_RUN = 64
"""A shorter run of plain messages is read together with the message after it, which is not plain.
"""

SIZES = struct.Struct(">QII")
_MAX_BODY_HEAD = 5
SIZES_AT = PAYLOAD_SIZE - SIZES.size
TAG = b"\xcf"
TAG_AT = CHECK_OFFSET + 8
STAMP_AT = TAG_AT + 1
SECOND_AT = STAMP_AT + 8


@lru_cache(maxsize=4096)
def plain_parts(size: int, middle: bytes = NOTHING) -> tuple[bytes, bytes]:
    """Return the two constant parts of a record with this middle and a body of ``size`` bytes."""
    body_head = plain_body_head(size)
    record_size = PLAIN_HEAD_SIZE - len(NOTHING) + len(middle) + len(body_head) + size
    first = SIZES.pack(0, size, record_size) + MAGIC + bytes(8) + TAG
    return first, middle + body_head


PLAIN_TAILS = tuple(NOTHING + plain_body_head(size) for size in range(256))
"""The second of these parts, for short bodies."""


def read_plain(
    data: ReadBuffer, payload: int, word: int, verified: bool, middle: bytes = NOTHING, /
) -> tuple[bytes, int] | None:
    """Read the record of a plain message whose message id is at offset ``payload`` of a journal
    or segment, or of one with another ``middle``; ``word``: its type and seq_id as in a journal.

    Return its body and timestamp (nanoseconds). None when it is of another kind, or when its
    checksum does not hold (``verified``: it is known to hold). About 0.8 us: for few records, and
    for those of many lengths, this is quicker than to make arrays of them
    (:func:`qindex.format.entries.plain_entries`).
    """
    head = bytes(data[payload : payload + PAYLOAD_SIZE])
    _, size, embedded = SIZES.unpack_from(head, SIZES_AT)
    if not 0 < embedded - size - PLAIN_HEAD_SIZE - len(middle) + len(NOTHING) <= _MAX_BODY_HEAD:
        return None
    record = bytes(data[payload + PAYLOAD_SIZE : payload + PAYLOAD_SIZE + embedded])
    first, second = plain_parts(size, middle)
    body_at = SECOND_AT + len(second)
    if (
        head[SIZES_AT:] != first[: SIZES.size]
        or record[:CHECK_OFFSET] != MAGIC
        or record[TAG_AT:STAMP_AT] != TAG
        or record[SECOND_AT:body_at] != second
    ):
        return None
    if not verified and not embedded_is_sound(data, payload, word, embedded):
        return None
    return record[body_at:], int.from_bytes(record[STAMP_AT:SECOND_AT], "big")
