"""One writing process for each directory: a lock that dies with its process.

The lock file holds the pid of its owner as decimal text and the name of its host, for the error
message only (a container has a name, and pids, of its own); what counts is the ``flock`` on it,
which the kernel drops when the process ends, however it ends.

A reader that only asks whether a store is open tries a shared lock and releases it at once. A
writer that meets such a reader tries again. ``/proc/locks`` would not answer the question: its
device numbers are not those of ``stat`` on btrfs, and a container sees no locks of others.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple

from journal.errors import LockedError
from journal.fs.files import FileSystem, PathLike, close_quietly, opened
from journal.memory import forks
from journal.memory.words import kept_stamp

_PAUSE = 0.02
"""Seconds between two tries for a lock that is held: the kernel wakes nobody after a time."""
_LOOKS = 50
"""Tries for a lock that only readers have: one of them may have been stopped with it."""
_MAX_READ = 128
"""Bytes of a lock file that can be a pid and the name of a host."""
_MAX_DIGITS = 19
_MAX_HOST = 64
"""Bytes of a host's name, on Linux."""


class LockFile:
    """A lock file, which is locked as long as it is open. No child of this process keeps it."""

    def __init__(self, fs: FileSystem, path: PathLike) -> None:
        self._fs = fs
        self._path = path
        self._fd: int | None = None
        self._stamp = forks.stamp()

    def open(self, flags: int, take: Callable[[int], None]) -> None:
        """Open the file, and call ``take`` with its descriptor, to lock it.

        A child that is forked from then on closes the file, and does not keep the lock when this
        process gives it back, or dies. A process that was forked meanwhile may have the file for as
        long as it lives: then it is opened anew. Raises what ``take`` raises, and :class:`OSError`;
        the file is closed then."""
        fs = self._fs
        while True:
            forks = _forks_begun
            fd = fs.open(self._path, flags | os.O_CLOEXEC)
            try:
                self._fd = fd
                _held.add(self)
                if forks == _forks_begun == _forks_ended:
                    take(fd)
                    return
            except BaseException:
                self._fd = None
                fs.close(fd)
                raise
            self._fd = None
            fs.close(fd)
            sleep(_PAUSE)

    def release(self) -> None:
        """Release the lock; can be repeated. The file stays: removing it would race with the
        next owner, and a broker leaves it as well."""
        try:
            if self._fd is not None:
                # Whoever else has the file open: a child that was forked in the middle of this.
                with suppress(OSError):  # the close gives it back as well
                    self._fs.unlock(self._fd)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the file. The lock is given back if no other process has the file open."""
        # The number is taken out first, here and wherever a file is closed: a call that is cut
        # short after the close must not leave a number that is another file's the next time.
        fd, self._fd = self._fd, None
        if fd is not None:
            close_quietly(self._fs, fd, self._path)


class DirectoryLock(LockFile):
    """Hold ``path`` locked until :meth:`release`.

    Raises :class:`LockedError` when another process (or another engine in this one) holds it for
    longer than ``timeout`` seconds, and :class:`OSError` when the lock file can't be made.
    ``remedy``: what the error tells the caller to do.
    """

    def __init__(
        self, fs: FileSystem, path: PathLike, timeout: float = 0.0, *, remedy: str = ""
    ) -> None:
        super().__init__(fs, path)
        deadline = monotonic() + timeout

        def take(fd: int) -> None:
            while not lock_exclusively(fs, fd):
                if monotonic() >= deadline:
                    raise _refused(fs, fd, path, remedy)
                sleep(_PAUSE)
            try:
                fs.truncate(fd, 0)
                fs.pwrite(fd, b"%d %s\n" % (os.getpid(), _host()), 0)
            except OSError as error:
                # The disk is full. The lock is held all the same; the error of others names no
                # process.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise

        self.open(os.O_RDWR | os.O_CREAT, take)


def hold_if_there(fs: FileSystem, path: PathLike, *, remedy: str = "") -> LockFile | None:
    """Hold the lock without changing its file: for a reader that wants no writer meanwhile.

    ``None`` if there is no lock file: nobody has ever written there. Raises
    :class:`LockedError` and :class:`OSError`.
    """

    def take(fd: int) -> None:
        if not lock_exclusively(fs, fd):
            raise _refused(fs, fd, path, remedy)

    held = LockFile(fs, path)
    try:
        held.open(os.O_RDONLY, take)
    except FileNotFoundError:
        return None
    return held


def is_held(fs: FileSystem, path: PathLike) -> bool:
    """Return whether a process has the store of this lock file open.

    True where the file system has no locks. Raises :class:`OSError`.
    """
    try:
        with opened(fs, path) as fd:
            try:
                if not fs.lock_shared(fd):
                    return True
                fs.unlock(fd)  # a child forked just now also has the file open
                return False
            except OSError:
                return True
    except FileNotFoundError:
        return False


class LockWatch:
    """Tells a reader whether a writer may be at work, without asking for the lock each time.

    A writer writes its pid into the lock file. Where nobody had the lock, nobody has it as long as
    the file is as it was.
    """

    def __init__(self, fs: FileSystem, path: PathLike) -> None:
        self._fs = fs
        self._path = path
        self._free: tuple[int, int, int] | None = None

    def may_be_held(self) -> bool:
        """Return whether a process has the lock, or may have it, where the system can't tell."""
        try:
            status = self._fs.stat(self._path)
            now = status.st_ino, status.st_mtime_ns, status.st_size
            if now == self._free:
                return False
            held = is_held(self._fs, self._path)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        self._free = None if held else now
        return held


def lock_exclusively(fs: FileSystem, fd: int) -> bool:
    """Take the lock. Return False if another process, or another open file, holds it.

    A reader in :func:`is_held` holds a shared lock for a moment. That is not a reason to refuse.
    """
    for _ in range(_LOOKS):
        if fs.lock(fd):
            return True
        if not fs.lock_shared(fd):
            return False
        fs.unlock(fd)
        sleep(_PAUSE)
    return False


class Owner(NamedTuple):
    """The process that a lock file names; ``host``: of another host or container, else ``None``."""

    pid: int
    host: str | None


def read_owner(data: bytes) -> Owner | None:
    """Return what a lock file says; ``None`` if it has no pid. An earlier version wrote no host."""
    words = data.split()
    if not words:
        return None
    pid, *hosts = words
    if not pid.isdigit() or len(pid) > _MAX_DIGITS or len(hosts) > 1:
        return None
    elsewhere = [one.decode("ascii", "replace") for one in hosts if one != _host()]
    return Owner(int(pid), elsewhere[0] if elsewhere else None)


def _host() -> bytes:
    return os.uname().nodename.encode("ascii", "replace")[:_MAX_HOST]


def _refused(fs: FileSystem, fd: int, path: PathLike, remedy: str = "") -> LockedError:
    owner = read_owner(fs.pread(fd, _MAX_READ, 0))
    if owner is None:
        return LockedError(path, None, remedy=remedy)
    runs = owner.host is not None or _runs(owner.pid)
    return LockedError(path, owner.pid, owner.host, runs=runs, remedy=remedy)


def _runs(pid: int) -> bool:
    """Return whether a process of this machine runs. Whoever can open the lock file can lock it,
    also a reader: the process that wrote its pid there may have ended."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0


_held: weakref.WeakSet[LockFile] = weakref.WeakSet()
"""Files that were opened: a child closes them."""
_forks_begun = _forks_ended = 0


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
        if lock._stamp != kept_stamp():
            lock.let_go()


os.register_at_fork(before=_fork_begins, after_in_parent=_fork_ends)
forks.in_child(_let_go_in_child)
