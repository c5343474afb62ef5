"""Bytes that no crash explains are never dropped: they are copied or moved aside first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from journal.errors import storage_errors
from journal.fs.files import FileSystem, data_ranges, make_dirs, opened, pread_all, write_all
from rocketstore.layout import Paths
from rocketstore.log.commitlog import CommitLog

_STEP = 1 << 20


def save_span(fs: FileSystem, paths: Paths, commitlog: CommitLog, start: int, end: int) -> str:
    """Copy the log from offset ``start`` to before ``end`` into ``quarantine/``; return the copy's
    path. Durable on return. Raises :class:`StorageError`."""

    def parts() -> Iterator[tuple[int, bytes]]:
        at = start
        while at < end:
            file = commitlog.files.find(at)
            assert file is not None
            position = at - file.start
            step = min(_STEP, end - at, file.size - position)
            yield at - start, commitlog.files.read(file, position, step)
            at += step

    return _save(fs, paths, f"commitlog~{start:020d}", parts(), end - start)


def copy_excess(fs: FileSystem, paths: Paths, path: str, length: int) -> str:
    """Copy the bytes of a file after its first ``length`` bytes into ``quarantine/``; return
    the copy's path. Its holes stay holes. Durable on return. Raises :class:`StorageError`."""
    with storage_errors(path, "can't be read"), opened(fs, path) as fd:
        size = fs.fstat(fd).st_size

        def parts() -> Iterator[tuple[int, bytes]]:
            for start, end in data_ranges(fs, fd, length, size):
                for at in range(start, end, _STEP):
                    yield at - length, pread_all(fs, fd, min(_STEP, end - at), at)

        name = f"{_flat_name(paths, path)}+{length}"
        return _save(fs, paths, name, parts(), size - length)


def set_aside(fs: FileSystem, paths: Paths, path: str) -> str:
    """Move a file into ``quarantine/``; return its new path. Durable on return.

    Raises :class:`StorageError`.
    """
    with storage_errors(path, "can't be quarantined"):
        new = _free_name(fs, paths, _flat_name(paths, path))
        fs.rename(path, new)
        fs.sync_dir(paths.quarantine)
        fs.sync_dir(os.path.dirname(path))
    return new


def _save(
    fs: FileSystem, paths: Paths, name: str, parts: Iterable[tuple[int, bytes]], size: int
) -> str:
    with storage_errors(paths.quarantine, "can't be written"):
        target = _free_name(fs, paths, name)
        with opened(fs, target, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            end = 0
            for at, data in parts:
                if at > end:
                    fs.lseek(fd, at, os.SEEK_SET)
                write_all(fs, fd, data)
                end = at + len(data)
            if end < size:
                fs.truncate(fd, size)
            fs.fdatasync(fd)
        fs.sync_dir(paths.quarantine)
    return target


def _flat_name(paths: Paths, path: str) -> str:
    return os.path.relpath(path, paths.root).replace(os.sep, "~")


def _free_name(fs: FileSystem, paths: Paths, name: str) -> str:
    make_dirs(fs, paths.quarantine)
    taken = set(fs.listdir(paths.quarantine))
    target, number = name, 1
    while target in taken:
        number += 1
        target = f"{name}.{number}"
    return os.path.join(paths.quarantine, target)
