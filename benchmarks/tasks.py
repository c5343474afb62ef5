"""The work that a worker process can be asked for: the base of all tasks.

A task lives in the worker of one contender. It is prepared once, measured once a round, in turn
with the other workers, and finished: by the three functions, which the parent calls.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.bodies import Bodies
from benchmarks.peers import CONTENDERS
from benchmarks.report import Round
from qindex.compare.contender import Fifo

_BUILD_BATCH = 10_000


@dataclass
class Task(ABC):
    """One thing to measure, for one contender, below ``directory``."""

    kind: type[Fifo]
    directory: Path

    def prepare(self) -> None:  # noqa: B027
        """Build what the measurement needs. Untimed."""

    @abstractmethod
    def measure(self) -> Round:
        """Measure once; return the samples by figure."""

    def finish(self) -> None:  # noqa: B027
        """Close what :meth:`prepare` opened."""

    def fresh(self) -> Path:
        """Make an empty directory for one store."""
        return Path(tempfile.mkdtemp(prefix="store-", dir=self.directory))

    @contextmanager
    def fresh_store(self, durability: str = "os", **options: Any) -> Iterator[Fifo]:
        """Give a new store to the block behind ``with``; then it is closed, and its files go."""
        path = self.fresh()
        contender = self.kind(path, durability, **options)
        yield contender
        contender.close()
        shutil.rmtree(path)


_tasks: list[Task] = []


def prepare(who: str, task: str, directory: str, parameters: dict[str, Any]) -> None:
    """Make a task of a contender, in the place of the one before."""
    kind = CONTENDERS[who]
    if kind.module is not None:
        importlib.import_module(kind.module)
    _tasks[:] = [pkgutil.resolve_name(task)(kind, Path(directory), **parameters)]
    _tasks[0].prepare()


def measure() -> dict[str, dict[str, Any]]:
    """Measure once, with the task that was prepared."""
    return {name: asdict(sample) for name, sample in _tasks[0].measure().items()}


def finish() -> None:
    """Close the task that was prepared."""
    _tasks.pop().finish()


def build(contender: Fifo, bodies: Bodies, count: int) -> None:
    """Put ``count`` messages into the queue, in batches. Untimed."""
    while count:
        size = min(count, _BUILD_BATCH)
        contender.publish_many(contender.records(bodies.take(size)))
        count -= size


def settle(limit: float = 2.0) -> None:
    """Wait, ``limit`` seconds at most, until this process's background threads are quiet."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        before = time.process_time()
        time.sleep(0.05)
        if time.process_time() - before < 0.005:
            return


def resident_bytes() -> int:
    """Return this process's resident set, which counts mapped file pages too."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
