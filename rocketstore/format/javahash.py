"""Java's ``String.hashCode``, for one string and for many at once.

``h = 31 * h + unit`` over the UTF-16 code units, wrapping at 32 bits: so the hash of a string is
the dot product of its units with falling powers of 31, and the hash of ``prefix + s`` is
``hash(prefix) * 31 ** len(s) + hash(s)``. Both facts make the hash of many keys of one topic a few
numpy calls.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from journal.compiled import INTERPRETED, build
from journal.memory.rows import rows_at
from rocketstore.format import words

UInt32Array = npt.NDArray[np.uint32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Seed = int | Int64Array

_MASK = 0xFFFFFFFF
_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_FEW = 24 if build() == INTERPRETED else 1 << 62
"""Up to this many texts, one by one is faster than in columns."""
_FEW_LENGTHS = 24
"""Up to this many different lengths a matrix for each is faster than sums."""
BLOCK = 4096
"""Texts taken at a time: what numpy needs for them stays in the processor's cache, and comes from
memory that the process has already (larger arrays are new pages each time). Twice as fast."""
_MANY_ROWS = 512
"""From this many texts of one length on it pays to go through them column by column."""


def utf16_length(text: str) -> int:
    """Length in UTF-16 code units: Java's ``String.length()``."""
    return len(text) if text.isascii() else len(_units(text))


def hash_code(text: str, seed: int = 0) -> int:
    """``String.hashCode`` of the string, signed; ``seed`` is the hash of a prefix. O(len)."""
    return words.text_hash(text, seed)


def index_hash(topic_and_key: str, seed: int = 0) -> int:
    """The hash an IndexFile keeps: the absolute value; 0 for the one value that has none."""
    return absolute(words.text_hash(topic_and_key, seed))


def absolute(value: int) -> int:
    """Return the part of a hash code that an IndexFile keeps: :func:`index_hash`."""
    if value >= 0:
        return value
    return 0 if value == -(1 << 31) else -value


@lru_cache(maxsize=4096)
def tags_code(tags: str | None) -> int:
    """The ConsumeQueue's tagsCode of a TAGS property: its hash, 0 if missing or empty."""
    return hash_code(tags) if tags else 0


@lru_cache(maxsize=4096)
def topic_seed(topic: str) -> int:
    """The hash of ``topic#``: what precedes a key in the index."""
    return hash_code(f"{topic}#")


def hash_many(strings: Sequence[str], seed: Seed = 0) -> UInt32Array:
    """``String.hashCode`` of each string, as unsigned 32 bits, each after a prefix hashed to
    ``seed`` (one for all, or one for each). O(total length)."""
    count = len(strings)
    if count == 0:
        return np.zeros(0, np.uint32)
    if count > BLOCK:
        return np.concatenate(
            [
                hash_many(
                    strings[at : at + BLOCK],
                    seed if isinstance(seed, int) else seed[at : at + BLOCK],
                )
                for at in range(0, count, BLOCK)
            ]
        )
    units, starts, lengths = _joined(strings)
    longest = int(lengths.max())
    powers = _powers(longest + 1)
    if int(lengths.min()) == longest:
        hashes = _hash_rows(units, starts, longest)
    else:
        hashes = _hash_ragged(units, starts, lengths, powers)
    return _behind(seed, hashes, powers[lengths])


def _behind(seed: Seed, hashes: UInt32Array, powers: Any) -> UInt32Array:
    """Make hashes those of texts after a prefix; ``powers``: of 31, by the texts' lengths."""
    if not isinstance(seed, int):
        hashes += (seed & _MASK).astype(np.uint32) * powers
    elif seed:
        hashes += np.uint32(seed & _MASK) * powers
    return hashes


def _joined(strings: Sequence[str]) -> tuple[npt.NDArray[Any], Int64Array, Int64Array]:
    """Code units of all strings, each followed by NUL, where each starts, and its length.

    That NUL tells the lengths sooner than a call of ``len`` for each; strings that hold one
    themselves are measured that way.
    """
    count = len(strings)
    text = "\0".join(strings) + "\0"
    units: npt.NDArray[Any]
    if text.isascii():
        units = np.frombuffer(text.encode(), np.uint8)
    else:
        units = np.frombuffer(text.encode(_UTF16, "surrogatepass"), np.uint16)
    ends = np.flatnonzero(units == 0)
    if len(ends) != count:
        ends = np.cumsum(np.fromiter(map(utf16_length, strings), np.int64, count) + 1) - 1
    starts = np.empty(count, np.int64)
    starts[0] = 0
    np.add(ends[:-1], 1, out=starts[1:])
    return units, starts, ends - starts


def index_hash_many(strings: Sequence[str], seed: Seed = 0) -> Int32Array:
    """:func:`index_hash` of each string."""
    if len(strings) <= _FEW and isinstance(seed, int):
        return np.array(_hash_each(strings, seed), np.int64).astype(np.int32)
    return index_hashes(hash_many(strings, seed))


def _hash_each(strings: Sequence[str], seed: int) -> array[int]:
    found = array("q")
    for text in strings:
        words.push(found, index_hash(text, seed))
    return found


def index_hashes(hashes: UInt32Array) -> Int32Array:
    """The hashes an IndexFile keeps, of hash codes as unsigned 32 bits: :func:`index_hash`."""
    absolute = np.abs(hashes.view(np.int32))
    absolute[absolute < 0] = 0
    return absolute


def _hash_rows(units: npt.NDArray[Any], starts: Int64Array, length: int) -> UInt32Array:
    """Hashes of texts of one length: they are the rows of one matrix."""
    if length == 0:
        return np.zeros(len(starts), np.uint32)
    return hash_table(rows_at(units, starts, length))


def hash_table(table: npt.NDArray[Any], seed: Seed = 0) -> UInt32Array:
    """``String.hashCode`` of each row of code units, as unsigned 32 bits, each after a prefix
    hashed to ``seed`` (one for all, or one for each). O(units)."""
    length = table.shape[1]
    powers = _powers(length + 1)
    if len(table) < _MANY_ROWS:
        hashes: UInt32Array = table.astype(np.uint32) @ powers[:length][::-1]
    else:
        # Column by column nothing larger than the result is needed besides.
        hashes = table[:, 0].astype(np.uint32)
        for column in range(1, length):
            hashes *= 31
            hashes += table[:, column]
    return _behind(seed, hashes, powers[length : length + 1])


def _hash_ragged(
    units: npt.NDArray[Any], starts: Int64Array, lengths: Int64Array, powers: UInt32Array
) -> UInt32Array:
    """Hashes of texts of several lengths: a matrix for each length, or sums if there are many."""
    counts = np.bincount(lengths)
    if np.count_nonzero(counts) > _FEW_LENGTHS:
        return _hash_scattered(units, starts, lengths, powers)
    hashes = np.zeros(len(lengths), np.uint32)
    for length in np.flatnonzero(counts).tolist():
        chosen = np.flatnonzero(lengths == length)
        hashes[chosen] = _hash_rows(units, starts[chosen], length)
    return hashes


def _hash_scattered(
    units: npt.NDArray[Any], starts: Int64Array, lengths: Int64Array, powers: UInt32Array
) -> UInt32Array:
    """The same for many lengths: each unit times its power, summed for each text."""
    exponents = np.repeat(starts + lengths - 1, lengths + 1)
    exponents -= np.arange(len(units))
    # The NUL after each text has exponent -1, some power or other: times 0 it counts nothing.
    products = powers[exponents]
    products *= units
    return np.add.reduceat(products, starts, dtype=np.uint32)


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
