"""Checksums of what an index file holds, kept beside it: a flipped bit is found and put right.

RabbitMQ's formats have no checksum for a deliver or ack record: a flipped bit in one makes it the
ack of another message, and nobody can tell. So for each file ``F`` of the queue index there is a
file ``F.sum``, under a name that RabbitMQ ignores, with a checksum for each 4 KiB of it. A block
whose checksum does not hold is healed by trying each of its 32,768 bits: 64 bits of checksum leave
no doubt about which one it was. It is a help, not a commitment: it is never synced, and what it
does not cover, or no longer fits, is left as it is.

A sum file is a sequence of extents, each for bytes that were appended at once, big-endian::

    0        8         16                       16 + 8 * n
    +--------+---------+-----------------------+
    | offset | length  | n checksums (xxh3)    |   n = ceil(length / 4096)
    +--------+---------+-----------------------+

The first checksum covers the extent's first 4,096 bytes, and so on; the last one what is left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from journal.files import ReadBuffer

__all__ = ["BLOCK", "SUFFIX", "Healed", "extent", "heal"]

SUFFIX = ".sum"
BLOCK = 4096

_HEAD = struct.Struct(">QQ")
_SUM = struct.Struct(">Q")
_MOST_BROKEN = 8
"""More blocks that do not hold than this, and the sums are those of another file."""


@dataclass(slots=True)
class Healed:
    """A file's bytes, with ``fixed``: the offsets of bytes in which one bit was put right, and
    ``broken``: the offsets of blocks that do not hold and could not be healed. ``whole``: every
    byte is covered by a checksum that holds."""

    data: bytes | bytearray
    fixed: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    whole: bool = False


def extent(data: ReadBuffer, offset: int) -> bytes:
    """Give the extent for ``data``, the bytes appended at ``offset`` of a file. About 0.3 us for
    each 4 KiB."""
    with memoryview(data) as view:
        length = len(view)
        sums = [xxh3_64_intdigest(view[at : at + BLOCK]) for at in range(0, length, BLOCK)]
    return struct.pack(f">QQ{len(sums)}Q", offset, length, *sums)


def _blocks(sums: bytes, size: int) -> Iterator[tuple[int, int, int]]:
    """Give start, end and checksum of each block that lies within ``size`` bytes; ends where the
    extents stop making sense."""
    position = 0
    end = 0
    while position + _HEAD.size <= len(sums):
        offset, length = _HEAD.unpack_from(sums, position)
        position += _HEAD.size
        count = -(-length // BLOCK)
        if offset < end or not length or position + count * _SUM.size > len(sums):
            return
        end = offset + length
        for start in range(offset, min(end, size), BLOCK):
            stop = min(start + BLOCK, end)
            if stop <= size:
                (check,) = _SUM.unpack_from(sums, position + (start - offset) // BLOCK * _SUM.size)
                yield start, stop, check
        position += count * _SUM.size


def heal(data: bytes, sums: bytes | None) -> Healed:
    """Hold ``data`` against its sums and put single flipped bits right.

    Never raises on any bytes. O(size), and about 20 ms for each block that does not hold (eight at
    most: with more, the sums are taken to be another file's).
    """
    if not sums:
        return Healed(data)
    view = memoryview(data)
    wrong = []
    covered = 0
    for start, stop, check in _blocks(sums, len(data)):
        covered += stop - start
        if xxh3_64_intdigest(view[start:stop]) != check:
            wrong.append((start, stop, check))
    if len(wrong) > _MOST_BROKEN:
        return Healed(data)
    healed = Healed(data, whole=covered == len(data))
    for start, stop, check in wrong:
        found = xxh3_64_intdigest(view[start:stop])
        if (found ^ check).bit_count() == 1:
            healed.whole = False  # The flipped bit is in the sum file.
            continue
        block = bytearray(view[start:stop])
        bit = _flipped_bit(block, check)
        if bit is None:
            healed.broken.append(start)
            healed.whole = False
            continue
        if not isinstance(healed.data, bytearray):
            healed.data = bytearray(data)
        at = start + (bit >> 3)
        healed.data[at] ^= 0x80 >> (bit & 7)
        healed.fixed.append(at)
    return healed


def _flipped_bit(block: bytearray, check: int) -> int | None:
    for at in range(len(block)):
        good = block[at]
        for shift in range(8):
            block[at] = good ^ 0x80 >> shift
            if xxh3_64_intdigest(block) == check:
                return at * 8 + shift
        block[at] = good
    return None
