"""Java's ``String.hashCode``, for one string and for many at once.

``h = 31 * h + unit`` over the UTF-16 code units, wrapping at 32 bits: so the hash of a string is
the dot product of its units with falling powers of 31, and the hash of ``prefix + s`` is
``hash(prefix) * 31 ** len(s) + hash(s)``. Both facts make the hash of many keys of one topic a few
numpy calls.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

__all__ = ["hash_code", "hash_many", "index_hash", "index_hash_many", "tags_code", "utf16_length"]

UInt32Array = npt.NDArray[np.uint32]
Int32Array = npt.NDArray[np.int32]

_MASK = 0xFFFFFFFF
_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_TABLE = 512
_FEW_LENGTHS = 24
"""Up to so many different lengths a matrix for each is faster than sums."""
_FALLING = tuple(pow(31, power, 1 << 32) for power in range(_TABLE - 1, -1, -1))
"""Powers of 31 modulo 2**32, the last one 31**0."""
_RISING = (*reversed(_FALLING), pow(31, _TABLE, 1 << 32))


def utf16_length(text: str) -> int:
    """Length in UTF-16 code units: Java's ``String.length()``."""
    return len(text) if text.isascii() else len(_units(text))


def hash_code(text: str, seed: int = 0) -> int:
    """``String.hashCode`` of the string, signed; ``seed`` is the hash of a prefix. O(len)."""
    units: Sequence[int] = text.encode() if text.isascii() else _units(text)
    count = len(units)
    if count <= _TABLE:
        total: int = sum(map(mul, units, _FALLING[_TABLE - count :]))
        if seed:
            total += seed * _RISING[count]
    else:
        total = seed
        for unit in units:
            total = (total * 31 + unit) & _MASK
    total &= _MASK
    return total - (1 << 32) if total & 0x80000000 else total


def index_hash(topic_and_key: str, seed: int = 0) -> int:
    """The hash an IndexFile keeps: the absolute value; 0 for the one value that has none."""
    value = abs(hash_code(topic_and_key, seed))
    return 0 if value == 1 << 31 else value


@lru_cache(maxsize=4096)
def tags_code(tags: str | None) -> int:
    """The ConsumeQueue's tagsCode of a TAGS property: its hash, 0 if missing or empty."""
    return hash_code(tags) if tags else 0


def hash_many(strings: Sequence[str], seed: int = 0) -> UInt32Array:
    """``String.hashCode`` of each string, as unsigned 32 bits, each after a prefix hashed to
    ``seed``. O(total length)."""
    count = len(strings)
    if count == 0:
        return np.zeros(0, np.uint32)
    joined = "".join(strings)
    lengths = np.fromiter(map(len, strings), np.int64, count)
    units: npt.NDArray[Any]
    if joined.isascii():
        units = np.frombuffer(joined.encode(), np.uint8)
    else:
        units = np.frombuffer(joined.encode(_UTF16, "surrogatepass"), np.uint16)
        if len(units) != len(joined):
            lengths = np.fromiter(map(utf16_length, strings), np.int64, count)
    longest = int(lengths.max())
    powers = _powers(longest + 1)
    if (lengths == longest).all():
        table = units.reshape(count, longest).astype(np.uint32)
        hashes = table @ powers[:longest][::-1]
    else:
        hashes = _hash_ragged(units, lengths, powers)
    if seed:
        hashes = hashes + np.uint32(seed & _MASK) * powers[lengths]
    return hashes.astype(np.uint32, copy=False)


def index_hash_many(strings: Sequence[str], seed: int = 0) -> Int32Array:
    """:func:`index_hash` of each string."""
    signed = hash_many(strings, seed).view(np.int32)
    absolute = np.abs(signed)
    absolute[absolute < 0] = 0
    return absolute


def _hash_ragged(
    units: npt.NDArray[Any], lengths: npt.NDArray[np.int64], powers: UInt32Array
) -> UInt32Array:
    """Hashes of texts of several lengths: those of one length are the rows of one matrix."""
    starts = np.cumsum(lengths) - lengths
    hashes = np.zeros(len(lengths), np.uint32)
    counts = np.bincount(lengths)
    if np.count_nonzero(counts) > _FEW_LENGTHS:
        return _hash_scattered(units, lengths, powers)
    for length in np.flatnonzero(counts).tolist():
        if length == 0:
            continue
        chosen = np.flatnonzero(lengths == length)
        rows = sliding_window_view(units, length)[starts[chosen]]
        hashes[chosen] = rows.astype(np.uint32) @ powers[:length][::-1]
    return hashes


def _hash_scattered(
    units: npt.NDArray[Any], lengths: npt.NDArray[np.int64], powers: UInt32Array
) -> UInt32Array:
    """The same for many lengths: each unit times its power, summed for each text."""
    ends = np.cumsum(lengths)
    exponents = np.repeat(ends, lengths)
    exponents -= np.arange(1, len(units) + 1)
    products = powers[exponents]
    products *= units
    hashes = np.zeros(len(lengths), np.uint32)
    # add.reduceat gives the element itself, not 0, for an empty run: those stay out of it.
    filled = lengths > 0
    if filled.any():
        hashes[filled] = np.add.reduceat(products, (ends - lengths)[filled])
    return hashes


def _powers(count: int) -> UInt32Array:
    """Rising powers of 31 modulo 2**32, at least ``count`` of them."""
    size = 64
    while size < count:
        size *= 2
    return _powers_table(size)


@lru_cache(maxsize=32)
def _powers_table(size: int) -> UInt32Array:
    table = np.full(size, 31, np.uint32)
    table[0] = 1
    return np.multiply.accumulate(table, dtype=np.uint32)


def _units(text: str) -> memoryview:
    return memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")
