"""Stores anywhere: the file seam (:mod:`journal.files`) over what fsspec reads.

A local path is read as it is. Of a remote one (``s3://bucket/backups``, ``memory://x``, ...) each
file is copied into a temporary directory when it is first opened, once for each task, and the
copy is read; directories are listed where they are. The readers see paths below ``/``; the
store's URL is put in front of them again in what a user sees.
"""

from __future__ import annotations

import glob
import os
import stat
import tempfile
from typing import Any, Final

from journal.errors import StorageError, UsageError
from journal.files import REAL, FileSystem, PathLike, RealFileSystem
from pyspark_qindex.errors import SparkMissingError

__all__ = ["Place", "RemoteFileSystem", "expand", "file_system", "is_glob"]

_GLOB: Final = frozenset("*?[")
_REMOTE: Final = "://"
_READ_ONLY: Final = os.O_RDONLY | os.O_CLOEXEC

Place = tuple[str, dict[str, str]]
"""Protocol (empty for local files), and what fsspec is told besides: what a task needs to open
the same file system."""


class RemoteFileSystem(RealFileSystem):
    """The reading half of the file seam over an fsspec file system; local copies of what is opened
    last as long as this object."""

    def __init__(self, protocol: str, storage: dict[str, str]) -> None:
        self._remote = _fsspec_file_system(protocol, storage)
        self._copies = tempfile.TemporaryDirectory(prefix="qindex-")
        self._names: dict[str, str] = {}
        self.open = self._open  # type: ignore[assignment]
        self.listdir = self._listdir  # type: ignore[assignment]
        self.stat = self._stat  # type: ignore[assignment]
        for name in ("rename", "unlink", "mkdir", "rmdir"):
            setattr(self, name, self._refuse)

    def _open(self, path: PathLike, flags: int, _mode: int = 0o666, /) -> int:
        if flags & ~(_READ_ONLY):
            self._refuse()
        name = os.fspath(path)
        copy = self._names.get(name)
        if copy is None:
            copy = os.path.join(self._copies.name, str(len(self._names)))
            self._remote.get_file(self._key(name), copy)
            self._names[name] = copy
        return os.open(copy, flags)

    def _listdir(self, path: PathLike, /) -> list[str]:
        name = os.fspath(path)
        found = self._remote.ls(self._key(name), detail=True)
        key = self._key(name).rstrip("/")
        if [one["name"].rstrip("/") for one in found if one["type"] == "file"] == [key]:
            raise NotADirectoryError(20, "is a file", name)
        return [os.path.basename(one["name"].rstrip("/")) for one in found]

    def _stat(self, path: PathLike, /) -> os.stat_result:
        info = self._remote.info(self._key(os.fspath(path)))
        kind = stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG
        return os.stat_result((kind | 0o444, 0, 0, 1, 0, 0, info.get("size") or 0, 0, 0, 0))

    def _key(self, path: str) -> str:
        key: str = self._remote.root_marker + path.strip("/")
        return key

    @staticmethod
    def _refuse(*_arguments: object) -> None:
        raise OSError(30, "a remote store is only read")


def file_system(place: Place) -> FileSystem:
    """Give the file system at a place. A remote one is made anew, so that its copies go with it."""
    protocol, storage = place
    return RemoteFileSystem(protocol, storage) if protocol else REAL


def is_glob(path: str) -> bool:
    """Tell whether a path is a pattern."""
    return not _GLOB.isdisjoint(path)


def expand(path: str, storage: dict[str, str]) -> tuple[Place, list[str], str]:
    """Give the place of a path or glob, the paths below it, and what stands before them in a URL.

    Raises :class:`UsageError` when a glob matches nothing, :class:`StorageError`.
    """
    protocol, separator, rest = path.partition(_REMOTE)
    if separator and protocol == "file":
        protocol, separator, path = "", "", "/" + rest.lstrip("/")
    if not separator:
        local = os.path.expanduser(path)
        found = sorted(glob.glob(local)) if is_glob(path) and not os.path.exists(local) else [local]
        places: Place = ("", {})
        prefix = ""
    else:
        places = (protocol, storage)
        remote = _fsspec_file_system(protocol, storage)
        key = remote._strip_protocol(path)
        try:
            found = sorted(remote.glob(key)) if is_glob(path) else [key]
        except OSError as error:
            raise StorageError(path, "can't be listed", error) from error
        found = ["/" + one.strip("/") for one in found]
        prefix = protocol + ("://" if remote.root_marker else ":/")
    if not found:
        raise UsageError(f"{path}: nothing matches")
    return places, found, prefix


def _fsspec_file_system(protocol: str, storage: dict[str, str]) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise SparkMissingError(f"{protocol}://: needs fsspec: pip install fsspec") from error
    try:
        return fsspec.filesystem(protocol, **storage)
    except (ValueError, ImportError, TypeError) as error:
        raise UsageError(f"{protocol}://: {error}") from error
