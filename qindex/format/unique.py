"""Unique keys in bytes: the headers of a message that holds one, and the file ``qindex.keys``.

A message says in its headers which key it holds, whether for as long as it is in the queue or until
it is delivered, and until when at least. The file repeats this as notes
(:mod:`qindex.format.notes`): a hash of 62 bits of the key by seq_id, and, of a message with a
window, the end of it by the seq_id plus 2^62. A window outlives its message in the file alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from xxhash import xxh3_64_intdigest

from journal.errors import UsageError

FILE_NAME = "qindex.keys"
KEY_HEADER = "qindex-unique"
UNTIL_HEADER = "qindex-unique-until"
WINDOW_HEADER = "qindex-unique-window"
"""When the window ends, in microseconds since 1970 UTC."""
_KEY_HEADERS = frozenset((KEY_HEADER, UNTIL_HEADER, WINDOW_HEADER))
WINDOW_AT = 1 << 62
"""Above all seq_ids."""
Until = Literal["acked", "delivered"]


def refuse_without_key(unique: str | None, window: float | None, until: Until) -> None:
    """Raise :class:`UsageError` for options of a unique key where there is none."""
    if unique is not None:
        return
    if window is not None:
        raise UsageError("window= needs unique=: it says for how long that key is taken")
    if until != "acked":
        raise UsageError("until= needs unique=: it says when that key is free again")


def hash_key(key: str) -> int:
    """Return the hash of a key: a number from 1 to 2^62 - 1."""
    return (xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) >> 2) or 1


def without_key(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers but those of a unique key: the message holds none where it goes."""
    return {name: value for name, value in headers.items() if name not in _KEY_HEADERS}


def window_in(headers: Mapping[str, Any]) -> int:
    """Return when the window of a message with these headers ends, or 0 if it has none."""
    until = headers.get(WINDOW_HEADER)
    return until if type(until) is int and 0 < until < WINDOW_AT else 0


def hash_in(headers: Mapping[str, Any]) -> int:
    """Return the hash of the key that a message with these headers holds, or 0 for none."""
    key = headers.get(KEY_HEADER)
    return hash_key(key) if isinstance(key, str) else 0
