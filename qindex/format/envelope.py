"""A message with all that is moved with it, and its envelope, which files and frames hold.

The envelope is a message's record without its body: it keeps key, headers and properties without
loss. Of our records it is the bytes up to the body, as they are on disk
(:mod:`qindex.format.message_record`; the checksum is of no use without the body, and is zero). Of
RabbitMQ's it is the record of the same message with an empty body
(:mod:`qindex.format.rabbitmq.record`): exchange, routing keys and property bytes as the client sent
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from journal.errors import StoreError, UsageError
from qindex.format import message_record as record_format
from qindex.format.message import Message
from qindex.format.rabbitmq.bridge import RabbitProperties, encode_rabbitmq, message_of
from qindex.format.rabbitmq.record import decode_message
from qindex.format.settings import checked_name

_MAX_EXPIRY = 1 << 63
_PLACES = ("body", "envelope", "timestamp", "expiry", "persistent", "redelivered")


@dataclass(frozen=True, slots=True)
class Moved:
    """A message with all that is moved with it. ``expiry``: microseconds since 1970, 0 = never."""

    queue: str | None
    message: Message
    expiry: int = 0
    persistent: bool = True
    redelivered: bool = False


def make_envelope(message: Message) -> bytes:
    """Return the envelope of a message that was read from a store."""
    properties = message.properties
    if not isinstance(properties, RabbitProperties):
        return record_format.encode_front(message)
    source = properties.source
    empty = Message(b"", message.key, message.headers, properties)
    return encode_rabbitmq(empty, source.vhost, source.msg_id, source.persistent)


def open_envelope(envelope: bytes, body: bytes) -> Message:
    """Return the message that an envelope and a body make.

    Raises :class:`journal.errors.StoreError` for bytes that are not an envelope, or of a body of
    another size.
    """
    if envelope[: len(record_format.MAGIC)] == record_format.MAGIC:
        return record_format.decode_record(envelope + body)
    return message_of(replace(decode_message(envelope), body=body))


def envelope_of(message: Message) -> bytes | None:
    """Return a message's envelope; None where body and timestamp are all it has."""
    if message.key is None and not message.headers and not message.properties:
        return None
    return make_envelope(message)


def moved_of(values: Mapping[str, Any]) -> Moved:
    """Return the message of one row of a file: ``body`` and ``envelope`` as bytes, the rest plain.

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
    if not 0 <= number < _MAX_EXPIRY:
        raise UsageError(f"{name} must be from 0 to {_MAX_EXPIRY - 1}, not {number}")
    return int(number)


def in_frame(moved: Moved) -> list[Any]:
    """Return the message of :func:`of_frame` as a list."""
    message = moved.message
    envelope = envelope_of(message)
    return [
        message.body,
        envelope,
        message.timestamp,
        moved.expiry,
        moved.persistent,
        moved.redelivered,
    ]


def of_frame(values: list[Any]) -> Moved:
    """Return the message of :func:`in_frame`. Raises :class:`UsageError`."""
    return moved_of(dict(zip(_PLACES, values, strict=True)))
