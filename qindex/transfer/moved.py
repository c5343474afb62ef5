"""A moved message (:class:`qindex.format.envelope.Moved`) as a file holds it.

The names are those of ``qindex cat --json`` and of the Spark source's table of messages; beside
them ``queue``, and the envelope (:mod:`qindex.format.envelope`), which keeps what JSON has no words
for.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgpack

from journal.errors import UsageError
from qindex.format import envelope
from qindex.format.message import Message
from qindex.view.reader import Row

FORMAT_VERSION = 1
"""Of the files that :mod:`qindex.transfer` writes."""


def envelope_of(row: Row) -> bytes | None:
    """Return a row's envelope; ``None`` where body and timestamp are all it has."""
    return envelope.envelope_of(
        Message(row.body or b"", row.key, row.headers, row.properties, row.timestamp)
    )


def from_plain(value: Any) -> Any:
    """Return the value that :func:`qindex.format.json_value.plain_value` shows as ``value``.

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
                raise UsageError(f"{name} is not a kind of value")
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
