"""A new directory that appears under its name when it is complete, or not at all.

It is built in ``<NEW>.partial/``, beside its place, and renamed. A program that dies leaves that
directory. The next program that makes the same NEW clears it and begins anew.

That directory is this user's own, with mode 0700, and is held open: another user who has made it,
or puts another in its place meanwhile, can't exchange the files built in it. So NEW is also for
this user alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from functools import partial

from journal.errors import StorageError, UsageError, storage_errors
from journal.fs.beneath import leave, private_directory
from journal.fs.files import FileSystem, PathLike, is_there, make_dirs, sync_file
from journal.fs.together import together
from journal.locks.directory_lock import DirectoryLock
from qindex.recovery.queue_directory import remove_queue_directory as remove_tree

_SUFFIX = ".partial"
_LOCK = "lock"
_CONTENT = "content"


class Staging:
    """Makes ``target``; ``path`` is where to put its content, by the file system ``fs``, which also
    has the directories that the given one has. A context manager: on an error the files built so
    far are removed.

    Raises :class:`UsageError` when ``target`` is not empty, or within ``source`` (or around it);
    :class:`journal.errors.LockedError` when another process is making it;
    :class:`StorageError`.
    """

    def __init__(self, fs: FileSystem, target: PathLike, source: PathLike) -> None:
        self.fs: FileSystem = fs
        self.target: str = os.path.abspath(os.fspath(target))
        self._partial = self.target + _SUFFIX
        self.path: str = os.path.join(self._partial, _CONTENT)
        _check_place(self.target, os.fspath(source))
        with storage_errors(self.target, "can't be made"):
            self._check_empty()
            if not is_there(fs, os.path.dirname(self.target)):
                raise UsageError(f"{os.path.dirname(self.target)}: no such directory")
            fs = self.fs = private_directory(self._partial, fs)
        try:
            self._lock = DirectoryLock(fs, os.path.join(self._partial, _LOCK))
            try:
                if _CONTENT in fs.listdir(self._partial):
                    remove_tree(fs, self.path)
                make_dirs(fs, self.path)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            self._clear()
            raise StorageError(self.target, "can't be made", error) from error

    def _clear(self) -> None:
        """Remove the files built so far. The next attempt removes the rest."""
        with contextlib.suppress(OSError):
            remove_tree(self.fs, self._partial)
        leave(self.fs)

    def _check_empty(self) -> None:
        try:
            names = self.fs.listdir(self.target)
        except FileNotFoundError:
            return
        except NotADirectoryError as error:
            raise UsageError(f"{self.target}: is a file, not an empty directory") from error
        if names:
            raise UsageError(f"{self.target}: is not empty; name a new directory")

    def commit(self) -> None:
        """Rename the directory to its target; durable on return. Raises :class:`StorageError`."""
        with storage_errors(self.target, "can't be put in place"):
            sync_tree(self.fs, self.path)
            self.fs.rename(self.path, self.target)
            self.fs.sync_dir(os.path.dirname(self.target))

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_ended: object) -> None:
        self._lock.release()
        self._clear()


def _check_place(target: str, source: str) -> None:
    new, old = os.path.realpath(target), os.path.realpath(source)
    if os.path.commonpath((new, old)) in (new, old):
        raise UsageError(f"{target}: NEW must be a directory beside {source}, not within it")


def sync_tree(fs: FileSystem, path: str) -> None:
    """Make a directory durable, with all that is in it. Raises :class:`OSError`."""
    files: list[str] = []
    directories = [path]
    for directory in directories:
        for name in fs.listdir(directory):
            inner = os.path.join(directory, name)
            (directories if stat.S_ISDIR(fs.stat(inner).st_mode) else files).append(inner)

    together(fs, partial(sync_file, fs), files)
    sync_directories(fs, directories)


def sync_directories(fs: FileSystem, paths: Iterable[str]) -> None:
    """Make the names in these directories durable. Raises :class:`OSError`."""
    together(fs, fs.sync_dir, paths)
