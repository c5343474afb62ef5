"""Open files, for readers, the writer and compaction alike: a bounded number of idle ones.

A handle closes its descriptor when the last reference to it is dropped. So the owner of a reference
can read on, also when the file was deleted or pushed out of the table meanwhile. The interpreter
counts the users: it does so anyway, and each read takes one lock less.

Not thread-safe; the owner's lock guards :class:`Handles`, never the I/O on a handle.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict

from journal.fs.files import FileSystem, close_quietly
from msgstore.format import file_name

MAX_HANDLES = 64
"""Files that are open at a time, unless the owner says otherwise."""


class Handle:
    """An open file; ``fd`` is good as long as this object is."""

    __slots__ = ("_fs", "fd", "key")

    def __init__(self, fs: FileSystem, key: int, fd: int) -> None:
        self.key: int = key
        self.fd: int = fd
        self._fs = fs

    def __del__(self) -> None:
        # All that must be durable was synced.
        close_quietly(self._fs, self.fd, file_name(self.key))


class Handles:
    """A table of at most ``limit`` open files; the least recently used one goes first."""

    def __init__(
        self, fs: FileSystem, directory: str, writable: bool, limit: int = MAX_HANDLES
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        self._limit = limit
        self._open: OrderedDict[int, Handle] = OrderedDict()

    def path(self, key: int) -> str:
        """The path of a file by its key."""
        return os.path.join(self._directory, file_name(key))

    def get(self, key: int) -> Handle:
        """Open the file or find it open. Raises :class:`OSError`."""
        handle = self._open.get(key)
        if handle is None:
            return self._add(key, self._flags)
        self._open.move_to_end(key)
        return handle

    def create(self, key: int) -> Handle:
        """Make a new file. Raises :class:`OSError`, also if it exists."""
        return self._add(key, self._flags | os.O_CREAT | os.O_EXCL)

    def forget(self, key: int) -> Handle | None:
        """Take the file off the table: it is being deleted.

        The last user that drops the handle gives the file's blocks back, which takes milliseconds.
        That should be the caller, outside of the lock.
        """
        return self._open.pop(key, None)

    def close(self) -> None:
        """Forget all."""
        self._open.clear()

    def _add(self, key: int, flags: int) -> Handle:
        try:
            fd = self._fs.open(self.path(key), flags)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            # The process is out of descriptors: our own idle ones are the first to go.
            self._open.clear()
            fd = self._fs.open(self.path(key), flags)
        handle = self._open[key] = Handle(self._fs, key, fd)
        if len(self._open) > self._limit:
            self._open.popitem(last=False)
        return handle
