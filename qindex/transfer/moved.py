"""One message as it is moved, and what of it a file holds.

The names are those of ``qindex cat --json`` and of the Spark source's table of messages; beside
them ``queue``, and the envelope (:mod:`qindex.format.envelope`), which keeps what JSON has no words
for.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgpack

from journal.errors import StoreError, UsageError
from qindex.format.envelope import make_envelope, open_envelope
from qindex.format.message import Message
from qindex.format.settings import checked_name
from qindex.view.reader import Row

FORMAT_VERSION = 1
"""Of the files that :mod:`qindex.transfer` writes."""
_MOST_EXPIRY = 1 << 63


@dataclass(frozen=True, slots=True)
class Moved:
    """A message with all that is moved with it. ``expiry``: microseconds since 1970, 0 = never."""

    queue: str | None
    message: Message
    expiry: int = 0
    persistent: bool = True
    redelivered: bool = False


def envelope_of(row: Row) -> bytes | None:
    """Give a row's envelope; ``None`` where body and timestamp are all it has."""
    if row.key is None and not row.headers and not row.properties:
        return None
    return make_envelope(
        Message(row.body or b"", row.key, row.headers, row.properties, row.timestamp)
    )


def moved_of(values: Mapping[str, Any]) -> Moved:
    """Give the message of one row of a file: ``body`` and ``envelope`` as bytes, the rest plain.

    The envelope counts before ``key``, ``headers``, ``properties`` and ``timestamp``. Raises
    :class:`UsageError` that names the value that can't be right.
    """
    body = _typed(values, "body", bytes)
    if body is None:
        raise UsageError("has no body")
    envelope = _typed(values, "envelope", bytes)
    if envelope is not None:
        try:
            message = open_envelope(envelope, body)
        except StoreError as error:
            raise UsageError(f"envelope and body do not belong together: {error}") from error
    else:
        message = Message(
            body,
            _typed(values, "key", str),
            _typed(values, "headers", dict) or {},
            _typed(values, "properties", dict) or {},
            _number(values, "timestamp"),
        )
        make_envelope(message)  # refused here, before others are published
    queue = _typed(values, "queue", str)
    persistent = _typed(values, "persistent", bool)
    if queue:
        checked_name(queue)
    return Moved(
        queue,
        message,
        _number(values, "expiry"),
        True if persistent is None else persistent,
        bool(_typed(values, "redelivered", bool)),
    )


def _typed(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if value is not None and type(value) is not kind:
        raise UsageError(f"{name} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def _number(values: Mapping[str, Any], name: str) -> int:
    number = _typed(values, name, int) or 0
    if not 0 <= number < _MOST_EXPIRY:
        raise UsageError(f"{name} must be from 0 to {_MOST_EXPIRY - 1}, not {number}")
    return int(number)


def from_plain(value: Any) -> Any:
    """Give the value that :func:`qindex.format.json_value.plain_value` shows as ``value``.

    Raises :class:`UsageError` for a ``$`` name that it does not make.
    """
    if isinstance(value, list):
        return [from_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name.startswith("$"):
            decode = _DECODERS.get(name)
            if decode is None:
                raise UsageError(f"{name} is no kind of value")
            try:
                return decode(inner)
            except (TypeError, ValueError, ArithmeticError, LookupError) as error:
                raise UsageError(f"{name}: {error!r}") from error
    return {name: from_plain(one) for name, one in value.items()}


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _map(pairs: list[list[Any]]) -> dict[Any, Any]:
    return {from_plain(key): from_plain(one) for key, one in pairs}


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$base64": _base64,
    "$decimal": Decimal,
    "$float": float,
    "$time": msgpack.Timestamp.from_unix,
    "$ext": lambda pair: msgpack.ExtType(pair[0], _base64(pair[1])),
    "$map": _map,
    "$text": lambda text: bytes.fromhex(text).decode("utf-8", "surrogateescape"),
}
