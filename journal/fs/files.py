"""The file seam: the one place that calls the operating system for store files.

Everything above takes a :class:`FileSystem`, whose default is :data:`REAL`. Tests put two others
in its place. The first records each operation, so that every state a crash can leave is rebuilt.
The second fails on demand. The methods of the real one *are* the functions of :mod:`os`, so that
an owner who binds them once at open (``self._write = fs.write``) pays nothing for the seam.

These effects are durable when a call returns:

=====================  ==========================================================================
``write``, ``pwrite``  the operating system has it: the death of the process loses nothing
a store into ``mmap``  the same: the pages belong to the file, not to the process
``fdatasync(fd)``      the file's bytes, written or mapped, and its length, survive power loss
``sync_dir(path)``     creations, renames and removals of names in ``path`` survive power loss
=====================  ==========================================================================

Memory-mapped files are extended with ``fallocate`` before they are mapped, so that a full disk is
an error of that call and never a SIGBUS at a store into the map.

New files and directories can be used by this user alone, whatever the umask (0600, 0700). In a
store they follow the mode of its directory (:mod:`journal.fs.beneath`).

No file is ever open as descriptor 0, 1 or 2. In a daemon that has closed these, the system would
give their numbers to the store's files, and the next line of a log would overwrite messages.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap as _mmap
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO, Protocol

from journal.errors import UnopenedError, UnsafeFileError, UsageError, storage_errors

PathLike = str | os.PathLike[str]
ReadBuffer = bytes | bytearray | memoryview | _mmap.mmap
FileBytes = bytes | bytearray | _mmap.mmap
"""What the bytes of a file are read into: slices of it are copies."""

_log = logging.getLogger("qindex.files")

MAPS_KEEP_HANDLES = sys.version_info < (3, 13)
"""Whether a map holds a file handle of its own until it is freed."""
_TMP_SUFFIX = ".tmp"
_LARGE = 32 << 20
"""Bytes of one read, above which it is looked whether they are there at all."""
_MAPPED = 4 << 20
"""Bytes of a file that is mapped to be read."""
_POPULATE_READ = 22
"""``MADV_POPULATE_READ`` of Linux 5.14, which :mod:`mmap` does not name."""
_KINDS = (
    (stat.S_ISLNK, "a symbolic link, which is not followed"),
    (stat.S_ISFIFO, "a FIFO, not a file"),
    (stat.S_ISSOCK, "a socket, not a file"),
    (stat.S_ISCHR, "a character device, not a file"),
    (stat.S_ISBLK, "a block device, not a file"),
)
_ZEROS = bytes(1 << 16)
_BLOCK = 512
"""Bytes of a block of ``st_blocks``, on any file system."""
_FLOCK = struct.Struct("hhqqi")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid."""
_FIRST_FREE = 3
"""The lowest descriptor that is not a standard stream."""


class FileSystem(Protocol):
    """The operations a store needs. Each raises :class:`OSError` as the system call would."""

    def open(self, path: PathLike, flags: int, mode: int = 0o600, /) -> int: ...
    def close(self, fd: int, /) -> None: ...
    def read(self, fd: int, length: int, /) -> bytes: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def write(self, fd: int, data: ReadBuffer, /) -> int: ...
    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int: ...
    def truncate(self, fd: int, length: int, /) -> None: ...
    def lseek(self, fd: int, offset: int, whence: int, /) -> int: ...
    def fallocate(self, fd: int, offset: int, length: int, /) -> None: ...
    def fdatasync(self, fd: int, /) -> None: ...
    def fsync(self, fd: int, /) -> None: ...
    def mmap(self, fd: int, length: int, writable: bool, /) -> _mmap.mmap: ...
    def rename(self, source: PathLike, target: PathLike, /) -> None: ...
    def unlink(self, path: PathLike, /) -> None: ...
    def mkdir(self, path: PathLike, /) -> None: ...
    def rmdir(self, path: PathLike, /) -> None: ...
    def listdir(self, path: PathLike, /) -> list[str]: ...
    def stat(self, path: PathLike, /) -> os.stat_result: ...
    def statvfs(self, path: PathLike, /) -> os.statvfs_result: ...
    def fstat(self, fd: int, /) -> os.stat_result: ...
    def sync_dir(self, path: PathLike, /) -> None: ...
    def lock(self, fd: int, /) -> bool: ...
    def lock_shared(self, fd: int, /) -> bool: ...
    def unlock(self, fd: int, /) -> None: ...
    def lock_byte(self, fd: int, /) -> bool: ...
    def byte_holder(self, fd: int, /) -> int | None: ...
    def boot_id(self) -> bytes: ...


class RealFileSystem:
    """The operating system's own file operations."""

    close = staticmethod(os.close)
    read = staticmethod(os.read)
    pread = staticmethod(os.pread)
    write = staticmethod(os.write)
    pwrite = staticmethod(os.pwrite)
    truncate = staticmethod(os.ftruncate)
    lseek = staticmethod(os.lseek)
    fdatasync = staticmethod(os.fdatasync if hasattr(os, "fdatasync") else os.fsync)
    fsync = staticmethod(os.fsync)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    listdir = staticmethod(os.listdir)
    stat = staticmethod(os.stat)
    statvfs = staticmethod(os.statvfs)
    fstat = staticmethod(os.fstat)

    @staticmethod
    def open(path: PathLike, flags: int, mode: int = 0o600, /) -> int:
        """Open a file or directory, as :func:`os.open` does, with a descriptor above the standard
        streams'. Raises :class:`UnsafeFileError` for anything else: to open a FIFO, or to read from
        a device, may take forever."""
        try:
            fd = os.open(path, flags | os.O_NONBLOCK, mode)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            raise unsafe(path, os.stat(path).st_mode) from None  # nobody reads from the FIFO
        kind = os.fstat(fd).st_mode
        if special(kind):
            os.close(fd)
            raise unsafe(path, kind)
        return fd if fd >= _FIRST_FREE else move_up(fd)

    @staticmethod
    def mkdir(path: PathLike, /) -> None:
        """Make a directory that only this user can use."""
        os.mkdir(path, 0o700)

    @staticmethod
    def fallocate(fd: int, offset: int, length: int, /) -> None:
        """Reserve blocks for ``length`` bytes from ``offset`` and extend the file to their end.

        Where the file system has no such call (or the platform has none) zeros are written, so
        that the promise (a later store into a map can't meet a full disk) holds everywhere.
        """
        fallocate = getattr(os, "posix_fallocate", None)
        if fallocate is not None:
            try:
                fallocate(fd, offset, length)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
        end = offset + length
        position = max(offset, os.fstat(fd).st_size)
        zeros = bytes(1 << 16)
        while position < end:
            position += os.pwrite(fd, zeros[: end - position], position)

    @staticmethod
    def mmap(fd: int, length: int, writable: bool, /) -> _mmap.mmap:
        """Map the first ``length`` bytes of the file, shared with it."""
        access = _mmap.ACCESS_WRITE if writable else _mmap.ACCESS_READ
        if sys.version_info >= (3, 13):
            return _mmap.mmap(fd, length, access=access, trackfd=False)
        _occupy_standard_streams()  # the map duplicates the descriptor, to the lowest free number
        return _mmap.mmap(fd, length, access=access)

    @staticmethod
    def sync_dir(path: PathLike, /) -> None:
        """Make the names in directory ``path`` durable.

        Raises :class:`journal.errors.UnopenedError` when the directory can't be opened.
        """
        sync_directory(path, REAL.open)

    @staticmethod
    def lock(fd: int, /) -> bool:
        """Take an exclusive lock that dies with the process; ``False`` when another has it."""
        return _flock(fd, fcntl.LOCK_EX)

    @staticmethod
    def lock_shared(fd: int, /) -> bool:
        """Take a lock that others may share; ``False`` when another has it exclusively."""
        return _flock(fd, fcntl.LOCK_SH)

    @staticmethod
    def unlock(fd: int, /) -> None:
        """Release a lock, though another process has the same open file."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    @staticmethod
    def lock_byte(fd: int, /) -> bool:
        """Take the POSIX lock of the file's first byte, which is what a Java process looks at;
        ``False`` when another process has it. It goes when this process closes *any* descriptor
        of the file."""
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except (BlockingIOError, PermissionError):
            return False
        return True

    @staticmethod
    def byte_holder(fd: int, /) -> int | None:
        """Pid of the other process that has the lock of :meth:`lock_byte`; ``None`` if none has."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
        return None if kind == fcntl.F_UNLCK else pid

    @staticmethod
    def boot_id() -> bytes:
        """Name this run of the operating system: equal before and after means that no power was
        lost in between, so that all that was ever written is still there. Empty if unknown."""
        try:
            return _system_boot_id()
        except OSError:
            return b""


@cache
def _system_boot_id() -> bytes:
    """Read it once: it stays what it is while this process lives."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().strip()


REAL = RealFileSystem()


def _flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def move_up(fd: int) -> int:
    """Return ``fd``, or in place of a standard stream's number a higher one of the same file."""
    if fd >= _FIRST_FREE:
        return fd
    try:
        return duplicate(fd)
    finally:
        os.close(fd)


def duplicate(fd: int) -> int:
    """Return another descriptor of the same open file, as :func:`os.dup` does."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)


def _occupy_standard_streams() -> None:
    """Let ``/dev/null`` have each standard descriptor that is closed, for good, as SQLite does.

    It is open to read and closed in a program that is executed, so a write still fails.
    """
    for stream in range(_FIRST_FREE):
        try:
            fcntl.fcntl(stream, fcntl.F_GETFD)
        except OSError:
            # Another thread may have opened something else by now: what comes out is closed then.
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            if fd >= _FIRST_FREE:
                os.close(fd)


def sync_directory(path: PathLike, opened: Callable[[PathLike, int], int]) -> None:
    """Make the names in directory ``path`` durable; ``opened`` opens it, as :func:`os.open` does.

    Raises :class:`UnopenedError` when the directory can't be opened: nothing was tried then.
    """
    try:
        fd = opened(path, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, UnsafeFileError):
        raise
    except OSError as error:
        raise UnopenedError(error.errno, error.strerror, os.fspath(path)) from error
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def checked_path(path: PathLike) -> str:
    """Return a path that a user has given, as text. Raises :class:`journal.errors.UsageError` for
    bytes, for an object that is not a path, and for a path no file can have (empty, with NUL)."""
    try:
        text = os.fspath(path)
        if isinstance(text, str) and text and b"\0" not in os.fsencode(text):
            return text
    except (TypeError, UnicodeEncodeError):
        pass
    raise UsageError(f"a path must be a str or os.PathLike without NUL, not {path!a}")


def special(mode: int) -> str | None:
    """Say what a thing of this ``st_mode`` is that is neither a file nor a directory."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return next((text for test, text in _KINDS if test(mode)), "no regular file")


def unsafe(path: PathLike, mode: int) -> UnsafeFileError:
    """Return the error of a path that is not opened because of its ``st_mode``."""
    name = os.fspath(path)
    return UnsafeFileError(errno.ELOOP, f"{name} is {special(mode)}", name)


def create(fs: FileSystem, path: PathLike) -> int:
    """Open a new file for reading and writing. A file of this name, left by a crash or by anybody,
    is removed first and never written into. Raises :class:`OSError`."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return fs.open(path, flags)
    except FileExistsError:
        fs.unlink(path)
        return fs.open(path, flags)


@contextmanager
def created(fs: FileSystem, path: PathLike) -> Iterator[int]:
    """Create a file, as :func:`create`, for the block of a ``with`` statement; yield its
    descriptor."""
    fd = create(fs, path)
    try:
        yield fd
    finally:
        fs.close(fd)


@contextmanager
def opened(fs: FileSystem, path: PathLike, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file for the block of a ``with`` statement; yield its descriptor. Raises
    :class:`OSError`."""
    fd = fs.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        fs.close(fd)


def open_private(path: PathLike) -> IO[str]:
    """Open a file of text to write, as :func:`open` does; a new one is for this user alone. For
    pages and reports, which have no store's file system."""

    def opener(name: str, flags: int) -> int:
        return REAL.open(name, flags)

    return open(path, "w", encoding="utf-8", opener=opener)


def sync_file(fs: FileSystem, path: PathLike) -> None:
    """Make the content of a file durable, whoever wrote it. Raises :class:`OSError`."""
    with opened(fs, path) as fd:
        fs.fdatasync(fd)


def is_there(fs: FileSystem, path: PathLike) -> bool:
    """Return whether a name is there. Raises :class:`OSError` where that can't be told."""
    try:
        fs.stat(path)
    except FileNotFoundError:
        return False
    return True


def names_in(fs: FileSystem, path: PathLike) -> list[str]:
    """Return the names in a directory; none if there is no directory. Raises
    :class:`OSError`."""
    try:
        return fs.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_all(fs: FileSystem, fd: int, data: ReadBuffer) -> None:
    """Append all of ``data`` at the file's position, however many calls it takes.

    Raises :class:`OSError`; a part may then have been written.
    """
    done = fs.write(fd, data)
    size = len(data)
    while done < size:
        done += fs.write(fd, memoryview(data)[done:])


def pwrite_all(fs: FileSystem, fd: int, data: ReadBuffer, offset: int) -> None:
    """Write all of ``data`` at ``offset``. Raises :class:`OSError`; a part may be written."""
    done = fs.pwrite(fd, data, offset)
    size = len(data)
    while done < size:
        done += fs.pwrite(fd, memoryview(data)[done:], offset + done)


def pread_all(fs: FileSystem, fd: int, length: int, offset: int) -> bytes:
    """Read ``length`` bytes at ``offset``; fewer only where the file ends.

    Raises :class:`OSError`; :class:`journal.errors.UnsafeFileError` for a hole so large that memory
    would be taken for bytes that take no room on disk.
    """
    if length > _LARGE:
        refuse_hole(fs, fd, length, offset)
    data = fs.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length:
        data = fs.pread(fd, length - got, offset + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def refuse_hole(fs: FileSystem, fd: int, length: int, offset: int) -> None:
    """Raise :class:`journal.errors.UnsafeFileError` where many bytes are asked for and most of them
    are a hole; :class:`OSError`."""
    status = fs.fstat(fd)
    length = min(length, status.st_size - offset)
    blocks = getattr(status, "st_blocks", None)
    # Blocks that are reserved and not written count; so do those of a compressed file, as data.
    if length <= _LARGE or blocks is None or blocks * _BLOCK * 2 > status.st_size:
        return
    there = sum(end - start for start, end in data_ranges(fs, fd, offset, offset + length))
    if there * 2 < length:
        text = f"of {length} bytes {length - there} are a hole"
        raise UnsafeFileError(errno.EFBIG, text)


def data_ranges(fs: FileSystem, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a sparse file from ``start`` to ``end`` that may hold other bytes than
    zeros.

    A file of a GiB with a MiB in it is mostly hole: looking at it all would fill the page cache
    with zeros. Where the system can't tell, all of it is one part.
    """
    position = start
    while position < end:
        try:
            data = fs.lseek(fd, position, os.SEEK_DATA)
            stop = fs.lseek(fd, data, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                yield position, end
            return
        if not position <= data < stop:
            # No answer: a device, or a file system with an odd idea of holes.
            yield position, end
            return
        if data < end:
            yield data, min(stop, end)
        position = stop


def read_file(fs: FileSystem, path: PathLike, most: int | None = None) -> bytes:
    """Read a whole file, or its first ``most`` bytes. Raises :class:`FileNotFoundError` and other
    :class:`OSError`."""
    with opened(fs, path) as fd:
        size = fs.fstat(fd).st_size
        return pread_all(fs, fd, size if most is None else min(size, most), 0)


def read_optional(fs: FileSystem, path: PathLike, most: int | None = None) -> bytes | None:
    """Read a whole file, or its first ``most`` bytes; ``None`` when there is none."""
    try:
        return read_file(fs, path, most)
    except FileNotFoundError:
        return None


def map_optional(fs: FileSystem, path: PathLike) -> bytes | _mmap.mmap | None:
    """Read a whole file, as :func:`read_optional`; a large one is mapped, which costs a tenth of a
    copy of it. The caller must keep others from making it shorter: past its end no map may be
    touched.

    All of it has been read on return: a place that the disk can't read is an :class:`OSError` here,
    and not the end of the process later on.
    """
    try:
        with opened(fs, path) as fd:
            size = fs.fstat(fd).st_size
            if size >= _MAPPED:
                refuse_hole(fs, fd, size, 0)
                with suppress(OSError):  # as a system does that can't, or a disk: the read tells
                    made = fs.mmap(fd, size, False)
                    made.madvise(_POPULATE_READ)
                    return made
            return pread_all(fs, fd, size, 0)
    except FileNotFoundError:
        return None


def is_zeros(data: FileBytes, start: int = 0) -> bool:
    """Return whether there is nothing but zeros from ``start`` on. Nothing large is copied."""
    step = len(_ZEROS)
    for at in range(start, len(data), step):
        piece = data[at : at + step]
        if piece != _ZEROS[: len(piece)]:
            return False
    return True


def replace_file(fs: FileSystem, path: PathLike, data: bytes) -> None:
    """Put ``data`` in place of the file at once: after a crash it holds the old or the new.

    Steps: write ``<path>.tmp``, sync it, rename it over ``path``, sync the directory. Durable on
    return. Raises :class:`journal.errors.StorageError`; the old file is then untouched.
    """
    path = os.fspath(path)
    tmp = path + _TMP_SUFFIX
    with storage_errors(path, "can't be written"):
        with created(fs, tmp) as fd:
            write_all(fs, fd, data)
            fs.fdatasync(fd)
        fs.rename(tmp, path)
        fs.sync_dir(os.path.dirname(path) or ".")


def unlink_if_there(fs: FileSystem, path: PathLike) -> bool:
    """Remove a name. Return whether it was there. Raises other :class:`OSError`."""
    try:
        fs.unlink(path)
    except FileNotFoundError:
        return False
    return True


def close_quietly(fs: FileSystem, fd: int, path: PathLike) -> None:
    """Close a file that is not needed any more. An error is only logged. (On Linux a close that
    fails has closed the file all the same.)"""
    try:
        fs.close(fd)
    except OSError as error:
        _log.warning("%s: can't be closed: %s", os.fspath(path), error)


def make_dirs(fs: FileSystem, path: PathLike) -> None:
    """Create the directory and its missing parents, each durable in its parent on return."""
    path = os.fspath(path)
    with suppress(FileExistsError):  # made before, or by another process meanwhile
        try:
            fs.mkdir(path)
        except FileNotFoundError:
            make_dirs(fs, os.path.dirname(path) or ".")
            fs.mkdir(path)
        fs.sync_dir(os.path.dirname(path) or ".")
