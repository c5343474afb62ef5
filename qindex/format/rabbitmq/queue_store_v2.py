"""``K.qs``: the message store of one classic queue of version 2, for the entries of ``K.qi``.

It holds the messages whose body and properties are below 4,096 bytes; larger ones go to the store
that all queues share. All integers are big-endian::

    0   64  as in K.qi (qindex.format.rabbitmq.queue_index_v2), with "RCQS"

    then entries, each where its slot in K.qi says:
         0   4  N
         4   1  flags: bit 0 = there is a checksum
         5   2  checksum: the low 16 bits of the CRC-32 (zlib) of the N bytes, else 0
         7   1  zero
         8   N  the message record, an external term; zeros may follow it within N

The bytes between entries mean nothing: a node of 3.12 and later keeps the room of a message that
was acknowledged before it was written, one of 3.10 leaves messages that no index names. The
checksum covers the N bytes and nothing else.

"hi" in its record of 151 bytes, with a checksum::

    00 00 00 97  01  5b 1f  00  83 68 04 77 02 6d 63 ...

Source: files written by RabbitMQ 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import Final

import numpy as np

from journal.memory.crc import crc32
from qindex.format.rabbitmq import queue_index_v2
from qindex.format.rabbitmq.queue_index_v2 import HEADER_SIZE as HEADER_SIZE

MAGIC: Final = b"RCQS"
SUFFIX: Final = ".qs"
HAS_CHECKSUM: Final = 1
ENTRY_HEAD: Final = Struct(">IBHB")
"""Size, flags, checksum, zero: the head of a record."""
HEADS: Final = np.dtype([("size", ">u4"), ("flags", "u1"), ("checksum", ">u2"), ("zero", "u1")])
"""The same as a column."""
assert HEADS.itemsize == ENTRY_HEAD.size

parse_header: partial[queue_index_v2.Header] = partial(queue_index_v2.parse_header, magic=MAGIC)
pack_header: partial[bytes] = partial(queue_index_v2.pack_header, magic=MAGIC)


def checksum(record: bytes | memoryview) -> int:
    """The 16 bits that an entry keeps of its record's CRC-32."""
    return crc32(record) & 0xFFFF


def pack_entry_head(record: bytes | memoryview) -> bytes:
    """Return the head that is in front of ``record``."""
    return ENTRY_HEAD.pack(len(record), HAS_CHECKSUM, checksum(record), 0)


def file_name(number: int) -> str:
    """The name of file ``number``."""
    return f"{number}{SUFFIX}"
