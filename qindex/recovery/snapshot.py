"""The clean-shutdown snapshot ``qindex.clean``: what makes opening quick.

One file for the whole store: msgpack, then eight bytes of xxh3 over it. It says of each queue what
its segment files hold, so that none has to be read. It is true only while nothing changes, so it
is removed, durably, before the first change after an open; a store without it is recovered from
its files alone.

The msgpack value::

    {"version": 1, "queues": [[directory name, next seq_id, [[segment, unacked, bytes], ...]], ...],
     "message store": the snapshot of the persistent message store, or nil where there is none,
     "journals": [[directory name, bytes, messages held], ...]}

"journals" has the queues whose journals hold something: the bytes of their records, and the
messages that they and the segments hold together. The counts of their segments are those of the
segment files alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from journal import format as journal_format
from journal.findings import Cause, Finding, Kind
from journal.format import MAX_SEQ_ID
from journal.fs.files import FileSystem, read_optional, replace_file, unlink_if_there
from journal.schema import Bytes, FileName, Int, ListOf, OneOf, Optional, Record, Row, check
from qindex.format.layout import pack_checked, unpack_checked
from qindex.format.segment import MAX_ENTRY_COUNT, file_number
from qindex.index.segment_file import segment_path, size_of

_log = logging.getLogger("qindex.recovery")

FILE_NAME = "qindex.clean"
_VERSION = 1
_SEGMENT = Row((Int(0, MAX_SEQ_ID), Int(0, MAX_ENTRY_COUNT), Int(0, (1 << 63) - 1)))
_SHAPE = Record(
    {
        "version": OneOf((_VERSION,)),
        "queues": ListOf(Row((FileName(255), Int(0, MAX_SEQ_ID + 1), ListOf(_SEGMENT)))),
        "message store": Optional(Bytes(0, 1 << 40)),
    },
    {
        "journals": ListOf(
            Row((FileName(255), Int(1, (1 << 63) - 1), Int(0, MAX_SEQ_ID))),
        ),
        # Of a store in RabbitMQ's version 2, which is only read.
        "stamps": ListOf(Row((FileName(255), Int(0, (1 << 63) - 1)))),
    },
)


@dataclass(slots=True)
class RestingQueue:
    """A queue on disk that nobody has asked for yet: all there is to know of it.

    ``segments``: for each number the entries not acknowledged and the bytes of its file.
    ``journal``: bytes of records in the journal, which is durable. It holds something after a clean
    close, or where recovery found no room to move it. Then ``segments`` is what the files of the
    segments say, and ``held`` the messages that both hold together.
    ``sums``: bytes of the journal's checksums, where they hold for all of it.
    ``journal_left``: recovery left the file of the journal, which holds nothing but zeros; it has
    to go (:func:`qindex.recovery.store_recovery.remove_journal`) before anything is written.
    ``has_settings``: there is a file of settings; as the directory tells, not the snapshot.
    """

    directory: str
    next_seq: int
    segments: dict[int, tuple[int, int]] = field(default_factory=dict)
    journal_left: bool = False
    has_settings: bool = False
    journal: int = 0
    held: int = 0
    sums: int = 0

    @property
    def live(self) -> int:
        """Messages held."""
        return self.held if self.journal else sum(count for count, _ in self.segments.values())


def write_snapshot(
    fs: FileSystem,
    directory: str,
    queues: dict[str, RestingQueue],
    message_store: bytes | None,
) -> None:
    """Write the snapshot of all queues (by directory name) and of the message store; durable on
    return. Raises :class:`StorageError`, :class:`OSError`."""
    value: dict[str, Any] = {
        "version": _VERSION,
        "queues": [
            [name, queue.next_seq, [[n, *counts] for n, counts in queue.segments.items()]]
            for name, queue in queues.items()
        ],
        "message store": message_store,
    }
    journals = [[name, one.journal, one.held] for name, one in queues.items() if one.journal]
    if journals:
        value["journals"] = journals
    replace_file(fs, os.path.join(directory, FILE_NAME), pack_checked(value))


def read_snapshot(
    fs: FileSystem, directory: str, queues_directory: str
) -> tuple[dict[str, RestingQueue], bytes | None] | None:
    """Read the snapshot (queues by directory name, message store). Return None when there is
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
    """Return the content of a snapshot. Raises :class:`ValueError`, which names the fault."""
    value = unpack_checked(data)
    check(value, _SHAPE)
    journals = {name: (size, held) for name, size, held in value.get("journals", ())}
    queues = {
        name: RestingQueue(
            os.path.join(queues_directory, name),
            next_seq,
            {number: (unacked, size) for number, unacked, size in segments},
            False,
            False,
            *journals.get(name, (0, 0)),
        )
        for name, next_seq, segments in value["queues"]
    }
    return queues, value["message store"]


def remove_snapshot(fs: FileSystem, directory: str) -> None:
    """Remove the snapshot, durably: it must not outlive the first change."""
    if unlink_if_there(fs, os.path.join(directory, FILE_NAME)):
        fs.sync_dir(directory)


def missing_bytes(fs: FileSystem, queues: Iterable[RestingQueue]) -> list[Finding]:
    """Find the journals and segment files of the snapshot that are missing or shorter now.

    No crash does that. Recovery would not notice: a segment without a file is one whose messages
    are acknowledged.
    """
    findings = []
    for resting in queues:
        if resting.journal:
            path = os.path.join(resting.directory, journal_format.FILE_NAME)
            there = size_of(fs, path)
            if there < resting.journal:
                findings.append(_shorter(path, there, resting.journal, resting.held))
        for number, (unacked, size) in sorted(resting.segments.items()):
            path = segment_path(resting.directory, number)
            there = size_of(fs, path)
            if there < size:
                findings.append(_shorter(path, there, size, unacked))
    return findings


def _shorter(path: str, there: int, size: int, held: int) -> Finding:
    what = f"the file has {there} bytes of {size} at the clean close"
    lost = f"it had {held} messages: the missing ones are lost"
    kind = Kind.MISSING_FILE
    finding = Finding(path, there, size - there, Cause.DAMAGE, what, lost, kind)
    _log.error("%s", finding)
    return finding


def files_agree(fs: FileSystem, resting: RestingQueue, names: Iterable[str]) -> bool:
    """Return whether the segment files and the journal, of those in the queue's directory
    (``names``), are those of the snapshot, by name and size."""
    sizes: dict[int, int] = {}
    journal_size = 0
    for name in names:
        number = file_number(name)
        if number is not None:
            sizes[number] = fs.stat(os.path.join(resting.directory, name)).st_size
        elif name == journal_format.FILE_NAME:
            journal_size = fs.stat(os.path.join(resting.directory, name)).st_size
    expected = {number: size for number, (_, size) in resting.segments.items()}
    # A loss of power can bring back the zeros that the close has cut off.
    same_journal = journal_size >= resting.journal if resting.journal else not journal_size
    return same_journal and sizes == expected
