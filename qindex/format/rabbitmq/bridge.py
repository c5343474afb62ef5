"""RabbitMQ's record as a :class:`qindex.format.message.Message`, and back, without loss.

Plain values are what an application wants, but they do not say all that a record says: whether 5
was a byte or a long, that a timestamp is not a number, which further routing keys (CC, BCC) the
message had. So the headers and properties of a decoded message are dictionaries that also know
where they came from: :class:`RabbitHeaders` its typed fields, :class:`RabbitProperties` the whole
decoded record. Give them back, in the message or to ``publish(headers=..., properties=...)``:
unchanged values are written as they were. An unmodified message becomes the identical record; a
changed one keeps the types of all other headers, and its further routing keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from journal.errors import UsageError
from qindex.format.message import Message
from qindex.format.rabbitmq.container import decode_container, is_container
from qindex.format.rabbitmq.properties_format import Properties, encode_properties
from qindex.format.rabbitmq.record import (
    RabbitMessage,
    decode_usual,
    encode_message,
    message_of_term,
)
from qindex.format.rabbitmq.table_format import Field, PropertiesError, Table, field, plain_table
from qindex.format.rabbitmq.term_format import Term, TermError, decode, encode

RAW = "_raw"
"""Name of the one property, beside ``exchange``, of a message whose properties are malformed:
all their bytes, in hex."""
TERM = "_term"
"""The same where the broker had stored them decoded: their external term, in hex."""


class RabbitHeaders(dict[str, Any]):
    """Headers as plain values, and as the typed ``fields`` they came from.

    >>> from qindex.format.rabbitmq.table_format import Field
    >>> headers = RabbitHeaders((("tries", Field("B", 5)),))
    >>> headers, headers.fields
    ({'tries': 5}, (('tries', Field(tag='B', value=5)),))
    """

    __slots__ = ("fields",)

    fields: Table

    def __init__(self, fields: Table) -> None:
        super().__init__(plain_table(fields))
        self.fields = fields


class RabbitProperties(dict[str, Any]):
    """Properties as plain values, and the record they came from.

    ``source.properties_raw`` are the bytes as the client sent them, ``source.properties`` the
    typed values, ``source.routing_keys`` all routing keys. BCC keys are there alone: they are
    blind copies, so they are not shown among the values.
    """

    __slots__ = ("source",)

    source: RabbitMessage

    def __init__(self, values: Mapping[str, Any], source: RabbitMessage) -> None:
        super().__init__(values)
        self.source = source


# --- from a record -----------------------------------------------------------------------------


def read_rabbitmq(record: bytes | memoryview) -> tuple[RabbitMessage, int]:
    """Read a record of any release, ``{basic_message, ...}`` or ``{mc, ...}``; return the message
    and the offset after its term. After that there may be zeros: a node fills up with them where it
    had kept more room than was needed. Raises :class:`TermError`, and nothing else."""
    record = bytes(record)
    usual = decode_usual(record)
    if usual is not None:
        return usual, len(record)
    value, end = decode(record)
    if record.count(0, end) != len(record) - end:
        raise TermError(f"has {len(record) - end} bytes after its term", end)
    return decode_container(value) if is_container(value) else message_of_term(value), end


def read_named(record: bytes, msg_id: bytes) -> RabbitMessage:
    """Read a record that the index or the store names ``msg_id``.

    Raises :class:`TermError` when it is not a record, or that of another message.
    """
    message, end = read_rabbitmq(record)
    if end != len(record):
        raise TermError(f"has {len(record) - end} bytes after its term", end)
    if message.msg_id != msg_id:
        raise TermError(f"the record is that of message {message.msg_id.hex()}")
    return message


def decode_rabbitmq(record: bytes, msg_id: bytes) -> Message:
    """Show such a record's message as one of ours. Raises as :func:`read_named`."""
    return message_of(read_named(record, msg_id))


def message_of(message: RabbitMessage) -> Message:
    """Show a RabbitMQ message as one of ours; never raises.

    The first routing key is the key (empty: there is none); the exchange is among the properties
    (empty: the default one); text that is not UTF-8 comes as surrogate escapes.

    Malformed properties cost no body: the message then has no headers, and its properties are
    ``exchange`` and :data:`RAW` (or :data:`TERM`). Nothing is read out of them, for a wrong bit
    in their flags would make sound bytes into wrong values.
    """
    exchange = message.exchange.decode("utf-8", "surrogateescape")
    headers: Mapping[str, Any] = {}
    values: dict[str, Any] = {"exchange": exchange}
    try:
        properties = message.properties
    except PropertiesError:
        if message.properties_raw is not None:
            values[RAW] = message.properties_raw.hex()
        else:
            values[TERM] = encode(message.properties_record).hex()
    else:
        if properties.headers is not None:
            headers = RabbitHeaders(properties.headers)
        plain = properties.plain()
        plain.pop("headers", None)
        values |= plain
    keys = message.routing_keys
    key = keys[0].decode("utf-8", "surrogateescape") if keys else ""
    return Message(message.body, key, headers, RabbitProperties(values, message))


def basic_message(record: bytes | memoryview, vhost: bytes) -> bytes:
    """Return the record that a node before 3.13 reads: of a message container what it delivers, any
    other record as it is. Raises :class:`TermError`, and :class:`UsageError` for values that
    can't be written."""
    message, end = read_rabbitmq(record)
    if message.vhost:
        return bytes(record[:end])  # a container has no virtual host inside
    return encode_rabbitmq(message_of(message), vhost, message.msg_id, message.persistent)


# --- to a record -------------------------------------------------------------------------------


def encode_rabbitmq(message: Message, vhost: bytes, msg_id: bytes, persistent: bool) -> bytes:
    """Return the record that a node would have written for ``message``.

    ``properties`` may hold the fields of AMQP 0-9-1 (content_type, correlation_id, ...; the
    delivery_mode is made to agree with ``persistent``) and ``exchange``; or :data:`RAW`, which is
    written as it is. A message that :func:`decode_rabbitmq` gave, unmodified and with its own
    ``vhost``, ``msg_id`` and ``persistent``, gives the identical record (if a node with the
    default frame size wrote it). Raises :class:`UsageError` for values that AMQP does not have;
    O(size).
    """
    values = dict(message.properties)
    exchange = _name("exchange", values.pop("exchange", ""))
    source = message.properties.source if isinstance(message.properties, RabbitProperties) else None
    keys = [_name("key", message.key or "")]
    if source is not None:
        keys = [*keys, *source.routing_keys[1:]] if source.routing_keys or message.key else []
    raw: bytes | Term
    if source is not None and source.persistent == persistent and _unchanged(message, source):
        raw = source.properties_raw
        if raw is None:
            raw = source.properties_record  # the broker had changed them: they stay decoded
    elif RAW in values:
        raw = _given_raw(values, message.headers)
    else:
        raw = _properties(values, message.headers, persistent, keep_mode=source is not None)
    return encode_message(
        msg_id=msg_id,
        routing_keys=keys,
        body=message.body,
        vhost=vhost,
        exchange=exchange,
        properties=raw,
        persistent=persistent,
    )


def _name(what: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise UsageError(f"{what} must be a str, not {type(text).__name__}")
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} must be valid Unicode: {error}") from error


def _unchanged(message: Message, source: RabbitMessage) -> bool:
    """Return whether headers and properties still equal those of ``source``. They can be changed in
    place, so earlier copies prove nothing. The exchange is elsewhere in a record."""
    fresh = message_of(source)
    then, now = dict(fresh.properties), dict(message.properties)
    then.pop("exchange", None)
    now.pop("exchange", None)
    return _same(now, then) and _same(dict(message.headers), dict(fresh.headers))


def _properties(
    values: dict[str, Any], headers: Mapping[str, Any], persistent: bool, *, keep_mode: bool
) -> bytes:
    if "headers" in values:
        raise UsageError("headers are not a property: they have a place of their own in a message")
    agrees = (values.get("delivery_mode") == 2) == persistent
    if not (keep_mode and agrees):
        values["delivery_mode"] = 2 if persistent else 1
    try:
        if headers:
            known = headers.fields if isinstance(headers, RabbitHeaders) else ()
            values["headers"] = _fields(headers, known)
        return encode_properties(Properties(**values))
    except TypeError as error:
        raise UsageError(f"not a property of a RabbitMQ message: {error}") from error
    except PropertiesError as error:
        raise UsageError(f"not headers or properties of a RabbitMQ message: {error}") from error


def _given_raw(values: Mapping[str, Any], headers: Mapping[str, Any]) -> bytes:
    if len(values) > 1 or headers:
        raise UsageError(f"with {RAW} there can be no headers or properties but the exchange")
    try:
        return bytes.fromhex(values[RAW])
    except (TypeError, ValueError) as error:
        raise UsageError(f"{RAW} must be bytes in hex: {error}") from error


def _fields(headers: Mapping[str, Any], known: Table) -> Table:
    """Return headers with the types they had if they are unchanged, else with the usual ones."""
    if _same(dict(headers), plain_table(known)):
        return known  # as it was, with a name that is in it twice
    last = dict(known)
    return tuple([(name, _field(value, last.get(name))) for name, value in headers.items()])


def _field(value: Any, known: Field | None) -> Field:
    if known is not None:
        if _same(value, plain_table((("", known),))[""]):
            return known
        if known.tag == "F" and isinstance(value, dict):
            return Field("F", _fields(value, known.value))
    return field(value)


def _same(one: Any, other: Any) -> bool:
    """Equal in value and type at every level: True is not 1, and 1 is not 1.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
