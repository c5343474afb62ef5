"""The message that a user publishes and reads, whatever bytes it is kept in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from journal.errors import UsageError

Body: TypeAlias = bytes | bytearray | memoryview
"""A body to publish; a body that is read is bytes."""
Nanoseconds: TypeAlias = int
"""A time: since 1970 UTC."""
Microseconds: TypeAlias = int
"""A time: since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    ``body``: bytes; of a bytearray or memoryview, publishing takes a copy. ``key``: the routing
    key, or what an application looks a message up by. ``headers``: the application's own values.
    ``properties``: those of the record format beside headers (for RabbitMQ records content_type,
    correlation_id, ...). ``timestamp``: time of publishing in nanoseconds since 1970 UTC, 0 = the
    record keeps none (RabbitMQ's own).
    """

    body: bytes
    key: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    timestamp: Nanoseconds = 0


def as_bytes(body: Body) -> bytes:
    """Return a body as bytes, copied if it is mutable. Raises :class:`UsageError` for anything
    else."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    remedy = "encode it, as by text.encode()"
    if not isinstance(body, str):
        remedy = 'for other values ask for engine.queue(name, serializer="json")'
    what = type(body).__name__
    raise UsageError(f"a body must be bytes, a bytearray or a memoryview, not {what}: {remedy}")


def refuse_parts(
    key: str | None, headers: Mapping[str, Any] | None, properties: Mapping[str, Any] | None
) -> None:
    """Raise :class:`UsageError` where a publish is given a message and parts of one."""
    if key is not None or headers is not None or properties is not None:
        raise UsageError(
            "a Message has its own key, headers and properties: give them to the Message"
        )


def message_of(
    body: Body | Message,
    key: str | None,
    headers: Mapping[str, Any] | None,
    properties: Mapping[str, Any] | None,
    timestamp: Nanoseconds,
) -> Message:
    """Return the message of a body and its parts. A `body` that is a whole message has its own.

    `timestamp` is for a message without one. Raises :class:`UsageError`.
    """
    if not isinstance(body, Message):
        return Message(as_bytes(body), key, headers or {}, properties or {}, timestamp)
    refuse_parts(key, headers, properties)
    return replace(body, body=as_bytes(body.body), timestamp=body.timestamp or timestamp)


def in_the_making(frozen: type) -> type:
    """Return a class of objects whose fields may still be set, and that become objects of the
    ``frozen`` dataclass by their ``__class__``."""
    return type("_Open", (), {"__slots__": tuple(one.name for one in fields(frozen))})


_Open = in_the_making(Message)


def make_message(
    body: bytes,
    key: str | None,
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    timestamp: int,
) -> Message:
    """Make a message as its constructor does, in a fifth of the time: that of a frozen class pays
    for each field that it sets."""
    made: Any = _Open()
    made.body = body
    made.key = key
    made.headers = headers
    made.properties = properties
    made.timestamp = timestamp
    made.__class__ = Message
    message: Message = made
    return message
