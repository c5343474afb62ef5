"""One writing process for each directory: a lock that dies with its process.

The lock file holds the pid of its owner as decimal text, for the error message only; what counts
is the ``flock`` on it, which the kernel drops when the process ends, however it ends.
"""

from __future__ import annotations

import os

from journal.errors import LockedError
from journal.files import FileSystem, PathLike

__all__ = ["DirectoryLock"]


class DirectoryLock:
    """Hold ``path`` locked until :meth:`release`.

    Raises :class:`LockedError` when another process (or another engine in this one) holds it,
    and :class:`OSError` when the lock file can't be made.
    """

    def __init__(self, fs: FileSystem, path: PathLike) -> None:
        self._fs = fs
        fd = fs.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not fs.lock(fd):
                raise LockedError(path, _pid(fs.pread(fd, 32, 0)))
            fs.truncate(fd, 0)
            fs.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            fs.close(fd)
            raise
        self._fd: int | None = fd

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would race with the next owner."""
        if self._fd is not None:
            self._fs.close(self._fd)
            self._fd = None


def _pid(data: bytes) -> int | None:
    text = data.strip()
    return int(text) if text.isdigit() else None
