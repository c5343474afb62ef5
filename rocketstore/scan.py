"""Read CommitLog records in bulk: one pass over the sizes, the rest with numpy.

Each record holds the position of the next, so finding the starts is a plain loop; all fields of
all records found are then gathered at once, and every check but the CRC is one comparison of
arrays.
"""

from __future__ import annotations

import enum
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rocketstore.commitlog_format import (
    BLANK_MAGIC,
    COMMON_FIELDS,
    FIXED_SIZE,
    MESSAGE_MAGIC,
    START,
)
from rocketstore.crc import crc32

__all__ = ["Records", "Stop", "scan_records"]

Int64Array = npt.NDArray[np.int64]

_SIZE_MAGIC = START.unpack_from
_COMMON = np.dtype(list(COMMON_FIELDS))
BATCH = 8192
"""Records to a batch: enough to hide numpy's cost for each call, and bounded memory."""


class Stop(enum.Enum):
    """Why a scan ended where it did."""

    LIMIT = "limit"
    END = "end"
    BLANK = "blank"
    BAD = "bad"


@dataclass(slots=True)
class Records:
    """Columns of consecutive sound records; positions are within the file."""

    positions: Int64Array
    sizes: Int64Array
    queue_ids: Int64Array
    queue_offsets: Int64Array
    offsets: Int64Array
    sys_flags: Int64Array
    store_times: Int64Array
    topics: list[bytes]
    properties: list[bytes]

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, chosen: slice) -> Records:
        """Give some of them."""
        return Records(
            positions=self.positions[chosen],
            sizes=self.sizes[chosen],
            queue_ids=self.queue_ids[chosen],
            queue_offsets=self.queue_offsets[chosen],
            offsets=self.offsets[chosen],
            sys_flags=self.sys_flags[chosen],
            store_times=self.store_times[chosen],
            topics=self.topics[chosen],
            properties=self.properties[chosen],
        )


def scan_records(
    buffer: mmap.mmap,
    start: int,
    position: int,
    end: int,
    *,
    check_crc: bool,
    strict: bool = False,
    limit: int = BATCH,
) -> tuple[Records, int, Stop]:
    """Read records from ``position`` up to ``end`` of the file that begins at offset ``start``.

    Gives the sound records before the first bad one, the position after them, and why it
    stopped; ``Stop.BAD`` means that no sound record stands at that position. A record is sound
    when its magic, its lengths and (if asked) the CRC of its body agree: the checks of the real
    recovery. ``strict`` also asks that the physical offset is the record's own place and that
    topic and properties hold no NUL, which a torn write leaves and this project's put refuses.
    """
    positions: list[int] = []
    found = positions.append
    stop = Stop.LIMIT
    last = end - FIXED_SIZE
    at = position
    while len(positions) < limit:
        if at > last:
            stop = _tail(buffer, at, end)
            break
        size, magic = _SIZE_MAGIC(buffer, at)
        if magic != MESSAGE_MAGIC or size < FIXED_SIZE or size > end - at:
            stop = Stop.BLANK if magic == BLANK_MAGIC else Stop.BAD
            break
        found(at)
        at += size
    data = np.frombuffer(buffer, np.uint8)
    records, good = _columns(data, buffer, positions, start, end, check_crc, strict)
    if good < len(positions):
        return records, positions[good], Stop.BAD
    return records, at, stop


def _tail(buffer: mmap.mmap, at: int, end: int) -> Stop:
    if at >= end:
        return Stop.END
    if at + 8 <= end and _SIZE_MAGIC(buffer, at)[1] == BLANK_MAGIC:
        return Stop.BLANK
    return Stop.BAD


def _gather(data: npt.NDArray[np.uint8], at: Int64Array, dtype: str) -> Int64Array:
    width = np.dtype(dtype).itemsize
    taken = data[at[:, None] + np.arange(width)]
    values: Int64Array = taken.view(dtype).reshape(-1).astype(np.int64)
    return values


def _columns(
    data: npt.NDArray[np.uint8],
    buffer: mmap.mmap,
    found: list[int],
    start: int,
    end: int,
    check_crc: bool,
    strict: bool,
) -> tuple[Records, int]:
    positions = np.array(found, np.int64)
    common: Any = data[positions[:, None] + np.arange(_COMMON.itemsize)].view(_COMMON).reshape(-1)
    sizes = common["size"].astype(np.int64)
    sys_flags = common["sys_flag"].astype(np.int64)
    v6_born = (sys_flags >> 4 & 1) * 12
    hosts = v6_born + (sys_flags >> 5 & 1) * 12
    # A v6 record must at least hold its hosts: nothing below may read past the record.
    sound = sizes >= FIXED_SIZE + hosts
    hosts[~sound] = 0
    v6_born[~sound] = 0
    store_times = _gather(data, positions + 56 + v6_born, ">i8")
    body_lengths = _gather(data, positions + 84 + hosts, ">i4")
    fixed = FIXED_SIZE + hosts
    sound &= (body_lengths >= 0) & (body_lengths <= sizes - fixed)
    body_lengths[~sound] = 0
    topic_at = positions + 88 + hosts + body_lengths
    topic_lengths = data[topic_at].astype(np.int64)
    sound &= (topic_lengths < 128) & (fixed + body_lengths + topic_lengths <= sizes)
    topic_lengths[~sound] = 0
    tail_at = topic_at + 1 + topic_lengths
    property_lengths = _gather(data, tail_at, ">i2")
    sound &= (property_lengths >= 0) & (
        fixed + body_lengths + topic_lengths + property_lengths == sizes
    )
    if strict:
        sound &= common["offset"] == positions + start
    good = len(found) if sound.all() else int(sound.argmin())
    body_at = (positions + 88 + hosts).tolist()
    lengths = body_lengths.tolist()
    if check_crc:
        good = _check_bodies(buffer, body_at, lengths, common["crc"].tolist(), good)
    topics = [
        buffer[at + 1 : at + 1 + length]
        for at, length in zip(topic_at[:good].tolist(), topic_lengths[:good].tolist(), strict=True)
    ]
    properties = [
        buffer[at + 2 : at + 2 + length] if length else b""
        for at, length in zip(
            tail_at[:good].tolist(), property_lengths[:good].tolist(), strict=True
        )
    ]
    if strict:
        for number in range(good):
            if b"\0" in topics[number] or b"\0" in properties[number]:
                good = number
                break
    return (
        Records(
            positions=positions[:good],
            sizes=sizes[:good],
            queue_ids=common["queue_id"][:good].astype(np.int64),
            queue_offsets=common["queue_offset"][:good].astype(np.int64),
            offsets=common["offset"][:good].astype(np.int64),
            sys_flags=sys_flags[:good],
            store_times=store_times[:good],
            topics=topics[:good],
            properties=properties[:good],
        ),
        good,
    )


def _check_bodies(
    buffer: mmap.mmap, body_at: list[int], lengths: list[int], crcs: list[int], good: int
) -> int:
    for number in range(good):
        length = lengths[number]
        at = body_at[number]
        if length and crc32(buffer[at : at + length]) & 0x7FFFFFFF != crcs[number]:
            return number
    return good
