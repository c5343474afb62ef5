"""Numbers and bytes in memory, for the interpreter.

The compiler never sees this file: it takes the same names from ``words.pxd``. These
functions exist twice, so a test holds the two against each other.

``store_record`` and ``store_word`` are the commits of an append. Into a map that is not a plain
:class:`mmap.mmap` (tests record the stores) both builds store by its own methods.
"""

from __future__ import annotations

import os
import struct
from _thread import get_ident as this_thread
from time import clock_gettime_ns as clock_ns
from time import time_ns as now_ns
from typing import TYPE_CHECKING

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from journal.format import START_SIZE
from journal.memory import forks

if TYPE_CHECKING:
    import mmap
    from array import array
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = [
    "clock_ns",
    "join_frame",
    "join_record",
    "join_rows",
    "join_words",
    "kept_stamp",
    "look_for_signals",
    "now_ns",
    "push",
    "room_on_stack",
    "row_sums",
    "seal",
    "store_record",
    "store_word",
    "this_thread",
]

_RECORD_HEAD = struct.Struct(">QQQQII12sQ")
"""Word, two halves of the message id, expiry, sizes of body and embedded record, the start of that
one, timestamp."""
_BEFORE_TAIL = 20
"""Bytes of the start and the timestamp."""
_ROWS_AT_ONCE = 1024
_ROW_BYTES_AT_ONCE = 1 << 18


def kept_stamp() -> int:
    """Return the stamp of this process, as :func:`journal.memory.forks.stamp` does. Return 0 in a
    forked child that has made none yet."""
    return os.getpid() if forks.PAGE is None else forks.PAGE[0]


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
    """Return ``record`` with the xxh3 sum (64 bits, big-endian) of all of it at ``at``. Raises
    :class:`IndexError` where it ends before."""
    if at + 8 > len(record):
        raise IndexError("the sum does not fit into the record")
    return record[:at] + xxh3_64_digest(record) + record[at + 8 :]


def join_record(
    seq_id: int,
    id_high: int,
    expiry: int,
    start: bytes,
    stamp: int,
    tail: bytes,
    body: bytes,
    sum_at: int,
) -> bytes:
    """Put the publish record of a persistent message together, and seal it at ``sum_at``.

    ``start``: the 12 bytes of the embedded record before the timestamp, ``tail``: those between it
    and the body (:mod:`qindex.format.plain_record`).
    """
    size = len(body)
    embedded = _BEFORE_TAIL + len(tail) + size
    head = _RECORD_HEAD.pack(seq_id, id_high, seq_id, expiry, size, embedded, start, stamp)
    return seal(head + tail + body, sum_at)


def join_rows(
    head: bytes, first_seq: int, bodies: Sequence[bytes], size: int, sum_at: int
) -> bytes | memoryview:
    """Put the publish records of messages with seq_ids from ``first_seq`` on together, with bodies
    of ``size`` bytes each, and seal them at ``sum_at``. ``head``: the first one up to its body, as
    :func:`join_record` makes it, without a sum."""
    import numpy as np  # the first batch waits for it, and no import of this module

    count, width = len(bodies), len(head) + size
    rows = np.empty((count, width), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    seqs = np.arange(first_seq, first_seq + count, dtype=np.int64).astype(">u8")
    rows[:, :8] = rows[:, 16:24] = seqs.view(np.uint8).reshape(count, 8)
    if size:
        rows[:, len(head) :] = np.frombuffer(b"".join(bodies), np.uint8).reshape(count, size)
    sums = np.empty(count, np.uint64)
    row_sums(rows, sums)
    rows[:, sum_at : sum_at + 8] = sums.astype(">u8").view(np.uint8).reshape(count, 8)
    return rows.ravel().data


def join_words(first: int, count: int) -> bytes:
    """Return the eight bytes (big-endian) of ``first`` and of each of the ``count - 1`` numbers
    that follow it."""
    import numpy as np

    numbers = np.arange(count, dtype=np.uint64) + np.uint64(first)
    return numbers.astype(">u8").tobytes()


def join_frame(
    start: bytes, number: int, middle: bytes, second: int, tail: bytes, last: bytes
) -> bytes:
    """Put these together, the numbers as eight bytes each, after their length (four bytes) and
    xxh3 sum, and before a byte of ones. Numbers are big-endian."""
    packed = start + number.to_bytes(8, "big") + middle + second.to_bytes(8, "big") + tail + last
    return len(packed).to_bytes(4, "big") + xxh3_64_digest(packed) + packed + b"\xff"


def row_sums(rows: npt.NDArray[np.uint8], sums: npt.NDArray[np.uint64]) -> None:
    """Put the xxh3 of each row into ``sums``, shape ``(n,)``; 50 ns for a short row."""
    count, width = rows.shape
    # Some rows at a time, so that their copies stay in the processor's cache.
    at_once = max(1, min(_ROWS_AT_ONCE, _ROW_BYTES_AT_ONCE // width))
    flat = rows.view(f"V{width}").ravel()
    for first in range(0, count, at_once):
        some = flat[first : first + at_once].tolist()
        sums[first : first + len(some)] = list(map(xxh3_64_intdigest, some))


def look_for_signals() -> None:
    """Let signals' handlers run that are due: the interpreter does it by itself."""


def room_on_stack() -> None:
    """Raise :class:`RecursionError` where a compiled ``with`` could be entered, but not left: the
    interpreter's needs no more room to leave than to enter."""


def push(numbers: array[int], number: int) -> None:
    """Append to an array of type ``q``."""
    numbers.append(number)
