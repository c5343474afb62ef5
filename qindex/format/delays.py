"""Delays in bytes: the header of a delayed message, the setting for back-off, and the file
``qindex.due`` of a queue.

A message that was published with a delay says so itself, in the header :data:`DUE_HEADER`. (It is
not RabbitMQ's ``x-delay``: a node with the plugin for delayed messages would act on that.) The file
has these times as notes (:mod:`qindex.format.notes`), in microseconds since 1970 UTC. The due time
of a message that was given back with a delay is in the file alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FILE_NAME = "qindex.due"
DUE_HEADER = "qindex-due"
"""When a message may be delivered, in microseconds since 1970 UTC."""
_DUE_START = b"\xc0\x81\xaa" + DUE_HEADER.encode() + b"\xcf"
_BACKOFF = re.compile(r"exponential:(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")
_MOST_SECONDS = 1e10
_MAX_DUE = 1 << 62
"""Above what notes take; their module needs numpy, and clients of a server read settings, too."""


def due_of(headers: Mapping[str, Any]) -> int:
    """Return the due time that the headers of a message state, or 0 if they state none."""
    due = headers.get(DUE_HEADER)
    return due if type(due) is int and 0 < due < _MAX_DUE else 0


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
    if not 0 < base <= cap <= _MOST_SECONDS:
        raise ValueError("needs 0 < BASE <= CAP <= 1e10")
    return base, cap
