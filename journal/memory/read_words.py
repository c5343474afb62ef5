"""Numbers and checksums of bytes that are read, for the interpreter.

The compiler never sees this file: it takes the same names from ``read_words.pxd``, as with
:mod:`journal.memory.words`. A test holds the two against each other.
"""

from __future__ import annotations

import struct
from array import array

from xxhash import xxh3_64_digest

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


def u16(view: memoryview, at: int) -> int:
    """Return the two bytes at ``at`` as a big-endian number. This and those below raise
    :class:`IndexError` (interpreted: :class:`struct.error`) where they are not within ``view``."""
    number: int = _U16.unpack_from(view, at)[0]
    return number


def u32(view: memoryview, at: int) -> int:
    """Return the four bytes at ``at`` as a big-endian number."""
    number: int = _U32.unpack_from(view, at)[0]
    return number


def u64(view: memoryview, at: int) -> int:
    """Return the eight bytes at ``at`` as a big-endian number."""
    number: int = _U64.unpack_from(view, at)[0]
    return number


def put_record(
    kinds: array[int],
    seqs: array[int],
    offsets: array[int],
    lengths: array[int],
    kind: int,
    seq: int,
    offset: int,
    length: int,
) -> None:
    """Append to the columns of a walk: to an array of type ``B``, and to three of type ``q``."""
    kinds.append(kind)
    seqs.append(seq)
    offsets.append(offset)
    lengths.append(length)


def block_sums(data: memoryview, block: int) -> bytes:
    """Return the xxh3 sums (64 bits, big-endian) of each ``block`` bytes, and of the rest."""
    size = len(data)
    return b"".join([xxh3_64_digest(data[at : at + block]) for at in range(0, size, block)])
