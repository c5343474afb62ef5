"""RocketMQ's ``lock`` file: one process at a time, ours or a broker's.

A broker takes a POSIX lock on the file's first byte and leaves the four bytes ``lock`` in it. We
take that one, and a ``flock`` as well, which also keeps out a second store in this process.
"""

from __future__ import annotations

import fcntl
import os
import struct

from journal.errors import LockedError, StorageError
from journal.files import FileSystem

__all__ = ["StoreLock"]

_CONTENT = b"lock"
_FLOCK = struct.Struct("hhqqi")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid."""


class StoreLock:
    """Hold the lock until :meth:`release`.

    Raises :class:`LockedError` when another has it, :class:`StorageError` when the file can't be
    made.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        try:
            fd = fs.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(path, "can't be locked", error) from error
        try:
            if not fs.lock(fd):
                raise LockedError(path, _holder(fd))
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            except (BlockingIOError, PermissionError):
                raise LockedError(path, _holder(fd)) from None
            if fs.pread(fd, len(_CONTENT), 0) != _CONTENT:
                fs.pwrite(fd, _CONTENT, 0)
        except OSError as error:
            fs.close(fd)
            raise StorageError(path, "can't be locked", error) from error
        except BaseException:
            fs.close(fd)
            raise
        self._fd: int | None = fd

    def release(self) -> None:
        """Give the lock back. The file stays, as the broker leaves it."""
        if self._fd is not None:
            self._fs.close(self._fd)
            self._fd = None


def _holder(fd: int) -> int | None:
    """Pid of the process that holds the POSIX lock; this one's if nobody else does."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
    except (OSError, struct.error):
        return None
    return os.getpid() if kind == fcntl.F_UNLCK else pid
