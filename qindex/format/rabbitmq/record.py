"""RabbitMQ's message record: what a queue index embeds and what an ``.rdq`` file stores.

One external term (:mod:`qindex.format.rabbitmq.term_format`)::

    {basic_message,
      {resource, <<VHost>>, exchange, <<Exchange>>},        <<>> is the default exchange
      [<<RoutingKey>>, ...],                                the publisher's key, then CC and BCC
      {content, 60, none, <<Properties>>, rabbit_framing_amqp_0_9_1, [<<Last>>, ..., <<First>>]},
      <<MsgId:16/binary>>,
      true | false}                                         persistent

* The body is a list of fragments, one for each frame it came in, the last one first; an empty
  body is an empty list. With a node's default frame size a fragment is at most 131064 bytes.
* Properties are the bytes that the client sent. Where the broker had to change them (dead
  lettering, removal of BCC) they are a decoded record instead:
  ``{content, 60, {'P_basic', ...}, none, none, [...]}``.

For "hi", published to the default exchange with the key "q", the bytes are::

    83 68 06  64 00 0d basic_message
              68 04  64 00 08 resource  6d 00 00 00 01 /  64 00 08 exchange  6d 00 00 00 00
              6c 00 00 00 01  6d 00 00 00 01 q  6a
              68 06  64 00 07 content  61 3c  64 00 04 none  6d 00 00 00 03 10 00 02
                     64 00 19 rabbit_framing_amqp_0_9_1  6c 00 00 00 01  6d 00 00 00 02 hi  6a
              6d 00 00 00 10 <16 bytes of message id>
              64 00 04 true

Source: records written by RabbitMQ 3.10.8 on Erlang 25; the encoder repeats them byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Final

from journal.errors import UsageError
from qindex.format.rabbitmq.properties_format import (
    PERSISTENT_ONLY,
    TRANSIENT_ONLY,
    Properties,
    decode_properties,
    encode_properties,
    properties_of_record,
)
from qindex.format.rabbitmq.term_format import Atom, Term, TermError, decode, encode

MSG_ID_BYTES: Final = 16
MAX_FRAGMENT: Final = 131064
"""Bytes of body in one fragment: a frame of 131072 bytes less its 8 of head and end."""

_BASIC_CLASS: Final = 60
_PROTOCOLS: Final = ("rabbit_framing_amqp_0_9_1", "rabbit_framing_amqp_0_8")
_MAX_SHORTSTR: Final = 255

_U32 = Struct(">I")

# The constant stretches of a record as a node writes it; a length follows where one ends in "m".
_HEAD: Final = b"\x83h\x06d\0\x0dbasic_messageh\x04d\0\x08resourcem"
_EXCHANGE: Final = b"d\0\x08exchangem"
_LIST: Final = b"l"
_BINARY: Final = b"m"
_CONTENT_HEAD: Final = b"jh\x06d\0\x07contenta<"
_NONE: Final = b"d\0\x04none"
_CONTENT: Final = _CONTENT_HEAD + _NONE + _BINARY
_PROTOCOL: Final = b"d\0\x19rabbit_framing_amqp_0_9_1"
_NIL: Final = b"j"
_MSG_ID: Final = b"m\0\0\0\x10"
_TRUE: Final = b"d\0\4true"
_FALSE: Final = b"d\0\5false"


@dataclass(frozen=True, slots=True)
class RabbitMessage:
    """One message as a node stored it.

    ``properties_raw`` are the property bytes as the client sent them, or ``None`` where the
    broker stored them decoded. Names are bytes; they are UTF-8 by custom.
    """

    vhost: bytes
    exchange: bytes
    routing_keys: list[bytes]
    properties_raw: bytes | None
    body: bytes = field(repr=False)
    msg_id: bytes
    persistent: bool
    properties_record: Term = field(default=None, repr=False)
    """The decoded term ``{'P_basic', ...}`` where ``properties_raw`` is ``None``."""

    @property
    def properties(self) -> Properties:
        """The properties, decoded anew at each access (O(their size)).

        Raises :class:`~qindex.format.rabbitmq.properties_format.PropertiesError` where they are
        malformed; the rest of the message can be used all the same.
        """
        if self.properties_raw is None:
            return properties_of_record(self.properties_record)
        return decode_properties(self.properties_raw)


# --- decoding ----------------------------------------------------------------------------------


def decode_message(record: bytes) -> RabbitMessage:
    """Read a message record, which must fill ``record`` (any bytes-like object) exactly.

    O(length). Raises :class:`TermError` with the reason for anything that is not a such record, and
    nothing else. Properties are not looked into here, see :attr:`RabbitMessage.properties`.
    """
    record = bytes(record)
    return decode_usual(record) or _decode_any(record)


def decode_usual(record: bytes) -> RabbitMessage | None:
    """Read a record in the very form that the encoder writes, in a third of the time.

    ``None`` for everything else, sound or not. Slices may reach past the end here: then the
    constant expected next is not found.
    """
    u32 = _U32.unpack_from
    starts = record.startswith
    if not starts(_HEAD):
        return None
    try:
        at = len(_HEAD) + 4
        pos = at + u32(record, at - 4)[0]
        vhost = record[at:pos]
        if not starts(_EXCHANGE, pos):
            return None
        at = pos + len(_EXCHANGE) + 4
        pos = at + u32(record, at - 4)[0]
        exchange = record[at:pos]
        routing_keys, pos = _usual_binaries(record, pos)
        if not starts(_CONTENT, pos):
            return None
        at = pos + len(_CONTENT) + 4
        pos = at + u32(record, at - 4)[0]
        properties = record[at:pos]
        if not starts(_PROTOCOL, pos):
            return None
        pos += len(_PROTOCOL)
        fragments: list[bytes] = []
        if not starts(_NIL, pos):
            fragments, pos = _usual_binaries(record, pos)
    except StructError:
        return None
    if not starts(_NIL, pos) or not starts(_MSG_ID, pos + 1):
        return None
    at = pos + 1 + len(_MSG_ID)
    pos = at + MSG_ID_BYTES
    end = record[pos:]
    if end not in (_TRUE, _FALSE):
        return None
    body = fragments[0] if len(fragments) == 1 else b"".join(reversed(fragments))
    return RabbitMessage(
        vhost, exchange, routing_keys, properties, body, record[at:pos], end == _TRUE
    )


def _usual_binaries(record: bytes, pos: int) -> tuple[list[bytes], int]:
    """Return the binaries of a list at ``pos``, and the offset of its tail. The offset is the end
    of the record if the list is not sound."""
    binaries: list[bytes] = []
    if not record.startswith(_LIST, pos):
        return binaries, len(record)
    count = _U32.unpack_from(record, pos + 1)[0]
    pos += 5
    for _ in range(count):
        if not record.startswith(_BINARY, pos):
            return binaries, len(record)
        at = pos + 5
        pos = at + _U32.unpack_from(record, at - 4)[0]
        binaries.append(record[at:pos])
    return binaries, pos


def _decode_any(record: bytes) -> RabbitMessage:
    value, end = decode(record)
    if end != len(record):
        raise TermError(f"has {len(record) - end} bytes after its term", end)
    return message_of_term(value)


def message_of_term(value: Term) -> RabbitMessage:
    """Read a decoded record. Raises :class:`TermError`."""
    if not _is_record(value, "basic_message", 6):
        raise TermError("is a term, but no basic_message")
    _, resource, keys, content, msg_id, persistent = value
    if not _is_record(resource, "resource", 4) or resource[2] != Atom("exchange"):
        raise TermError("has no exchange")
    _, vhost, _, exchange = resource
    check_names(vhost, exchange, keys, msg_id)
    if type(persistent) is not Atom or persistent not in ("true", "false"):
        raise TermError("has a persistent flag that is neither true nor false")
    raw, properties, body = decode_content(content)
    return RabbitMessage(vhost, exchange, keys, raw, body, msg_id, persistent == "true", properties)


def check_names(vhost: Term, exchange: Term, keys: Term, msg_id: Term) -> None:
    """Check the types of these parts of a message. Raises :class:`TermError`."""
    if type(vhost) is not bytes or type(exchange) is not bytes:
        raise TermError("has a vhost or exchange whose name is not a binary")
    if not _all_binaries(keys):
        raise TermError("has routing keys that are not a list of binaries")
    if type(msg_id) is not bytes or len(msg_id) != MSG_ID_BYTES:
        raise TermError(f"has a message id that is not {MSG_ID_BYTES} bytes")


def decode_content(content: Term) -> tuple[bytes | None, Term, bytes]:
    """Read the term ``{content, ...}``: properties as bytes, or else as a record, and the body.
    Raises :class:`TermError`."""
    if not _is_record(content, "content", 6) or content[1] != _BASIC_CLASS:
        raise TermError("has no content of the basic class")
    _, _, properties, raw, protocol, fragments = content
    if not _all_binaries(fragments):
        raise TermError("has a body that is not a list of binaries")
    body = b"".join(reversed(fragments))
    if type(raw) is bytes:
        if type(protocol) is not Atom or protocol not in _PROTOCOLS:
            raise TermError("has properties of an unknown protocol")
        return raw, None, body
    if raw != Atom("none") or type(properties) is not tuple:
        raise TermError("has no properties")
    return None, properties, body


def _is_record(value: Term, name: str, arity: int) -> bool:
    return (
        type(value) is tuple and len(value) == arity and type(value[0]) is Atom and value[0] == name
    )


def _all_binaries(value: Term) -> bool:
    return type(value) is list and all(type(item) is bytes for item in value)


# --- encoding ----------------------------------------------------------------------------------


_BEFORE_MSG_ID: Final = _NIL + _MSG_ID


def encode_message(
    *,
    msg_id: bytes,
    routing_keys: Sequence[bytes],
    body: bytes,
    vhost: bytes = b"/",
    exchange: bytes = b"",
    properties: bytes | Properties | Term = None,
    persistent: bool = True,
) -> bytes:
    """The record of one message, with any number of routing keys, as a 3.10 node writes it.

    ``properties`` are property bytes, or values to be encoded, or ``None`` for a delivery_mode
    that agrees with ``persistent`` and nothing else; or the term ``{'P_basic', ...}``, for the
    record of a message whose properties the broker had changed. Raises :class:`UsageError`, and
    :class:`~qindex.format.rabbitmq.properties_format.PropertiesError` for values that can't be
    encoded.
    """
    if len(msg_id) != MSG_ID_BYTES:
        raise UsageError(f"a msg_id has {MSG_ID_BYTES} bytes, not {len(msg_id)}")
    if properties is None:
        properties = PERSISTENT_ONLY if persistent else TRANSIENT_ONLY
    elif isinstance(properties, Properties):
        properties = encode_properties(properties)
    if isinstance(properties, bytes):
        content = (_CONTENT, _U32.pack(len(properties)), properties, _PROTOCOL)
    else:
        content = (_CONTENT_HEAD, encode(properties)[1:], _NONE, _NONE)
    keys: list[bytes] = [_LIST, _U32.pack(len(routing_keys))] if routing_keys else []
    for key in routing_keys:
        keys += (_BINARY, _U32.pack(len(_short(key))), key)
    return b"".join(
        (
            *(_HEAD, _U32.pack(len(_short(vhost))), vhost),
            *(_EXCHANGE, _U32.pack(len(_short(exchange))), exchange),
            *(*keys, *content),
            *_fragments(body),
            *(_BEFORE_MSG_ID, msg_id, _TRUE if persistent else _FALSE),
        )
    )


def _fragments(body: bytes) -> list[bytes]:
    """The body's list up to its tail: pieces of ``MAX_FRAGMENT`` bytes, the last one first."""
    starts = range(0, len(body), MAX_FRAGMENT)
    out = [_LIST, _U32.pack(len(starts))] if starts else []
    for start in reversed(starts):
        piece = body[start : start + MAX_FRAGMENT]
        out += (_BINARY, _U32.pack(len(piece)), piece)
    return out


def _short(name: bytes) -> bytes:
    if len(name) > _MAX_SHORTSTR:
        raise UsageError(f"a name of {len(name)} bytes is longer than {_MAX_SHORTSTR}")
    return name
