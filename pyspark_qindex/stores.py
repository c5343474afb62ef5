"""Find stores. A path is a store itself, or the root of a tree in which stores are looked for: a
fleet's backup, a RabbitMQ node's directory, a bucket. Nothing below a store is looked at."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from journal.errors import NotAStoreError, StorageError, StoreError, UsageError
from journal.fs.beneath import beneath
from journal.fs.files import FileSystem
from pyspark_qindex.filesystem import Place, expand, file_system
from qindex.format import layout
from qindex.index.messages import PERSISTENT_DIRECTORY

QUEUES: Final = "qindex"
ROCKET: Final = "rocketstore"
_VHOST_FILE: Final = ".vhost"
_DEEPEST: Final = 16
"""Directory levels below a root that are looked through."""


class StoreNotHereError(StoreError):
    """A store that a read was planned for is not there where a task runs: the host does not see
    its directory. The message names host and directory."""


@dataclass(frozen=True, slots=True)
class Store:
    """A store directory. ``path``: as its file system knows it; ``url``: as a user does.
    ``source``: the data source that reads it, :data:`QUEUES` or :data:`ROCKET`. ``named``: it was
    given by its own path, not found in a tree."""

    place: Place
    path: str
    url: str
    source: str = QUEUES
    named: bool = True

    @property
    def is_rocket(self) -> bool:
        """Whether it is a RocketMQ store."""
        return self.source == ROCKET

    def file_system(self, *, hold: bool = False) -> FileSystem:
        """Return the file system of the store, ``hold``: until :func:`leave`. Raises
        :class:`StoreNotHereError` on a host that does not see it. All reads begin here: a missing
        directory must never look like an empty store."""
        fs = file_system(self.place)
        names = _names_in(fs, self.path)
        if names is None or not _sources_of(names):
            raise self.not_here(self.path)
        return beneath(fs, self.path, hold=hold)

    def is_deleted(self, directory: str) -> bool:
        """Return whether a directory of the store was deleted, by whoever writes the store."""
        fs = self.file_system()
        around = os.path.dirname(directory)
        names = _names_in(fs, around)
        if names is None:
            raise self.not_here(around)
        return os.path.basename(directory) not in names

    def not_here(self, directory: str) -> StoreNotHereError:
        """Make the error for a ``directory`` of the store that the host does not see."""
        host = socket.gethostname()
        return StoreNotHereError(
            f"{self.shown(directory)}: not there on host {host}, though the read was planned with "
            "it: every executor must see the stores under the path that the driver has"
        )

    def relative(self, path: str) -> str:
        """Return the path of a file of the store, relative to it."""
        return os.path.relpath(path, self.path)

    def shown(self, path: str) -> str:
        """Return the path of a file of the store as a user knows it."""
        return self.url if path == self.path else os.path.join(self.url, self.relative(path))


def _names_in(fs: FileSystem, directory: str) -> set[str] | None:
    """Return the names in a directory; ``None`` where it is none."""
    try:
        return set(fs.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(directory, "can't be listed", error) from error


def local_store(path: str) -> Store:
    """Return the store in a local directory."""
    return Store(("", {}), path, path)


def _sources_of(names: set[str]) -> list[str]:
    """Tell from the names in a directory which sources read it as a store."""
    ours = layout.MARKER in names or _VHOST_FILE in names
    ours |= layout.QUEUES in names and bool(names & {PERSISTENT_DIRECTORY, layout.CONFIG})
    return [QUEUES] * ours + [ROCKET] * ("commitlog" in names)


def find_stores(paths: Sequence[str], storage: dict[str, str], source: str = "") -> list[Store]:
    """Return the stores at or below ``paths`` that ``source`` reads (empty: all), each once.

    Raises :class:`UsageError` for a glob without matches and a name that is not UTF-8,
    :class:`NotAStoreError` for a path without a store, :class:`StorageError`.
    """
    found: dict[tuple[str, object], Store] = {}
    for path in paths:
        place, roots, prefix = expand(path, storage)
        fs = file_system(place)
        below = 0
        for root in map(os.path.abspath, roots):
            for one, kind in _look(fs, root, source):
                _need_text(prefix + one)
                below += 1
                named = one == root and len(roots) == 1
                at = place[0], _identity(fs, one)
                if at not in found or (not place[0] and one == os.path.realpath(one)):
                    found[at] = Store(place, one, prefix + one, kind, named)
        if not below:
            raise NotAStoreError(f"{path}: {_why_none(fs, roots)}")
    return list(found.values())


def _need_text(url: str) -> None:
    try:
        url.encode()
    except UnicodeEncodeError as error:
        shown = url.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise UsageError(f"{shown}: its name is not UTF-8, and Spark takes no other") from error


def _look(fs: FileSystem, root: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield the stores at or below a directory, and the source that reads each."""
    waiting = [(root, 0)]
    seen: set[object] = set()  # links can lead round in a circle
    while waiting:
        path, depth = waiting.pop()
        names = _names_in(fs, path)
        if names is None:
            continue
        sources = [one for one in _sources_of(names) if source in ("", one)]
        if sources:
            yield path, sources[0]
        elif depth < _DEEPEST and (identity := _identity(fs, path)) not in seen:
            seen.add(identity)
            inner = [os.path.join(path, name) for name in sorted(names, reverse=True)]
            waiting += [(one, depth + 1) for one in inner if _is_directory(fs, one)]


def _identity(fs: FileSystem, path: str) -> object:
    """Return what a directory is, whatever links lead to it (a remote one has no number)."""
    try:
        info = fs.stat(path)
    except OSError:
        return path
    return (info.st_dev, info.st_ino) if info.st_ino else path


def _is_directory(fs: FileSystem, path: str) -> bool:
    try:
        return stat.S_ISDIR(fs.stat(path).st_mode)
    except OSError:
        return False


def _why_none(fs: FileSystem, roots: list[str]) -> str:
    try:
        fs.listdir(roots[0])
    except FileNotFoundError:
        return "no such directory"
    except NotADirectoryError:
        return "is a file, not a store directory"
    except OSError as error:
        return f"can't be listed: {error.strerror or error}"
    return "no store is there, nor below it"
