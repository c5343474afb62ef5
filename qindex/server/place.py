"""The files of a server in a store's directory: its socket, its lock, its log.

The directory is opened once, and its files are reached through that descriptor: a directory that is
exchanged meanwhile makes no difference, and a socket's path is short, however long that of the
directory is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from contextlib import suppress

from journal.errors import (
    NotAStoreError,
    StorageError,
    StoreError,
    UsageError,
    storage_errors,
)
from qindex.format import layout

_PEER = struct.Struct("3i")
_LONGEST = 107
"""Bytes of the path of a Unix socket."""
_LOG_SIZE = 1 << 20
"""Bytes of a log above which the next server begins it anew."""


def open_directory(directory: str) -> int:
    """Open a directory, to reach its files. Raises :class:`OSError`."""
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def socket_path(directory: str, fd: int) -> str:
    """Return a path of the socket that is short enough. Raises :class:`UsageError`."""
    through = f"/proc/self/fd/{fd}"
    if os.path.isdir(through):
        return os.path.join(through, layout.SERVER_SOCKET)
    path = os.path.join(directory, layout.SERVER_SOCKET)
    if len(os.fsencode(path)) > _LONGEST:
        raise UsageError(f"{path}: longer than {_LONGEST} bytes, and there is no /proc")
    return path


def connect(directory: str) -> socket.socket:
    """Connect to the server of a directory. Raises :class:`OSError`, :class:`StorageError` for a
    socket that is another's."""
    fd = open_directory(directory)
    try:
        owner = os.fstat(fd).st_uid
        try:
            found = os.stat(layout.SERVER_SOCKET, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError as error:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "no server") from error
        if not stat.S_ISSOCK(found.st_mode):
            raise _foreign(directory, layout.SERVER_SOCKET, "is not a socket")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(socket_path(directory, fd))
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            uid = _PEER.unpack(raw)[1]
            if uid not in (os.geteuid(), owner):
                raise _foreign(
                    directory, layout.SERVER_SOCKET, f"a server of user {uid} answers there"
                )
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(fd)


def is_copy(directory: str, inode: int | None) -> bool:
    """Return whether the server that answered, whose directory has this number, is that of another
    one: the socket here is a hard link to its own. Raises :class:`OSError`."""
    found = os.lstat(os.path.join(directory, layout.SERVER_SOCKET))
    return found.st_nlink > 1 and os.stat(directory).st_ino != inode


def listen(directory: str, fd: int, group: int | None = None) -> tuple[socket.socket, int]:
    """Listen on the socket of a directory; the caller has its lock. Return the socket, and the
    number of its file. Raises :class:`StorageError`."""
    try:
        found = os.stat(layout.SERVER_SOCKET, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise _foreign(directory, layout.SERVER_SOCKET, "is not a socket of this user")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with storage_errors(directory, "the server's socket can't be made"):
            return sock, _bind(sock, directory, fd, group)
    except BaseException:
        sock.close()
        raise


def _bind(sock: socket.socket, directory: str, fd: int, group: int | None) -> int:
    """Make the socket's file, and return its number.

    It gets its group and mode in a directory that nobody else may enter, and then its place. A
    member of the store's group could put a link in its place, if they were changed there.
    """
    with suppress(FileExistsError):  # of a server that was killed
        os.mkdir(layout.SERVER_MAKING, 0o700, dir_fd=fd)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    own = os.open(layout.SERVER_MAKING, flags, dir_fd=fd)
    try:
        made = os.fstat(own)
        if made.st_uid != os.geteuid() or made.st_mode & 0o077:
            raise _foreign(directory, layout.SERVER_MAKING, "is another user's, or open to others")
        name = layout.SERVER_SOCKET
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=own)
        before = os.umask(0o177)
        try:
            sock.bind(socket_path(os.path.join(directory, layout.SERVER_MAKING), own))
        finally:
            os.umask(before)
        if group is not None:
            os.chown(name, -1, group, dir_fd=own, follow_symlinks=False)
            os.chmod(name, 0o660, dir_fd=own)
        sock.listen(512)
        number = os.stat(name, dir_fd=own, follow_symlinks=False).st_ino
        os.rename(name, name, src_dir_fd=own, dst_dir_fd=fd)
    finally:
        os.close(own)
        with suppress(OSError):
            os.rmdir(layout.SERVER_MAKING, dir_fd=fd)
    return number


def remove_socket(fd: int, number: int) -> None:
    """Remove the socket, if it still is the one with this inode ``number``."""
    with suppress(OSError):
        if os.stat(layout.SERVER_SOCKET, dir_fd=fd, follow_symlinks=False).st_ino == number:
            os.unlink(layout.SERVER_SOCKET, dir_fd=fd)


def open_file(directory: str, fd: int, name: str, flags: int) -> int:
    """Open a file of the server's, made with mode 0600. Raises :class:`StorageError` where a link,
    a FIFO, or a file of another user or with another name is in its place."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        try:
            opened = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd)
        except FileExistsError:
            opened = os.open(name, flags, dir_fd=fd)
    except OSError as error:
        what = "can't be opened: a link or a FIFO" if error.errno in _NO_FILE else "can't be opened"
        raise StorageError(os.path.join(directory, name), what, error) from error
    found = os.fstat(opened)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
        os.close(opened)
        raise _foreign(directory, name, "is not a file of this user, or has two names")
    return opened


_NO_FILE = (errno.ELOOP, errno.ENXIO)


def open_log(directory: str, fd: int) -> int:
    """Open the log, to append to it. Raises :class:`StorageError`."""
    log = open_file(directory, fd, layout.SERVER_LOG, os.O_WRONLY | os.O_APPEND)
    if os.fstat(log).st_size > _LOG_SIZE:
        os.ftruncate(log, 0)
    return log


def lock(directory: str, fd: int) -> int | None:
    """Take the lock of the server; ``None`` where one is there, begins, or ends. Every process that
    has the descriptor open holds it, a child included. Raises :class:`StorageError`."""
    opened = open_file(directory, fd, layout.SERVER_LOCK, os.O_RDWR)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    except OSError as error:
        os.close(opened)
        raise StorageError(directory, "the server's lock can't be taken", error) from error
    return opened


def mark(directory: str, fd: int) -> bool:
    """Mark a store as one for `qindex serve`: clients start no server. False if it is marked
    already. Raises :class:`StorageError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(layout.SERVED, flags, 0o600, dir_fd=fd))
    except FileExistsError:
        return False
    except OSError as error:
        raise StorageError(directory, "the store can't be marked", error) from error
    return True


def is_marked(fd: int) -> bool:
    """Return whether a store is one for `qindex serve`."""
    try:
        os.stat(layout.SERVED, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def unmark(directory: str, fd: int) -> bool:
    """Take the mark away. False if there is none. Raises :class:`StorageError`."""
    try:
        os.unlink(layout.SERVED, dir_fd=fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(directory, "the mark can't be taken away", error) from error
    return True


def prepare(directory: str) -> None:
    """Make the directory of a store, if there is none. Raises :class:`StoreError` where it is
    something else, in which no server's files may be made."""
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        names = set(os.listdir(directory))
    except (FileExistsError, NotADirectoryError) as error:
        raise NotAStoreError(f"{directory}: is a file, not a store directory") from error
    except OSError as error:
        raise StorageError(directory, "the store can't be opened", error) from error
    begun = {layout.LOCK, layout.MARKER + ".tmp"}
    if layout.MARKER in names or not names - layout.SERVER_FILES - begun:
        return
    if names & {layout.QUEUES, ".vhost"}:
        raise NotAStoreError(f"{directory}: a RabbitMQ directory; open it with read_only=True")
    raise NotAStoreError(f"{directory}: neither a qindex store nor a RabbitMQ vhost directory")


def _foreign(directory: str, name: str, what: str) -> StoreError:
    path = os.path.join(directory, name)
    return StorageError(path, what, PermissionError(errno.EPERM, "it is left as it is"))
