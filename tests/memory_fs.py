"""A file system in memory, behind the seam of :mod:`journal.fs.files`.

For tests that open a store a hundred thousand times: an operation costs about a microsecond and
nothing is left behind. It does what Linux does with the calls that a store makes, errors
included; ``tests/test_memory_fs.py`` holds it against the real one.

A mapped file *is* its (anonymous) map, so that stores into the map and writes to the file meet;
behind the map it may go on with zeros (reserved blocks), which a write ends.
Of several writable maps of one file only the latest counts: a store has no use for more.
"""

from __future__ import annotations

import errno
import mmap as _mmap
import os
import stat as _stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from journal.fs.files import PathLike, ReadBuffer

__all__ = ["FileMap", "Inode", "MemoryFileSystem"]

_FILE_MODE = _stat.S_IFREG | 0o600
_DIRECTORY_MODE = _stat.S_IFDIR | 0o700


class Inode:
    """A file or a directory (``entries`` is not ``None``).

    ``data``: the file's bytes, shared with others while it is ``bytes``; ``size`` of them count,
    for a map may be longer than its file. Where a map is shorter, zeros follow.
    """

    __slots__ = ("data", "entries", "locked_by", "number", "size")

    def __init__(self, number: int, data: bytes = b"", directory: bool = False) -> None:
        self.number = number
        self.data: bytes | bytearray | _mmap.mmap = data
        self.size = len(data)
        self.entries: dict[str, Inode] | None = {} if directory else None
        self.locked_by: _OpenFile | None = None

    def content(self) -> bytes:
        """Give the file's bytes."""
        data = self.data
        return data if isinstance(data, bytes) else bytes(data[: self.size]).ljust(self.size, b"\0")

    def room(self, size: int) -> bytearray | _mmap.mmap:
        """Give the bytes to write into, ``size`` of them at least."""
        data = self.data
        if isinstance(data, bytes):
            data = self.data = bytearray(data)
        if len(data) < size:
            if isinstance(data, _mmap.mmap):
                data = self.data = bytearray(data[: self.size])
            data.extend(bytes(size - len(data)))
        return data

    def put(self, data: ReadBuffer, offset: int) -> int:
        """Store bytes as ``pwrite`` does."""
        view = memoryview(data).cast("B")
        end = offset + len(view)
        if len(view):
            self.room(end)[offset:end] = view
            self.size = max(self.size, end)
        return len(view)

    def resize(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        data = self.data
        is_mapped = isinstance(data, _mmap.mmap)
        if size > len(data):
            if not is_mapped:
                self.room(size)
        elif size < min(self.size, len(data)) or not is_mapped:
            # A map of what is cut off must not be touched any more: it is let go of.
            self.data = data[:size]
        self.size = size


class FileMap(_mmap.mmap):
    """A writable map of a file; ``file`` has the bytes while it is open."""

    file: Inode | None = None

    def close(self) -> None:
        file = self.file
        if not self.closed and file is not None and file.data is self:
            file.data = file.content()
        super().close()


@dataclass(slots=True, eq=False)
class _OpenFile:
    inode: Inode
    flags: int
    position: int = 0


class MemoryFileSystem:
    """Directories and files below ``/``; paths are absolute and have no ``.`` or ``..``.

    ``files``: contents by path, ``directories``: paths; both relative to ``root``. Parents are
    made as needed. ``boot``: the identity of the system's run. Not thread-safe.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        directories: frozenset[str] | set[str] = frozenset(),
        *,
        root: str = "/",
        boot: bytes = b"one boot",
    ) -> None:
        self._next_inode = 0
        self._root = self._new(directory=True)
        self._open: dict[int, _OpenFile] = {}
        self._forgotten: set[int] = set()
        self._next_fd = 1 << 20  # far from the real ones: a mix-up is an error at once
        self.boot = boot
        top = self._make_directory(self._root, root)
        for path in directories:
            self._make_directory(top, path)
        for path, data in (files or {}).items():
            parent, _, name = path.rpartition("/")
            directory = self._make_directory(top, parent)
            assert directory.entries is not None
            directory.entries[name] = self._new(data)

    def _new(self, data: bytes = b"", *, directory: bool = False) -> Inode:
        self._next_inode += 1
        return Inode(self._next_inode, data, directory)

    def _make_directory(self, top: Inode, path: str) -> Inode:
        for part in path.split("/"):
            if part:
                assert top.entries is not None
                found = top.entries.get(part)
                if found is None:
                    found = top.entries[part] = self._new(directory=True)
                top = found
        return top

    def tree(self, path: str = "/") -> Iterator[tuple[str, Inode]]:
        """Go through all below ``path``: relative paths, parents first."""
        start = self.find(path)
        waiting: list[tuple[str, Inode]] = [("", start)]
        while waiting:
            prefix, directory = waiting.pop()
            assert directory.entries is not None
            for name, inode in directory.entries.items():
                yield prefix + name, inode
                if inode.entries is not None:
                    waiting.append((f"{prefix}{name}/", inode))

    def contents(self) -> tuple[dict[str, bytes], frozenset[str]]:
        """Give all files and all directories, by their paths without the leading slash."""
        tree = list(self.tree())
        files = {path: inode.content() for path, inode in tree if inode.entries is None}
        return files, frozenset(path for path, inode in tree if inode.entries is not None)

    def forget_descriptors(self) -> None:
        """Close all files and give all locks back, as the death of the process would; a close
        of one that its owner makes later is passed over."""
        for fd in list(self._open):
            self.close(fd)
            self._forgotten.add(fd)

    # -- paths ----------------------------------------------------------------------------------

    def find(self, path: PathLike) -> Inode:
        """Give what a path leads to."""
        parents, name = _place(path)
        return self._walk((*parents, name) if name else parents, path)

    def _walk(self, parts: Iterable[str], path: PathLike) -> Inode:
        inode = self._root
        for part in parts:
            entries = inode.entries
            if entries is None:
                raise _error(errno.ENOTDIR, path)
            found = entries.get(part)
            if found is None:
                raise _error(errno.ENOENT, path)
            inode = found
        return inode

    def _parent(self, path: PathLike) -> tuple[dict[str, Inode], str]:
        parents, name = _place(path)
        entries = self._walk(parents, path).entries
        if entries is None:
            raise _error(errno.ENOTDIR, path)
        return entries, name

    def _file(self, fd: int) -> _OpenFile:
        file = self._open.get(fd)
        if file is None:
            raise _error(errno.EBADF)
        return file

    def _writable(self, fd: int) -> _OpenFile:
        file = self._file(fd)
        if file.flags & os.O_ACCMODE == os.O_RDONLY:
            raise _error(errno.EBADF)
        return file

    # -- operations on open files ---------------------------------------------------------------

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:
        entries, name = self._parent(path)
        inode = entries.get(name)
        if inode is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            inode = entries[name] = self._new()
        elif flags & os.O_EXCL and flags & os.O_CREAT:
            raise _error(errno.EEXIST, path)
        elif inode.entries is not None:
            if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_CREAT:
                raise _error(errno.EISDIR, path)
        elif flags & os.O_TRUNC:
            inode.resize(0)
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = _OpenFile(inode, flags)
        return fd

    def close(self, fd: int, /) -> None:
        file = self._open.pop(fd, None)
        if file is None:
            if fd in self._forgotten:
                return
            raise _error(errno.EBADF)
        if file.inode.locked_by is file:
            file.inode.locked_by = None

    def read(self, fd: int, length: int, /) -> bytes:
        file = self._file(fd)
        data = self.pread(fd, length, file.position)
        file.position += len(data)
        return data

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        file = self._file(fd)
        if file.flags & os.O_ACCMODE == os.O_WRONLY:
            raise _error(errno.EBADF)
        inode = file.inode
        if inode.entries is not None:
            raise _error(errno.EISDIR)
        data = inode.data
        if isinstance(data, bytes) and not offset and length >= len(data):
            return data
        end = min(offset + length, inode.size)
        return bytes(data[offset:end]).ljust(max(end - offset, 0), b"\0")

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        file = self._writable(fd)
        if file.flags & os.O_APPEND:
            file.position = file.inode.size
        done = file.inode.put(data, file.position)
        file.position += done
        return done

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:
        file = self._writable(fd)
        if file.flags & os.O_APPEND:
            offset = file.inode.size  # as Linux does, whatever POSIX says
        return file.inode.put(data, offset)

    def truncate(self, fd: int, length: int, /) -> None:
        file = self._file(fd)
        if file.flags & os.O_ACCMODE == os.O_RDONLY:
            raise _error(errno.EINVAL)
        file.inode.resize(length)

    def lseek(self, fd: int, offset: int, whence: int, /) -> int:
        file = self._file(fd)
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            if offset >= file.inode.size:
                raise _error(errno.ENXIO)
            # Every byte is data: the one hole is the end.
            offset = offset if whence == os.SEEK_DATA else file.inode.size
        elif whence == os.SEEK_CUR:
            offset += file.position
        elif whence == os.SEEK_END:
            offset += file.inode.size
        if offset < 0:
            raise _error(errno.EINVAL)
        file.position = offset
        return offset

    def fallocate(self, fd: int, offset: int, length: int, /) -> None:
        inode = self._writable(fd).inode
        inode.resize(max(inode.size, offset + length))

    def fdatasync(self, fd: int, /) -> None:
        self._file(fd)

    fsync = fdatasync

    def mmap(self, fd: int, length: int, writable: bool, /) -> _mmap.mmap:
        if self._file(fd).flags & os.O_ACCMODE == os.O_WRONLY:
            raise _error(errno.EACCES)
        mapped = FileMap(-1, length)
        if writable:
            self.adopt_map(fd, mapped)
        else:
            self._fill(fd, mapped)
        return mapped

    def adopt_map(self, fd: int, mapped: FileMap) -> None:
        """Let an anonymous map be the file's writable one."""
        inode = self._fill(fd, mapped)
        if any(inode.content()[len(mapped) :]):
            raise AssertionError("no store leaves out of its map what is not zero")
        inode.data = mapped
        mapped.file = inode

    def _fill(self, fd: int, mapped: _mmap.mmap) -> Inode:
        inode = self.inode(fd)
        length = len(mapped)
        if length > inode.size:
            raise ValueError("mmap length is greater than file size")
        # The plain method: the map may be of a kind that tells of stores.
        _mmap.mmap.__setitem__(mapped, slice(0, length), inode.content()[:length])
        return inode

    def inode(self, fd: int) -> Inode:
        """Give the file that is open as ``fd``."""
        return self._file(fd).inode

    # -- operations on names --------------------------------------------------------------------

    def rename(self, source: PathLike, target: PathLike, /) -> None:
        old_entries, old = self._parent(source)
        inode = old_entries.get(old)
        if inode is None:
            raise _error(errno.ENOENT, source)
        new_entries, new = self._parent(target)
        there = new_entries.get(new)
        if there is inode:
            return
        if there is not None:
            if inode.entries is None and there.entries is not None:
                raise _error(errno.EISDIR, target)
            if inode.entries is not None and there.entries is None:
                raise _error(errno.ENOTDIR, target)
            if there.entries:
                raise _error(errno.ENOTEMPTY, target)
        del old_entries[old]
        new_entries[new] = inode

    def unlink(self, path: PathLike, /) -> None:
        entries, name = self._parent(path)
        inode = entries.get(name)
        if inode is None:
            raise _error(errno.ENOENT, path)
        if inode.entries is not None:
            raise _error(errno.EISDIR, path)
        del entries[name]

    def mkdir(self, path: PathLike, /) -> None:
        entries, name = self._parent(path)
        if name in entries:
            raise _error(errno.EEXIST, path)
        entries[name] = self._new(directory=True)

    def rmdir(self, path: PathLike, /) -> None:
        entries, name = self._parent(path)
        inode = entries.get(name)
        if inode is None:
            raise _error(errno.ENOENT, path)
        if inode.entries is None:
            raise _error(errno.ENOTDIR, path)
        if inode.entries:
            raise _error(errno.ENOTEMPTY, path)
        del entries[name]

    def listdir(self, path: PathLike, /) -> list[str]:
        entries = self.find(path).entries
        if entries is None:
            raise _error(errno.ENOTDIR, path)
        return list(entries)

    def stat(self, path: PathLike, /) -> os.stat_result:
        return _status(self.find(path))

    def statvfs(self, path: PathLike, /) -> os.statvfs_result:
        self.find(path)
        return os.statvfs_result((4096, 4096, 1 << 20, 1 << 19, 1 << 19, 0, 0, 0, 0, 255))

    def fstat(self, fd: int, /) -> os.stat_result:
        return _status(self._file(fd).inode)

    def sync_dir(self, path: PathLike, /) -> None:
        if self.find(path).entries is None:
            raise _error(errno.ENOTDIR, path)

    def lock(self, fd: int, /) -> bool:
        file = self._file(fd)
        if file.inode.locked_by not in (None, file):
            return False
        file.inode.locked_by = file
        return True

    def lock_shared(self, fd: int, /) -> bool:
        return self.lock(fd)  # and nobody comes between this and the release

    def unlock(self, fd: int, /) -> None:
        file = self._file(fd)
        if file.inode.locked_by is file:
            file.inode.locked_by = None

    def lock_byte(self, fd: int, /) -> bool:
        self._file(fd)
        return True  # another process never has a file that is in this one's memory

    def byte_holder(self, fd: int, /) -> int | None:
        self._file(fd)
        return None

    def boot_id(self) -> bytes:
        return self.boot


def _place(path: PathLike) -> tuple[tuple[str, ...], str]:
    """Give the names that lead to a path's directory, and the name there."""
    parent, _, name = os.fspath(path).rpartition("/")
    return _parts(parent), name


@lru_cache(256)
def _parts(directory: str) -> tuple[str, ...]:
    """Give the names in a directory's path: a store has few, and names them again and again."""
    return tuple(part for part in directory.split("/") if part)


def _status(inode: Inode) -> os.stat_result:
    mode = _FILE_MODE if inode.entries is None else _DIRECTORY_MODE
    # No file ever changes in time.
    numbers = (mode, inode.number, 0, 1, 0, 0, inode.size, 0, 0, 0)
    return os.stat_result(numbers, {"st_mtime_ns": 0})


def _error(number: int, path: PathLike | None = None) -> OSError:
    if path is None:
        return OSError(number, os.strerror(number))
    return OSError(number, os.strerror(number), os.fspath(path))
