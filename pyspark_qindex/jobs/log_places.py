"""Records of a CommitLog at given places: a few numbers of each record, many at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rocketstore.commitlog_format import COMMON_FIELDS
from rocketstore.parts import Parts

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FLAGS_AT: Final = 39
_BODY_LENGTH_AT: Final = 84
"""Low byte of sysFlag, and the body's length with two IPv4 hosts: bytes from a record's start."""
_PIECE: Final = 64 << 10
_HEAD: Final = np.dtype(list(COMMON_FIELDS[:7]))
"""How each record begins, up to its physical offset."""


def record_heads(parts: Parts, offsets: I64) -> tuple[npt.NDArray[np.void], Bools]:
    """Give the beginnings of the records at ``offsets``, and which of the places are in the log at
    all."""
    block, there = _bytes_at(parts, offsets, _HEAD.itemsize)
    return block.view(_HEAD).ravel(), there


def have_topic(parts: Parts, offsets: I64, topic: str, good: Bools) -> Bools:
    """Whether the records at ``offsets`` are of that topic. ``good``: those that are looked at."""
    field = np.frombuffer(b"%c%b" % (len(topic.encode()), topic.encode()), np.uint8)
    found = np.zeros(len(offsets), np.bool_)
    rows = np.flatnonzero(good)
    flags, _ = _bytes_at(parts, offsets[rows] + _FLAGS_AT, 1)
    hosts = (flags >> 4 & 1).ravel().astype(np.int64) + (flags >> 5 & 1).ravel()
    body_at = offsets[rows] + _BODY_LENGTH_AT + 12 * hosts
    block, there = _bytes_at(parts, body_at, 4)
    lengths = block.view(">i4").ravel().astype(np.int64)
    there &= lengths >= 0
    rows, topic_at = rows[there], (body_at + 4 + lengths)[there]
    names, there = _bytes_at(parts, topic_at, len(field))
    found[rows] = there & (names == field).all(axis=1)
    return found


def _bytes_at(parts: Parts, offsets: I64, width: int) -> tuple[npt.NDArray[np.uint8], Bools]:
    """Give ``width`` bytes from each of the offsets on, shape ``(n, width)``, and which of them
    are in the log at all: zeros stand for the others. Places close together are read at once.
    Raises :class:`journal.errors.StorageError`."""
    files = parts.commitlog.files
    block = np.zeros((len(offsets), width), np.uint8)
    there = np.zeros(len(offsets), np.bool_)
    rows = np.argsort(offsets, kind="stable")
    rows = rows[np.searchsorted(offsets[rows], 0) :]
    # Pieces do not reach over the border of a file: its size is a multiple of theirs or not.
    pieces = offsets[rows] // files.size * (files.size // _PIECE + 1)
    pieces += offsets[rows] % files.size // _PIECE
    for near in np.split(rows, np.flatnonzero(np.diff(pieces)) + 1):
        file = files.find(int(offsets[near[0]])) if len(near) else None
        if file is None:
            continue
        at = offsets[near] - file.start
        data = files.read(file, int(at[0]), int(at[-1] - at[0]) + width)
        inside = at + width <= int(at[0]) + len(data)
        near, at = near[inside], at[inside] - at[0]
        if len(near):
            block[near] = np.frombuffer(data, np.uint8)[at[:, None] + np.arange(width)]
            there[near] = True
    return block, there
