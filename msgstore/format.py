"""The record of an ``.rdq`` file, and the names of all files of a message store.

A file has no header; it is records one after another (RabbitMQ 3.10, ``rabbit_msg_file``)::

    +----------------+------------------------------+---------------------+------+
    | S, 8 bytes, BE | message id, 16 bytes         | record, S-16 bytes  | 0xFF |
    +----------------+------------------------------+---------------------+------+
    0                8                              24                  S+8    S+9

S counts the id and the record, not itself and not the end byte. S = 0 is padding. All functions
here are pure: bytes in, bytes out.

Names in a store directory:

===============  =================================================================================
``N.rdq``        records; N ascends, gaps are normal, nothing follows from the order of numbers
``N.rdt``        RabbitMQ's own, half-done compaction of ``N.rdq``: records, laid out the same way
``N.rdq.tmp``    ours, half-done: copies of records that are still in their ``.rdq`` files
``quarantine/``  ours: damaged bytes that a repair set aside, ``<file name>.<offset>``
===============  =================================================================================
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

Check = Callable[[bytes, bytes], str | None]
"""``check(msg_id, record)`` tells why the record is damaged, or ``None`` when it is sound."""

ID_SIZE = 16
HEADER = 8 + ID_SIZE
"""Bytes in front of a record."""
FRAME = HEADER + 1
"""Bytes around a record."""
END_BYTE = 0xFF
END = bytes([END_BYTE])
MAX_RECORD = (1 << 32) - 1 - FRAME
"""The longest record the location index can hold, in bytes."""

TAIL_FLAG = 1 << 36
"""Set in the key of an ``N.rdt`` file; without it the key of ``N.rdq`` is N."""
QUARANTINE = "quarantine"
NODE_STATE_NAMES = ("clean.dot", "file_summary.ets", "msg_store_index.ets")
"""Files that a RabbitMQ node leaves at a clean stop and believes at its next start. A writer that
changes the store removes them first (so does the node), in this order."""

_LAYOUT = struct.Struct(">Q16s")


class Kind(enum.Enum):
    """The kinds of names in a store directory: what follows their number."""

    RECORDS = ".rdq"
    TAIL = ".rdt"
    TMP = ".rdq.tmp"


def pack_header(msg_id: bytes, record_size: int) -> bytes:
    """The 24 bytes that go in front of a record."""
    return _LAYOUT.pack(record_size + ID_SIZE, msg_id)


def encode(msg_id: bytes, record: bytes) -> bytes:
    """One whole record, framed.

    >>> encode(b"i" * 16, b"abc").hex()
    '000000000000001369696969696969696969696969696969616263ff'
    """
    return b"".join((_LAYOUT.pack(len(record) + ID_SIZE, msg_id), record, END))


def parse_header(data: bytes, position: int = 0) -> tuple[int, bytes]:
    """``(S, message id)`` of the header at ``position``. Raises :class:`struct.error`."""
    header: tuple[int, bytes] = _LAYOUT.unpack_from(data, position)
    return header


def starts_like_a_record(byte: int) -> bool:
    """Whether a record may begin with this byte: an external term (0x83) or a msgpack array."""
    return byte == 0x83 or 0x90 <= byte <= 0x9F or byte == 0xDC


def file_name(key: int) -> str:
    """The name of a file by its key."""
    if key & TAIL_FLAG:
        return f"{key ^ TAIL_FLAG}{Kind.TAIL.value}"
    return f"{key}{Kind.RECORDS.value}"


def tmp_name(key: int) -> str:
    """The name under which ``file_name(key)`` is being made by compaction."""
    return f"{key}{Kind.TMP.value}"


def classify_name(name: str) -> tuple[Kind, int] | None:
    """Kind and key of a file name; ``None`` for a foreign one.

    >>> classify_name("12.rdq"), classify_name("012.rdq"), classify_name("clean.dot")
    ((<Kind.RECORDS: '.rdq'>, 12), None, None)
    """
    stem, dot, suffix = name.partition(".")
    if not (stem.isascii() and stem.isdigit()) or str(int(stem)) != stem:
        return None
    number = int(stem)
    for kind in Kind:
        if dot + suffix == kind.value and number < TAIL_FLAG:
            return kind, number | TAIL_FLAG if kind is Kind.TAIL else number
    return None
