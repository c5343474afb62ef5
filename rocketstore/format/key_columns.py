"""Index keys and tags of many messages at once, out of their properties as they are stored.

Messages of one producer name the same properties in the same order. So those with properties of
one length are the rows of a table, and most of its rows look like the first: they have the same
bytes wherever that has names and separators. Then their keys are in the same columns, and are
hashed column by column. Properties that look like no other row are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from journal.memory.rows import rows_at
from rocketstore.format.javahash import Seed, hash_table, index_hash_many, index_hashes, tags_code
from rocketstore.format.properties import KEYS, TAGS, UNIQ_KEY, decode_properties, index_keys

BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt8Array = npt.NDArray[np.uint8]

_FEW = 24
"""Up to this many messages, decoding each by itself is faster."""
_SHAPES = 8
"""Most shapes of one length: a key may be longer where a tag is shorter."""
_LONG = 4096
"""Properties of more bytes are decoded by themselves: a table of them would be large."""
_AT_ONCE = 1 << 15
"""Bytes compared at a time: larger arrays are new pages from the kernel, each time."""
_KEYS, _TAGS, _UNIQ_KEY = KEYS.encode(), TAGS.encode(), UNIQ_KEY.encode()
_ASCII_END = 0x7F


@dataclass(slots=True)
class KeyColumns:
    """Index hashes of all keys in order, the message each is of, and each message's tagsCode."""

    hashes: Int32Array
    messages: Int64Array
    tags_codes: Int64Array

    def part(self, first: int, last: int) -> KeyColumns:
        """Those of messages ``first`` to ``last``, numbered from 0."""
        low, high = np.searchsorted(self.messages, (first, last))
        return KeyColumns(
            self.hashes[low:high],
            self.messages[low:high] - first,
            self.tags_codes[first:last],
        )


class _Shape:
    """Properties that look like those given: for each byte the least it may be and how much more,
    and in which columns are the keys, in the order of the index, and the tags.

    Nothing looks like what only :func:`decode_properties` knows how to read: names that are
    repeated, or have no value.
    """

    def __init__(self, row: bytes) -> None:
        self._least = np.frombuffer(row, np.uint8).copy()
        self._more = np.zeros(len(row), np.uint8)
        self.keys: list[slice] = []
        self.tags: list[slice] = []
        names: set[bytes] = set()
        start = 0
        for piece in row.split(b"\x02"):
            name, _, value = piece.partition(b"\x01")
            if value and name and name not in names:
                names.add(name)
                self._note(name, value, start + len(name) + 1)
            elif piece:
                self._least[:] = 0xFF
                self._more[:] = 0
                return
            start += len(piece) + 1

    def _note(self, name: bytes, value: bytes, start: int) -> None:
        if name == _KEYS:
            for word in value.split(b" "):
                if word:
                    self.keys.append(self._allow(start, word, 0x21, _ASCII_END))
                start += len(word) + 1
        elif name == _UNIQ_KEY:
            self.keys.insert(0, self._allow(start, value, 0x20, _ASCII_END))
        elif name == _TAGS:
            self.tags.append(self._allow(start, value, 0x20, _ASCII_END))
        else:
            self._allow(start, value, 0x03, 0xFF)

    def _allow(self, start: int, value: bytes, least: int, most: int) -> slice:
        columns = slice(start, start + len(value))
        self._least[columns] = least
        self._more[columns] = most - least
        return columns

    def holds(self, table: UInt8Array) -> BoolArray:
        """Which rows look like that."""
        count, length = table.shape
        alike = np.empty(count, np.bool_)
        step = max(1, _AT_ONCE // length)
        for at in range(0, count, step):
            rows = slice(at, at + step)
            # Unsigned: a difference below zero becomes very large.
            found = table[rows] - self._least <= self._more
            alike[rows] = True if found.all() else found.all(axis=1)
        return alike


def key_columns(
    data: UInt8Array, starts: Int64Array, lengths: Int64Array, seed: Seed
) -> KeyColumns:
    """Keys and tagsCodes of messages whose properties are in ``data``: those of message ``i`` in
    the ``lengths[i]`` bytes from ``starts[i]`` on. ``seed`` is the hash of what precedes a key in
    the index, one for all messages or one for each. O(bytes)."""
    collector = _Collector(data, starts, lengths, seed)
    counts = np.bincount(lengths)
    counts[:1] = 0
    for length in np.flatnonzero(counts).tolist():
        collector.take(length, np.flatnonzero(lengths == length))
    return collector.columns()


def keys_of_properties(properties: Sequence[bytes], seed: Seed) -> KeyColumns:
    """:func:`key_columns` of messages whose properties are given one by one."""
    lengths = np.fromiter(map(len, properties), np.int64, len(properties))
    data = np.frombuffer(b"".join(properties), np.uint8)
    return key_columns(data, np.cumsum(lengths) - lengths, lengths, seed)


class _Collector:
    """The keys of some messages, collected for an answer, with the message that each is of."""

    def __init__(
        self, data: UInt8Array, starts: Int64Array, lengths: Int64Array, seed: Seed
    ) -> None:
        self._data = data
        self._starts = starts
        self._lengths = lengths
        self._seed = seed
        self._codes = np.zeros(len(lengths), np.int64)
        self._parts: list[tuple[Int64Array, Int32Array]] = []
        self._others: list[Int64Array] = []

    def take(self, length: int, messages: Int64Array) -> None:
        """Take in messages whose properties are of this length."""
        if length <= _LONG and len(messages) > _FEW:
            table = rows_at(self._data, self._starts[messages], length)
            for _ in range(_SHAPES):
                shape = _Shape(table[0].tobytes())
                alike = shape.holds(table)
                if alike.all():
                    self._take_alike(shape, table, messages)
                    return
                if np.count_nonzero(alike) > _FEW:
                    self._take_alike(shape, table[alike], messages[alike])
                else:
                    alike[0] = True
                    self._others.append(messages[alike])
                table, messages = table[~alike], messages[~alike]
                if len(messages) <= _FEW:
                    break
        self._others.append(messages)

    def _take_alike(self, shape: _Shape, table: UInt8Array, messages: Int64Array) -> None:
        """Messages whose properties, the rows of ``table``, are of one shape."""
        for columns in shape.tags:
            self._codes[messages] = hash_table(table[:, columns]).view(np.int32)
        if shape.keys:
            hashes = np.empty((len(messages), len(shape.keys)), np.int32)
            seed = self._seed if isinstance(self._seed, int) else self._seed[messages]
            for number, columns in enumerate(shape.keys):
                hashes[:, number] = index_hashes(hash_table(table[:, columns], seed))
            self._parts.append((np.repeat(messages, len(shape.keys)), hashes.reshape(-1)))

    def _take_each(self, messages: Int64Array) -> None:
        """Messages with properties of any shape."""
        names: list[str] = []
        owners: list[int] = []
        data = self._data.data
        starts = self._starts[messages]
        ends = starts + self._lengths[messages]
        for number, start, end in zip(
            messages.tolist(), starts.tolist(), ends.tolist(), strict=True
        ):
            found = decode_properties(bytes(data[start:end]))
            self._codes[number] = tags_code(found.get(TAGS))
            keys = index_keys(found)
            names += keys
            owners += [number] * len(keys)
        if names:
            at = np.array(owners, np.int64)
            seed = self._seed if isinstance(self._seed, int) else self._seed[at]
            self._parts.append((at, index_hash_many(names, seed)))

    def columns(self) -> KeyColumns:
        """All that was taken in, by message."""
        if self._others:
            self._take_each(np.concatenate(self._others))
        if not self._parts:
            return KeyColumns(np.zeros(0, np.int32), np.zeros(0, np.int64), self._codes)
        messages = np.concatenate([part for part, _ in self._parts])
        hashes = np.concatenate([part for _, part in self._parts])
        if np.any(messages[1:] < messages[:-1]):
            # All keys of a message are together, in order.
            order = np.argsort(messages, kind="stable")
            messages, hashes = messages[order], hashes[order]
        return KeyColumns(hashes, messages, self._codes)
