"""What the tests of the reading side share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import qindex
from journal.fs.files import PathLike, RealFileSystem
from qindex.format.rabbitmq.names import directory_name
from qindex.view.reader import Row, StoreReader

__all__ = [
    "LookingFileSystem",
    "open_small",
    "queue_dir",
    "rows_of",
    "tree",
    "writer_process",
]

ROOT = Path(__file__).parents[2]


class LookingFileSystem(RealFileSystem):
    """The real file system for someone who only looks: every attempt to write is an error."""

    def __init__(self) -> None:
        for name in (
            *("write", "pwrite", "truncate", "fallocate", "fdatasync", "fsync", "mmap", "rename"),
            *("unlink", "mkdir", "rmdir", "sync_dir", "lock"),
        ):
            setattr(self, name, self._refuse)
        self.open = self._open  # type: ignore[method-assign]

    @staticmethod
    def _refuse(*_arguments: object) -> None:
        raise AssertionError("a reader writes, or locks")

    @staticmethod
    def _open(path: PathLike, flags: int, mode: int = 0o666, /) -> int:
        assert flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND) == 0
        return os.open(path, flags, mode)


def open_small(store: PathLike) -> qindex.Engine:
    """Open a store of ours with 64 entries a segment, that flushes when it is told to."""
    return qindex.open(store, background=False, segment_entry_count=64)


def queue_dir(store: Path, name: str = "q") -> Path:
    """The directory of a queue of ours."""
    return store / "queues" / directory_name("/", name)


def rows_of(store: PathLike, name: str = "q") -> list[Row]:
    """All messages of a queue; the reader may not write."""
    return list(StoreReader(store, LookingFileSystem()).queue(name).entries())


def tree(directory: Path) -> dict[str, bytes]:
    """All files below a directory with their content."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@contextmanager
def writer_process(program: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program that prints a line when it is ready; it is killed at the end."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()
