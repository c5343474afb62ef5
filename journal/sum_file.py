"""The writer of a journal's sum file (:mod:`journal.block_sums`).

The file is memory-mapped, as the journal is. Each ``write`` would release the interpreter's lock
while the queue's lock is held, and would wake the threads that wait for that. After the last
extent there are zeros until the file is closed.
"""

from __future__ import annotations

import logging
import mmap
import os

from journal.block_sums import HEAD_SIZE, SUFFIX
from journal.errors import StorageError
from journal.fs.files import FileSystem, PathLike, created, opened, unlink_if_there
from journal.fs.written_map import map_writable
from journal.room import whole_pages

_log = logging.getLogger("qindex.journal")


class SumFile:
    """Appends extents to the sum file of ``path``, which is made with the first one.

    Checksums are a help against bit rot: when they can't be written, that is logged, the file goes,
    and the next extent begins a new one. ``size``: bytes of extents that the file has already.
    Holds one file handle (the map's own).
    """

    __slots__ = ("_at", "_fs", "_map", "_of", "_size")

    def __init__(self, fs: FileSystem, path: PathLike, size: int = 0) -> None:
        self._fs = fs
        self._of = os.fspath(path)
        self._map: mmap.mmap | None = None
        self._at = size
        self._size = size

    @property
    def path(self) -> str:
        """The path of the sum file."""
        return self._of + SUFFIX

    def append(self, extent: bytes) -> None:
        """Append one extent; in the operating system on return. Its head is stored last: until
        then zeros are there, after which nothing counts."""
        start = self._at
        end = start + len(extent)
        try:
            room = self._map
            if room is None or end > len(room):
                room = self._map_up_to(end)
            try:
                room[start + HEAD_SIZE : end] = extent[HEAD_SIZE:]
                room[start : start + HEAD_SIZE] = extent[:HEAD_SIZE]
                self._at = end
            except BaseException:  # a signal's handler
                self._at = start
                room[start:end] = bytes(end - start)
                raise
        except (OSError, StorageError) as error:
            _log.warning("%s: can't be written: %s", self.path, error)
            self._give_up()

    def _map_up_to(self, end: int) -> mmap.mmap:
        """Map the file, with room for bytes up to ``end``: at least twice what it had when it has
        to grow."""
        fs = self._fs
        had = self._size
        size = had if end <= had else whole_pages(max(end, 2 * had))
        with opened(fs, self.path, os.O_RDWR) if had else created(fs, self.path) as fd:
            fs.fallocate(fd, 0, size)
            room = map_writable(fs, fd, size)
        self._unmap()
        self._map, self._size = room, size
        return room

    def _unmap(self) -> None:
        old, self._map = self._map, None
        if old is not None:
            old.close()

    def _give_up(self) -> None:
        try:
            self.remove()
        except OSError as error:
            _log.warning("%s: can't be removed: %s", self.path, error)

    def remove(self) -> None:
        """Remove the file, before the bytes it is of go. Raises :class:`OSError`."""
        unlink_if_there(self._fs, self.path)
        self._unmap()
        self._at = self._size = 0

    def rest(self) -> None:
        """Close the file until the next extent is appended."""
        self._unmap()

    def close(self) -> None:
        """Cut off the room past the last extent, and close the file."""
        if not self._size:
            return
        self._unmap()
        try:
            with opened(self._fs, self.path, os.O_WRONLY) as fd:
                self._fs.truncate(fd, self._at)
        except OSError as error:
            _log.warning("%s: the room after its end can't be cut off: %s", self.path, error)
