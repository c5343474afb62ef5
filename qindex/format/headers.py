"""The headers that qindex gives messages, and the settings and files that go with them.

A message that was published with a delay has its due time in :data:`DUE_HEADER`. (RabbitMQ's
``x-delay`` is another header, on which a node with the plugin for delayed messages would act.) A
message with a unique key says which key it holds, whether for as long as it is in the queue or
until it is delivered, and until when at least.

Two files of a queue repeat this as notes (:mod:`qindex.format.notes`). ``qindex.due`` has due times
in microseconds since 1970 UTC. The due time of a message that was given back with a delay is in the
file alone. ``qindex.keys`` has a hash of 62 bits of the key by seq_id, and, of a message with a
window, its beginning by the seq_id plus 2^61 and its end by the seq_id plus 2^62. A window outlives
its message in the file alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from xxhash import xxh3_64_intdigest

from journal.errors import UsageError

DUE_FILE = "qindex.due"
KEYS_FILE = "qindex.keys"

DUE_HEADER = "qindex-due"
"""When a message may be delivered, in microseconds since 1970 UTC."""
_DUE_START = b"\xc0\x81\xaa" + DUE_HEADER.encode() + b"\xcf"
_BACKOFF = re.compile(r"exponential:(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")
_MAX_SECONDS = 1e10
_MAX_DUE = 1 << 62
"""Above what notes take; their module needs numpy, and clients of a server read settings, too."""

KEY_HEADER = "qindex-unique"
UNTIL_HEADER = "qindex-unique-until"
WINDOW_HEADER = "qindex-unique-window"
"""When the window ends, in microseconds since 1970 UTC."""
_KEY_HEADERS = frozenset((KEY_HEADER, UNTIL_HEADER, WINDOW_HEADER))
BEGAN_AT = 1 << 61
WINDOW_AT = 1 << 62
"""Above all seq_ids."""
TIME_HEADER = "qindex-time"
"""When a message was published, in microseconds since 1970 UTC. RabbitMQ's records have no place
for it, and it is needed in a queue with delayed messages alone."""
Until = Literal["acked", "delivered"]


def due_of(headers: Mapping[str, Any]) -> int:
    """Return the due time that the headers of a message state, or 0 if they state none."""
    due = headers.get(DUE_HEADER)
    return due if type(due) is int and 0 < due < _MAX_DUE else 0


def time_in(headers: Mapping[str, Any]) -> int:
    """Return the publish time that the headers of a message state, or 0 if they state none."""
    time = headers.get(TIME_HEADER)
    return time if type(time) is int and 0 < time < _MAX_DUE else 0


def due_middle(due: int) -> bytes:
    """Return what a record has between timestamp and body, for a message with a due time and
    neither key nor other headers; see :func:`qindex.format.message_record.encode_middle`."""
    return _DUE_START + due.to_bytes(8, "big") + b"\xc0"


def parse_backoff(text: str) -> tuple[float, float]:
    """Return the first pause and the longest one, in seconds, of ``exponential:BASE:CAP``.

    Raises :class:`ValueError`.
    """
    found = _BACKOFF.fullmatch(text)
    if found is None:
        raise ValueError("must be exponential:BASE:CAP, both in seconds")
    base, cap = float(found[1]), float(found[2])
    if not 0 < base <= cap <= _MAX_SECONDS:
        raise ValueError("needs 0 < BASE <= CAP <= 1e10")
    return base, cap


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
