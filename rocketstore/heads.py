"""Heads of records in the log, for the dispatch: of one record, or of many in columns.

The store has put these records a moment ago, and knows where they stand.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError
from journal.rows import rows_at
from rocketstore import words
from rocketstore.commitlog_format import (
    BODY_LENGTH_AT,
    COMMON_FIELDS,
    HEADERS,
    MESSAGE_MAGIC,
    V6_BORN,
)
from rocketstore.message import OTHER_HOSTS

Int64Array = npt.NDArray[np.int64]


def _header_dtype(number: int) -> np.dtype[np.void]:
    born, store = (20 if number & 1 else 8), (20 if number & 2 else 8)
    return np.dtype(
        [
            *COMMON_FIELDS,
            ("born_host", f"V{born}"),
            ("store", ">i8"),
            ("store_host", f"V{store}"),
            ("reconsume", ">i4"),
            ("prepared", ">i8"),
            ("body_length", ">i4"),
        ]
    )


_HEADER_DTYPES = tuple(_header_dtype(number) for number in range(4))
"""The record up to its body, by ``(sysFlag >> 4) & 3``."""
_SHORTEST, _LENGTH_AT = HEADERS[0].size, BODY_LENGTH_AT[0]


class Head:
    """Of one record: its size, ordinal, sysFlag, store timestamp (ms), and the place in the file
    where its properties begin."""

    __slots__ = ("properties_at", "queue_offset", "size", "store_timestamp", "sys_flag")

    properties_at: int
    queue_offset: int
    size: int
    store_timestamp: int
    sys_flag: int

    def read(self, data: bytes | mmap.mmap, at: int, end: int, base: int) -> None:
        """Take over the record from ``at`` to ``end`` in a file that begins at physical offset
        ``base``. Raises :class:`DamageError` when it is not there."""
        if end - at < _SHORTEST:
            raise _changed(base + at)
        self.size = words.int32_in(data, at)
        self.sys_flag = words.int32_in(data, at + 36)
        length_at = _LENGTH_AT
        stored_at = 56
        if self.sys_flag & OTHER_HOSTS:
            length_at = BODY_LENGTH_AT[(self.sys_flag >> 4) & 3]
            stored_at = 68 if self.sys_flag & V6_BORN else 56
            if end - at < length_at + 4:
                raise _changed(base + at)
        topic_at = at + length_at + 4 + words.int32_in(data, at + length_at)
        if (
            words.int32_in(data, at + 4) != MESSAGE_MAGIC
            or words.int64_in(data, at + 28) != base + at
            or self.size != end - at
            or not at < topic_at < end
        ):
            raise _changed(base + at)
        self.properties_at = topic_at + data[topic_at] + 3
        if self.properties_at > end:
            raise _changed(base + at)
        self.queue_offset = words.int64_in(data, at + 20)
        self.store_timestamp = words.int64_in(data, at + stored_at)


@dataclass(slots=True)
class Heads:
    """The same of many. Properties are named by place and length in the buffer."""

    sizes: Int64Array
    queue_offsets: Int64Array
    sys_flags: Int64Array
    store_times: Int64Array
    properties_at: Int64Array
    property_lengths: Int64Array


def read_heads(data: npt.NDArray[np.uint8], places: Int64Array, base: int) -> Heads:
    """The heads of the records at these positions of a buffer that begins at physical offset
    ``base`` and ends behind the last of them. Raises :class:`DamageError` when they are not
    there, one behind the other."""
    rows: Any = rows_at(data, places, HEADERS[0].size).view(_HEADER_DTYPES[0]).reshape(-1)
    sizes = np.diff(places, append=len(data))
    sys_flags = rows["sys_flag"].astype(np.int64)
    store_times = rows["store"].astype(np.int64)
    body_ends = rows["body_length"] + (places + HEADERS[0].size)
    kinds = sys_flags >> 4 & 3
    if kinds.any():
        for kind in (1, 2, 3):
            # The last record of another kind, if damage made it one, need not have as many bytes.
            chosen = np.flatnonzero((kinds == kind) & (sizes >= HEADERS[kind].size))
            if len(chosen):
                size = HEADERS[kind].size
                wide: Any = rows_at(data, places[chosen], size).view(_HEADER_DTYPES[kind])
                store_times[chosen] = wide["store"].reshape(-1)
                body_ends[chosen] = wide["body_length"].reshape(-1) + (places[chosen] + size)
    ends = places + sizes
    sound = (rows["magic"] == MESSAGE_MAGIC) & (rows["offset"] == places + base)
    sound &= (rows["size"] == sizes) & (body_ends > places) & (body_ends < ends)
    body_ends[~sound] = 0
    properties_at = body_ends + data[body_ends] + 3
    sound &= properties_at <= ends
    if not sound.all():
        raise _changed(base + int(places[sound.argmin()]))
    return Heads(
        sizes=sizes,
        queue_offsets=rows["queue_offset"].astype(np.int64),
        sys_flags=sys_flags,
        store_times=store_times,
        properties_at=properties_at,
        property_lengths=ends - properties_at,
    )


def _changed(offset: int) -> DamageError:
    return DamageError("commitlog", offset, "the record was changed after it had been put")
