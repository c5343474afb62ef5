"""AMQP 1.0 values and sections: what a 4.x node keeps of a message that a client of that protocol
sent.

A value is a constructor byte and its bytes (all integers big-endian)::

    0x40 null    0x41 true    0x42 false   0x43 uint 0   0x44 ulong 0   0x45 empty list
    0x50..0x5f   one byte           0x60..0x6f   two bytes       0x70..0x7f   four bytes
    0x80..0x8f   eight bytes        0x90..0x9f   sixteen bytes
    0xa0..0xaf   u8 n, n bytes      0xb0..0xbf   u32 n, n bytes
    0xc0..0xcf   u8 n, u8 count, items in n - 1 bytes
    0xd0..0xdf   u32 n, u32 count, items in n - 4 bytes
    0xe0..0xff   the same with one constructor for all items (arrays)
    0x00         a described value: descriptor, value

A message is a run of sections, each a described value whose descriptor is a ulong::

    00 53 73 properties (list)   00 53 74 application properties (map)   00 53 75 data (binary)
    00 53 76 sequence (list)     00 53 77 value                          00 53 78 footer (map)

A value is given as a node itself holds it, and so as the Erlang terms in its files have it:
``("utf8", b"...")``, ``("symbol", b"...")``, ``("long", 5)``, ``("boolean", True)``, ``None``,
``("list", [...])``, ``("map", [(key, value), ...])``, ``("array", [...])``.

Source: OASIS AMQP 1.0, parts 1 and 3.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, TypeAlias

from qindex.format.rabbitmq.term_format import TermError

PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
FOOTER: Final = 0x78

MAX_DEPTH: Final = 64
"""Levels of lists and maps that are read."""

Value: TypeAlias = Any
"""``None`` or a tuple of a type's name and its value; see the module's text."""

_FIXED: Final = {
    0x50: ("ubyte", Struct(">B")),
    0x51: ("byte", Struct(">b")),
    0x52: ("uint", Struct(">B")),
    0x53: ("ulong", Struct(">B")),
    0x54: ("int", Struct(">b")),
    0x55: ("long", Struct(">b")),
    0x60: ("ushort", Struct(">H")),
    0x61: ("short", Struct(">h")),
    0x70: ("uint", Struct(">I")),
    0x71: ("int", Struct(">i")),
    0x72: ("float", Struct(">f")),
    0x73: ("char", Struct(">I")),
    0x74: ("decimal", Struct(">4s")),
    0x80: ("ulong", Struct(">Q")),
    0x81: ("long", Struct(">q")),
    0x82: ("double", Struct(">d")),
    0x83: ("timestamp", Struct(">q")),
    0x84: ("decimal", Struct(">8s")),
    0x94: ("decimal", Struct(">16s")),
    0x98: ("uuid", Struct(">16s")),
}
_EMPTY: Final[dict[int, Value]] = {
    0x40: None,
    0x41: ("boolean", True),
    0x42: ("boolean", False),
    0x43: ("uint", 0),
    0x44: ("ulong", 0),
    0x45: ("list", []),
}
_STRINGS: Final = {0x0: "binary", 0x1: "utf8", 0x3: "symbol"}
_SECTION: Final = b"\x00\x53"


def decode_section(data: bytes, pos: int) -> tuple[int, Value, int]:
    """Read the section at ``pos``: its descriptor's code, its value, and the offset after it.
    O(its size). Raises :class:`TermError`."""
    if data[pos : pos + 2] != _SECTION or pos + 3 > len(data):
        raise TermError("has no AMQP 1.0 section where one should be", pos)
    value, end = _value(data, pos + 3, 0)
    return data[pos + 2], value, end


def data_body(data: bytes, pos: int) -> bytes:
    """Put the data sections from ``pos`` on together, up to a footer or the end. Raises
    :class:`TermError`."""
    parts = []
    while pos < len(data):
        code, value, pos = decode_section(data, pos)
        if code == FOOTER:
            break
        if code != DATA or type(value) is not tuple or value[0] != "binary":
            raise TermError(f"has an AMQP 1.0 section 0x{code:x} among its data", pos)
        parts.append(value[1])
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _value(data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    if pos >= len(data):
        raise TermError("the AMQP 1.0 value is cut off", len(data))
    code = data[pos]
    if code:
        return _of(code, data, pos + 1, depth)
    if depth >= MAX_DEPTH:
        raise TermError(f"is nested more than {MAX_DEPTH} deep", pos)
    _, pos = _value(data, pos + 1, depth + 1)  # what describes it does not change how it is shown
    return _value(data, pos, depth + 1)


def _of(code: int, data: bytes, pos: int, depth: int) -> tuple[Value, int]:
    """Read the value of constructor ``code`` whose bytes start at ``pos``."""
    if code in _EMPTY:
        return _EMPTY[code], pos
    if code == 0x56:
        start, end = _bytes(data, pos, 1)
        return ("boolean", data[start] != 0), end
    fixed = _FIXED.get(code)
    if fixed is not None:
        name, layout = fixed
        start, end = _bytes(data, pos, layout.size)
        return (name, layout.unpack_from(data, start)[0]), end
    kind, width = code >> 4, 1 if code & 0x10 == 0 else 4
    if kind in (0xA, 0xB) and code & 0xF in _STRINGS:
        start, end = _sized(data, pos, width)
        return (_STRINGS[code & 0xF], data[start:end]), end
    if code in (0xC0, 0xC1, 0xD0, 0xD1):
        return _compound(code, data, pos, width, depth)
    if code in (0xE0, 0xF0):
        return _array(data, pos, width, depth)
    raise TermError(f"has an unknown AMQP 1.0 constructor 0x{code:x}", pos - 1)


def _compound(code: int, data: bytes, pos: int, width: int, depth: int) -> tuple[Value, int]:
    count, pos, end = _items(data, pos, width, depth)
    items = []
    for _ in range(count):
        item, pos = _value(data[:end], pos, depth + 1)
        items.append(item)
    if pos != end:
        raise TermError("has an AMQP 1.0 list whose size is wrong", pos)
    if not code & 1:
        return ("list", items), end
    if count % 2:
        raise TermError("has an AMQP 1.0 map with a key alone", pos)
    return ("map", list(zip(items[::2], items[1::2], strict=True))), end


def _array(data: bytes, pos: int, width: int, depth: int) -> tuple[Value, int]:
    count, pos, end = _items(data, pos, width, depth)
    if pos >= end:
        return ("array", []), end
    code = data[pos]
    if not code:
        raise TermError("has an AMQP 1.0 array of described values", pos)
    items = []
    pos += 1
    for _ in range(count):
        item, pos = _of(code, data[:end], pos, depth + 1)
        items.append(item)
    return ("array", items), end


def _items(data: bytes, pos: int, width: int, depth: int) -> tuple[int, int, int]:
    """Count of a compound's items, and where they start and end."""
    if depth >= MAX_DEPTH:
        raise TermError(f"is nested more than {MAX_DEPTH} deep", pos)
    start, end = _sized(data, pos, width)
    _bytes(data, start, width)
    count = int.from_bytes(data[start : start + width], "big")
    if count > max(end - start, 0):
        raise TermError(f"claims {count} items in {end - start} bytes", pos)
    return count, start + width, end


def _sized(data: bytes, pos: int, width: int) -> tuple[int, int]:
    start, end = _bytes(data, pos, width)
    return _bytes(data, end, int.from_bytes(data[start:end], "big"))


def _bytes(data: bytes, pos: int, size: int) -> tuple[int, int]:
    if pos + size > len(data):
        raise TermError("the AMQP 1.0 value is cut off", len(data))
    return pos, pos + size
