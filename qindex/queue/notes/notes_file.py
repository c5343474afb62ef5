"""A file of notes beside a queue (:mod:`qindex.format.notes`), as an open queue uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from journal.errors import DamageError, StoreError, storage_errors
from journal.findings import Cause, Finding, Kind
from journal.fs.files import pwrite_all, read_optional, replace_file
from journal.memory.arrays import I64
from qindex.format.entries import Entry
from qindex.format.notes import (
    CLOSED,
    RECORD_SIZE,
    Notes,
    pack_note,
    pack_noted,
    pack_notes,
    read_notes,
)
from qindex.index.messages import Messages
from qindex.index.queue_index import QueueIndex

_READ_TOGETHER = 2048


class NotesFile:
    """One file of a queue, whose lock is held for every call.

    ``what``: its content in words, for errors and findings; ``lost``: the consequence of a lost
    record. ``records``: how many it holds.
    """

    def __init__(self, index: QueueIndex, name: str, what: str, lost: str) -> None:
        self._index = index
        self._path = os.path.join(index.directory, name)
        self._what = what
        self._lost = lost
        self._end = 0

    @property
    def records(self) -> int:
        """Records in the file."""
        return self._end // RECORD_SIZE

    def begin(self, *, durably: bool) -> None:
        """Make the file, before the first message of its kind is published: where there is none,
        the next open looks for no such messages. Raises :class:`StorageError`."""
        data = pack_noted(self._index.next_seq)
        if durably:
            replace_file(self._index.fs, self._path, data)
        else:
            self._write(data, 0)
        self._end = len(data)

    def append(self, data: bytes) -> None:
        """Write records after the others. Raises :class:`StorageError`; nothing has changed
        then."""
        self._write(data, self._end)
        self._end += len(data)

    def _write(self, data: bytes, at: int) -> None:
        fs = self._index.fs
        with storage_errors(self._path, f"{self._what} can't be written"):
            fd = fs.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
            try:
                pwrite_all(fs, fd, data, at)
            finally:
                fs.close(fd)

    def note_published(self, seqs: I64, values: I64) -> None:
        """Write what the file lacks of published messages, so that the next open need not look for
        them. Raises as :meth:`append`."""
        index = self._index
        there = index.are_there(seqs)
        # The messages of a transaction get their due times with its commit.
        self.append(pack_notes(seqs[there], values[there]) + pack_noted(index.first_pending()))

    def rewrite(self, seqs: I64, values: I64, *, closed: bool = False) -> None:
        """Write the whole file, durably; ``closed``: nothing follows in this run. Raises
        :class:`StorageError`; the old file is untouched then."""
        index = self._index
        data = pack_notes(seqs, values)
        if closed:
            data += pack_note(index.next_seq, CLOSED | index.live)
        else:
            data += pack_noted(index.first_pending())
        replace_file(index.fs, self._path, data)
        self._end = len(data)

    def sync(self) -> None:
        """Make the file durable. Raises :class:`StorageError`."""
        fs = self._index.fs
        with storage_errors(self._path, f"{self._what} can't be synced"):
            fd = fs.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fs.fdatasync(fd)
            finally:
                fs.close(fd)

    def read(self) -> tuple[Notes, bool]:
        """Read the file, report damage, and return its notes, and whether a clean close has
        written it, and nothing has changed since. Raises :class:`StorageError`."""
        with storage_errors(self._path, f"{self._what} can't be read"):
            data = read_optional(self._index.fs, self._path)
        if data is None:
            self._report(0, 0, "the file is missing", Kind.MISSING_FILE)
            data = b""
        found = read_notes(data)
        self._end = found.end
        for at in found.damaged:
            self._report(at, RECORD_SIZE, "a damaged record", Kind.CHECKSUM)
        if found.damaged:
            # Whose record that was is not known: all messages are asked.
            found.noted = 0
            return found, False
        return found, found.closed == (self._index.next_seq, self._index.live)

    def _report(self, at: int, length: int, what: str, kind: Kind) -> None:
        what = f"{self._what}: {what}"
        self._index.report([Finding(self._path, at, length, Cause.DAMAGE, what, self._lost, kind)])

    def find(
        self, start: int, messages: Messages | None, value_of: Callable[[Mapping[str, Any]], int]
    ) -> tuple[I64, I64]:
        """Read the ready messages from seq_id ``start`` on. Return the seq_ids of those in whose
        headers ``value_of`` finds a number but 0, and these numbers."""
        index = self._index
        found: list[tuple[int, int]] = []
        while start < index.next_seq:
            try:
                window, start = index.fetch(start, _READ_TOGETHER)
            except DamageError:
                continue  # reported; the next read goes on after it
            if window is None:
                break
            for seq, extra in zip(window.seqs, window.extras, strict=True):
                if not isinstance(extra, Entry):
                    continue
                message = extra.message
                if message is None and extra.stored and messages is not None:
                    with suppress(StoreError):
                        message = messages.read(extra.msg_id)
                if message is not None and (value := value_of(message.headers)):
                    found.append((seq, value))
        pairs = np.array(found, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]
