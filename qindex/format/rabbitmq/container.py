"""The message container: how a node of 3.13 and later stores a message.

One external term (:mod:`qindex.format.rabbitmq.term_format`)::

    {mc, Protocol, Data, #{id => <<MsgId:16/binary>>, x => <<Exchange>>, rk => [<<Key>>, ...],
                           rts => ReceivedMs, ts => TimestampMs, d => true | false, p => Priority,
                           ttl => Ms | undefined, bcc => [<<Key>>], deaths => Deaths, ...}}

    mc_amqpl   {content, 60, none, <<Properties>>, rabbit_framing_amqp_0_9_1, [<<Last>>, ...]}
    mc_amqp    {v1, MessageAnnotations, <<bare message and footer>>, PropertiesAt,
                ApplicationPropertiesAt, BodyAt, CodeOfTheBodysSection}
               (3.13: {msg, Header, DeliveryAnnotations, MessageAnnotations, Properties,
                ApplicationProperties, Data, Footer}, decoded)
    mc_mqtt    {mqtt_msg, Retain, Qos, Topic, Dup, PacketId, Payload, Props, Timestamp}

The annotations are what the broker adds to, or takes from, the client's message: ``d`` absent
means persistent, ``deaths`` becomes the header ``x-death``, a key that starts with ``x-`` becomes
a header of that name. There is no virtual host inside.

What :func:`decode_container` gives is what an AMQP 0-9-1 consumer of that node sees. For "hi",
published to the default exchange with the key "q", the bytes begin::

    83 68 04  77 02 mc  77 08 mc_amqpl
              68 06  77 07 content  61 3c  77 04 none  6d 00 00 00 03 10 00 02
                     77 19 rabbit_framing_amqp_0_9_1  6c 00 00 00 01  6d 00 00 00 02 hi  6a
              74 00 00 00 04  77 02 id  6d 00 00 00 10 <16 bytes of message id>  ...

Source: records written by RabbitMQ 4.0.5 on Erlang 27 and 4.3.6 on Erlang 29.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Final, TypeAlias

from qindex.format.rabbitmq.amqp10_format import (
    APPLICATION_PROPERTIES,
    DATA,
    PROPERTIES,
    Value,
    data_body,
    decode_section,
)
from qindex.format.rabbitmq.properties_format import (
    PERSISTENT_ONLY,
    Properties,
    decode_properties,
    encode_properties,
    properties_of_record,
)
from qindex.format.rabbitmq.record import MSG_ID_BYTES, RabbitMessage, check_names, decode_content
from qindex.format.rabbitmq.table_format import Field, PropertiesError, Table
from qindex.format.rabbitmq.term_format import Atom, Term, TermError

Notes: TypeAlias = dict[Term, Term]
"""The annotations of a container."""

_AMQP10_TYPE: Final = "amqp-1.0"
_MAX_SHORTSTR: Final = 255
_PLAIN_ANNOTATIONS: Final = frozenset(("id", "x", "rk", "rts", "d", "bcc", "binding_keys", "env"))
"""Annotations that change nothing of what a consumer sees, where the properties say that the
message is persistent."""


def is_container(value: Term) -> bool:
    """Whether a decoded term is a message container."""
    return type(value) is tuple and len(value) == 4 and value[0] == Atom("mc")


def states_more(record: bytes | memoryview) -> bool:
    """Whether the index states another size for this record than its body's: a node counts all
    sections of a message of AMQP 1.0."""
    return b"\x07mc_amqp" in bytes(record[:24])


def decode_container(value: Term) -> RabbitMessage:
    """Read a decoded container. O(length). Raises :class:`TermError`, and nothing else."""
    _, protocol, data, notes = value
    if type(notes) is not dict:
        raise TermError("has annotations that are not a map")
    try:
        if protocol == "mc_amqpl":
            raw, record, body = decode_content(data)
            if raw == PERSISTENT_ONLY and notes.keys() <= _PLAIN_ANNOTATIONS:
                return _message(notes, raw, None, body)
            return _legacy(notes, raw, record, body)
        if protocol == "mc_amqp":
            sent, body = _amqp10(data)
        elif protocol == "mc_mqtt":
            sent, body = _mqtt(data)
        else:
            raise TermError(f"is a message of protocol {protocol!a}, which is not known here")
        return _message(notes, encode_properties(_seen(sent, notes)), None, body)
    except PropertiesError as error:
        raise TermError(f"has {error}") from error
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise TermError(f"has a part of a wrong type: {error}") from error


def _message(notes: Notes, raw: bytes | None, record: Term, body: bytes) -> RabbitMessage:
    keys = notes.get("rk", [])
    exchange = notes.get("x", b"")
    msg_id = notes.get("id", bytes(MSG_ID_BYTES))
    check_names(b"", exchange, keys, msg_id)
    return RabbitMessage(b"", exchange, keys, raw, body, msg_id, _durable(notes), record)


def _durable(notes: Notes) -> bool:
    return notes.get("d") != Atom("false")


# --- AMQP 0-9-1 --------------------------------------------------------------------------------


def _legacy(notes: Notes, raw: bytes | None, record: Term, body: bytes) -> RabbitMessage:
    """A message of AMQP 0-9-1. Properties that can't be read cost no body."""
    try:
        sent = decode_properties(raw) if raw is not None else properties_of_record(record)
    except PropertiesError:
        return _message(notes, raw, record, body)
    seen = _seen(sent, notes)
    if raw is None or seen != sent:
        raw = encode_properties(seen)
    return _message(notes, raw, None, body)


def _seen(sent: Properties, notes: Notes) -> Properties:
    """Put what the broker noted into the properties that the client sent, as a node does when it
    delivers."""
    headers = list(sent.headers or ())
    deaths = notes.get("deaths")
    if deaths is not None:
        headers = [one for one in headers if one[0] != "x-death"]
        headers.append(("x-death", Field("A", tuple(_deaths(deaths)))))
    added = [
        (key.decode("utf-8", "surrogateescape"), field)
        for key, value in notes.items()
        if type(key) is bytes and (field := _note(key, value)) is not None
    ]
    headers = [*added, *headers]
    first: dict[str, Field] = {}
    for name, field in headers:
        first.setdefault(name, field)  # what the broker says comes first, and wins
    table: Table | None = sent.headers
    if added or deaths is not None or len(first) < len(headers):
        table = tuple(sorted(first.items()))
    expiration = sent.expiration
    if "ttl" in notes:
        expiration = str(notes["ttl"]) if type(notes["ttl"]) is int else None
    timestamp = notes.get("ts")
    if "ts" in notes and (type(timestamp) is not int or timestamp < 0):
        raise TermError("has a timestamp that is not a time")
    priority, mode = sent.priority, sent.delivery_mode
    if priority is None and type(notes.get("p")) is int:
        priority = notes["p"]
    if mode is None and _durable(notes):
        mode = 2
    return replace(
        sent,
        headers=table,
        expiration=expiration,
        timestamp=None if timestamp is None else timestamp // 1000,
        priority=priority,
        delivery_mode=mode,
    )


def _note(key: bytes, value: Term) -> Field | None:
    """The header that a broker's annotation becomes, if it becomes one."""
    is_time = key == b"timestamp_in_ms"
    if not is_time and not key.startswith(b"x-"):
        return None
    if type(value) is int:
        return Field("l", value)
    if is_time:
        return None
    if type(value) is bytes:
        return Field("S", value)
    if type(value) is Atom and value in ("true", "false"):
        return Field("t", value == "true")
    return None


def _deaths(deaths: Term) -> list[Field]:
    """The dead-letterings of a message as the tables of the header x-death, newest first."""
    if type(deaths) is tuple and len(deaths) == 4 and deaths[0] == "deaths":
        if type(deaths[3]) is not dict:
            raise TermError("has deaths that are not a map")
        records = list(deaths[3].items())[::-1]
        records.sort(key=lambda one: _time(one[1], "last_time"), reverse=True)
    elif type(deaths) is list:
        records = deaths
    else:
        raise TermError("has deaths that are neither a list nor a record")
    return [_death(record) for record in records]


def _time(death: Term, name: str) -> int:
    notes = death[4] if type(death) is tuple and len(death) == 5 else None
    time = notes.get(name) if type(notes) is dict else None
    if type(time) is not int or time < 0:
        raise TermError(f"has a death without a {name}")
    return time


def _death(record: Term) -> Field:
    try:
        (queue, reason), death = record
        kind, exchange, keys, count, notes = death
    except (TypeError, ValueError):
        raise TermError("has a death that is not a record of one") from None
    texts = [queue, exchange, *keys] if type(keys) is list else [None]
    if kind != "death" or not all(type(text) is bytes for text in texts):
        raise TermError("has a death that is not a record of one")
    if type(count) is not int or not isinstance(reason, str):
        raise TermError("has a death without count and reason")
    fields = [
        ("count", Field("l", count)),
        ("reason", Field("S", reason.encode())),
        ("queue", Field("S", queue)),
        ("time", Field("T", _time(death, "first_time") // 1000)),
        ("exchange", Field("S", exchange)),
        ("routing-keys", Field("A", tuple(Field("S", key) for key in keys))),
    ]
    if type(notes.get("ttl")) is int:
        fields.insert(0, ("original-expiration", Field("S", str(notes["ttl"]).encode())))
    return Field("F", tuple(fields))


# --- AMQP 1.0 ----------------------------------------------------------------------------------

_MESSAGE_ID: Final = 0
_USER_ID: Final = 1
_REPLY_TO: Final = 4
_CORRELATION_ID: Final = 5
_CONTENT_TYPE: Final = 6
_CONTENT_ENCODING: Final = 7
_CREATION_TIME: Final = 9
_GROUP_ID: Final = 10
_PROPERTY_COUNT: Final = 13


def _amqp10(data: Term) -> tuple[Properties, bytes]:
    """A message of AMQP 1.0 as a consumer of 0-9-1 sees it; its header section is not kept."""
    if type(data) is not tuple or not data:
        raise TermError("has no AMQP 1.0 message")
    if data[0] == "v1" and len(data) == 7:
        return _encoded_sections(data)
    if data[0] == "msg" and len(data) == 8:
        return _decoded_sections(data)
    raise TermError("has no AMQP 1.0 message of a known form")


def _encoded_sections(data: Term) -> tuple[Properties, bytes]:
    _, annotations, bare, properties_at, application_at, body_at, code = data
    if type(bare) is not bytes or type(body_at) is not int or body_at > len(bare):
        raise TermError("has an AMQP 1.0 message without a body")
    properties = _section(bare, properties_at, PROPERTIES, "list")
    application = _section(bare, application_at, APPLICATION_PROPERTIES, "map")
    if code == DATA:
        return _converted(annotations, properties, application, None), data_body(bare, body_at)
    return _converted(annotations, properties, application, _AMQP10_TYPE), bare[body_at:]


def _section(bare: bytes, at: Term, code: int, kind: str) -> list[Any]:
    if at == [] and type(at) is list:
        return []
    if type(at) is not int or not 0 <= at < len(bare):
        raise TermError("has an AMQP 1.0 section outside of its message")
    found, value, _ = decode_section(bare, at)
    if found != code or type(value) is not tuple or value[0] != kind:
        raise TermError(f"has an AMQP 1.0 section 0x{found:x} where 0x{code:x} should be", at)
    items: list[Any] = value[1]
    return items


def _decoded_sections(data: Term) -> tuple[Properties, bytes]:
    _, header, _, annotations, properties, application, body, _ = data
    sent = _converted(
        _content(annotations),
        list(properties[1:]) if type(properties) is tuple else [],
        _content(application),
        None,
    )
    if type(header) is tuple and len(header) > 3:
        if header[1] == Atom("true"):
            sent = replace(sent, delivery_mode=2)
        if type(header[2]) is tuple and type(header[2][1]) is int:
            sent = replace(sent, priority=header[2][1])
    sections = body if type(body) is list else [body]
    if not all(type(one) is tuple and len(one) == 2 for one in sections):
        raise TermError("has an AMQP 1.0 message without a body")
    if any(one[0] != "v1_0.data" for one in sections):
        raise TermError("has a decoded AMQP 1.0 body that is not data")
    return sent, b"".join(_flat(one[1]) for one in sections)


def _content(section: Term) -> list[Any]:
    content = section[1] if type(section) is tuple and len(section) == 2 else []
    return content if type(content) is list else []


def _converted(
    annotations: Term, properties: list[Value], application: list[Any], type_: str | None
) -> Properties:
    """The properties that a node makes of the sections of AMQP 1.0."""
    properties = [*properties, *[None] * (_PROPERTY_COUNT - len(properties))]
    if type(annotations) is not list or not all(
        type(one) is tuple and len(one) == 2 for one in [*annotations, *application]
    ):
        raise TermError("has AMQP 1.0 annotations that are not pairs")
    noted = {_text(key): value for key, value in annotations if _kind(key) == "symbol"}
    headers = [
        (_name(key), _field(value))
        for key, value in application
        if _kind(key) == "utf8" and len(key[1]) <= _MAX_SHORTSTR
    ]
    message_id = _id(properties[_MESSAGE_ID], "x-message-id", headers)
    correlation_id = _id(properties[_CORRELATION_ID], "x-correlation-id", headers)
    marked = [
        (_RENAMED.get(name, name.decode("utf-8", "surrogateescape")), _field(value))
        for name, value in noted.items()
        if name.startswith(b"x-") and name not in _INTERNAL and len(name) <= _MAX_SHORTSTR
    ]
    created = properties[_CREATION_TIME]
    table = tuple(marked + headers)
    return Properties(
        content_type=_shortstr(properties[_CONTENT_TYPE]),
        content_encoding=_shortstr(properties[_CONTENT_ENCODING]),
        headers=table or None,
        correlation_id=correlation_id,
        reply_to=_shortstr(properties[_REPLY_TO]),
        message_id=message_id,
        timestamp=created[1] // 1000 if _kind(created) == "timestamp" else None,
        type=type_ or _shortstr(noted.get(b"x-basic-type")),
        user_id=_shortstr(properties[_USER_ID]),
        app_id=_shortstr(properties[_GROUP_ID]),
    )


_RENAMED: Final = {b"x-cc": "CC"}
_INTERNAL: Final = frozenset(
    (
        b"x-basic-type",
        b"x-basic-delivery-mode",
        b"x-basic-priority",
        b"x-basic-expiration",
        b"x-exchange",
        b"x-routing-key",
        b"x-opt-deaths",
    )
)
"""Annotations that say what properties, or the broker's own notes, say already."""


def _kind(value: Value) -> str | None:
    return value[0] if type(value) is tuple and len(value) > 1 else None


def _text(value: Value) -> bytes:
    text = value[1] if _kind(value) in ("utf8", "symbol", "binary") else b""
    return text if type(text) is bytes else b""


def _name(value: Value) -> str:
    return _text(value).decode("utf-8", "surrogateescape")


def _shortstr(value: Value) -> str | None:
    text = _text(value)
    if _kind(value) is None or len(text) > _MAX_SHORTSTR:
        return None
    if _kind(value) == "binary":
        try:
            return text.decode()
        except UnicodeDecodeError:
            return None
    return text.decode("utf-8", "surrogateescape")


def _id(value: Value, header: str, headers: list[tuple[str, Field]]) -> str | None:
    """A message or correlation id; an id that is not a short string becomes a header."""
    kind = _kind(value)
    if kind is None:
        return None
    if kind == "ulong":
        return str(value[1])
    if kind == "uuid":
        return uuid.UUID(bytes=value[1]).urn
    text = _text(value)
    if kind == "utf8" and len(text) <= _MAX_SHORTSTR:
        return _name(value)
    headers.insert(0, (header, Field("S" if kind == "utf8" else "x", text)))
    return None


_TAGS: Final = {
    "byte": "b",
    "ubyte": "B",
    "short": "s",
    "ushort": "u",
    "int": "I",
    "uint": "i",
    "long": "l",
    "float": "f",
    "double": "d",
    "utf8": "S",
    "symbol": "S",
    "binary": "x",
}


def _field(value: Value) -> Field:
    """A value of AMQP 1.0 as one of a header table."""
    if type(value) is Atom:
        if value in ("true", "false"):
            return Field("t", value == "true")
        return Field("V", None)
    kind = _kind(value)
    if kind is None:
        return Field("V", None)
    inner = value[-1]
    if kind in _TAGS:
        return Field(_TAGS[kind], inner)
    if kind == "boolean":
        return Field("t", inner is True or inner == "true")
    if kind == "ulong":
        return Field("l", inner if inner < 1 << 63 else inner - (1 << 64))
    if kind == "timestamp":
        return Field("T", max(inner, 0) // 1000)
    if kind in ("list", "array") and type(inner) is list:
        return Field("A", tuple(_field(item) for item in inner))
    if kind == "map" and type(inner) is list:
        return Field("F", tuple((_name(key), _field(item)) for key, item in inner))
    if kind == "char" and type(inner) is int:
        return Field("i", inner)
    if kind == "uuid" and type(inner) is bytes:
        return Field("S", uuid.UUID(bytes=inner).urn.encode())
    if type(inner) is bytes:
        return Field("x", inner)
    raise TermError(f"has an AMQP 1.0 value of unknown type {kind!a}")


# --- MQTT --------------------------------------------------------------------------------------


def _mqtt(data: Term) -> tuple[Properties, bytes]:
    """A message of MQTT 3.1.1 or 5 as a consumer of AMQP 0-9-1 sees it."""
    if type(data) is not tuple or len(data) != 9 or data[0] != "mqtt_msg":
        raise TermError("has no MQTT message")
    _, _, qos, _, _, _, payload, props, _ = data
    if type(props) is not dict:
        raise TermError("has MQTT properties that are not a map")
    headers = [
        (name.decode("utf-8", "surrogateescape"), Field("S", value))
        for name, value in props.get("User-Property", [])
        if len(name) <= _MAX_SHORTSTR
    ]
    topic = props.get("Response-Topic")
    if type(topic) is bytes:
        keys = topic.replace(b"/", b".").replace(b"+", b"*")
        headers.insert(0, ("x-reply-to-topic", Field("S", keys)))
    correlation_id = None
    correlation = props.get("Correlation-Data")
    if type(correlation) is bytes:
        if len(correlation) <= _MAX_SHORTSTR and _is_text(correlation):
            correlation_id = correlation.decode()
        else:
            headers.insert(0, ("x-correlation-id", Field("S", correlation)))
    first: dict[str, Field] = {}
    for name, field in headers:
        first.setdefault(name, field)
    kind = props.get("Content-Type")
    seconds = props.get("Message-Expiry-Interval")
    if type(kind) is not bytes or len(kind) > _MAX_SHORTSTR or not kind.isascii():
        kind = b""
    return Properties(
        content_type=kind.decode() or None,
        headers=tuple(sorted(first.items())) or None,
        delivery_mode=1 if qos == 0 else 2,
        correlation_id=correlation_id,
        expiration=str(seconds * 1000) if type(seconds) is int else None,
    ), _flat(payload)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _flat(data: Term) -> bytes:
    """The bytes of an Erlang iolist: a binary, or a list of binaries, bytes and such lists."""
    if type(data) is bytes:
        return data
    if type(data) is not list:
        raise TermError("has a payload that is not a list of bytes")
    out: list[bytes] = []
    stack: list[Term] = [data]
    while stack:
        one = stack.pop()
        if type(one) is bytes:
            out.append(one)
        elif type(one) is int and 0 <= one < 256:
            out.append(bytes((one,)))
        elif type(one) is list:
            stack += reversed(one)
        else:
            raise TermError("has a payload that is not a list of bytes")
    return b"".join(out)
