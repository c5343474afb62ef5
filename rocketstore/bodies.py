"""The bodies of a run of records at once."""

from __future__ import annotations

import struct
from functools import lru_cache

from rocketstore.commitlog_format import FIXED_SIZE, MESSAGE_MAGIC
from rocketstore.crc import crc32
from rocketstore.message import BODY_AT, FRAME, FRAME_LAYOUT, OTHER_HOSTS

__all__ = ["usual_bodies"]


def usual_bodies(
    data: bytes, places: tuple[int, ...], sizes: tuple[int, ...]
) -> list[bytes] | None:
    """The bodies of records that stand one after another in ``data``, their checksums checked;
    ``None`` where they are not all usual ones (IPv4 hosts, a body), or one of them is damaged.

    Here they must be all of one size, too: in columns it takes half the time that one by one takes.
    """
    count, size, length = len(sizes), sizes[0], FRAME(data)[-1]
    if sizes.count(size) != count or not 0 < length <= size - FIXED_SIZE:
        return None
    columns = zip(*_framed(size, length).iter_unpack(data), strict=True)
    magics, crcs, offsets, flags, lengths, bodies = columns
    if (
        magics.count(MESSAGE_MAGIC) != count
        or lengths.count(length) != count
        or flags.count(flags[0]) != count
        or flags[0] & OTHER_HOSTS
        or offsets != places
        or crcs != tuple([crc & 0x7FFFFFFF for crc in map(crc32, bodies)])
    ):
        return None
    return list(bodies)


@lru_cache(maxsize=256)
def _framed(size: int, length: int) -> struct.Struct:
    """The checked fields of a record of ``size`` bytes, and its body of ``length``."""
    return struct.Struct(f"{FRAME_LAYOUT}{length}s{size - BODY_AT - length}x")
