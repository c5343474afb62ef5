"""One writing process for each directory: a lock that dies with its process.

The lock file holds the pid of its owner as decimal text and the name of its host, for the error
message only (a container has a name, and pids, of its own); what counts is the ``flock`` on it,
which the kernel drops when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple, Protocol

from journal.errors import LockedError
from journal.files import FileSystem, PathLike, close_quietly, read_optional

__all__ = [
    "DirectoryLock",
    "hold_if_there",
    "holder",
    "let_go_in_child",
    "open_claimed",
    "read_owner",
    "unlock",
]

_LOCK_TABLE = "/proc/locks"
UNKNOWN_PID = 0
_PAUSE = 0.02
"""Seconds between two tries for a lock that is held: the kernel wakes nobody after a time."""
_MOST_READ = 128
"""Bytes of a lock file that can be a pid and the name of a host."""
_MOST_DIGITS = 19
_MOST_HOST = 64
"""Bytes of a host's name, on Linux."""


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
            while not fs.lock(fd):
                if monotonic() >= deadline:
                    raise _refused(fs, fd, path)
                sleep(_PAUSE)
            try:
                fs.truncate(fd, 0)
                fs.pwrite(fd, b"%d %s\n" % (os.getpid(), _host()), 0)
            except OSError as error:
                # The disk is full. The lock is held all the same; the error of others names no
                # process.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise

        try:
            open_claimed(fs, path, os.O_RDWR | os.O_CREAT, self._hold, take)
        except BaseException:
            self._fd = None  # closed
            raise

    def _hold(self, fd: int | None) -> None:
        self._fd = fd
        let_go_in_child(self)

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would race with the next owner."""
        try:
            if self._fd is not None:
                unlock(self._fs, self._fd)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the file. The lock is given back if no other process has the file open."""
        # The number is taken out first, here and wherever a file is closed: a call that is cut
        # short behind the close must not leave a number that is another file's the next time.
        fd, self._fd = self._fd, None
        if fd is not None:
            close_quietly(self._fs, fd, "the lock of the directory")


def open_claimed(
    fs: FileSystem,
    path: PathLike,
    flags: int,
    hold: Callable[[int | None], None],
    take: Callable[[int], None],
) -> int:
    """Open a lock file and call ``take`` with its descriptor, which stays open unless that raises.

    ``hold`` is called with the descriptor before: a child that is forked from then on closes it,
    and does not keep the lock when this process gives it back, or dies. One that was forked
    between the two may have the file for as long as it lives: then it is opened anew. ``hold`` is
    told ``None`` when the file is about to be closed.
    Raises what ``take`` raises, and :class:`OSError`.
    """
    while True:
        forks = _forks_begun
        fd = fs.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            hold(fd)
            if forks == _forks_begun == _forks_ended:
                take(fd)
                return fd
            hold(None)
        except BaseException:
            fs.close(fd)
            raise
        fs.close(fd)
        sleep(_PAUSE)


def unlock(fs: FileSystem, fd: int) -> None:
    """Give back the lock of a file that is about to be closed, whoever else has it open: a child
    that was forked in the middle of the close."""
    with suppress(OSError):  # the close gives it back as well
        fs.unlock(fd)


def hold_if_there(fs: FileSystem, path: PathLike) -> DirectoryLock | None:
    """Hold the lock without changing its file: for a reader that wants no writer meanwhile.

    ``None`` where there is no lock file: nobody has ever written there. Raises
    :class:`LockedError` and :class:`OSError`.
    """

    held = DirectoryLock.__new__(DirectoryLock)
    held._fs, held._fd = fs, None

    def take(fd: int) -> None:
        if not fs.lock(fd):
            raise _refused(fs, fd, path)

    try:
        open_claimed(fs, path, os.O_RDONLY, held._hold, take)
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
            owner = read_owner(read_optional(fs, path, _MOST_READ) or b"")
            return owner.pid if owner is not None else UNKNOWN_PID
    return None


class Owner(NamedTuple):
    """The process that a lock file names; ``host``: of another host or container, else ``None``."""

    pid: int
    host: str | None


def read_owner(data: bytes) -> Owner | None:
    """Give what a lock file says; ``None`` for nothing, or what is no pid (and host). An earlier
    version wrote no host."""
    words = data.split()
    if not words:
        return None
    pid, *hosts = words
    if not pid.isdigit() or len(pid) > _MOST_DIGITS or len(hosts) > 1:
        return None
    elsewhere = [one.decode("ascii", "replace") for one in hosts if one != _host()]
    return Owner(int(pid), elsewhere[0] if elsewhere else None)


def _host() -> bytes:
    return os.uname().nodename.encode("ascii", "replace")[:_MOST_HOST]


def _refused(fs: FileSystem, fd: int, path: PathLike) -> LockedError:
    owner = read_owner(fs.pread(fd, _MOST_READ, 0))
    return LockedError(path, None) if owner is None else LockedError(path, owner.pid, owner.host)


class _Held(Protocol):
    def let_go(self) -> None: ...


_held: weakref.WeakSet[_Held] = weakref.WeakSet()
_forks_begun = _forks_ended = 0


def let_go_in_child(lock: _Held) -> None:
    """Have ``lock`` close its file in each child that is forked from now on."""
    _held.add(lock)


def _fork_begins() -> None:
    global _forks_begun
    _forks_begun += 1


def _fork_ends() -> None:
    global _forks_ended
    _forks_ended += 1


def _let_go_in_child() -> None:
    """A lock is of the open file, which a child shares: as long as it has that open, the lock is
    held, by a process that does not know of it."""
    global _forks_ended
    _forks_ended = _forks_begun
    for lock in list(_held):
        lock.let_go()


os.register_at_fork(
    before=_fork_begins, after_in_parent=_fork_ends, after_in_child=_let_go_in_child
)
