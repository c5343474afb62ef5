"""One writing process for each directory: a lock that dies with its process.

The lock file holds the pid of its owner as decimal text, for the error message only; what counts
is the ``flock`` on it, which the kernel drops when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from time import monotonic, sleep
from typing import Protocol

from journal.errors import LockedError
from journal.files import FileSystem, PathLike, close_quietly, read_optional

__all__ = ["DirectoryLock", "hold_if_there", "holder", "open_claimed", "release_in_child"]

_LOCK_TABLE = "/proc/locks"
UNKNOWN_PID = 0
_PAUSE = 0.02
"""Seconds between two tries for a lock that is held: the kernel wakes nobody after a time."""
_MOST_READ = 32
"""Bytes of a lock file that can be a pid."""


class DirectoryLock:
    """Hold ``path`` locked until :meth:`release`.

    Raises :class:`LockedError` when another process (or another engine in this one) holds it for
    longer than ``timeout`` seconds, and :class:`OSError` when the lock file can't be made.
    """

    _fd: int | None

    def __init__(self, fs: FileSystem, path: PathLike, timeout: float = 0.0) -> None:
        self._fs = fs
        self._fd = None
        deadline = monotonic() + timeout

        def take(fd: int) -> None:
            self._hold(fd)
            while not fs.lock(fd):
                if monotonic() >= deadline:
                    raise LockedError(path, _pid(fs.pread(fd, _MOST_READ, 0)))
                sleep(_PAUSE)
            try:
                fs.truncate(fd, 0)
                fs.pwrite(fd, b"%d\n" % os.getpid(), 0)
            except OSError as error:
                # The disk is full. The lock is held all the same; the error of others names no
                # process.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise

        try:
            open_claimed(fs, path, os.O_RDWR | os.O_CREAT, take)
        except BaseException:
            self._fd = None  # closed
            raise

    def _hold(self, fd: int) -> None:
        """Take note of the descriptor before it is locked: a child that is forked from then on
        must not keep the lock when this process gives it back, or dies."""
        self._fd = fd
        release_in_child(self)

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would race with the next owner."""
        # The number is taken out first, here and wherever a file is closed: a call that is cut
        # short behind the close must not leave a number that is another file's the next time.
        fd, self._fd = self._fd, None
        if fd is not None:
            close_quietly(self._fs, fd, "the lock of the directory")


def open_claimed(fs: FileSystem, path: PathLike, flags: int, take: Callable[[int], None]) -> int:
    """Open a lock file and call ``take`` with its descriptor, which stays open unless that raises.

    Raises what ``take`` raises, and :class:`OSError`.
    """
    fd = fs.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        take(fd)
    except BaseException:
        fs.close(fd)
        raise
    return fd


def hold_if_there(fs: FileSystem, path: PathLike) -> DirectoryLock | None:
    """Hold the lock without changing its file: for a reader that wants no writer meanwhile.

    ``None`` where there is no lock file: nobody has ever written there. Raises
    :class:`LockedError` and :class:`OSError`.
    """

    held = DirectoryLock.__new__(DirectoryLock)
    held._fs, held._fd = fs, None

    def take(fd: int) -> None:
        held._hold(fd)
        if not fs.lock(fd):
            raise LockedError(path, _pid(fs.pread(fd, _MOST_READ, 0)))

    try:
        open_claimed(fs, path, os.O_RDONLY, take)
    except FileNotFoundError:
        return None
    except BaseException:
        held._fd = None  # closed
        raise
    return held


def holder(fs: FileSystem, path: PathLike) -> int | None:
    """Tell which process holds the lock, without taking it even for a moment: a writer that opens
    the directory just then must not fail.

    ``None``: nobody; :data:`UNKNOWN_PID`: someone, or the system does not tell. Raises
    :class:`OSError`.
    """
    try:
        inode = str(fs.stat(path).st_ino)
    except FileNotFoundError:
        return None
    try:
        with open(_LOCK_TABLE) as file:
            table = file.read()
    except OSError:
        return UNKNOWN_PID
    for line in table.splitlines():
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131081 0 EOF
        fields = line.split()
        if fields[1:2] == ["FLOCK"] and fields[-3].rpartition(":")[2] == inode:
            return _pid(read_optional(fs, path, _MOST_READ) or b"") or UNKNOWN_PID
    return None


def _pid(data: bytes) -> int | None:
    text = data.strip()
    return int(text) if text.isdigit() else None


class _Releasable(Protocol):
    def release(self) -> None: ...


_held: weakref.WeakSet[_Releasable] = weakref.WeakSet()


def release_in_child(lock: _Releasable) -> None:
    """Release ``lock`` in each child that is forked from now on: there, it closes the file."""
    _held.add(lock)


def _let_go_in_child() -> None:
    """A lock is of the open file, which a child shares: as long as it has that open, the lock is
    held, by a process that does not know of it."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)
