"""Explore crash states at length: ``python -m tests.crash --help``.

First the fixed workloads, with wider bounds than the tests have time for, then random ones by
seed, until the states or the seconds that were asked for are reached. A state that two processes
met is counted once. Exit code 1 on a failure, which is printed with the shortest sequence of steps
that still fails, as a regression test has it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

import numpy as np

from tests.crash.at_length import Job, run

__all__ = ["main"]


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
        Job(
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
        results = [run(jobs[0])]
    else:
        with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
            results = pool.map(run, jobs, chunksize=1)
    seconds = time.perf_counter() - started
    distinct = len(np.unique(np.concatenate([result.keys for result in results])))
    failures = sum(result.failures for result in results)
    print(
        f"{distinct:,} distinct states in {seconds:,.0f} s: {distinct / seconds:,.0f} a second; "
        f"{failures} workloads failed"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
