"""Shared by the tasks of the engine's benchmark, which run in the process of a contender."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bodies import Bodies
from benchmarks.peers import CONTENDERS, LARGE
from benchmarks.program import fresh
from qindex.compare.contender import Fifo

_BUILD_BATCH = 10_000


@contextmanager
def fresh_store(who: str, directory: str, durability: str = "os", **more: Any) -> Iterator[Fifo]:
    """Give a new store to the block after ``with``; then it is closed, and its files go."""
    with fresh(Path(directory)) as path:
        contender = (CONTENDERS | LARGE)[who](path, durability, **more)
        yield contender
        contender.close()


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
