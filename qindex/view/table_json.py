"""Headers and properties of many messages as JSON, without a call for each.

Equal ones are decoded once. Of the others the msgpack of all goes through one unpacker, and what it
gives through one JSON encoder, with a mark between them by which the text is cut; so what is left
for each is what the two need for it. Where something is rare (other keys than text, a float that is
no number) each is decoded by itself.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa

from journal.memory.arrays import Bools
from journal.packed import unpack
from qindex.format.json_value import plain_json, plain_value

Tables = tuple[pa.Array, pa.Array, Bools]
"""Headers, properties (as text), and which rows are sound; the others are null."""

_DOLLAR: Final = '"$'
_NAME: Final = re.compile(r'"\$(?:[^"\\]|\\.)*": ')
"""A name that begins with ``$``, in JSON; now and then text that looks like one."""
_MOST: Final = 128
"""Elements of a map that are believed at sight, see :mod:`journal.packed`."""
_SAMPLE: Final = 512
_NOTHING: Final[dict[Any, Any]] = {}
_TABLE: Final = frozenset((dict, type(None)))
_TWO: Final = b"\x92"
_BETWEEN: Final = secrets.token_hex(16)
_CUT: Final = f', "{_BETWEEN}", '
_OURS: Final = secrets.token_hex(16)
"""Stands before the names that are made here, so that those of messages can be told from them."""


def json_tables(packed: pa.Array) -> Tables:
    """Give headers and properties as ``qindex cat --json`` prints them. ``packed``: the msgpack of
    both of each message (binaries). About 4 us for ten values that are not repeated."""
    some = packed.slice(0, _SAMPLE)
    if len(some.unique()) * 2 > len(some):
        return _decoded(packed)
    distinct = packed.dictionary_encode()
    headers, properties, sound = _decoded(distinct.dictionary)
    places = distinct.indices
    return headers.take(places), properties.take(places), sound[np.asarray(places)]


def _decoded(packed: pa.Array) -> Tables:
    bounds = np.frombuffer(packed.buffers()[1], np.int32)[packed.offset :][: len(packed) + 1]
    data = packed.buffers()[2][int(bounds[0]) : int(bounds[-1])]
    texts = _all_at_once(data, (bounds[1:] - bounds[0]).tolist())
    if texts is None:
        texts = [text for raw in packed.to_pylist() for text in _one_by_one(raw)]
    headers = pa.array(texts[::2], pa.string())
    return headers, pa.array(texts[1::2], pa.string()), np.asarray(headers.is_valid())


def _all_at_once(data: pa.Buffer, ends: Sequence[int]) -> Sequence[str | None] | None:
    """Give the texts of both of each; ``None`` where something is no table, or not what most are:
    a float that is no number, another key than text."""
    try:
        tables = _unpacked(data, ends)
        text = _joined(tables)
        if _DOLLAR in text and _NAME.search(text):
            text = _joined([table if _is_plain(table) else plain_value(table) for table in tables])
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
    found = text.replace(_OURS, "").split(_CUT)
    return found if len(found) == len(tables) else None


def _joined(tables: Sequence[Any]) -> str:
    row: list[Any] = [_BETWEEN] * (2 * len(tables) - 1)
    row[::2] = tables
    return _ENCODER.encode(row)[1:-1]


def _is_plain(value: object) -> bool:
    """Tell whether no name in a value begins with ``$``: such a map is told in another way."""
    if isinstance(value, dict):
        return not any(name.startswith("$") for name in value) and all(
            map(_is_plain, value.values())
        )
    return all(map(_is_plain, value)) if isinstance(value, list) else True


def _unpacked(data: pa.Buffer, ends: Sequence[int]) -> list[dict[str, Any]]:
    unpacker = msgpack.Unpacker(
        strict_map_key=True,
        ext_hook=_Extension,
        max_array_len=_MOST,
        max_map_len=_MOST,
        max_buffer_size=max(len(data), 1),
    )
    unpacker.feed(data)
    unpack_one, tell = unpacker.unpack, unpacker.tell
    found: list[Any] = []
    for end in ends:
        found += (unpack_one(), unpack_one())
        if tell() != end:
            raise ValueError("other bytes")
    if not _TABLE.issuperset(map(type, found)):
        raise ValueError("no table")
    return [table or _NOTHING for table in found]


class _Extension:
    """A msgpack extension, which JSON would take for a list."""

    def __init__(self, code: int, data: bytes) -> None:
        self.plain = plain_value(msgpack.ExtType(code, data))


def _other(value: object) -> Any:
    made = value.plain if isinstance(value, _Extension) else plain_value(value)
    return {_OURS + name: inner for name, inner in made.items()}


def _one_by_one(raw: bytes) -> tuple[str | None, str | None]:
    try:
        headers, properties = unpack(_TWO + raw)
        if isinstance(headers, dict | None) and isinstance(properties, dict | None):
            return plain_json(headers or {}), plain_json(properties or {})
    except (ValueError, TypeError):
        pass
    return None, None


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, default=_other
)
