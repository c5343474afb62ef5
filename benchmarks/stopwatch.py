"""The clock of all rates: wall time, and the CPU time of the whole process beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Stopwatch"]


class Stopwatch:
    """Adds up wall time and the process's CPU time over the parts that are to be measured."""

    __slots__ = ("cpu", "wall")

    def __init__(self) -> None:
        self.wall = 0.0
        self.cpu = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        cpu = time.process_time()
        wall = time.perf_counter()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu

    def rate(self, count: int) -> dict[str, Any]:
        """Give the sample, as JSON, of ``count`` operations."""
        return {"value": count / self.wall, "cpu_us": self.cpu / count * 1e6, "count": count}

    def microseconds(self, count: int) -> dict[str, Any]:
        """Give the sample of one of ``count`` operations, in microseconds."""
        return {**self.rate(count), "value": self.wall / count * 1e6}
