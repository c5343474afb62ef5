"""Bytes that no crash explains are never dropped: they are copied aside before they are cut."""

from __future__ import annotations

import os

from journal.errors import StorageError
from journal.files import FileSystem, make_dirs, write_all
from rocketstore.commitlog import CommitLog
from rocketstore.layout import Paths

__all__ = ["save_tail"]

_STEP = 1 << 20


def save_tail(fs: FileSystem, paths: Paths, commitlog: CommitLog, offset: int) -> str:
    """Copy the log from ``offset`` to the end of its last file into ``quarantine/``; gives the
    copy's path.. Durable on return.

    Raises :class:`StorageError`.
    """
    try:
        make_dirs(fs, paths.quarantine)
        taken = set(fs.listdir(paths.quarantine))
        name, number = f"commitlog~{offset:020d}", 1
        while name in taken:
            number += 1
            name = f"commitlog~{offset:020d}.{number}"
        target = os.path.join(paths.quarantine, name)
        fd = fs.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        try:
            for file in commitlog.files.files.values():
                position = max(offset - file.start, 0)
                data = commitlog.files.mapped(file)
                while position < file.size:
                    step = min(_STEP, file.size - position)
                    write_all(fs, fd, data[position : position + step])
                    position += step
            fs.fdatasync(fd)
        finally:
            fs.close(fd)
        fs.sync_dir(paths.quarantine)
    except OSError as error:
        raise StorageError(paths.quarantine, "can't be written", error) from error
    return target
