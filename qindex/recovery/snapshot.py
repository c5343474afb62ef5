"""The clean-shutdown snapshot ``qindex.clean``: what makes opening quick.

One file for the whole store: msgpack, then eight bytes of xxh3 over it. It says of each queue what
its segment files hold, so that none has to be read. It is true only while nothing changes, so it
is removed, durably, before the first change after an open; a store without it is recovered from
its files alone.

The msgpack value::

    {"version": 1, "queues": [[directory name, next seq_id, [[segment, unacked, bytes], ...]], ...],
     "message store": the snapshot of the persistent message store, or nil where there is none}
"""

from __future__ import annotations

import logging
import os

import msgpack
from xxhash import xxh3_64_digest

from journal.files import FileSystem, read_optional, replace_file, unlink_if_there
from journal.format import MAX_SEQ_ID
from journal.packed import unpack
from journal.schema import Bytes, FileName, Int, ListOf, OneOf, Optional, Record, Row, check
from qindex.format.segment import MAX_ENTRY_COUNT
from qindex.recovery.queue_recovery import RestingQueue

__all__ = ["FILE_NAME", "read_snapshot", "remove_snapshot", "unpack_snapshot", "write_snapshot"]

_log = logging.getLogger("qindex.recovery")

FILE_NAME = "qindex.clean"
_VERSION = 1
_CHECK_SIZE = 8
_SEGMENT = Row((Int(0, MAX_SEQ_ID), Int(0, MAX_ENTRY_COUNT), Int(0, (1 << 63) - 1)))
_SHAPE = Record(
    {
        "version": OneOf((_VERSION,)),
        "queues": ListOf(Row((FileName(255), Int(0, MAX_SEQ_ID + 1), ListOf(_SEGMENT)))),
        "message store": Optional(Bytes(0, 1 << 40)),
    }
)


def write_snapshot(
    fs: FileSystem, directory: str, queues: dict[str, RestingQueue], message_store: bytes | None
) -> None:
    """Write the snapshot of all queues (by directory name) and of the message store; durable on
    return."""
    value = {
        "version": _VERSION,
        "queues": [
            [name, queue.next_seq, [[n, *counts] for n, counts in queue.segments.items()]]
            for name, queue in queues.items()
        ],
        "message store": message_store,
    }
    packed = msgpack.packb(value)
    replace_file(fs, os.path.join(directory, FILE_NAME), packed + xxh3_64_digest(packed))


def read_snapshot(
    fs: FileSystem, directory: str, queues_directory: str
) -> tuple[dict[str, RestingQueue], bytes | None] | None:
    """Read the snapshot (queues by directory name, message store), or give ``None`` when there is
    none that can be trusted."""
    path = os.path.join(directory, FILE_NAME)
    try:
        data = read_optional(fs, path)
        return None if data is None else unpack_snapshot(data, queues_directory)
    except (ValueError, OSError) as error:
        _log.warning("%s: can't be trusted: %s", path, error)
        return None


def unpack_snapshot(
    data: bytes, queues_directory: str
) -> tuple[dict[str, RestingQueue], bytes | None]:
    """Give what a snapshot's bytes say. Raises :class:`ValueError`, which says what is wrong."""
    if xxh3_64_digest(data[:-_CHECK_SIZE]) != data[-_CHECK_SIZE:]:
        raise ValueError("the checksum does not hold")
    value = unpack(data[:-_CHECK_SIZE])
    check(value, _SHAPE)
    queues = {
        name: RestingQueue(
            os.path.join(queues_directory, name),
            next_seq,
            {number: (unacked, size) for number, unacked, size in segments},
        )
        for name, next_seq, segments in value["queues"]
    }
    return queues, value["message store"]


def remove_snapshot(fs: FileSystem, directory: str) -> None:
    """Remove the snapshot, durably: it must not outlive the first change."""
    if unlink_if_there(fs, os.path.join(directory, FILE_NAME)):
        fs.sync_dir(directory)
