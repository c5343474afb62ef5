"""Records of a CommitLog at given places: a few numbers of each record, many at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from rocketstore.commitlog_format import COMMON_FIELDS
from rocketstore.parts import Parts

__all__ = ["have_topic", "record_heads"]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FLAGS_AT: Final = 39
_BODY_LENGTH_AT: Final = 84
"""Low byte of sysFlag, and the body's length with two IPv4 hosts: bytes from a record's start."""
_HEAD: Final = np.dtype(list(COMMON_FIELDS[:7]))
"""How each record begins, up to its physical offset."""


def record_heads(parts: Parts, offsets: I64) -> tuple[npt.NDArray[np.void], Bools]:
    """Give the beginnings of the records at ``offsets``, and which of the places are in the log at
    all."""
    heads = np.zeros(len(offsets), _HEAD)
    there = np.zeros(len(offsets), np.bool_)
    width = np.arange(_HEAD.itemsize)
    for _, rows, at, data in _by_log_file(parts, offsets, np.flatnonzero(offsets >= 0)):
        inside = at <= len(data) - _HEAD.itemsize
        block = data[at[inside][:, None] + width]
        heads[rows[inside]] = np.ascontiguousarray(block).view(_HEAD).ravel()
        there[rows[inside]] = True
    return heads, there


def _by_log_file(
    parts: Parts, offsets: I64, rows: I64
) -> Iterator[tuple[int, I64, I64, npt.NDArray[np.uint8]]]:
    """Go through the log files that some of the places are in: start of the file, the places'
    rows, where they are in the file, and its bytes."""
    starts = offsets[rows] - offsets[rows] % parts.commitlog.file_size
    for start in np.unique(starts).tolist():
        file = parts.commitlog.files.files.get(start)
        if file is not None:
            chosen = rows[starts == start]
            data = np.frombuffer(parts.commitlog.files.mapped(file), np.uint8)
            yield start, chosen, offsets[chosen] - start, data


def have_topic(parts: Parts, offsets: I64, topic: str, good: Bools) -> Bools:
    """Whether the records at ``offsets`` are of that topic."""
    wanted = np.frombuffer(topic.encode(), np.uint8)
    found = np.zeros(len(offsets), np.bool_)
    for _, rows, at, data in _by_log_file(parts, offsets, np.flatnonzero(good)):
        flags = data[at + _FLAGS_AT]
        body_at = at + _BODY_LENGTH_AT + 12 * ((flags >> 4 & 1) + (flags >> 5 & 1)).astype(np.int64)
        inside = body_at + 4 <= len(data)
        rows, body_at = rows[inside], body_at[inside]
        lengths = data[body_at[:, None] + np.arange(4)].view(">i4").ravel().astype(np.int64)
        topic_at = body_at + 4 + lengths
        inside = (lengths >= 0) & (topic_at + len(wanted) < len(data))
        rows, topic_at = rows[inside], topic_at[inside]
        same = data[topic_at] == len(wanted)
        names = data[topic_at[:, None] + np.arange(1, len(wanted) + 1)]
        found[rows] = same & (names == wanted).all(axis=1)
    return found
