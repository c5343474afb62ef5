"""RocketMQ's ``lock`` file: one process at a time, ours or a broker's.

A broker takes a POSIX lock on the file's first byte and leaves the four bytes ``lock`` in it. We
take that one, and a ``flock`` as well, which also keeps out a second store in this process.

A POSIX lock is lost when its process closes any descriptor of the file. So a second open in this
process is refused before it opens the file: its close would let a broker in.
"""

from __future__ import annotations

import os

from journal.errors import LockedError, NotAStoreError, StorageError
from journal.files import FileSystem, RealFileSystem
from journal.lock import LockFile

_CONTENT = b"lock"
_held: dict[tuple[int, str], StoreLock] = {}


class StoreLock(LockFile):
    """Hold the lock until :meth:`release`.

    Raises :class:`LockedError` when another has it, :class:`StorageError` when the file can't be
    made.
    """

    def __init__(self, fs: FileSystem, path: str, *, change: bool = True) -> None:
        """``change=False``: take only what needs no writing, and raise
        :class:`FileNotFoundError` where there is no lock file."""
        super().__init__(fs, path)
        self._change = change
        self._pid = os.getpid()
        # All that is the real file system knows the same files.
        self._key = 0 if isinstance(fs, RealFileSystem) else id(fs), os.path.realpath(path)
        owner = _held.setdefault(self._key, self)
        if owner is not self and owner._pid == self._pid:
            raise LockedError(path, self._pid)
        # Locks that a parent process held when it forked are not held here.
        _held[self._key] = self
        taken = False
        try:
            flags = os.O_RDWR | os.O_CREAT if change else os.O_RDONLY
            self.open(flags, self._take)
            taken = True
        except (FileNotFoundError, NotADirectoryError):
            if not change:
                raise
            raise NotAStoreError(f"{os.path.dirname(path)}: is no directory") from None
        except OSError as error:
            raise StorageError(path, "can't be locked", error) from error
        finally:
            if not taken:
                _held.pop(self._key, None)

    def _take(self, fd: int) -> None:
        fs = self._fs
        if not fs.lock(fd) or (self._change and not fs.lock_byte(fd)):
            raise LockedError(self._path, fs.byte_holder(fd))
        if not self._change:
            holder = fs.byte_holder(fd)
            if holder is not None:
                raise LockedError(self._path, holder)
            return
        if fs.pread(fd, len(_CONTENT), 0) != _CONTENT:
            fs.pwrite(fd, _CONTENT, 0)

    def let_go(self) -> None:
        """As of any lock file, and let another store of this process have it."""
        super().let_go()
        # Behind the close: that gives back the lock of any store of this process.
        if _held.get(self._key) is self:
            del _held[self._key]
