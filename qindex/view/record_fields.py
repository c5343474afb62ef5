"""Find the fields of our embedded message records with numpy, many at once.

Where the fields of a record begin and end (:mod:`qindex.format.message_record`) follows from a few
bytes of it, which are looked at in columns here: the key is in front, the body at the end, with
the size that the index has, and headers and properties between them. All other records are for
:func:`qindex.format.entries.read_entry`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from journal.memory.arrays import I64, U8, Bools
from journal.memory.rows import rows_at
from qindex.format.message_record import CHECK_OFFSET, CHECK_SIZE, MAGIC
from qindex.format.resynchronise import Data
from qindex.recovery.columns import take_rows

_STAMP_TAG_AT = CHECK_OFFSET + CHECK_SIZE
_STAMP_AT = _STAMP_TAG_AT + 1
_KEY_AT = _STAMP_AT + 8
_HEAD_SIZE = _KEY_AT + 3
"""Up to the size of a key."""
_LONGEST_HEAD = 5
_SHORTEST = _KEY_AT + _LONGEST_HEAD
"""Key, headers and properties nil, and the head of an empty body."""
_UINT64 = 0xCF
_NIL, _TWO_NILS = 0xC0, 0xC0C0
_FIXSTR, _FIXSTR_BITS = 0xA0, 0xE0
_STR8, _STR16 = 0xD9, 0xDA
_TAGS = np.array([0xC4, 0xC5, 0xC6], np.uint8)
"""Of binaries whose size is a number of 8, 16 and 32 bits."""
_HEAD_SIZES = np.array([2, 3, _LONGEST_HEAD])
_SIZE_MASKS = np.array([0xFF, 0xFFFF, 0xFFFFFFFF], np.uint32)


@dataclass(slots=True)
class RecordFields:
    """Where the fields of some records are: offsets in the data.

    ``rows``: which of the given records. ``key_starts``, ``key_ends``: equal where there is no key;
    ``has_key`` tells that from an empty key. Headers and properties are from ``key_ends`` to
    ``table_ends``; ``has_tables`` tells where there are any.
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
    heads = rows_at(flat, starts[rows], _HEAD_SIZE)
    ours = heads[:, _STAMP_TAG_AT] == _UINT64
    for index, byte in enumerate(MAGIC):
        ours &= heads[:, index] == byte
    if not ours.all():
        rows, heads = rows[ours], heads[ours]
    at, sizes = starts[rows], sizes[rows]
    ends = at + lengths[rows]
    key_starts, key_ends = _keys(heads[:, _KEY_AT:].astype(np.int64), at + _KEY_AT, len(flat))
    body_starts = ends - sizes
    table_ends = _body_heads(flat, at + _KEY_AT, body_starts, sizes)
    # Nothing below may look outside of a record: two tables have at least a byte each.
    fits = key_ends + 2 <= table_ends
    nils = rows_at(flat, np.where(fits, key_ends, at), 2).view(">u2").ravel()
    stamps = np.ascontiguousarray(heads[:, _STAMP_AT:_KEY_AT]).view(">u8").ravel()
    found = RecordFields(
        rows=rows,
        stamps=stamps.astype(np.int64),
        has_key=heads[:, _KEY_AT] != _NIL,
        key_starts=key_starts,
        key_ends=key_ends,
        has_tables=(table_ends != key_ends + 2) | (nils != _TWO_NILS),
        table_ends=table_ends,
        body_starts=body_starts,
        body_ends=ends,
    )
    return found if fits.all() else take_rows(found, fits)


def _keys(heads: I64, at: I64, nowhere: int) -> tuple[I64, I64]:
    """Return where the strings at ``at`` begin, whose first three bytes are the rows of ``heads``,
    and where they end. The end is after ``nowhere`` where there is no string."""
    tags = heads[:, 0]
    sizes = np.where(tags & _FIXSTR_BITS == _FIXSTR, tags & 0x1F, nowhere)
    sizes[tags == _NIL] = 0
    starts = at + 1
    longer = np.flatnonzero(sizes == nowhere)
    if len(longer):
        tags, second, third = heads[longer].T
        for width, tag, told in ((1, _STR8, second), (2, _STR16, second << 8 | third)):
            right = longer[tags == tag]
            starts[right] += width
            sizes[right] = told[tags == tag]
    return starts, starts + sizes


def _body_heads(flat: U8, first: I64, starts: I64, sizes: I64) -> I64:
    """Return where the heads of binaries begin whose bytes begin at ``starts``; -1 if there is none
    from ``first`` on, or one of another size."""
    kinds = (sizes >= 1 << 8).astype(np.intp) + (sizes >= 1 << 16)
    heads = starts - _HEAD_SIZES[kinds]
    inside = (heads >= first) & (sizes >= 0)
    at = np.where(inside, starts, first + _LONGEST_HEAD)
    told = rows_at(flat, at - 4, 4).view(">u4").ravel() & _SIZE_MASKS[kinds]
    right = inside & (flat[at - _HEAD_SIZES[kinds]] == _TAGS[kinds]) & (told == sizes)
    return np.where(right, heads, -1)
