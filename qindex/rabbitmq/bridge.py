"""RabbitMQ's record as a :class:`qindex.message.Message`, and back."""

from __future__ import annotations

from typing import Any

from journal.errors import UsageError
from qindex.message import Message
from qindex.rabbitmq.properties_format import Properties, PropertiesError, table
from qindex.rabbitmq.record import RabbitMessage, decode_message, encode_message
from qindex.rabbitmq.term_format import TermError

__all__ = ["decode_rabbitmq", "encode_rabbitmq", "message_of"]


def decode_rabbitmq(record: bytes, msg_id: bytes) -> Message:
    """Decode a record that the index or the store names ``msg_id``.

    Raises :class:`TermError` when it is no record, or that of another message.
    """
    message = decode_message(record)
    if message.msg_id != msg_id:
        raise TermError(f"the record is that of message {message.msg_id.hex()}")
    return message_of(message)


def message_of(message: RabbitMessage) -> Message:
    """Show a RabbitMQ message as one of ours: the first routing key is the key; headers and
    properties as plain values, the exchange among the properties (empty: the default one)."""
    try:
        properties = message.properties.plain()
    except PropertiesError as error:
        raise TermError(f"properties: {error}") from error
    headers = properties.pop("headers", {})
    key = message.routing_keys[0].decode("utf-8", "surrogateescape") if message.routing_keys else ""
    exchange = message.exchange.decode("utf-8", "surrogateescape")
    return Message(message.body, key, headers, {"exchange": exchange, **properties})


def encode_rabbitmq(message: Message, vhost: bytes, msg_id: bytes, persistent: bool) -> bytes:
    """Give the record that a node would have written for ``message``.

    ``properties`` may hold the fields of AMQP 0-9-1 (content_type, correlation_id, ...) and
    ``exchange``. Raises :class:`UsageError` for a property that AMQP does not have.
    """
    values: dict[str, Any] = dict(message.properties)
    exchange = values.pop("exchange", "")
    values["delivery_mode"] = 2 if persistent else 1
    if message.headers:
        values["headers"] = table(message.headers)
    try:
        properties = Properties(**values)
    except TypeError as error:
        raise UsageError(f"not a property of a RabbitMQ message: {error}") from error
    return encode_message(
        msg_id=msg_id,
        routing_keys=[(message.key or "").encode("utf-8", "surrogateescape")],
        body=message.body,
        vhost=vhost,
        exchange=exchange.encode("utf-8", "surrogateescape"),
        properties=properties,
        persistent=persistent,
    )
