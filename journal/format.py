"""The bytes of ``journal.jif``, the action log of one queue (RabbitMQ 3.10, rabbit_queue_index).

A journal is a sequence of records, all integers big-endian, no header, no padding::

    publish     0         8                  24        32      36      40            40+E
                +----+----+------------------+---------+-------+-------+-------------+
                |0 p| seq | message id (16)  | expiry  | size  |   E   | record (E)  |
                +----+----+------------------+---------+-------+-------+-------------+
    deliver     |1 0| seq |
                +----+----+
    ack         |1 1| seq |
                +----+----+

    0 p    two bits: 00 publish of a persistent message, 01 of a transient one
    seq    62 bits, the seq_id
    expiry absolute time in microseconds since 1970, 0 = never
    size   bytes of the message body (statistics only)
    E      bytes of the embedded message record; 0 = the message is in the message store

A parser stops at the first incomplete record, and at a whole publish head of 40 zero bytes (the
tail of a file that was extended before it was written).

Worked example: publish of seq_id 5, persistent, with a record of two bytes ``97 01``, then its
delivery and ack, 58 bytes in all::

    00 00 00 00 00 00 00 05  <16 bytes id>  00*8  00 00 00 01  00 00 00 02  97 01
    80 00 00 00 00 00 00 05
    c0 00 00 00 00 00 00 05
"""

from __future__ import annotations

import struct

FILE_NAME = "journal.jif"

PUBLISH_PERSISTENT = 0b00
PUBLISH_TRANSIENT = 0b01
DELIVER = 0b10
ACK = 0b11

TYPE_SHIFT = 62
DELIVER_BITS = DELIVER << TYPE_SHIFT
"""The bits of a deliver record beside its seq_id."""
ACK_BITS = ACK << TYPE_SHIFT
"""Those of an ack record."""
SEQ_MASK = (1 << TYPE_SHIFT) - 1
MAX_SEQ_ID = SEQ_MASK

ACTION_WORD = struct.Struct(">Q")
"""Type and seq_id: a whole deliver or ack record, and the start of a publish record."""
ACTION_SIZE = ACTION_WORD.size

PAYLOAD = struct.Struct(">16sQII")
"""Message id, expiry, size, E: the fields of a publish record in journals and segments alike."""
PAYLOAD_SIZE = PAYLOAD.size

PUBLISH_HEAD = struct.Struct(">Q16sQII")
"""A publish record up to the embedded message record."""
PUBLISH_HEAD_SIZE = PUBLISH_HEAD.size

START_SIZE = 16
"""Bytes of an append that are stored last: a processor stores them at once."""
NO_START = bytes(START_SIZE)
"""The zeros that are there until then. No record starts so: a message id is never zero."""


def pack_action(action: int, seq_id: int) -> bytes:
    """Return the 8 bytes of a deliver or ack record."""
    return ACTION_WORD.pack(action << TYPE_SHIFT | seq_id)


def pack_publish(
    seq_id: int, persistent: bool, msg_id: bytes, expiry: int, size: int, record: bytes
) -> bytes:
    """Return a publish record: ``expiry`` in microseconds, ``size`` of the body in bytes, and the
    embedded message ``record`` (empty: the message is in the message store)."""
    kind = PUBLISH_PERSISTENT if persistent else PUBLISH_TRANSIENT
    head = PUBLISH_HEAD.pack(kind << TYPE_SHIFT | seq_id, msg_id, expiry, size, len(record))
    return head + record
