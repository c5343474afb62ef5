"""Where records begin within one write, by the kind of file."""

from __future__ import annotations

import os

from journal.replay import walk_journal
from msgstore.format import HEADER, parse_header
from qindex.format.segment_walk import walk_segment
from tests.crash.disk import Data

__all__ = ["borders"]

_LARGEST_SEGMENT = 1 << 14
_JOURNAL_FIELDS = (8, 24, 32, 36, 40, 43, 51)
"""Ends of a publish record's type and seq_id, message id, expiry, size, length; of the magic and
the checksum in the message record."""


def borders(path: str, before: bytes, write: Data) -> list[int]:
    """Give offsets within the write at which a record, or a field of the first one, begins.

    ``before``: the file without the write. Empty for files without records.
    """
    data = write.data
    if not data:
        return []
    kind = os.path.splitext(path.removesuffix(".tmp").removesuffix(".new"))[1]
    if kind == ".jif":
        walk = walk_journal(data)
        fields = _JOURNAL_FIELDS if not data[0] & 0x80 else ()
        return [*walk.offsets.tolist(), *fields]
    if kind == ".idx":
        walk = walk_segment(
            data,
            0,
            len(data),
            first_seq=0,
            entry_count=_LARGEST_SEGMENT,
            max_embedded=len(data),
            max_records=len(data),
        )
        return [int(at) for at in walk.offsets]
    if kind == ".rdq":
        found = []
        at = 0
        while at + HEADER <= len(data):
            found += [at, at + 8, at + HEADER]
            at += parse_header(data, at)[0] + 9
        return found
    return []
