"""The work that a worker process can be asked for: the base of all tasks.

A task lives in the worker of one contender. It is prepared once, measured once a round, in turn
with the other workers, and finished. See :mod:`benchmarks.worker` for the protocol.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender

__all__ = ["Task", "dirtied_bytes", "disk_use", "growing_chunks", "resident_bytes", "settle"]


class Task(ABC):
    """One thing to measure, for one contender, below ``directory``."""

    def __init__(self, kind: type[Contender], directory: Path) -> None:
        self.kind = kind
        self.directory = directory

    def prepare(self) -> dict[str, Any]:
        """Build what the measurement needs. Untimed."""
        return {}

    @abstractmethod
    def measure(self) -> dict[str, Any]:
        """Measure once; give the samples by figure."""

    def finish(self) -> dict[str, Any]:
        """Close what :meth:`prepare` opened."""
        return {}

    def fresh(self) -> Path:
        """Make an empty directory for one store."""
        return Path(tempfile.mkdtemp(prefix="store-", dir=self.directory))

    def open(self, path: Path, durability: str = "os") -> Contender:
        return self.kind(path, durability)

    @contextmanager
    def fresh_store(self, durability: str = "os") -> Iterator[Contender]:
        """Give a new store to the block behind ``with``; then it is closed, and its files go."""
        path = self.fresh()
        contender = self.open(path, durability)
        yield contender
        self.discard(contender, path)

    def discard(self, contender: Contender, path: Path) -> None:
        """Close the store and remove its files."""
        contender.close()
        shutil.rmtree(path)


def growing_chunks(first: int, largest: int) -> Iterator[int]:
    """Give sizes that double: a slow contender can be stopped by the clock, a fast one is not
    slowed down by being asked for little at a time."""
    size = first
    while True:
        yield size
        size = min(size * 2, largest)


def settle(limit: float = 2.0) -> None:
    """Wait, ``limit`` seconds at most, until this process's background threads are quiet."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        before = time.process_time()
        time.sleep(0.05)
        if time.process_time() - before < 0.005:
            return


def resident_bytes() -> int:
    """Give this process's resident set, which counts mapped file pages too."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def dirtied_bytes() -> int | None:
    """Give the bytes of file pages that this process has made dirty, in whole pages.

    By a write or by a store into a map alike: the kernel counts both in the same place. ``None``
    where it does not tell.
    """
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(": ") for line in lines)
    return int(fields["write_bytes"]) if "write_bytes" in fields else None


def disk_use(path: Path) -> tuple[int, int]:
    """Give (bytes at rest, bytes of allocated blocks) of all files below ``path``.

    At rest a file counts with its length, or with its blocks where it has holes.
    """
    at_rest = allocated = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                status = os.stat(os.path.join(folder, name))
            except FileNotFoundError:
                continue  # removed by a background thread of the store since the listing
            blocks = status.st_blocks * 512
            at_rest += min(status.st_size, blocks)
            allocated += blocks
    return at_rest, allocated
