"""The Erlang external term format: how a RabbitMQ node writes a message, and much else, to disk.

A term is one version byte, 131, and then one tagged value (all integers big-endian)::

    131 | tag | ...                        131 | 80 | u32 size | zlib stream of (tag | ...)

     97 a  SMALL_INTEGER    u8                     70 F  NEW_FLOAT        f64
     98 b  INTEGER          i32                    99 c  FLOAT            31 bytes of text
    110 n  SMALL_BIG        u8 n, sign, n bytes, least significant first
    111 o  LARGE_BIG        u32 n, sign, n bytes, least significant first
    100 d  ATOM             u16 n, n latin-1      115 s  SMALL_ATOM       u8 n, n latin-1
    118 v  ATOM_UTF8        u16 n, n UTF-8        119 w  SMALL_ATOM_UTF8  u8 n, n UTF-8
    104 h  SMALL_TUPLE      u8 n, n terms         105 i  LARGE_TUPLE      u32 n, n terms
    106 j  NIL              (the empty list)      108 l  LIST             u32 n, n terms, tail term
    107 k  STRING           u16 n, n bytes        109 m  BINARY           u32 n, n bytes
    116 t  MAP              u32 n, n x (key term, value term)

A term and its Python value:

====================  ==========================================================
integer, float        ``int``, ``float``
atom                  :class:`Atom`, a ``str`` (``true`` is ``Atom("true")``)
tuple                 ``tuple``
proper list           ``list``
charlist              ``list`` of ``int``: for Erlang ``"ab"`` *is* ``[97, 98]``; the short form
                      STRING is an encoding of such a list, not a type. ``bytes`` would be taken
                      for a binary. :func:`charlist` makes text of one.
binary                ``bytes``
map                   ``dict``
====================  ==========================================================

Not supported, and a :class:`TermError`: improper lists, bit strings, processes, ports,
references, functions, and anything malformed. Decoding takes memory in proportion to its input,
never in proportion to a length that the input merely claims.

Source: the "External Term Format" chapter of the Erlang/OTP 25 run-time system's user's guide.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, TypeAlias

from journal.errors import StoreError

VERSION: Final = 131
MAX_DEPTH: Final = 256
"""Levels of nesting that are read or written. A message with headers nested 64 deep takes 140."""
MAX_DECOMPRESSED: Final = 64 * 1024 * 1024
"""Bytes that a compressed term may grow to."""

SMALL_INTEGER: Final = 97
INTEGER: Final = 98
NEW_FLOAT: Final = 70
FLOAT: Final = 99
SMALL_BIG: Final = 110
LARGE_BIG: Final = 111
ATOM: Final = 100
SMALL_ATOM: Final = 115
ATOM_UTF8: Final = 118
SMALL_ATOM_UTF8: Final = 119
SMALL_TUPLE: Final = 104
LARGE_TUPLE: Final = 105
NIL: Final = 106
STRING: Final = 107
LIST: Final = 108
BINARY: Final = 109
MAP: Final = 116
COMPRESSED: Final = 80

_UNSUPPORTED: Final = {
    77: "a bit string",
    82: "an atom cache reference",
    88: "a process id",
    89: "a port",
    90: "a reference",
    101: "a reference",
    102: "a port",
    103: "a process id",
    112: "a function",
    113: "a function",
    114: "a reference",
    120: "a port",
}

_MAX_ATOM: Final = 255  # characters; Erlang's own limit
_FREE_SIZE: Final = 256 * 1024
_MAX_ZLIB_RATIO: Final = 16
"""A compressed term may have ``_FREE_SIZE`` bytes, and so many for each compressed one: deflate
makes a thousand of one, and each may be a list. (A node compresses none of its terms.)"""

_U16 = Struct(">H")
_I32 = Struct(">i")
_U32 = Struct(">I")
_F64 = Struct(">d")

Term: TypeAlias = Any
"""``int | float | Atom | bytes | tuple | list | dict`` of such."""


class TermError(StoreError):
    """Bytes that are not a term of the supported kinds, or a value that can't be written as one.

    ``what`` is the reason, ``offset`` the byte in the input where it shows (``None`` if there is
    no such byte).
    """

    def __init__(self, what: str, offset: int | None = None) -> None:
        self.what = what
        self.offset = offset
        super().__init__(what if offset is None else f"at byte {offset}: {what}")


class Atom(str):
    """An Erlang atom. It equals the ``str`` of the same text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Atom({str.__repr__(self)})"


def charlist(value: Term) -> bytes:
    """The bytes of a decoded charlist (``[97, 98]`` gives ``b"ab"``).

    Raises :class:`TermError` unless ``value`` is a list of integers from 0 to 255.
    """
    if type(value) is list and _all_bytes(value):
        return bytes(value)
    raise TermError("is not a charlist")


def decode(data: bytes, offset: int = 0) -> tuple[Term, int]:
    """Read the term that starts at ``offset`` (its version byte). Return it and its end.

    O(length of the term). Raises :class:`TermError` for anything malformed, and nothing else.
    """
    if offset < 0 or offset + 2 > len(data):
        raise TermError("the term is cut off", len(data))
    if data[offset] != VERSION:
        raise TermError(f"starts with byte {data[offset]}, a term starts with {VERSION}", offset)
    if data[offset + 1] == COMPRESSED:
        return _decompressed(data, offset + 2)
    return _term(data, offset + 1)


def _term(data: bytes, pos: int) -> tuple[Term, int]:
    """One tagged value, without recursion: ``stack`` holds the containers that are still open.

    A container under construction is ``(tag, items so far, items to come)``; the fields of the
    innermost one are kept in the locals of the same names.
    """
    stack: list[tuple[int, list[Term], int]] = []
    kind, missing = 0, 1  # the root: as if a container of one item
    items: list[Term] = []
    size = len(data)
    readers = _READERS
    while True:
        if pos >= size:
            raise TermError("the term is cut off", size)
        tag = data[pos]
        reader = readers.get(tag)
        if reader is not None:
            value, pos = reader(data, pos + 1)
        else:
            count, pos = _container(data, pos, tag)
            if count:
                if len(stack) >= MAX_DEPTH:
                    raise TermError(f"is nested more than {MAX_DEPTH} deep", pos)
                stack.append((kind, items, missing))
                kind, items, missing = tag, [], count
                continue
            value = _close(tag, [], pos)
        items.append(value)
        missing -= 1
        while not missing:
            if not stack:
                return items[0], pos
            value = _close(kind, items, pos)
            kind, items, missing = stack.pop()
            items.append(value)
            missing -= 1


def _container(data: bytes, pos: int, tag: int) -> tuple[int, int]:
    """Read the head of a tuple, list or map at ``pos``: how many terms follow, and where."""
    if tag == SMALL_TUPLE:
        end = pos + 2
        count = data[pos + 1] if end <= len(data) else 0
    elif tag in (LIST, LARGE_TUPLE, MAP):
        end = pos + 5
        count = _U32.unpack_from(data, pos + 1)[0] if end <= len(data) else 0
        if tag == LIST:
            count += 1  # the tail
        elif tag == MAP:
            count *= 2
    else:
        raise TermError(f"is {_UNSUPPORTED.get(tag, f'an unknown tag {tag}')}", pos)
    if end > len(data):
        raise TermError("the term is cut off", len(data))
    if count > len(data) - end:  # each takes a byte at least
        raise TermError(f"claims {count} elements in {len(data) - end} bytes", pos)
    return count, end


def _close(tag: int, items: list[Term], pos: int) -> Term:
    """The value of a complete container; ``pos`` is the byte after it."""
    if tag == LIST:
        tail = items.pop()
        if type(tail) is not list:
            raise TermError("is an improper list", pos)
        return items + tail if tail else items
    if tag != MAP:
        return tuple(items)
    try:
        mapping = dict(zip(items[::2], items[1::2], strict=True))
    except TypeError:
        raise TermError("is a map with a list or a map for a key", pos) from None
    if len(mapping) * 2 != len(items):
        raise TermError("is a map with two equal keys", pos)
    return mapping


def _number(layout: Struct) -> Callable[[bytes, int], tuple[Any, int]]:
    def read(data: bytes, pos: int) -> tuple[Any, int]:
        if pos + layout.size > len(data):
            raise TermError("the term is cut off", len(data))
        return layout.unpack_from(data, pos)[0], pos + layout.size

    return read


def _big(length_bytes: int) -> Callable[[bytes, int], tuple[int, int]]:
    def read(data: bytes, pos: int) -> tuple[int, int]:
        size, pos = _length(data, pos, length_bytes, extra=1)
        sign = data[pos]
        if sign > 1:
            raise TermError(f"has sign byte {sign}", pos)
        magnitude = int.from_bytes(data[pos + 1 : pos + 1 + size], "little")
        return -magnitude if sign else magnitude, pos + 1 + size

    return read


def _float(layout: Struct) -> Callable[[bytes, int], tuple[float, int]]:
    """Read a float as eight bytes or, in an old term, as text."""
    number = _number(layout)

    def read(data: bytes, pos: int) -> tuple[float, int]:
        value, end = number(data, pos)
        try:
            value = float(value.rstrip(b"\0") if isinstance(value, bytes) else value)
        except ValueError:
            raise TermError("is a float whose text is none", pos) from None
        if not math.isfinite(value):
            raise TermError("is a float that is not finite", pos)
        return value, end

    return read


def _atom(length_bytes: int, encoding: str) -> Callable[[bytes, int], tuple[Atom, int]]:
    def read(data: bytes, pos: int) -> tuple[Atom, int]:
        size, pos = _length(data, pos, length_bytes)
        try:
            text = data[pos : pos + size].decode(encoding)
        except UnicodeDecodeError:
            raise TermError("is an atom that is not UTF-8", pos) from None
        if len(text) > _MAX_ATOM:
            raise TermError(f"is an atom of {len(text)} characters", pos)
        return Atom(text), pos + size

    return read


def _binary(data: bytes, pos: int) -> tuple[bytes, int]:
    start = pos + 4
    if start > len(data):
        raise TermError("the term is cut off", len(data))
    end = start + _U32.unpack_from(data, pos)[0]
    if end > len(data):
        raise TermError(f"claims {end - start} bytes of {len(data) - start}", pos)
    return data[start:end], end


def _string(data: bytes, pos: int) -> tuple[list[int], int]:
    size, pos = _length(data, pos, 2)
    return list(data[pos : pos + size]), pos + size


def _nil(_data: bytes, pos: int) -> tuple[list[Term], int]:
    return [], pos


def _length(data: bytes, pos: int, width: int, extra: int = 0) -> tuple[int, int]:
    """A length field of ``width`` bytes, checked: that and ``extra`` more bytes are there."""
    start = pos + width
    size = int.from_bytes(data[pos:start], "big")
    if start + size + extra > len(data):
        raise TermError(f"claims {size} bytes, more than there are", pos)
    return size, start


_READERS: Final[dict[int, Callable[[bytes, int], tuple[Term, int]]]] = {
    SMALL_INTEGER: _number(Struct("B")),
    INTEGER: _number(_I32),
    SMALL_BIG: _big(1),
    LARGE_BIG: _big(4),
    NEW_FLOAT: _float(_F64),
    FLOAT: _float(Struct("31s")),
    ATOM: _atom(2, "latin-1"),
    SMALL_ATOM: _atom(1, "latin-1"),
    ATOM_UTF8: _atom(2, "utf-8"),
    SMALL_ATOM_UTF8: _atom(1, "utf-8"),
    BINARY: _binary,
    STRING: _string,
    NIL: _nil,
}


def _decompressed(data: bytes, pos: int) -> tuple[Term, int]:
    """The term inside a compressed one; ``pos`` is after the tag.

    The claimed size is believed only in proportion to the bytes at hand, and the output is cut
    there, so that a small input can't ask for much memory.
    """
    start = pos + 4
    if start > len(data):
        raise TermError("the term is cut off", len(data))
    size = _U32.unpack_from(data, pos)[0]
    if size > min(MAX_DECOMPRESSED, _FREE_SIZE + _MAX_ZLIB_RATIO * (len(data) - start)):
        raise TermError(f"claims {size} bytes when decompressed", pos)
    stream = zlib.decompressobj()
    try:
        inner = stream.decompress(data[start:], size + 1)
    except zlib.error as error:
        raise TermError(f"does not decompress ({error})", start) from None
    if len(inner) != size or not stream.eof:
        raise TermError(f"does not decompress to the {size} bytes it claims", start)
    value, end = _term(inner, 0)
    if end != size:
        raise TermError(f"has {size - end} bytes after its term", start)
    return value, len(data) - len(stream.unused_data)


def encode(value: Term) -> bytes:
    """Write ``value`` as Erlang 25 does: latin-1 atoms with tag 100, byte lists as STRING.

    ``True`` and ``False`` become the atoms ``true`` and ``false``, other ``str`` than
    :class:`Atom` are refused, for there is no telling whether a binary or a charlist is meant.
    Raises :class:`TermError` for values without a term, and for nesting above ``MAX_DEPTH``.
    """
    out: list[bytes] = [b"\x83"]
    _encode(value, out.append, 0)
    return b"".join(out)


def _encode(value: Term, put: Callable[[bytes], None], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise TermError(f"is nested more than {MAX_DEPTH} deep")
    if isinstance(value, Atom):
        put(_encoded_atom(value))
    elif isinstance(value, bool):
        put(_encoded_atom("true" if value else "false"))
    elif isinstance(value, bytes):
        _need_u32(len(value))
        put(b"m" + _U32.pack(len(value)))
        put(value)
    elif isinstance(value, int):
        put(_encoded_integer(value))
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TermError("there is no term for a float that is not finite")
        put(b"F" + _F64.pack(value))
    elif isinstance(value, tuple):
        _need_u32(len(value))
        put(bytes((SMALL_TUPLE, len(value))) if len(value) < 256 else b"i" + _U32.pack(len(value)))
        for item in value:
            _encode(item, put, depth + 1)
    elif isinstance(value, list):
        if not value:
            put(b"j")
        elif len(value) < 65536 and _all_bytes(value):
            put(b"k" + _U16.pack(len(value)))
            put(bytes(value))
        else:
            _need_u32(len(value))
            put(b"l" + _U32.pack(len(value)))
            for item in value:
                _encode(item, put, depth + 1)
            put(b"j")
    elif isinstance(value, dict):
        put(b"t" + _U32.pack(len(value)))
        for key, item in value.items():
            _encode(key, put, depth + 1)
            _encode(item, put, depth + 1)
    else:
        raise TermError(f"there is no term for a {type(value).__name__}")


def _all_bytes(items: list[Term]) -> bool:
    return all(type(item) is int and 0 <= item <= 255 for item in items)


def _encoded_atom(text: str) -> bytes:
    if len(text) > _MAX_ATOM:
        raise TermError(f"an atom of {len(text)} characters is too long")
    if not text or max(text) <= "\xff":
        name = text.encode("latin-1")
        return b"d" + _U16.pack(len(name)) + name
    try:
        name = text.encode("utf-8")
    except UnicodeEncodeError:
        raise TermError("an atom can't hold a lone surrogate") from None
    if len(name) < 256:
        return bytes((SMALL_ATOM_UTF8, len(name))) + name
    return b"v" + _U16.pack(len(name)) + name


def _encoded_integer(value: int) -> bytes:
    if 0 <= value < 256:
        return bytes((SMALL_INTEGER, value))
    if -0x8000_0000 <= value < 0x8000_0000:
        return b"b" + _I32.pack(value)
    magnitude = abs(value)
    digits = magnitude.to_bytes((magnitude.bit_length() + 7) // 8, "little")
    _need_u32(len(digits))
    sign = b"\1" if value < 0 else b"\0"
    if len(digits) < 256:
        return bytes((SMALL_BIG, len(digits))) + sign + digits
    return b"o" + _U32.pack(len(digits)) + sign + digits


def _need_u32(size: int) -> None:
    if size > 0xFFFF_FFFF:
        raise TermError(f"{size} elements or bytes are too many for one term")
