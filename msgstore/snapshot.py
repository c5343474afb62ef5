"""The whole in-memory state of a store as bytes, for a clean shutdown.

A msgpack array: version, next file number, ``[[file key, size, live bytes], ...]``, byte order,
and the location columns. It carries no checksum: the file that it is kept in has one.
"""

from __future__ import annotations

import sys

import msgpack

from journal.packed import unpack
from journal.schema import Bytes, Int, ListOf, OneOf, Row, check
from msgstore.errors import StaleSnapshotError
from msgstore.locations import Locations
from msgstore.summary import Summary

_VERSION = 1
_MOST = (1 << 63) - 1
_COLUMN = Bytes(0, _MOST)
_FILE = Row((Int(0, _MOST), Int(0, _MOST), Int(0, _MOST)))
_SHAPE = Row(
    (OneOf((_VERSION,)), Int(0, _MOST), ListOf(_FILE), OneOf((sys.byteorder,)), *[_COLUMN] * 5)
)


def dump_snapshot(locations: Locations, summary: Summary, next_file: int) -> bytes:
    """Pack the state; 40 bytes a message, O(n log n)."""
    files = [[key, entry.size, entry.live] for key, entry in summary]
    packed: bytes = msgpack.packb(
        [_VERSION, next_file, files, sys.byteorder, *locations.columns()], use_bin_type=True
    )
    return packed


def load_snapshot(data: bytes) -> tuple[Locations, Summary, int]:
    """Unpack the state. Raises :class:`StaleSnapshotError` for bytes that :func:`dump_snapshot` of
    this version and machine did not make."""
    try:
        value = unpack(data)
        check(value, _SHAPE)
        _, next_file, files, _, *columns = value
        locations = Locations.load((columns[0], columns[1], columns[2], columns[3], columns[4]))
        summary = Summary()
        for key, size, live in files:
            summary.add_file(key, size, live)
    except ValueError as error:
        raise StaleSnapshotError(f"the snapshot can't be used: {error}") from error
    return locations, summary, next_file
