"""Find the fields of our embedded message records with numpy, many at once.

Where the fields of a record begin and end (:mod:`qindex.format.message_record`) follows from a few
bytes of it, which are looked at in columns here: the key stands in front, the body at the end, with
the size that the index has, and headers and properties between them. All other records are for
:func:`qindex.format.entries.read_entry`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from journal.memory.arrays import I64, U8, Bools
from qindex.format.message_record import CHECK_OFFSET, CHECK_SIZE, MAGIC
from qindex.format.resynchronise import Data
from qindex.recovery.columns import take_rows

_STAMP_TAG_AT = CHECK_OFFSET + CHECK_SIZE
_STAMP_AT = _STAMP_TAG_AT + 1
_KEY_AT = _STAMP_AT + 8
_SHORTEST = _KEY_AT + 5
"""Key, headers and properties nil, and the head of an empty body."""
_UINT64 = 0xCF
_NIL = 0xC0
_FIXSTR, _FIXSTR_BITS = 0xA0, 0xE0
_STR8, _STR16 = 0xD9, 0xDA
_BIN8, _BIN16, _BIN32 = 0xC4, 0xC5, 0xC6
_MAGIC = np.frombuffer(MAGIC, np.uint8)


@dataclass(slots=True)
class RecordFields:
    """Where the fields of some records are: offsets in the data.

    ``rows``: which of the records asked for. ``key_starts``, ``key_ends``: equal where there is
    none; ``has_key`` tells it from an empty one. From ``key_ends`` to ``table_ends`` stand headers
    and properties; ``has_tables`` tells where there are any.
    """

    rows: I64
    stamps: I64
    has_key: Bools
    key_starts: I64
    key_ends: I64
    has_tables: Bools
    table_ends: I64
    body_starts: I64
    body_ends: I64


def find_fields(data: Data, starts: I64, lengths: I64, sizes: I64) -> RecordFields:
    """Find the records of ours among those at ``starts`` with ``lengths`` bytes, ``sizes`` of them
    their bodies. Records are known to be sound, or foreign; headers and properties are not looked
    into. O(records)."""
    flat = np.frombuffer(data, np.uint8)
    rows = np.flatnonzero(lengths >= _SHORTEST)
    at = starts[rows]
    ours = flat[at + _STAMP_TAG_AT] == _UINT64
    for index, byte in enumerate(_MAGIC.tolist()):
        ours &= flat[at + index] == byte
    rows, at = rows[ours], at[ours]
    ends = at + lengths[rows]
    key_starts, key_ends = _keys(flat, at + _KEY_AT)
    body_starts = ends - sizes[rows]
    table_ends = _body_heads(flat, at + _KEY_AT, body_starts, sizes[rows])
    # Nothing below may look outside of a record: two tables have at least a byte each.
    fits = key_ends + 2 <= table_ends
    nils = np.where(fits, key_ends, at)
    has_tables = (table_ends != nils + 2) | (flat[nils] != _NIL) | (flat[nils + 1] != _NIL)
    stamps = np.ascontiguousarray(flat[(at + _STAMP_AT)[:, None] + np.arange(8)])
    found = RecordFields(
        rows=rows,
        stamps=stamps.view(">u8").ravel().astype(np.int64),
        has_key=flat[at + _KEY_AT] != _NIL,
        key_starts=key_starts,
        key_ends=key_ends,
        has_tables=has_tables,
        table_ends=table_ends,
        body_starts=body_starts,
        body_ends=ends,
    )
    return take_rows(found, fits)


def _keys(flat: U8, at: I64) -> tuple[I64, I64]:
    """Give where the strings at ``at`` begin and end; behind the data where they are none."""
    tags = flat[at]
    fixed = tags & _FIXSTR_BITS == _FIXSTR
    next_byte = flat[at + 1].astype(np.int64)
    third_byte = flat[at + 2].astype(np.int64)
    heads = np.select([fixed | (tags == _NIL), tags == _STR8, tags == _STR16], [1, 2, 3], 1)
    sizes = np.select(
        [tags == _NIL, fixed, tags == _STR8, tags == _STR16],
        [0, tags & 0x1F, next_byte, next_byte << 8 | third_byte],
        len(flat),
    )
    starts = at + heads
    return starts, starts + sizes


def _body_heads(flat: U8, first: I64, starts: I64, sizes: I64) -> I64:
    """Give where the heads of binaries begin whose bytes begin at ``starts``; -1 where none stands
    behind ``first``, or one of another size."""
    kinds = [sizes < 1 << 8, sizes < 1 << 16]
    heads = starts - np.select(kinds, [2, 3], 5)
    inside = heads >= first
    at = np.where(inside, heads, first)
    byte = [flat[np.minimum(at + index, len(flat) - 1)].astype(np.int64) for index in range(5)]
    two = byte[1] << 8 | byte[2]
    tags = np.select(kinds, [_BIN8, _BIN16], _BIN32)
    told = np.select(kinds, [byte[1], two], two << 16 | byte[3] << 8 | byte[4])
    return np.where(inside & (byte[0] == tags) & (told == sizes), heads, -1)
