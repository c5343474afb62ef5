"""What one process of a long exploration does."""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.crash.driver import Workload
from tests.crash.explorer import Explorer, Failure, Limits, Report
from tests.crash.randomly import random_workload
from tests.crash.shrink import as_test, shrink
from tests.crash.states import Bounds
from tests.crash.workloads import WORKLOADS

__all__ = ["Job", "Result", "run"]

_WIDE = Limits(Bounds(product=400, pairs=400, subset=5, moments=8), goes_on=8, seconds=300)
_QUICK = Limits(seconds=60)
_SHRINKING = 120.0


@dataclass(frozen=True, slots=True)
class Job:
    """What one process is to do: every ``jobs``-th workload, from ``number`` on."""

    number: int
    jobs: int
    states: float
    seconds: float
    name: str
    seed: int
    quick: bool


@dataclass(frozen=True, slots=True)
class Result:
    """``keys``: of the distinct states that were opened; ``failures``: workloads that failed."""

    keys: npt.NDArray[np.int64]
    failures: int


def _workloads(job: Job) -> Iterator[tuple[Workload, Limits]]:
    limits = _QUICK if job.quick else _WIDE
    for number, workload in enumerate(WORKLOADS):
        if job.name in workload.name and number % job.jobs == job.number:
            yield workload, limits
    for seed in itertools.count(job.seed + job.number, job.jobs):
        workload = random_workload(seed)
        if job.name in workload.name:
            yield workload, _QUICK
        elif not job.name.startswith("seed"):
            return


def run(job: Job) -> Result:
    """Explore in one process, and print a line for each workload and each failure."""
    gc.freeze()
    end = time.monotonic() + job.seconds
    explorer: Explorer | None = None
    distinct = failed = 0
    for workload, limits in _workloads(job):
        if distinct >= job.states or time.monotonic() >= end:
            break
        explorer = explorer or Explorer(limits)
        explorer.limits = limits
        report = explorer.explore(workload)
        distinct = explorer.distinct
        print(f"{_line(report)} {distinct:11,} so far", flush=True)
        for failure in report.failures:
            failed += 1
            _tell(failure, limits)
    keys = explorer.keys if explorer else ()
    return Result(np.fromiter(keys, np.int64, len(keys)), failed)


def _line(report: Report) -> str:
    rate = report.distinct / max(report.seconds, 1e-9)
    cut = "" if report.complete else ", not to its end"
    return (
        f"{report.workload.name:34} {report.points:4} points {report.distinct:8,} new states "
        f"{report.opened:8,} opened {rate:6,.0f}/s{cut}"
    )


def _tell(failure: Failure, limits: Limits) -> None:
    print(failure, file=sys.stderr)
    shortest = shrink(failure, limits, _SHRINKING)
    print(f"The shortest that fails:\n{as_test(shortest)}", file=sys.stderr, flush=True)
