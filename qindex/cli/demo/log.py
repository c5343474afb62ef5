"""Reports of the demo's child process to its parent: 16 bytes a call, through a pipe.

::

    0      1        2       4          8                 16
    +------+--------+-------+----------+------------------+
    | kind | thread | flags | number   | seq_id           |   big-endian
    +------+--------+-------+----------+------------------+

    kind    P  publish returned                 thread   of the publisher who sent the message
            D  a message was delivered          number   of the message, among its publisher's
            T  ack is about to be called        flags    1: it was delivered as redelivered
            A  ack returned

A write of 16 bytes into a pipe is whole or not at all, and once it is made it survives the death
of the writer. So the parent knows of every call that returned. It may lack each thread's last call,
which was under way or had just returned when the process was killed.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

PUBLISHED, DELIVERED, ACKING, ACKED = b"PDTA"

RECORD = np.dtype(
    [("kind", "u1"), ("thread", "u1"), ("flags", ">u2"), ("number", ">u4"), ("seq", ">u8")]
)
Log = npt.NDArray[np.void]


def note(fd: int, kind: int, thread: int, flags: int, number: int, seq: int) -> None:
    """Tell the parent. Raises :class:`BrokenPipeError` when it is gone."""
    record = kind << 56 | thread << 48 | flags << 32 | number
    os.write(fd, (record << 64 | seq).to_bytes(16, "big"))


def key_of(thread: int, number: int) -> str:
    """Return the key of a message."""
    return f"o-{thread}-{number}"


def body_of(thread: int, number: int) -> bytes:
    """Return the body of a message: a different one, of a different length, for each."""
    text = f"order {number} of customer {thread};"
    return (text * (1 + number % 7)).encode()
