"""Stores anywhere: the file seam (:mod:`journal.fs.files`) over what fsspec reads.

A local path is read as it is. For a remote path (``s3://bucket/backups``, ``memory://x``, ...) the
parts of a file that are read are fetched into a copy in a temporary directory, once for each task.
The readers see paths below ``/``; errors and rows for users have the store's URL in front again.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from journal.errors import UsageError, storage_errors
from journal.fs.files import REAL, FileSystem, PathLike, RealFileSystem
from pyspark_qindex.errors import SparkMissingError, one_line

_GLOB: Final = frozenset("*?[")
_REMOTE: Final = "://"
_READ_ONLY: Final = os.O_RDONLY | os.O_CLOEXEC
_BLOCK: Final = 16 << 10
"""Bytes of a remote file that are fetched at least: a request takes longer than they do."""
_MAX_BLOCKS: Final = (32 << 20) // _BLOCK
"""Blocks that one request may give; they pass through memory."""
_ALL: Final = 1 << 62

Place = tuple[str, dict[str, Any]]
"""Protocol (empty for local files), and the other arguments of fsspec. A task opens the same file
system with them."""


class _Copy:
    """The local copy of a remote file: of its full size from the beginning, with holes where
    nothing was fetched yet."""

    def __init__(self, remote: Any, key: str, path: str, size: int | None) -> None:
        self._remote = remote
        self._key = key
        self.path = path
        if size is None:  # nobody knows beforehand
            remote.get_file(key, path)
            self._size = 0
        else:
            self._size = size
            with open(path, "xb") as file:
                file.truncate(size)
        self._there = bytearray(-(-self._size // _BLOCK))

    def fetch(self, start: int, end: int) -> None:
        """Have the bytes from ``start`` to ``end``, as far as the file goes. Raises what the remote
        file system does."""
        first, last = start // _BLOCK, -(-min(end, self._size) // _BLOCK)
        if self._size and not any(self._there) and (first, last) == (0, len(self._there)):
            self._remote.get_file(self._key, self.path)
            self._there[:] = b"\1" * len(self._there)
            return
        while (first := self._there.find(0, first, last)) >= 0:
            stop = self._there.find(1, first, last)
            stop = min(last if stop < 0 else stop, first + _MAX_BLOCKS)
            low, high = first * _BLOCK, min(stop * _BLOCK, self._size)
            data = self._remote.cat_file(self._key, start=low, end=high)
            if len(data) != high - low:
                raise OSError(errno.EIO, f"{len(data)} bytes came in place of {high - low}")
            with open(self.path, "r+b") as file:
                file.seek(low)
                file.write(data)
            self._there[first:stop] = b"\1" * (stop - first)


class RemoteFileSystem(RealFileSystem):
    """The reading half of the file seam over an fsspec file system. Local copies of opened files
    last as long as this object. Every error of fsspec comes out as :class:`OSError`."""

    def __init__(self, protocol: str, storage: dict[str, Any]) -> None:
        self._remote = _fsspec_file_system(protocol, storage)
        self._directory = tempfile.mkdtemp(prefix="qindex-")
        self._copies: dict[str, _Copy] = {}
        self._open: dict[int, _Copy] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._listed: set[str] = set()
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:  # type: ignore[override]
        """Open a copy, which is filled as it is read."""
        if flags & ~_READ_ONLY:
            self._refuse()
        name = os.fspath(path)
        copy = self._copies.get(name)
        if copy is None:
            info = self._info(name)
            if info["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, "is a directory", name)
            place = os.path.join(self._directory, str(len(self._copies)))
            with _as_system_error(name):
                copy = _Copy(self._remote, self._key(name), place, info.get("size"))
            self._copies[name] = copy
        fd = super().open(copy.path, flags)
        self._open[fd] = copy
        return fd

    def close(self, fd: int, /) -> None:
        """Close a copy; the fetched bytes are kept."""
        self._open.pop(fd, None)
        os.close(fd)

    def read(self, fd: int, length: int, /) -> bytes:
        """Read on, fetching the bytes that are missing."""
        at = os.lseek(fd, 0, os.SEEK_CUR)
        self._fetch(fd, at, at + length)
        return os.read(fd, length)

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        """Read at an offset, fetching the bytes that are missing."""
        self._fetch(fd, offset, offset + length)
        return os.pread(fd, length, offset)

    def lseek(self, fd: int, offset: int, whence: int, /) -> int:
        """Seek; where data and holes are can only be told of a whole file."""
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            self._fetch(fd, 0, _ALL)
        return os.lseek(fd, offset, whence)

    def _fetch(self, fd: int, start: int, end: int) -> None:
        copy = self._open[fd]
        with _as_system_error(copy.path):
            copy.fetch(start, end)

    def listdir(self, path: PathLike, /) -> list[str]:  # type: ignore[override]
        """Return the names in a directory, where it is."""
        name = os.fspath(path)
        with _as_system_error(name):
            found = self._remote.ls(self._key(name), detail=True)
        key = self._key(name).rstrip("/")
        if [one["name"].rstrip("/") for one in found if one["type"] == "file"] == [key]:
            raise NotADirectoryError(20, "is a file", name)
        names = {os.path.basename(one["name"].rstrip("/")): one for one in found}
        self._known |= {os.path.join(name, inner): one for inner, one in names.items()}
        self._listed.add(name)
        return list(names)

    def stat(self, path: PathLike, /) -> os.stat_result:  # type: ignore[override]
        """Tell directory from file, and its size; the rest is zero."""
        info = self._info(os.fspath(path))
        kind = stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG
        return os.stat_result((kind | 0o400, 0, 0, 1, 0, 0, info.get("size") or 0, 0, 0, 0))

    def _info(self, name: str) -> dict[str, Any]:
        """Return fsspec's description of a file or directory, also from an earlier listing: a
        backup does not change."""
        info = self._known.get(name)
        if info is None:
            if os.path.dirname(name) in self._listed:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            with _as_system_error(name):
                info = self._known[name] = self._remote.info(self._key(name))
        return info

    def _key(self, path: str) -> str:
        key: str = self._remote.root_marker + path.strip("/")
        return key

    @staticmethod
    def _refuse(*_arguments: object) -> NoReturn:
        raise OSError(errno.EROFS, "a remote store is only read")

    mmap = _refuse
    rename = _refuse  # type: ignore[assignment]
    unlink = _refuse  # type: ignore[assignment]
    mkdir = _refuse
    rmdir = _refuse  # type: ignore[assignment]


@contextmanager
def _as_system_error(path: str) -> Iterator[None]:
    """Clients of services raise errors of their own: no access, no such host, ..."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        what = one_line(f"{type(error).__name__}: {error}")
        raise OSError(errno.EIO, what, path) from error


def file_system(place: Place) -> FileSystem:
    """Return the file system at a place. A remote one is made anew, so that its copies go with
    it."""
    protocol, storage = place
    return RemoteFileSystem(protocol, storage) if protocol else REAL


def expand(path: str, storage: dict[str, str]) -> tuple[Place, list[str], str]:
    """Return the place of a path or glob, the paths below it, and the URL's part before them."""
    protocol, path = _split(path)
    is_glob = not _GLOB.isdisjoint(path)
    if not protocol:
        found = sorted(glob.glob(path)) if is_glob and not os.path.exists(path) else [path]
        prefix = ""
    else:
        # Those that are given win over host, user and port of the URL.
        storage = {**_fsspec(protocol)._get_kwargs_from_urls(path), **storage}
        remote = _fsspec_file_system(protocol, storage)
        key = remote._strip_protocol(path)
        if _REMOTE in key:
            raise UsageError(f"{protocol}://: has no directories that could be looked through")
        with storage_errors(path, "can't be listed"), _as_system_error(path):
            found = sorted(remote.glob(key)) if is_glob else [key]
        found = ["/" + one.strip("/") for one in found]
        prefix = _before(path, key) or protocol + ("://" if remote.root_marker else ":/")
    if not found:
        raise UsageError(f"{path}: nothing matches")
    return (protocol, storage if protocol else {}), found, prefix


def local_path(path: str, what: str) -> str:
    """Return the absolute path of a place that must be local; ``what`` names it in the error."""
    protocol, path = _split(path)
    if protocol:
        raise UsageError(f"{path}: {what} must be a local path")
    return os.path.abspath(path)


def _split(path: str) -> tuple[str, str]:
    """Return the protocol of a URL, and the URL; nothing and a local path for all others."""
    protocol, separator, rest = path.partition(_REMOTE)
    if not separator:
        return "", os.path.expanduser(path)
    return ("", "/" + rest.lstrip("/")) if protocol == "file" else (protocol, path)


def _before(path: str, key: str) -> str | None:
    """Return the part of a URL before the path that fsspec makes of it: ``sftp://host``."""
    bare, key = path.rstrip("/"), key.strip("/")
    return bare[: -len(key) - 1] if key and bare.endswith("/" + key) else None


def _fsspec(protocol: str) -> Any:
    """Return the class of a protocol's file systems."""
    try:
        import fsspec
    except ImportError as error:
        raise SparkMissingError(f"{protocol}://: needs fsspec: pip install fsspec") from error
    try:
        return fsspec.get_filesystem_class(protocol)
    except (ValueError, ImportError) as error:
        raise UsageError(f"{protocol}://: {error}") from error


def _fsspec_file_system(protocol: str, storage: dict[str, Any]) -> Any:
    kind = _fsspec(protocol)
    try:
        with _as_system_error(protocol):
            return kind(**storage)
    except OSError as error:
        raise UsageError(f"{protocol}://: {error.strerror or error}") from error
