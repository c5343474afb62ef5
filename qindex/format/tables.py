"""Keys and tables of the usual kinds in msgpack, for the interpreter.

The compiler never sees this file: it takes the same name from ``tables.pxd``. This function exists
twice, so a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgpack

_SHORT_TEXT_HEADS = tuple(b"%c" % (0xA0 | size) for size in range(1 << 5))
_NIL = b"\xc0"

_pack = partial(msgpack.packb, use_bin_type=True)
_SIMPLE = frozenset((str, int, float, bool, bytes, type(None)))


def pack_usual(
    key: str | None, headers: Mapping[str, Any], properties: Mapping[str, Any]
) -> bytes | None:
    """Pack a key and two tables, one after the other; an empty table is nil, as no key is.

    Return None where there is more to them than :mod:`msgpack` is sure to unpack again: other
    than dicts whose values are texts, bytes, numbers, booleans or ``None``; compiled also where
    they take more than a kilobyte. Raises :class:`ValueError` and :class:`OverflowError` for values
    that can't be packed.
    """
    packed = _NIL if key is None else _pack_text(key)
    for table in (headers, properties):
        if not table:
            packed += _NIL
        elif type(table) is dict and _is_simple(table):
            packed += _pack_simple(table)
        else:
            return None
    return packed


def _pack_text(text: str) -> bytes:
    """Pack a short text: a packer that is made for it would take ten times as long."""
    data = text.encode()
    size = len(data)
    if size < 1 << 5:
        return _SHORT_TEXT_HEADS[size] + data
    if size < 1 << 8:
        return b"\xd9%c%b" % (size, data)
    packed: bytes = _pack(text)
    return packed


def _is_simple(table: dict[Any, Any]) -> bool:
    for name, value in table.items():
        if type(name) is not str or type(value) not in _SIMPLE:
            return False
    return True


_SHARED_MOST = 1 << 16
_SHARED: msgpack.Packer | None = None


def _pack_simple(table: dict[Any, Any]) -> bytes:
    packed: bytes = _SHARED.pack(table) if _SHARED is not None else _pack(table)
    if len(packed) > _SHARED_MOST:
        _share_a_packer()
    return packed


def _share_a_packer() -> None:
    """Make the packer of simple tables anew: it keeps the memory of its largest one.

    To make one costs more than to use it. Threads can share it where it is the one in C: it runs no
    other code while it packs values of simple types.
    """
    global _SHARED
    if msgpack.Packer.__module__ == "msgpack._cmsgpack":
        _SHARED = msgpack.Packer(use_bin_type=True)


_share_a_packer()
