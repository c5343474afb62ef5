"""Read CommitLog records in bulk: one pass over the sizes, the rest with numpy.

Each record holds the position of the next, so finding the starts is a plain loop; all fields of
all records found are then gathered at once, and every check but the CRC is one comparison of
arrays.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from journal.memory.rows import rows_at
from rocketstore.format import words
from rocketstore.format.commitlog_format import (
    BLANK_MAGIC,
    COMMON_FIELDS,
    FIXED_SIZE,
    MESSAGE_MAGIC,
    START,
)
from rocketstore.log.mapped_files import Read

Int64Array = npt.NDArray[np.int64]

_SIZE_MAGIC = START.unpack_from
_COMMON = np.dtype(list(COMMON_FIELDS))
BATCH = 8192
"""Records to a batch: enough to hide numpy's cost for each call, and bounded memory."""
_PIECE = 1 << 20
"""Bytes of a file that are read at a time: a batch of the smallest records."""
_SMALL_PIECE = 4 << 10
"""The same where one record is wanted."""


class Stop(enum.Enum):
    """Why a scan ended where it did."""

    LIMIT = "limit"
    END = "end"
    BLANK = "blank"
    BAD = "bad"
    MORE = "more"
    """Only of a piece: the next record goes on after its end."""


@dataclass(slots=True)
class Records:
    """Columns of consecutive sound records; positions are within the file. ``data``: bytes of the
    file with all of them, from position ``origin`` on."""

    data: bytes
    origin: int
    positions: Int64Array
    sizes: Int64Array
    queue_ids: Int64Array
    queue_offsets: Int64Array
    offsets: Int64Array
    sys_flags: Int64Array
    store_times: Int64Array
    topic_at: Int64Array
    properties_at: Int64Array
    property_lengths: Int64Array

    def __len__(self) -> int:
        return len(self.positions)

    def topics(self) -> list[bytes]:
        """Return the topic of each."""
        return _pieces(self.data, self.topic_at, self.properties_at - 2)

    def properties(self) -> list[bytes]:
        """Return the properties of each, as stored."""
        return _pieces(self.data, self.properties_at, self.properties_at + self.property_lengths)

    def take(self, chosen: slice) -> Records:
        """Return some of them."""
        columns = (one.name for one in fields(self) if one.name not in ("data", "origin"))
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


def _pieces(data: bytes, starts: Int64Array, ends: Int64Array) -> list[bytes]:
    return [data[at:end] for at, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def scan_file(
    read: Read,
    start: int,
    position: int,
    end: int,
    *,
    check_crc: bool,
    placed: bool = False,
    strict: bool = False,
    limit: int = BATCH,
) -> tuple[Records, int, Stop]:
    """As :func:`scan_records`, of a file that is read piece by piece. Returns fewer than ``limit``
    with ``Stop.LIMIT`` where a piece ends. Memory: 1 MiB, or the largest record. A file that was
    cut meanwhile ends with ``Stop.BAD``. Raises what ``read`` raises."""
    length = _PIECE if limit > 1 else _SMALL_PIECE
    while True:
        wanted = max(min(length, end - position), 0)
        data = read(position, wanted)
        is_cut = len(data) < wanted
        if is_cut:
            end = position + len(data)
        records, after, stop = scan_records(
            data,
            start,
            position,
            end,
            origin=position,
            check_crc=check_crc,
            placed=placed,
            strict=strict,
            limit=limit,
        )
        if stop is Stop.END and is_cut:
            return records, after, Stop.BAD
        if stop is not Stop.MORE:
            return records, after, stop
        if len(records):
            return records, after, Stop.LIMIT
        length = _SIZE_MAGIC(data)[0]


def scan_records(
    data: bytes,
    start: int,
    position: int,
    end: int,
    *,
    origin: int = 0,
    check_crc: bool,
    placed: bool = False,
    strict: bool = False,
    limit: int = BATCH,
) -> tuple[Records, int, Stop]:
    """Read records from ``position`` up to ``end`` of the file that begins at offset ``start``.
    ``data``: the file's bytes from position ``origin`` on, all or some.

    Return the sound records before the first bad one, the position after them, and why the scan
    stopped; ``Stop.BAD`` means that there is no sound record at that position. A record is sound
    when its magic, its lengths and (if asked) the CRC of its body agree: the checks of the real
    recovery. ``placed`` also asks that the physical offset is the record's own place, as every
    reader of a body does; ``strict`` asks this as well, and that topic and properties hold no NUL,
    which a torn write leaves and this project's put refuses.
    """
    positions, at, stop = _starts(data, position - origin, end - origin, limit)
    records, good = _columns(data, origin, positions, at, start, check_crc, placed, strict)
    if good < len(positions):
        return records, origin + positions[good], Stop.BAD
    return records, origin + at, stop


def _starts(data: bytes, at: int, end: int, limit: int) -> tuple[list[int], int, Stop]:
    """Return the positions of the records from ``at`` on, the position after them, and why they end
    there."""
    positions: list[int] = []
    there = min(len(data), end)
    last = there - FIXED_SIZE
    while len(positions) < limit:
        if at > last:
            return positions, at, _tail(data, at, end)
        size, magic = words.int32_at(data, at), words.int32_at(data, at + 4)
        if magic != MESSAGE_MAGIC or size < FIXED_SIZE or size > end - at:
            return positions, at, Stop.BLANK if magic == BLANK_MAGIC else Stop.BAD
        if size > there - at:
            return positions, at, Stop.MORE
        positions.append(at)
        at += size
    return positions, at, Stop.LIMIT


def _tail(data: bytes, at: int, end: int) -> Stop:
    if at >= end:
        return Stop.END
    if end > len(data):
        return Stop.MORE
    if at + 8 <= end and _SIZE_MAGIC(data, at)[1] == BLANK_MAGIC:
        return Stop.BLANK
    return Stop.BAD


@dataclass(slots=True)
class Heads:
    """Numbers of many records in a buffer, in columns. ``sound``: which have the magic, and lengths
    that agree; what the others have means nothing. Bodies, topics and properties are named by where
    they begin in the buffer (a topic with its length) and by their lengths."""

    sound: npt.NDArray[np.bool_]
    sizes: Int64Array
    crcs: Int64Array
    queue_ids: Int64Array
    queue_offsets: Int64Array
    offsets: Int64Array
    sys_flags: Int64Array
    store_times: Int64Array
    body_at: Int64Array
    body_lengths: Int64Array
    topic_at: Int64Array
    properties_at: Int64Array
    property_lengths: Int64Array


def read_heads(data: npt.NDArray[np.uint8], positions: Int64Array, sizes: Int64Array) -> Heads:
    """Read the records at these positions of a buffer that has all of their ``sizes`` bytes: as
    many as a record has at least. O(records)."""
    common: Any = rows_at(data, positions, _COMMON.itemsize).view(_COMMON).reshape(-1)
    sys_flags = common["sys_flag"].astype(np.int64)
    v6_born = (sys_flags >> 4 & 1) * 12
    hosts = v6_born + (sys_flags >> 5 & 1) * 12
    # A v6 record must at least hold its hosts: nothing below may read past the record.
    sound = (sizes >= FIXED_SIZE + hosts) & (common["size"] == sizes)
    sound &= common["magic"] == MESSAGE_MAGIC
    hosts[~sound] = 0
    v6_born[~sound] = 0
    body_at = positions + 88 + hosts
    body_lengths = _gather(data, body_at - 4, ">i4")
    fixed = FIXED_SIZE + hosts
    sound &= (body_lengths >= 0) & (body_lengths <= sizes - fixed)
    body_lengths[~sound] = 0
    topic_at = body_at + body_lengths
    topic_lengths = data[topic_at].astype(np.int64)
    sound &= (topic_lengths < 128) & (fixed + body_lengths + topic_lengths <= sizes)
    topic_lengths[~sound] = 0
    properties_at = topic_at + topic_lengths + 3
    property_lengths = _gather(data, properties_at - 2, ">i2")
    sound &= (property_lengths >= 0) & (properties_at + property_lengths == positions + sizes)
    return Heads(
        sound=sound,
        sizes=sizes,
        crcs=common["crc"].astype(np.int64),
        queue_ids=common["queue_id"].astype(np.int64),
        queue_offsets=common["queue_offset"].astype(np.int64),
        offsets=common["offset"].astype(np.int64),
        sys_flags=sys_flags,
        store_times=_gather(data, positions + 56 + v6_born, ">i8"),
        body_at=body_at,
        body_lengths=body_lengths,
        topic_at=topic_at,
        properties_at=properties_at,
        property_lengths=property_lengths,
    )


def _gather(data: npt.NDArray[np.uint8], at: Int64Array, dtype: str) -> Int64Array:
    taken = rows_at(data, at, np.dtype(dtype).itemsize)
    values: Int64Array = taken.view(dtype).reshape(-1).astype(np.int64)
    return values


def _columns(
    buffer: bytes,
    origin: int,
    found: list[int],
    after: int,
    start: int,
    check_crc: bool,
    placed: bool,
    strict: bool,
) -> tuple[Records, int]:
    """Return the sound ones at the positions ``found``, which end at ``after``, and their
    number."""
    positions = np.array(found, np.int64)
    sizes = np.diff(positions, append=after)
    heads = read_heads(np.frombuffer(buffer, np.uint8), positions, sizes)
    sound = heads.sound
    if placed or strict:
        sound &= heads.offsets == positions + (start + origin)
    good = len(found) if sound.all() else int(sound.argmin())
    if check_crc:
        bodies, lengths = heads.body_at.tolist(), heads.body_lengths.tolist()
        good = _check_bodies(buffer, bodies, lengths, heads.crcs.tolist(), good)
    if strict:
        topics, ends = (heads.topic_at + 1).tolist(), (heads.properties_at - 2).tolist()
        good = _first_nul(buffer, topics, ends, heads.property_lengths.tolist(), good)
    return (
        Records(
            data=buffer,
            origin=origin,
            positions=positions[:good] + origin,
            sizes=sizes[:good],
            queue_ids=heads.queue_ids[:good],
            queue_offsets=heads.queue_offsets[:good],
            offsets=heads.offsets[:good],
            sys_flags=heads.sys_flags[:good],
            store_times=heads.store_times[:good],
            topic_at=heads.topic_at[:good] + 1,
            properties_at=heads.properties_at[:good],
            property_lengths=heads.property_lengths[:good],
        ),
        good,
    )


def _check_bodies(
    buffer: bytes, body_at: list[int], lengths: list[int], crcs: list[int], good: int
) -> int:
    for number in range(good):
        length = lengths[number]
        at = body_at[number]
        if length and words.body_sum(buffer[at : at + length]) != crcs[number]:
            return number
    return good


def _first_nul(
    buffer: bytes, topics: list[int], ends: list[int], property_lengths: list[int], good: int
) -> int:
    for number in range(good):
        end = ends[number]
        if words.has_nul(buffer, topics[number], end):
            return number
        if words.has_nul(buffer, end + 2, end + 2 + property_lengths[number]):
            return number
    return good
