"""One run of the benchmarks of stored messages: where it works, how much, and its report."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.program import fresh
from benchmarks.report import Report

RECORD_BYTES = 64 << 10


@dataclass(slots=True)
class Bench:
    directory: Path
    megabytes: int
    rounds: int
    seconds: float
    steady_seconds: float
    space_megabytes: int
    report: Report

    @property
    def count(self) -> int:
        return (self.megabytes << 20) // RECORD_BYTES

    def fresh(self) -> AbstractContextManager[Path]:
        return fresh(self.directory)
