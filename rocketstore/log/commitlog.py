"""The CommitLog: all messages of all topics, one after the other, in mapped files.

Append copies one record into the map, or writes a long batch; blank records close a file when the
next record and 8 spare bytes do not fit into it. The owner holds a lock around every call.
"""

from __future__ import annotations

import contextlib
import mmap

from journal.errors import StorageError, UsageError
from journal.fs.files import FileSystem
from journal.room import whole_pages
from rocketstore.format import words
from rocketstore.format.commitlog_format import (
    BLANK_SIZE,
    FIXED_SIZE,
    MESSAGE_MAGIC,
    NO_START,
    START,
    blank_record,
)
from rocketstore.log.mapped_files import MappedFile, MappedFiles
from rocketstore.log.watch import Watch

MAX_COPIED = 64 << 10
"""More bytes than these at once are written, and not copied into the map."""
_ZEROS = bytes(64 << 10)
"""Zeros that are written ahead at a time."""
_AHEAD_OF_SYNCS = 16 << 10
"""So many where each put is synced: pages are written back in the pieces that they were made in."""
_LIKELY = 4 << 10
"""Bytes that are read of a record before its size is known."""
_AHEAD = 64 << 10
"""Bytes that are taken at a time of records that are asked for one after the other."""


class CommitLog:
    """The log's files and its write position.

    Between :meth:`begin_writing` and :meth:`close` the last file's position lives here
    (``at``); ``settle`` carries it over to the file, where others look. A single put is too
    short for two calls: it looks at ``view`` (the last file's map), ``base`` (its first offset),
    ``at`` and ``room`` (where a record may end without :meth:`make_room`) itself.
    """

    __slots__ = (
        "_ahead",
        "_ahead_most",
        "_last",
        "_zeros_ahead",
        "at",
        "base",
        "file_size",
        "files",
        "last",
        "room",
        "view",
    )

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        file_size: int,
        *,
        writable: bool,
        synced_each: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self._zeros_ahead = _AHEAD_OF_SYNCS if synced_each else len(_ZEROS)
        self.files: MappedFiles = MappedFiles(
            fs, directory, file_size, writable=writable, watch=watch
        )
        self.file_size: int = file_size
        self.view: mmap.mmap | None = None
        self._last: MappedFile | None = None
        self._ahead = (0, b"")
        self._ahead_most = 0 if writable else _AHEAD
        self.base: int = 0
        self.at: int = 0
        self.room: int = -1
        self.last: tuple[int, int] = (0, 0)
        """Offset and size of the last record; zeros if there is none."""

    @property
    def min_offset(self) -> int:
        """First offset; -1 without files."""
        return self.files.min_offset

    @property
    def max_offset(self) -> int:
        """Offset after the last record."""
        return self.base + self.at if self._last is not None else self.files.max_offset

    # Writing

    def begin_writing(self) -> None:
        """Take the write position from the last file, as recovery left it. Files before the last do
        not change any more."""
        self._ahead = (0, b"")
        self._ahead_most = _AHEAD
        self._last = self.files.last
        if self._last is not None:
            self._use(self._last)

    def _use(self, file: MappedFile) -> None:
        # The step that can fail comes first: if it fails, the old file stays in use.
        self.view = self.files.mapped(file)
        self._last = file
        self.base = file.start
        self.at = file.wrote
        file.reserved = max(file.reserved, file.wrote)
        self.room = file.wrote - BLANK_SIZE

    def settle(self) -> None:
        """Tell the last file how far it is written."""
        last = self._last
        if last is not None and last.wrote != self.at:
            last.wrote = self.at
            last.dirty = True

    def make_room(self, size: int) -> int:
        """Make sure that ``size`` bytes and a blank fit at the write position, rolling over to
        the next file if need be; returns the offset where they will go.

        Raises :class:`UsageError` when no file holds that many, :class:`StorageError` when the
        disk is full; the next call then tries again.
        """
        if self.at + size <= self.room:
            return self.base + self.at
        if size + BLANK_SIZE > self.file_size:
            raise UsageError(
                f"record of {size} bytes: a file of the commit log holds {self.file_size} "
                f"with {BLANK_SIZE} to spare"
            )
        if self._last is None:
            self._use(self.files.append(0))
        rest = self.file_size - self.at
        if size + BLANK_SIZE > rest:
            self._roll(rest)
        assert self._last is not None
        if self.at + size + BLANK_SIZE > self._last.reserved:
            self._last.reserve(self.at + size + BLANK_SIZE)
        self._write_ahead(size)
        return self.base + self.at

    def _write_ahead(self, size: int) -> None:
        """Let records be put up to where zeros have been written, ``size`` bytes or more.

        A page made by a write costs a third of a page made by the first store into it. Blocks and
        map exist already, so if the zeros can't be written, only this saving is lost.
        """
        last = self._last
        assert last is not None
        start = whole_pages(self.at)
        end = max(start + self._zeros_ahead, whole_pages(self.at + size + BLANK_SIZE))
        end = min(end, last.reserved)
        self.room = end - BLANK_SIZE
        if size < MAX_COPIED and start < end:
            with contextlib.suppress(StorageError):
                last.write(_ZEROS[: end - start], start)

    def _roll(self, rest: int) -> None:
        assert self._last is not None
        self._last.check()
        if rest:
            if self.at + BLANK_SIZE > self._last.reserved:
                self._last.reserve(self.at + BLANK_SIZE)
            assert self.view is not None
            self.view[self.at : self.at + BLANK_SIZE] = blank_record(rest)
            self.at = self.file_size
            self.room = -1
        self.settle()
        self._use(self.files.append(self.base + self.file_size))

    def write(self, data: bytes | bytearray) -> None:
        """Put a record, or several, where :meth:`make_room` said. The start of the first of them
        comes last: a copy into a map may be under way anywhere when its process dies.

        Much at once goes there with a write: a third of the cost of touching fresh pages of the
        map one by one. Map and file are the same pages. Raises :class:`StorageError`; a part may
        have been written then.
        """
        at = self.at
        end = at + len(data)
        if len(data) < MAX_COPIED:
            assert self.view is not None
            start = data[: START.size]
            self.view[at:end] = NO_START + data[START.size :]
            self.view[at : at + START.size] = start
        else:
            assert self._last is not None
            self._last.write(data, at)
        self.at = end

    def space_left(self) -> int:
        """Bytes of records that still fit into the last file before a blank."""
        if self._last is None:
            return self.file_size - BLANK_SIZE
        return self.file_size - self.at - BLANK_SIZE

    # Reading

    def read(self, offset: int, size: int) -> bytes | None:
        """``size`` bytes at a physical offset; ``None`` unless all are written, in one file."""
        if offset < 0:
            return None
        at = offset - self.base
        if self.view is not None and at >= 0:
            return words.piece(self.view, at, at + size) if size <= self.at - at else None
        file = self.files.find(offset)
        if file is None:
            return None
        at = offset - file.start
        if size < 0 or at + size > file.wrote:
            return None
        start, ahead = self._ahead
        begin = offset - start
        if begin < 0 or begin + size > len(ahead):
            wanted = size
            if 0 <= begin - len(ahead) < self._ahead_most:
                wanted = max(size, min(self._ahead_most, file.wrote - at))
            ahead = self.files.read(file, at, wanted)
            self._ahead = offset, ahead
            begin = 0
        data = ahead[begin : begin + size]
        return data if len(data) == size else None

    def read_record(self, offset: int) -> bytes | None:
        """Return the record at a physical offset, by its own size; ``None`` if none is there."""
        if offset < 0:
            return None
        at = offset - self.base
        if self.view is not None and at >= 0:
            if at >= self.at:
                return None
            end = self.at
            data = words.piece(self.view, at, at + START.size)
        else:
            file = self.files.find(offset)
            if file is None:
                return None
            end = file.wrote
            at = offset - file.start
            data = self.files.read(file, at, min(_LIKELY, max(end - at, 0)))
        if at + FIXED_SIZE > end or len(data) < START.size:
            return None
        size = words.int32_at(data, 0)
        magic = words.int32_at(data, 4)
        if magic != MESSAGE_MAGIC or size < FIXED_SIZE or size > end - at:
            return None
        return data[:size] if size <= len(data) else self.read(offset, size)

    def store_time(self, offset: int, size: int) -> int:
        """Store timestamp (ms) of the record; -1 if it can't be read."""
        data = self.read(offset, size)
        if data is None or len(data) < FIXED_SIZE:
            return -1
        return words.int64_at(data, 68 if data[39] & 16 else 56)

    def next_file(self, offset: int) -> int:
        """Return the start of the file after the file that holds the offset."""
        return offset - offset % self.file_size + self.file_size

    def close(self) -> None:
        """Close all files."""
        self.settle()
        self.view = None
        self._last = None
        self.files.close()
