"""The bytes of a segment file ``K.idx`` (RabbitMQ 3.10, rabbit_queue_index).

Segment K holds the index entries of seq_ids ``K*C .. K*C+C-1``, where C is the store's segment
entry count (16,384 for our stores; RabbitMQ writes 2,048 into its ``.config``). No header, no
checksum, integers big-endian::

    publish    0         2                  18       26     30      34            34+E
               +-+-+-----+------------------+--------+------+-------+-------------+
               |1|p| rel | message id (16)  | expiry | size |   E   | record (E)  |
               +-+-+-----+------------------+--------+------+-------+-------------+
    next step  |0 1| rel |
               +---+-----+

    rel     14 bits: seq_id mod C
    p       the message is persistent
    next    the first such record of a rel says delivered, the second acknowledged; it must
    step    come after the publish record of the rel

Everything after the first two bytes of a publish record is as in the journal
(:mod:`journal.format`). A file of zero bytes only counts as empty.

Worked example: rel 5, persistent, a record of two bytes ``97 01``, delivered and acknowledged::

    c0 05  <16 bytes id>  00*8  00 00 00 01  00 00 00 02  97 01    40 05    40 05
"""

from __future__ import annotations

import struct

from journal.format import PAYLOAD_SIZE

SUFFIX = ".idx"
MAX_ENTRY_COUNT = 1 << 14
DEFAULT_ENTRY_COUNT = MAX_ENTRY_COUNT

PUBLISH = 0x8000
PERSISTENT = 0x4000
NEXT_STEP = 0x4000
"""Two top bits 01; with :data:`PUBLISH` set the same bit says persistent."""
REL_MASK = 0x3FFF
STEP_SIZE = 2

PUBLISH_HEAD = struct.Struct(">H16sQII")
"""A publish record up to the embedded message record: head, message id, expiry, size, E."""
PUBLISH_HEAD_SIZE = PUBLISH_HEAD.size
assert PUBLISH_HEAD_SIZE == STEP_SIZE + PAYLOAD_SIZE


def file_name(number: int) -> str:
    """Name the file of segment ``number``."""
    return f"{number}{SUFFIX}"


def file_number(name: str, suffix: str = SUFFIX) -> int | None:
    """Return the segment number of a file name, or ``None`` when it is none (like ``00.idx``, which
    no segment has: taken for 0.idx it would hide that one's entries)."""
    stem = name.removesuffix(suffix)
    if stem == name or not stem.isascii() or not stem.isdigit():
        return None
    number = int(stem)
    return number if str(number) == stem else None
