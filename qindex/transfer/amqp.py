"""Messages as AMQP 0-9-1 has them, and back, byte for byte: properties and headers are written and
read by :mod:`qindex.format.rabbitmq`, not by pika, whose values do not know their AMQP types.

A message of ours has what AMQP has no place for (its timestamp in nanoseconds, headers of other
types): its envelope (:mod:`qindex.format.envelope`) goes along in the header ``x-qindex-envelope``,
and is taken off again by a pull. A record of a RabbitMQ node goes as it is.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pika
import pika.exceptions
import pika.spec
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from journal.errors import StoreError, UsageError
from qindex.format.envelope import Moved, make_envelope, open_envelope
from qindex.format.message import Message
from qindex.format.rabbitmq.bridge import RabbitProperties, encode_rabbitmq, message_of
from qindex.format.rabbitmq.properties_format import (
    Properties,
    decode_properties,
    encode_properties,
)
from qindex.format.rabbitmq.record import MSG_ID_BYTES, RabbitMessage, decode_message
from qindex.format.rabbitmq.table_format import PropertiesError, field
from qindex.queue.delivery import Delivery
from qindex.queue.notes.delays import now_us

# pika logs each failed attempt: what there is to say is in the exception.
logging.getLogger("pika").addHandler(logging.NullHandler())

ENVELOPE_HEADER = "x-qindex-envelope"
_NO_ID = bytes(MSG_ID_BYTES)
_FRAME_HEAD = struct.Struct(">BHL")
_LARGEST_FRAME = pika.spec.FRAME_MAX_SIZE
"""Bytes: pika asks for them, and no broker goes above."""


class BrokerError(StoreError):
    """A broker that can't be reached, refuses, or went away."""


class _RawProperties(pika.BasicProperties):  # type: ignore[misc]
    """Basic properties that keep, and send, the bytes they were made of."""

    raw = b""

    def decode(self, encoded: bytes, offset: int = 0) -> Any:
        self.raw = bytes(encoded[offset:])
        return self

    def encode(self) -> list[bytes]:
        return [self.raw]


class GuardedConnection(pika.SelectConnection):  # type: ignore[misc]
    """A connection to a peer that may not be a broker. It ends at a frame larger than agreed, at a
    message that claims more than ``most_bytes``, and at bytes that can't be decoded."""

    most_bytes: int = 1 << 32

    def _on_data_available(self, data_in: bytes) -> None:
        try:
            super()._on_data_available(data_in)
            head = self._frame_buffer[: _FRAME_HEAD.size]
            if len(head) == _FRAME_HEAD.size and not head.startswith(b"AMQP"):
                size = _FRAME_HEAD.unpack(head)[2]
                if size > _LARGEST_FRAME:
                    raise BrokerError(f"a frame of {size} bytes came: {_LARGEST_FRAME} are agreed")
        except (pika.exceptions.AMQPError, BrokerError):
            raise
        except Exception as error:
            # pika indexes and unpacks what comes, as it comes.
            raise BrokerError(f"the reply is not AMQP: {error!r}") from error

    def _deliver_frame_to_channel(self, value: Any) -> None:
        if isinstance(value, pika.frame.Header) and value.body_size > self.most_bytes:
            what = f"a message of {value.body_size} bytes came, {self.most_bytes} may be stored"
            raise BrokerError(what)
        super()._deliver_frame_to_channel(value)


def blocking_connection(parameters: Any) -> Any:
    """Connect. Raises what pika does, and :class:`BrokerError`."""
    return pika.BlockingConnection(parameters, _impl_class=GuardedConnection)


@contextmanager
def answered_within(connection: Any, seconds: float) -> Iterator[None]:
    """End the connection if the broker does not answer the block's request in time: it need not
    have agreed to heartbeats."""
    inner = connection._impl
    late = pika.exceptions.AMQPHeartbeatTimeout(f"no answer within {seconds:g} s")
    timer = inner._adapter_call_later(seconds, lambda: inner._terminate_stream(late))
    try:
        yield
    finally:
        inner._adapter_remove_timeout(timer)


@contextmanager
def raw_properties() -> Iterator[None]:
    """Have pika give properties as bytes (``properties.raw``) while this lasts."""
    registry = pika.spec.props
    before = registry[pika.BasicProperties.INDEX]
    registry[pika.BasicProperties.INDEX] = _RawProperties
    try:
        yield
    finally:
        registry[pika.BasicProperties.INDEX] = before


def parameters_of(url: str) -> Any:
    """Return pika's parameters of an ``amqp://`` or ``amqps://`` URL. Raises
    :class:`UsageError`."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ValueError("it must be amqp://user:password@host:port/vhost")
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError) as error:
        raise UsageError(f"--amqp is not the URL of a broker: {error}") from error
    return parameters


@contextmanager
def broker_errors(url: str) -> Iterator[None]:
    """Turn pika's exceptions into :class:`BrokerError`; passwords are not shown."""
    parameters = parameters_of(url)
    name = f"{parameters.host}:{parameters.port}"
    try:
        yield
    except (pika.exceptions.AMQPError, AMQPConnectorException, OSError) as error:
        raise BrokerError(f"broker {name}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """Describe an error of a broker, or of the connection to it, in one line."""
    inner: Any = error
    while (cause := _cause(inner)) is not None:
        inner = cause
    if isinstance(inner, pika.exceptions.ProbableAuthenticationError):
        return "it refuses user or password"
    if isinstance(inner, pika.exceptions.ProbableAccessDeniedError):
        return "it refuses the virtual host"
    if isinstance(inner, pika.exceptions.ConnectionClosed | pika.exceptions.ChannelClosed):
        return f"{inner.reply_text} ({inner.reply_code})"
    text = str(inner).strip()
    return f"{text or type(inner).__name__}"


def _cause(error: Any) -> BaseException | None:
    """Return the error inside an error of pika's, which wraps the real one up to three times."""
    attempts = getattr(error, "exceptions", None) or [getattr(error, "exception", None)]
    for inner in (attempts[-1], *error.args[:1]):
        if isinstance(inner, BaseException) and inner is not error:
            return inner
    return None


def outgoing(delivery: Delivery) -> tuple[Any, bytes]:
    """Return the properties and the body to publish. Raises :class:`UsageError` for headers or
    properties that AMQP has no words for.

    ``expiration`` is the rest of the message's time to live, in milliseconds.
    """
    message = delivery.message
    entry = delivery._extra
    ours = not isinstance(message.properties, RabbitProperties)
    persistent = True if ours else message.properties.source.persistent  # type: ignore[attr-defined]
    bare = Message(b"", message.key, message.headers, message.properties)
    record = decode_message(encode_rabbitmq(bare, b"/", _NO_ID, persistent))
    raw = record.properties_raw
    changes: dict[str, Any] = {}
    if ours:
        envelope = field(make_envelope(message))
        changes["headers"] = (*(_properties(record).headers or ()), (ENVELOPE_HEADER, envelope))
    expiry = 0 if isinstance(entry, int) else entry.expiry
    if expiry:
        changes["expiration"] = str(max((expiry - now_us()) // 1000, 0))
    try:
        if changes or raw is None:
            raw = encode_properties(replace(_properties(record), **changes))
    except PropertiesError as error:
        raise UsageError(f"seq_id {delivery.seq_id} can't be sent: {error}") from error
    properties = _RawProperties()
    properties.raw = raw
    return properties, delivery.body


def _properties(record: RabbitMessage) -> Properties:
    return record.properties


def incoming(method: Any, properties: Any, body: bytes, vhost: str) -> Moved:
    """Return the message that a broker delivered, with ``properties`` of :func:`raw_properties`."""
    raw = properties.raw
    try:
        known = decode_properties(raw)
    except PropertiesError:
        known = Properties()
    persistent = known.delivery_mode == 2
    expiry = 0
    if known.expiration is not None and known.expiration.isdigit():
        expiry = now_us() + int(known.expiration) * 1000
    message: Message | None = None
    envelope = dict(known.headers or ()).get(ENVELOPE_HEADER)
    if envelope is not None and isinstance(envelope.value, bytes):
        try:
            message = open_envelope(envelope.value, body)
        except StoreError:
            message = None  # somebody has changed the body since: it comes as it is
    if message is None:
        key = method.routing_key.encode("utf-8", "surrogateescape")
        exchange = method.exchange.encode("utf-8", "surrogateescape")
        message = message_of(
            RabbitMessage(vhost.encode(), exchange, [key], raw, body, _NO_ID, persistent)
        )
    return Moved(None, message, expiry, persistent, bool(method.redelivered))
