"""Message properties: ``name 0x01 value`` pairs separated by 0x02, UTF-8.

4.9.3 writes no separator after the last pair; readers take both forms. The order of the pairs on
disk is that of the ``HashMap`` they came from: :func:`encode_properties` reproduces it, so that
ours are byte-identical. No reader depends on the order.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from journal.errors import UsageError
from rocketstore.format import words
from rocketstore.format.javahash import hash_code

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
WAIT = "WAIT"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
_KEYS, _UNIQ_KEY, _TAGS = KEYS.encode(), UNIQ_KEY.encode(), TAGS.encode()

PROPERTIES_MAX = 32767
_NAME_END = "\x01"
_PAIR_END = "\x02"
_SEPARATOR = "properties hold a separator (0x02) or NUL in a name or value"


def decode_properties(data: bytes) -> dict[str, str]:
    """Read a properties string as the real reader does.

    A piece without a name, without 0x01 or with an empty value is dropped; the first 0x01
    separates; of a repeated name the last one wins.
    """
    if not data:
        return {}
    found: dict[str, str] = {}
    for piece in data.decode(errors="replace").split(_PAIR_END):
        name, separator, value = piece.partition(_NAME_END)
        if name and separator and value:
            found[name] = value
    return found


def property_columns(
    data: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[bytes, array[int], array[int], bytearray]:
    """See :func:`rocketstore.format.words.property_columns`."""
    return words.property_columns(data, starts, ends)


class Indexed:
    """Where KEYS, UNIQ_KEY and TAGS are in properties, as :func:`decode_properties` reads them:
    what queues and index are made of. Each begins at its place, and ends where its ``_end`` is: at
    the same place if it is not there."""

    __slots__ = ("keys", "keys_end", "tags", "tags_end", "unique", "unique_end")

    keys: int
    keys_end: int
    tags: int
    tags_end: int
    unique: int
    unique_end: int

    def find(self, data: bytes | mmap.mmap, at: int, end: int) -> None:
        """Look at the properties that are from ``at`` to ``end``."""
        self.keys = self.keys_end = self.unique = self.unique_end = self.tags = self.tags_end = at
        while at < end:
            stop = words.place_of(data, 2, at, end)
            middle = words.place_of(data, 1, at, stop)
            if at < middle < stop - 1:
                if middle == at + 4:
                    if words.stands_at(data, at, _KEYS):
                        self.keys, self.keys_end = middle + 1, stop
                    elif words.stands_at(data, at, _TAGS):
                        self.tags, self.tags_end = middle + 1, stop
                elif middle == at + 8 and words.stands_at(data, at, _UNIQ_KEY):
                    self.unique, self.unique_end = middle + 1, stop
            at = stop + 1


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Write properties in the order of a Java HashMap filled in the mapping's order.

    Raises :class:`UsageError` for names or values that the format can't hold (0x01 in a name,
    0x02 or NUL anywhere) and for more than 32,767 bytes.
    """
    if not properties:
        return b""
    text = _PAIR_END.join(
        [f"{name}{_NAME_END}{properties[name]}" for name in java_map_order(tuple(properties))]
    )
    if text.count(_PAIR_END) != len(properties) - 1 or "\0" in text:
        raise UsageError(_SEPARATOR)
    return _encoded(text)


def encode_usual(keys: str | None, unique_key: str | None, tags: str | None) -> bytes:
    """:func:`encode_properties` of nothing but KEYS, UNIQ_KEY and TAGS, whose order is known."""
    data = words.join_usual(keys or "", unique_key or "", tags or "")
    if data is None or len(data) > PROPERTIES_MAX:
        rare = {KEYS: keys, UNIQ_KEY: unique_key, TAGS: tags}
        return encode_properties({name: value for name, value in rare.items() if value})
    return data


def _encoded(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"properties can't be written as UTF-8: {error.reason}") from error
    if len(data) > PROPERTIES_MAX:
        raise UsageError(f"properties of {len(data)} bytes: the limit is {PROPERTIES_MAX}")
    return data


@lru_cache(maxsize=4096)
def java_map_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names as a ``java.util.HashMap`` filled in this order iterates over them."""
    for name in names:
        if not name or _NAME_END in name:
            raise UsageError(f"property name {name!r}: it is empty or holds 0x01")
    buckets = 16
    while len(names) > 0.75 * buckets:
        buckets *= 2

    def bucket(name: str) -> int:
        value = hash_code(name) & 0xFFFFFFFF
        return (value ^ (value >> 16)) & (buckets - 1)

    return tuple(sorted(names, key=bucket))


def join_keys(keys: str | Iterable[str]) -> str:
    """The KEYS property of one key or of several: they are separated by one space.

    Raises :class:`UsageError` when a key of several holds a space: it would be read as two.
    """
    if isinstance(keys, str):
        return keys
    several = tuple(keys)
    for key in several:
        if " " in key:
            raise UsageError(f"key {key!r}: a space separates keys, so a key can't hold one")
    return " ".join(several)


def index_keys(properties: Mapping[str, str]) -> list[str]:
    """The keys under which an IndexFile finds the message: UNIQ_KEY, then each of KEYS."""
    unique_key, keys = properties.get(UNIQ_KEY, ""), properties.get(KEYS, "")
    found = [unique_key] if unique_key else []
    return found + [key for key in keys.split(" ") if key]
