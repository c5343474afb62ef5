"""Explore crash states at length: ``python -m tests.crash --help``.

First the fixed workloads, with wider bounds than the tests have time for, then random ones by
seed, until the states or the seconds that were asked for are reached. Exit code 1 on a failure,
which is printed with the shortest sequence of steps that still fails, as a regression test has it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.crash.driver import Workload
from tests.crash.explorer import Explorer, Failure, Limits, Report
from tests.crash.randomly import random_workload
from tests.crash.shrink import as_test, shrink
from tests.crash.states import Bounds
from tests.crash.workloads import WORKLOADS

__all__ = ["main"]

_WIDE = Limits(Bounds(product=400, pairs=400, subset=5, moments=8), goes_on=8, seconds=300)
_QUICK = Limits(seconds=60)
_SHRINKING = 120.0


@dataclass(frozen=True, slots=True)
class _Job:
    """What one process is to do: every ``jobs``-th workload, from ``number`` on."""

    number: int
    jobs: int
    states: float
    seconds: float
    name: str
    seed: int
    quick: bool


def main(arguments: list[str] | None = None) -> int:
    """Run the program; gives its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--states", type=float, default=5e6, help="distinct states to explore")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--workload", default="", help="only those whose name contains this")
    parser.add_argument("--seed", type=int, default=1, help="the first of the random workloads")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help="with the bounds of the tests")
    given = parser.parse_args(arguments)
    jobs = [
        _Job(
            number,
            given.jobs,
            given.states / given.jobs,
            given.seconds,
            given.workload,
            given.seed,
            given.quick,
        )
        for number in range(given.jobs)
    ]
    started = time.perf_counter()
    if given.jobs == 1:
        results = [_run(jobs[0])]
    else:
        with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
            results = pool.map(_run, jobs, chunksize=1)
    seconds = time.perf_counter() - started
    distinct = sum(result[0] for result in results)
    failures = sum(result[1] for result in results)
    print(
        f"{distinct:,} distinct states in {seconds:,.0f} s: {distinct / seconds:,.0f} a second; "
        f"{failures} workloads failed"
    )
    return 1 if failures else 0


def _workloads(job: _Job) -> Iterator[tuple[Workload, Limits]]:
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


def _run(job: _Job) -> tuple[int, int]:
    """Explore in one process; gives the number of distinct states, and of failures."""
    gc.freeze()
    end = time.monotonic() + job.seconds
    explorer: Explorer | None = None
    distinct = 0
    failed = 0
    for workload, limits in _workloads(job):
        if distinct >= job.states or time.monotonic() >= end:
            break
        explorer = explorer or Explorer(limits)
        explorer.limits = limits
        report = explorer.explore(workload)
        distinct = explorer.distinct
        print(_line(report), flush=True)
        for failure in report.failures:
            failed += 1
            _tell(failure, limits)
    return distinct, failed


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


if __name__ == "__main__":
    sys.exit(main())
