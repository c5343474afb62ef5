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

from xxhash import xxh3_64_digest

from journal.files import ReadBuffer
from journal.format import PUBLISH_HEAD_SIZE
from qindex.record_format import CHECK_OFFSET, MAGIC, PLAIN_HEAD_SIZE, plain_body_head

__all__ = ["CHECK_END", "CHECK_START", "PLAIN_HEAD", "PLAIN_HEADS", "plain_parts", "read_plain"]

PLAIN_HEAD = struct.Struct(">QQQ28sQ5s")
"""Word, two halves of the message id, first constant part, timestamp, second constant part, for
bodies below 256 bytes."""

CHECK_START = PUBLISH_HEAD_SIZE + CHECK_OFFSET
CHECK_END = CHECK_START + 8

_SIZES = struct.Struct(">QII")
_HEAD = struct.Struct(">Q16xQII")
_ZERO_CHECK = bytes(8)
_FIRST_AT = PUBLISH_HEAD_SIZE - 16
_STAMP_AT = CHECK_END + 1
_SECOND_AT = _STAMP_AT + 8


@lru_cache(maxsize=4096)
def plain_parts(size: int) -> tuple[bytes, bytes]:
    """Give the two constant parts of a plain record with a body of ``size`` bytes."""
    body_head = plain_body_head(size)
    record_size = PLAIN_HEAD_SIZE + len(body_head) + size
    first = _SIZES.pack(0, size, record_size) + MAGIC + bytes(8) + b"\xcf"
    return first, b"\xc0\xc0\xc0" + body_head


PLAIN_HEADS = tuple(plain_parts(size) for size in range(256))
"""The constant parts of the sizes that :data:`PLAIN_HEAD` is for."""


def read_plain(data: ReadBuffer, offset: int, seq: int) -> tuple[bytes, int] | None:
    """Read the record of a plain message with that seq_id at ``offset`` of a journal.

    Gives its body and timestamp (nanoseconds); ``None`` when it is of another kind, or when its
    checksum does not hold. About 1 us: for few records this is quicker than to make arrays of
    them (:func:`qindex.entries.plain_entries`).
    """
    word, expiry, size, embedded = _HEAD.unpack_from(data, offset)
    if word != seq or expiry or not embedded:
        return None
    record = bytes(data[offset : offset + PUBLISH_HEAD_SIZE + embedded])
    blank = b"".join((record[:CHECK_START], _ZERO_CHECK, record[CHECK_END:]))
    first, second = plain_parts(size)
    body_at = _SECOND_AT + len(second)
    if (
        blank[_FIRST_AT:_STAMP_AT] != first
        or record[_SECOND_AT:body_at] != second
        or xxh3_64_digest(blank) != record[CHECK_START:CHECK_END]
    ):
        return None
    return record[body_at:], int.from_bytes(record[_STAMP_AT:_SECOND_AT], "big")
