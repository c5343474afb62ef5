"""RocketMQ's ``lock`` file: one process at a time, ours or a broker's.

A broker takes a POSIX lock on the file's first byte and leaves the four bytes ``lock`` in it. We
take that one, and a ``flock`` as well, which also keeps out a second store in this process.

A POSIX lock is lost when its process closes any descriptor of the file. So a second open in this
process is refused before it opens the file: its close would let a broker in.
"""

from __future__ import annotations

import os
from time import sleep

from journal.errors import LockedError, NotAStoreError, StorageError
from journal.fs.files import FileSystem, RealFileSystem, opened
from journal.locks.directory_lock import LockFile, lock_exclusively

_CONTENT = b"lock"
_REMEDY = "wait until that one closes it, or look with read_only=True"
_LOOKS = 50
_PAUSE = 0.02
"""Seconds between looks whether :func:`is_open` is done in another thread."""
_held: dict[tuple[int, str], StoreLock] = {}
_asked: list[tuple[int, str]] = []
"""Locks that :func:`is_open` is looking at."""


class StoreLock(LockFile):
    """Hold the lock until :meth:`release`.

    Raises :class:`LockedError` when another has it, :class:`StorageError` when the file can't be
    made.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        super().__init__(fs, path)
        self._pid = os.getpid()
        self._key = _key(fs, path)
        owner = _held.setdefault(self._key, self)
        if owner is not self and owner._pid == self._pid:
            raise LockedError(path, self._pid)
        # Locks that a parent process held when it forked are not held here.
        _held[self._key] = self
        taken = False
        try:
            for _ in range(_LOOKS):
                if self._key not in _asked:
                    break
                sleep(_PAUSE)
            self.open(os.O_RDWR | os.O_CREAT, self._take)
            taken = True
        except (FileNotFoundError, NotADirectoryError):
            raise NotAStoreError(f"{os.path.dirname(path)}: is not a directory") from None
        except OSError as error:
            raise StorageError(path, "can't be locked", error) from error
        finally:
            if not taken:
                _held.pop(self._key, None)

    def _take(self, fd: int) -> None:
        fs = self._fs
        if not lock_exclusively(fs, fd) or not fs.lock_byte(fd):
            raise LockedError(self._path, fs.byte_holder(fd), remedy=_REMEDY)
        if fs.pread(fd, len(_CONTENT), 0) != _CONTENT:
            fs.pwrite(fd, _CONTENT, 0)

    def let_go(self) -> None:
        """As of any lock file, and let another store of this process have it."""
        super().let_go()
        # After the close: that gives back the lock of any store of this process.
        if _held.get(self._key) is self:
            del _held[self._key]


def is_open(fs: FileSystem, path: str) -> bool:
    """Return whether a process has the store of this lock file open for writing: ours or a broker,
    or this process.

    True where the system does not let us know.
    """
    key = _key(fs, path)
    # First this note, then the look at the locks held. A thread that takes a lock does it the other
    # way round. So no file is closed here whose lock this process has taken meanwhile.
    _asked.append(key)
    try:
        owner = _held.get(key)
        if owner is not None and owner._pid == os.getpid():
            return True
        with opened(fs, path) as fd:
            if not fs.lock_shared(fd):
                return True
            fs.unlock(fd)  # a child that was forked just now has the file open as well
            return fs.byte_holder(fd) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    finally:
        _asked.remove(key)


def _key(fs: FileSystem, path: str) -> tuple[int, str]:
    # All that is the real file system knows the same files.
    return 0 if isinstance(fs, RealFileSystem) else id(fs), os.path.realpath(path)
