"""The end of a queue's journal, read as its writer appends, from another process.

No lock is taken, and the file is never mapped: the writer may cut it, and touching a map past
the end of its file kills a process. All records of one look belong to one life of the journal: the
journal starts with the record it started with before and after (see
:mod:`qindex.recovery.point_in_time`).

A flush puts another file in the journal's place, or empties it in place. The other file's
predecessor stays readable while it is open here, and is complete from then on.
"""

from __future__ import annotations

import enum
import os
from dataclasses import replace
from functools import partial

import numpy as np

from journal import format as journal_format
from journal.background import Background
from journal.errors import StorageError, storage_errors
from journal.format import ACTION_SIZE, DELIVER, NO_START, PAYLOAD, PUBLISH_HEAD_SIZE
from journal.fs.files import FileSystem, close_quietly, pread_all
from journal.poison import Poison
from journal.replay import Walk, walk_journal
from qindex.following.piece import Piece, read_plain_piece, sound_records
from qindex.format.record_layouts import journal_layout
from qindex.format.resynchronise import Data, read_soundly
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.index.seq_ids import SeqFile

_PROBE = 4096
_MOST = 1 << 18
"""Bytes of one read, unless one record is longer: they are still in the processor's cache when they
are verified and decoded."""
_LARGE = 1 << 20
"""Bytes of a file that is closed in a thread."""
_EMBEDDED_AT = PAYLOAD.size - 4


class Change(enum.Enum):
    """The change of the journal that is being read."""

    NONE = "it is the journal still"
    REPLACED = "another file has its name"
    EMPTIED = "it was emptied in place"


class JournalTail:
    """Reads ``journal.jif`` in ``directory`` from its start on, each record once.

    Raises :class:`StorageError` when the system refuses.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = os.path.join(directory, journal_format.FILE_NAME)
        self._fd = -1
        self._inode = -1
        self._start = b""
        self._position = 0
        self._size = _PROBE
        self._closing: Background | None = None

    def attach(self) -> None:
        """Begin with the file that is the journal now; without one, nothing is there to read."""
        self._let_go()
        try:
            self._fd = self._fs.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._inode = self._fs.fstat(self._fd).st_ino
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(self._path, "the journal can't be read", error) from error

    def close(self) -> None:
        """Let go of the file."""
        self._let_go()
        self._wait_for_closing()

    def _let_go(self) -> None:
        """Close the file. The last process to close a replaced file frees its pages, 20 ms for
        100 MB. So a thread closes it, and the next file is read meanwhile."""
        fd, self._fd = self._fd, -1
        read, self._position = self._position, 0
        self._inode = -1
        self._start = b""
        self._size = _PROBE
        if fd < 0:
            return
        self._wait_for_closing()
        close = partial(close_quietly, self._fs, fd, self._path)
        if read > _LARGE:
            self._closing = Background(close, "qindex-follow-close")
            if self._closing.start():
                return
        close()

    def _wait_for_closing(self) -> None:
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.join()

    def change(self) -> Change:
        """Return what became of the journal since :meth:`attach`."""
        try:
            inode = self._fs.stat(self._path).st_ino
        except FileNotFoundError:
            inode = -1
        except OSError as error:
            raise StorageError(self._path, "the journal can't be read", error) from error
        if inode != self._inode:
            return Change.REPLACED
        return Change.NONE if self._is_same() else Change.EMPTIED

    def _is_same(self) -> bool:
        if not self._start:
            return True
        return self._pread(len(self._start), 0) == self._start

    def _pread(self, length: int, offset: int) -> bytes:
        with storage_errors(self._path, "the journal can't be read"):
            return pread_all(self._fs, self._fd, length, offset)

    def read(self, known: int = 0) -> Piece | None:
        """Return the publish records after the returned ones, some at a time; records of seq_ids
        below ``known`` are passed over.

        ``None``: nothing whole is there. A piece may be empty: deliveries and acks only.
        O(bytes read), 256 KiB at the most, or one record.
        """
        if self._fd < 0:
            return None
        while True:
            data = self._pread(self._size, self._position)
            if not any(data[:PUBLISH_HEAD_SIZE]):
                self._size = _PROBE
                return None
            walk = _without_unfinished(data, walk_journal(data))
            piece = _publishes(data, walk)
            if len(piece) and piece.seqs[0] < known:
                # A flush has copied them from the journal before: they were whole by then.
                piece = piece.take(piece.seqs >= known)
            end = walk.end
            plain = read_plain_piece(piece)
            if plain is not None:
                piece = plain
            elif len(wrong := np.flatnonzero(~sound_records(piece))):
                # It is being written, and all that seems to be after it.
                end = int(piece.payloads[wrong[0]]) - ACTION_SIZE
                piece = piece.take(slice(0, int(wrong[0])))
            is_full = len(data) == self._size
            if end or not is_full:
                break
            if self._size >= _MOST and not self._is_long(data):
                return None
            self._size *= 4
        if not end or not self._has_same_start(data, walk):
            return None
        self._position += end
        # The file is longer than its written part: a read of much more than that copies zeros. So
        # the next read takes about twice the bytes that this one found.
        self._size = min(max(_PROBE, 1 << (2 * end - 1).bit_length()), _MOST)
        return piece

    def _is_long(self, data: bytes) -> bool:
        """Return whether one record is longer than the bytes that were read."""
        at = ACTION_SIZE + _EMBEDDED_AT
        return data[0] & 0x80 == 0 and int.from_bytes(data[at : at + 4], "big") > len(data)

    def _has_same_start(self, data: bytes, walk: Walk) -> bool:
        """Return whether these bytes are of the journal that reading began with."""
        if self._position:
            return self._is_same()
        self._start = data[: PUBLISH_HEAD_SIZE if walk.kinds[0] < DELIVER else ACTION_SIZE]
        if self._is_same():
            return True
        self._start = b""
        return False

    def unread(self) -> bytes:
        """Return some of the bytes that are there and can't be read; empty if there are none."""
        return self._pread(_PROBE, self._position).rstrip(b"\0") if self._fd >= 0 else b""

    def skip_damage(self) -> Piece | None:
        """Go on after bytes that stay unreadable, if sound records follow; return those."""
        size = self._fs.fstat(self._fd).st_size
        data = self._pread(max(size - self._position, 0), self._position)
        seq_file = SeqFile(self._fs, os.path.join(self._directory, SEQ_FILE_NAME), Poison())
        layout = journal_layout((seq_file.reserved or journal_format.MAX_SEQ_ID) - 1)
        reading = read_soundly(self._path, data, layout)
        piece = _publishes(reading.data, reading.walk)
        if not len(piece) or not self._is_same():
            return None
        self._position += reading.walk.end
        return piece


def _without_unfinished(data: bytes, walk: Walk) -> Walk:
    """Leave out an append that is under way, and what seems to be after it: its start is stored
    last (:mod:`journal.journal`), and until then it looks like seq_id 0."""
    first = np.flatnonzero((walk.seqs == 0) & (walk.kinds < DELIVER))
    for index in first.tolist():
        offset = int(walk.offsets[index])
        if data.startswith(NO_START, offset):
            return replace(walk.take(slice(0, index)), end=offset)
    return walk


def _publishes(data: Data, walk: Walk) -> Piece:
    chosen = walk.kinds < DELIVER
    if chosen.all():
        kinds, seqs, offsets, lengths = walk.kinds, walk.seqs, walk.offsets, walk.lengths
    else:
        kinds, seqs = walk.kinds[chosen], walk.seqs[chosen]
        offsets, lengths = walk.offsets[chosen], walk.lengths[chosen]
    return Piece(data, kinds, seqs, offsets + ACTION_SIZE, lengths - PUBLISH_HEAD_SIZE)
