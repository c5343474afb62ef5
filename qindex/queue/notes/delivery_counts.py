"""Counts of deliveries: ``qindex.deliveries`` of a queue with a ``delivery_limit``.

A message that kills its consumer's process each time must not come back for ever, so the count has
to outlive the process. The first delivery is in the journal, as any; each further one is put
here before the message is handed out::

    0          8          12         16
    +----------+----------+----------+
    | seq_id   | count    | check    |      big-endian, one record after the other
    +----------+----------+----------+
      the last record of a seq_id counts; count 0: the message is gone; all ones: it was never
      delivered to a consumer, whatever the journal says
      check: the low half of xxh3 (64 bits) over the first twelve bytes

A record that is torn or damaged is passed over: it costs a message one delivery more. Nothing here
is ever synced, for the same reason.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Mapping

from xxhash import xxh3_64_intdigest

from journal.errors import StorageError, storage_errors
from journal.fs.files import FileSystem, pwrite_all, read_optional, replace_file
from qindex.queue.notes.entry_note import EntryNote

_log = logging.getLogger("qindex.queue")

FILE_NAME = "qindex.deliveries"

_RECORD = struct.Struct(">QII")
_FIELDS = struct.Struct(">QI")
RECORD_SIZE = _RECORD.size
_LOW_HALF = 0xFFFF_FFFF
_NEVER = 0xFFFF_FFFF
_MAX_SPARE = 4096
"""Records that do not count any more, beside as many as do, before the file is written anew."""


def pack_count(seq_id: int, count: int) -> bytes:
    """Return one record."""
    check = xxh3_64_intdigest(_FIELDS.pack(seq_id, count)) & _LOW_HALF
    return _RECORD.pack(seq_id, count, check)


def unpack_count(record: bytes) -> tuple[int, int] | None:
    """Return seq_id and count of one record, or ``None`` if it is not sound."""
    if len(record) < RECORD_SIZE:
        return None
    seq_id, count, _ = _RECORD.unpack(record)
    return (seq_id, count) if pack_count(seq_id, count) == record else None


def unpack_counts(data: bytes) -> dict[int, int]:
    """Return the counts of the messages that are not gone, by seq_id."""
    counts: dict[int, int] = {}
    for at in range(0, len(data), RECORD_SIZE):
        record = unpack_count(data[at : at + RECORD_SIZE])
        if record is None:
            continue
        seq_id, count = record
        if count:
            counts[seq_id] = 0 if count == _NEVER else count
        else:
            counts.pop(seq_id, None)
    return counts


def pack_counts(counts: Mapping[int, int]) -> bytes:
    """Return the file of these counts; 0: never delivered."""
    return b"".join(pack_count(seq_id, count or _NEVER) for seq_id, count in counts.items())


class DeliveryCounts:
    """The file of one queue, whose lock is held for every call.

    A count that can't be written (a full disk) is only logged: it costs one delivery more.
    """

    def __init__(self, fs: FileSystem, directory: str, noted: dict[int, EntryNote]) -> None:
        """Read the file into the notes that have no count. Raises :class:`StorageError`."""
        self._fs = fs
        self._path = os.path.join(directory, FILE_NAME)
        self._noted = noted
        with storage_errors(self._path, "the counts can't be read"):
            data = read_optional(fs, self._path) or b""
        for seq_id, count in unpack_counts(data).items():
            note = noted.setdefault(seq_id, EntryNote())
            if note.deliveries < 0:
                note.deliveries = count
        # After the last whole record: a torn one is written over.
        self._end = len(data) - len(data) % RECORD_SIZE

    def note(self, seq_id: int, count: int | None) -> None:
        """Note how often a message was delivered, or with None that it is gone."""
        if count is not None:
            self._noted.setdefault(seq_id, EntryNote()).deliveries = count
            count = count or _NEVER
        if self._end > RECORD_SIZE * (2 * len(self._noted) + _MAX_SPARE):
            self.rewrite()
        fs = self._fs
        try:
            fd = fs.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
            try:
                pwrite_all(fs, fd, pack_count(seq_id, count or 0), self._end)
            finally:
                fs.close(fd)
        except OSError as error:
            _log.warning("%s: can't be written: %s", self._path, error)
            return
        self._end += RECORD_SIZE

    def rewrite(self) -> None:
        """Write the file anew."""
        noted = self._noted.items()
        data = pack_counts({seq: one.deliveries for seq, one in noted if one.deliveries >= 0})
        try:
            replace_file(self._fs, self._path, data)
        except StorageError as error:
            _log.warning("%s", error)
            return
        self._end = len(data)
