"""Numbers and bytes in memory, for the interpreter.

The compiler never sees this file: it takes the same names from ``words.pxd``. These are the only
functions that exist twice, so a test holds the two against each other.

``store_record`` and ``store_word`` are the commits of an append. Into a map that is no plain
:class:`mmap.mmap` (tests record the stores) both builds store by its own methods.
"""

from __future__ import annotations

import struct
from time import time_ns as now_ns
from typing import TYPE_CHECKING

from xxhash import xxh3_64_digest

from journal.format import START_SIZE

if TYPE_CHECKING:
    import mmap
    from array import array

__all__ = ["join_record", "now_ns", "push", "seal", "store_record", "store_word"]

_RECORD_HEAD = struct.Struct(">QQQ28sQ")
"""Word, two halves of the message id, first part, timestamp."""


def store_record(into: mmap.mmap, at: int, record: bytes | memoryview) -> None:
    """Store ``record`` at ``at``: its first sixteen bytes last, at once.

    A process that is killed leaves all of it, or zeros in its first sixteen bytes. Raises
    :class:`IndexError` where the map ends before it.
    """
    end = at + len(record)
    into[at + START_SIZE : end] = record[START_SIZE:]
    into[at : min(at + START_SIZE, end)] = record[:START_SIZE]


def store_word(into: mmap.mmap, at: int, word: int) -> None:
    """Store the eight bytes of ``word`` (big-endian) at ``at``, at once. Raises as above."""
    into[at : at + 8] = word.to_bytes(8, "big")


def seal(record: bytes, at: int) -> bytes:
    """Give ``record`` with the xxh3 sum (64 bits, big-endian) of all of it at ``at``. Raises
    :class:`IndexError` where it ends before."""
    if at + 8 > len(record):
        raise IndexError("the sum does not fit into the record")
    return record[:at] + xxh3_64_digest(record) + record[at + 8 :]


def join_record(
    seq_id: int, id_high: int, first: bytes, stamp: int, second: bytes, body: bytes
) -> bytes:
    """Put a publish record together: ``first`` (28 bytes) stands before the timestamp, ``second``
    between it and the body (:mod:`qindex.format.plain_record`)."""
    return _RECORD_HEAD.pack(seq_id, id_high, seq_id, first, stamp) + second + body


def push(numbers: array[int], number: int) -> None:
    """Append to an array of type ``q``."""
    numbers.append(number)
