"""AMQP 0-9-1 field tables: typed values by name, the form of message headers.

As bytes (all integers big-endian)::

    table = u32 n, n bytes of { u8 length, name, tag, value }
    array = u32 n, n bytes of { tag, value }

    tag  value                      Erlang          tag  value                     Erlang
     S   u32 n, n bytes             longstr          t   u8, 0 = false             bool
     x   u32 n, n bytes             binary           T   u64, seconds since 1970   timestamp
     b   i8                         byte             D   u8 scale, i32             decimal
     B   u8                         unsignedbyte     f   f32                       float
     s   i16                        short            d   f64                       double
     u   u16                        unsignedshort    F   table                     table
     I   i32                        signedint        A   array                     array
     i   u32                        unsignedint      V   nothing                   void
     l   i64                        long
     L   i64                        long

As an Erlang term a table is ``[{<<"name">>, type, Value}, ...]`` and an array is
``[{type, Value}, ...]``, with the type names of the columns "Erlang".

A value keeps its type here: it is a :class:`Field` of tag and value.

Sources: AMQP 0-9-1 specification 4.2.5. RabbitMQ's errata page and its 3.10 parser tell which tags
and signs are in real use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, TypeAlias

from journal.errors import StoreError
from qindex.format.rabbitmq.term_format import Atom, Term

MAX_DEPTH: Final = 64
"""Levels of tables and arrays that are read or written."""

_U32 = Struct(">I")
_DECIMAL = Struct(">Bi")
_NUMBERS: Final = {
    "b": Struct(">b"),
    "B": Struct(">B"),
    "s": Struct(">h"),
    "u": Struct(">H"),
    "I": Struct(">i"),
    "i": Struct(">I"),
    "l": Struct(">q"),
    "L": Struct(">q"),
    "T": Struct(">Q"),
    "f": Struct(">f"),
    "d": Struct(">d"),
}
_TAG_OF_ERLANG: Final = {
    "longstr": "S",
    "binary": "x",
    "byte": "b",
    "unsignedbyte": "B",
    "short": "s",
    "unsignedshort": "u",
    "signedint": "I",
    "unsignedint": "i",
    "long": "l",
    "timestamp": "T",
    "decimal": "D",
    "float": "f",
    "double": "d",
    "bool": "t",
    "table": "F",
    "array": "A",
    "void": "V",
}


class PropertiesError(StoreError):
    """Bytes or values that are not AMQP properties, or a table in them that is none."""


class Field(NamedTuple):
    """A type tag and a value of that type.

    ====================  =======================================================
    b B s u I i l L T     ``int``
    f d                   ``float``
    t                     ``bool``
    D                     ``(scale, int)``, the value is int / 10**scale
    S x                   ``bytes``
    F                     :data:`Table`
    A                     ``tuple`` of :class:`Field`
    V                     ``None``
    ====================  =======================================================
    """

    tag: str
    value: Any


Table: TypeAlias = tuple[tuple[str, Field], ...]
"""Names and fields in order. Names are UTF-8; other bytes come as surrogate escapes."""


# --- from bytes --------------------------------------------------------------------------------


def decode_table(raw: bytes, pos: int, end: int, depth: int = 1) -> tuple[Table, int]:
    """Read the table at ``pos``, which may reach up to ``end``. Return it and the offset after it.

    O(its size). Raises :class:`PropertiesError`.
    """
    pos, stop = _block(raw, pos, end)
    fields: list[tuple[str, Field]] = []
    while pos < stop:
        name, pos = decode_shortstr(raw, pos, stop)
        one, pos = _decode_field(raw, pos, stop, depth)
        fields.append((name, one))
    return tuple(fields), stop


def decode_shortstr(raw: bytes, pos: int, end: int) -> tuple[str, int]:
    """Read the short string (a length byte, then its bytes) at ``pos``."""
    start = pos + 1
    stop = start + raw[pos] if start <= end else end + 1
    if stop > end:
        raise PropertiesError(f"properties are cut off in a short string at byte {pos}")
    return raw[start:stop].decode("utf-8", "surrogateescape"), stop


def _block(raw: bytes, pos: int, end: int) -> tuple[int, int]:
    """Start and end of the bytes after the 32-bit length at ``pos``."""
    start = pos + 4
    stop = start + _U32.unpack_from(raw, pos)[0] if start <= end else end + 1
    if stop > end:
        raise PropertiesError(f"properties are cut off in a value at byte {pos}")
    return start, stop


def _decode_field(raw: bytes, pos: int, end: int, depth: int) -> tuple[Field, int]:
    if pos >= end:
        raise PropertiesError(f"properties are cut off before a type at byte {pos}")
    tag = chr(raw[pos])
    pos += 1
    number = _NUMBERS.get(tag) or (_DECIMAL if tag == "D" else None)
    if number is not None:
        if pos + number.size > end:
            raise PropertiesError(f"properties are cut off in a value at byte {pos}")
        values = number.unpack_from(raw, pos)
        if tag in "fd" and not math.isfinite(values[0]):
            raise PropertiesError(f"the float at byte {pos} is not finite")
        return Field(tag, values if tag == "D" else values[0]), pos + number.size
    if tag == "t":
        if pos >= end:
            raise PropertiesError(f"properties are cut off in a value at byte {pos}")
        return Field(tag, raw[pos] != 0), pos + 1
    if tag == "V":
        return Field(tag, None), pos
    if tag in "Sx":
        start, stop = _block(raw, pos, end)
        return Field(tag, raw[start:stop]), stop
    if tag not in "FA":
        raise PropertiesError(f"the value at byte {pos - 1} has the unknown type {tag!a}")
    _check_depth(depth)
    if tag == "F":
        inner, stop = decode_table(raw, pos, end, depth + 1)
        return Field(tag, inner), stop
    pos, stop = _block(raw, pos, end)
    items: list[Field] = []
    while pos < stop:
        item, pos = _decode_field(raw, pos, stop, depth + 1)
        items.append(item)
    return Field(tag, tuple(items)), stop


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise PropertiesError(f"tables are nested more than {MAX_DEPTH} deep")


# --- to bytes ----------------------------------------------------------------------------------


def encode_table(fields: Table, depth: int = 1) -> bytes:
    """Write a table. Raises :class:`PropertiesError` for values that do not fit their types."""
    content = b"".join(encode_shortstr(name) + _encode_field(one, depth) for name, one in fields)
    return _U32.pack(len(content)) + content


def encode_shortstr(text: str) -> bytes:
    """Write a short string. Raises :class:`PropertiesError` above 255 bytes."""
    raw = _utf8(text)
    if len(raw) > 255:
        raise PropertiesError(f"a short string has {len(raw)} bytes, more than 255")
    return bytes((len(raw),)) + raw


def _encode_field(one: Field, depth: int) -> bytes:
    tag, value = one
    try:
        number = _NUMBERS.get(tag)
        if number is not None:
            if tag in "fd" and not math.isfinite(value):
                raise PropertiesError("a float is not finite")
            return tag.encode("ascii") + number.pack(value)
        if tag in ("S", "x"):
            return b"".join((tag.encode("ascii"), _U32.pack(len(value)), value))
        if tag == "D":
            return b"D" + _DECIMAL.pack(*value)
    except (StructError, ValueError, TypeError, OverflowError):
        raise PropertiesError(f"a value does not fit its type {tag!a}") from None
    if tag == "t":
        return b"t\1" if value else b"t\0"
    if tag == "V":
        return b"V"
    if tag not in ("F", "A"):
        raise PropertiesError(f"a value has the unknown type {tag!a}")
    _check_depth(depth)
    if tag == "F":
        return b"F" + encode_table(value, depth + 1)
    content = b"".join([_encode_field(item, depth + 1) for item in value])
    return b"A" + _U32.pack(len(content)) + content


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PropertiesError("a text has a lone surrogate") from None


# --- from and to plain Python values -----------------------------------------------------------


def table(headers: Mapping[str, Any], depth: int = 1) -> Table:
    """Plain Python values by name as a typed table; see :func:`field`."""
    return tuple((name, field(value, depth)) for name, value in headers.items())


def field(value: Any, depth: int = 1) -> Field:
    """A plain Python value as a typed field, with the type that clients usually choose.

    ``bool`` t; ``int`` I, or l where it needs more than 32 bits; ``float`` d; ``str`` S;
    ``bytes`` x; ``None`` V; ``Decimal`` D; aware ``datetime`` T; mapping F; sequence A. A
    :class:`Field` is taken as it is. Raises :class:`PropertiesError` for anything else.
    """
    if isinstance(value, Field):
        return value
    if value is None:
        return Field("V", None)
    if isinstance(value, bool):
        return Field("t", value)
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise PropertiesError("an integer needs more than 64 bits")
        return Field("I" if -(1 << 31) <= value < 1 << 31 else "l", value)
    if isinstance(value, float):
        return Field("d", value)
    if isinstance(value, str):
        return Field("S", _utf8(value))
    if isinstance(value, bytes):
        return Field("x", value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, datetime):
        if value.tzinfo is None or value.timestamp() < 0:
            raise PropertiesError("a timestamp needs a time zone, and a date from 1970 on")
        return Field("T", int(value.timestamp()))
    if isinstance(value, Mapping):
        _check_depth(depth)
        return Field("F", table(value, depth + 1))
    if isinstance(value, Sequence):
        _check_depth(depth)
        return Field("A", tuple([field(item, depth + 1) for item in value]))
    raise PropertiesError(f"there is no field for a {type(value).__name__}")


def _decimal(value: Decimal) -> Field:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise PropertiesError("a decimal is not finite")
    if not -255 <= exponent < 10 or len(digits) > 10:
        raise PropertiesError("a decimal needs more than 32 bits, or 255 places")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    if not -(1 << 31) <= unscaled < 1 << 31:
        raise PropertiesError("a decimal needs more than 32 bits, or 255 places")
    return Field("D", (max(-exponent, 0), unscaled))


def plain_table(fields: Table) -> dict[str, Any]:
    """A table as a ``dict`` of plain values; of equal names the last one counts.

    A long string is ``str`` where it is UTF-8, else ``bytes``; a decimal is
    :class:`decimal.Decimal`; a timestamp is its integer.
    """
    return {name: _plain(one) for name, one in fields}


def _plain(one: Field) -> Any:
    tag, value = one
    if tag == "S":
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if tag == "F":
        return plain_table(value)
    if tag == "A":
        return [_plain(item) for item in value]
    if tag == "D":
        return Decimal(value[1]).scaleb(-value[0])
    return value


# --- from Erlang terms -------------------------------------------------------------------------


def table_of_term(value: Term, depth: int = 1) -> Table:
    """Return the table that an Erlang term encodes. Raises :class:`PropertiesError`."""
    if type(value) is not list:
        raise PropertiesError("a table is not a list")
    fields: list[tuple[str, Field]] = []
    for entry in value:
        if type(entry) is not tuple or len(entry) != 3:
            raise PropertiesError("a table has an entry that is not {Name, Type, Value}")
        name, kind, inner = entry
        fields.append((shortstr_of_term(name), _field_of_term(kind, inner, depth)))
    return tuple(fields)


def shortstr_of_term(value: Term) -> str:
    """Return the short string that an Erlang binary or charlist encodes."""
    raw = _bytes_of_term(value)
    if len(raw) > 255:
        raise PropertiesError(f"a short string has {len(raw)} bytes, more than 255")
    return raw.decode("utf-8", "surrogateescape")


def _bytes_of_term(value: Term) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is list and all(type(item) is int and 0 <= item <= 255 for item in value):
        return bytes(value)
    raise PropertiesError("a string is neither a binary nor a charlist")


def _field_of_term(kind: Term, value: Term, depth: int) -> Field:
    tag = _TAG_OF_ERLANG.get(kind) if type(kind) is Atom else None
    if tag is None:
        raise PropertiesError("a value has an unknown type")
    if tag == "F":
        _check_depth(depth)
        return Field(tag, table_of_term(value, depth + 1))
    if tag == "A":
        _check_depth(depth)
        if type(value) is not list or not all(type(x) is tuple and len(x) == 2 for x in value):
            raise PropertiesError("an array is not a list of {Type, Value}")
        return Field(tag, tuple([_field_of_term(of, item, depth + 1) for of, item in value]))
    if tag == "V":
        return Field(tag, None)
    if tag in "Sx":
        return Field(tag, _bytes_of_term(value))
    if tag == "t":
        if type(value) is not Atom or value not in ("true", "false"):
            raise PropertiesError("a bool is neither true nor false")
        return Field(tag, value == "true")
    if tag == "D":
        if type(value) is not tuple or len(value) != 2:
            raise PropertiesError("a decimal is not {Scale, Integer}")
        # A node reads the 32 bits unsigned; the clients that wrote them mean a signed number.
        if type(value[1]) is int and 1 << 31 <= value[1] < 1 << 32:
            value = (value[0], value[1] - (1 << 32))
    elif tag in "fd" and type(value) is int:
        value = _float(value)
    one = Field(tag, value)
    _encode_field(one, depth)  # checks type and range
    return one


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise PropertiesError("a float is not finite") from None
