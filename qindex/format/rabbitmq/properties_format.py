"""AMQP 0-9-1 basic properties: what a publisher sent along with a body, as bytes and as values.

The bytes, as a client sends them and a node stores them (all integers big-endian): 16 bits of
flags, then the properties whose flag is set, in this order::

    bit                                     bit
     15  content_type      shortstr          8  expiration   shortstr (milliseconds, in digits)
     14  content_encoding  shortstr          7  message_id   shortstr
     13  headers           table             6  timestamp    u64, seconds since 1970
     12  delivery_mode     u8                5  type         shortstr
     11  priority          u8                4  user_id      shortstr
     10  correlation_id    shortstr          3  app_id       shortstr
      9  reply_to          shortstr          2  cluster_id   shortstr

    shortstr = u8 length, bytes             table: see qindex.format.rabbitmq.table_format

    10 00 02                                 persistent (delivery_mode 2), and nothing else

The specification lets flag 0 announce a second word of flags. Nothing ever had a use for one, and
a RabbitMQ node ignores flags 0 and 1: it reads values right after the first word, and refuses a
message whose properties don't end with them. So do we, for a stored message has passed that.

Once a broker has changed the properties (dead lettering, removal of BCC) it stores them decoded,
as the Erlang record ``{'P_basic', <the 14 in the order above, or undefined>}``.

Source: AMQP 0-9-1 specification 4.2.6.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from qindex.format.rabbitmq.table_format import (
    PropertiesError,
    Table,
    decode_shortstr,
    decode_table,
    encode_shortstr,
    encode_table,
    plain_table,
    shortstr_of_term,
    table_of_term,
)
from qindex.format.rabbitmq.term_format import Term

PERSISTENT_ONLY: Final = b"\x10\x00\x02"
"""Properties of nothing but delivery_mode 2."""
TRANSIENT_ONLY: Final = b"\x10\x00\x01"
"""Properties of nothing but delivery_mode 1."""

_U16 = Struct(">H")
_U64 = Struct(">Q")


@dataclass(frozen=True, slots=True)
class Properties:
    """The 14 basic properties; ``None`` is absent.

    Text is UTF-8, other bytes come as surrogate escapes. ``timestamp`` is in seconds since 1970.
    Headers of plain values: ``Properties(headers=table({"kind": "new"}))``.
    """

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    def plain(self) -> dict[str, Any]:
        """The properties that are present, by name, with headers as plain Python values.

        See :func:`qindex.format.rabbitmq.table_format.plain_table`.
        """
        view: dict[str, Any] = {}
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None:
                view[name] = plain_table(value) if name == "headers" else value
        return view


_PERSISTENT_ONLY: Final = Properties(delivery_mode=2)
_NAMES: Final = tuple(one.name for one in dataclasses.fields(Properties))
_BITS: Final = tuple((1 << bit, name) for bit, name in zip(range(15, 1, -1), _NAMES, strict=True))
_OCTETS: Final = frozenset({"delivery_mode", "priority"})


def decode_properties(raw: bytes) -> Properties:
    """Read the property bytes of a message. Raises :class:`PropertiesError`, and nothing else.

    >>> decode_properties(b"\\x10\\x00\\x02").plain()
    {'delivery_mode': 2}
    """
    if raw == PERSISTENT_ONLY:  # most messages have no others
        return _PERSISTENT_ONLY
    end = len(raw)
    if end < 2:
        raise PropertiesError("properties are cut off in their flags")
    flags = _U16.unpack_from(raw)[0]
    pos = 2
    values: dict[str, Any] = {}
    for bit, name in _BITS:
        if not flags & bit:
            continue
        if name == "headers":
            values[name], pos = decode_table(raw, pos, end)
        elif name in _OCTETS or name == "timestamp":
            size = 1 if name in _OCTETS else 8
            if pos + size > end:
                raise PropertiesError(f"properties are cut off in {name}")
            values[name] = int.from_bytes(raw[pos : pos + size], "big")
            pos += size
        else:
            values[name], pos = decode_shortstr(raw, pos, end)
    if pos != end:
        raise PropertiesError(f"properties have {end - pos} bytes left over")
    return Properties(**values)


def encode_properties(properties: Properties) -> bytes:
    """Write properties as a client sends them.

    Raises :class:`PropertiesError` for a value that does not fit its type.

    >>> from qindex.format.rabbitmq.table_format import table
    >>> encode_properties(Properties(delivery_mode=2, headers=table({"a": True}))).hex()
    '3000000000040161740102'
    """
    flags = 0
    out: list[bytes] = []
    for bit, name in _BITS:
        value = getattr(properties, name)
        if value is None:
            continue
        flags |= bit
        try:
            if name == "headers":
                out.append(encode_table(value))
            elif name in _OCTETS:
                out.append(bytes((value,)))
            elif name == "timestamp":
                out.append(_U64.pack(value))
            else:
                out.append(encode_shortstr(value))
        except (StructError, ValueError, TypeError, AttributeError):
            raise PropertiesError(f"{name} does not fit its type") from None
    return _U16.pack(flags) + b"".join(out)


def properties_of_record(record: Term) -> Properties:
    """Properties from the decoded term ``{'P_basic', ...}``.

    Raises :class:`PropertiesError`, and nothing else.
    """
    if type(record) is not tuple or len(record) != 1 + len(_NAMES) or record[0] != "P_basic":
        raise PropertiesError("properties are not a P_basic record")
    values: dict[str, Any] = {}
    for name, value in zip(_NAMES, record[1:], strict=True):
        if value == "undefined":
            continue
        if name == "headers":
            values[name] = table_of_term(value)
        elif name in _OCTETS or name == "timestamp":
            limit = 1 << 8 if name in _OCTETS else 1 << 64
            if type(value) is not int or not 0 <= value < limit:
                raise PropertiesError(f"{name} is not a number that fits")
            values[name] = value
        else:
            values[name] = shortstr_of_term(value)
    return Properties(**values)
