"""The RocketMQ store: ours beside the real one in a warm JVM and beside the floor, in one run.

    python -m benchmarks.rocketstore [--quick] [--only GROUP] [--plot FILE] [--json FILE]

prints one JSON line for each figure and each bar on standard output (or into FILE), and progress
and tables on standard error. Groups: ``rates`` (puts, gets, queries, an IndexFile from ten million
keys), ``syncs`` (puts that are on disk when they return), ``lookups`` (one lookup by key in stores
of a thousand to ten million messages, and how many index files a range of times leaves unread).

A figure is the median of its rounds, with the spread beside it, and a bar holds the median of the
ratios within a round. The floor is a plain copy of the same bytes into a map (or a write and a
sync), so what the machine allows from Python without any store. Without Maven and Java the real
store is left out, and the reason is said.

The exit status is 0 when everything asked for was measured, 2 on wrong use. A bar that does not
hold is in the output and does not change the status.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.engine import file_system
from benchmarks.program import reporting
from benchmarks.report import Report
from benchmarks.rocket_lookup import files_walked, lookups, save_plot, text_plot
from benchmarks.rocket_rates import Real, Sizes, judge, rates, start_real, syncs
from tests.rocketstore.real_store import class_path

GROUPS = ("rates", "syncs", "lookups")
FULL = Sizes(400_000, 10_000_000, 3, 1.0, 1_000_000, 10_000_000, 100_000)
QUICK = Sizes(8_000, 20_000, 1, 0.05, 5_000, 10_000, 20_000)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rocketstore",
        description="Measure the RocketMQ store beside the real one and the floor.",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=GROUPS,
        metavar="GROUP",
        help=f"measure this group only (may be repeated): {', '.join(GROUPS)}",
    )
    parser.add_argument("--quick", action="store_true", help="small counts: shows that all works")
    parser.add_argument("--rounds", type=int, help="rounds of each rate (default 5)")
    parser.add_argument("--index-keys", type=int, help="keys of the IndexFile (default 10,000,000)")
    parser.add_argument("--largest", type=int, help="largest store looked up in (10,000,000)")
    parser.add_argument("--without-real", action="store_true", help="leave the real store out")
    parser.add_argument("--dir", type=Path, help="directory on the disk to measure on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON lines there")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the lookups there (.svg or .png)"
    )
    return parser


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else FULL
    if options.index_keys is not None:
        sizes = replace(sizes, index_keys=options.index_keys)
    if options.largest is not None:
        sizes = replace(sizes, largest=options.largest)
    return sizes


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for name, least in (("rounds", 1), ("index_keys", 1), ("largest", 1000)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    if options.dir is not None and not options.dir.is_dir():
        parser.error(f"--dir {options.dir} is no directory")
    if options.plot is not None and options.plot.suffix not in (".svg", ".png"):
        parser.error(f"--plot {options.plot}: .svg or .png are right")


def _real(stack: ExitStack, report: Report, directory: Path, sizes: Sizes) -> Real | None:
    path, reason = class_path()
    if not path:
        report.say(f"without the real store: {reason}")
        return None
    start = time.monotonic()
    process, real = start_real(path, directory, sizes)
    stack.callback(process.kill)
    report.say(f"the real store is warm: {time.monotonic() - start:.1f} s")
    return real


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    sizes = _sizes(options)
    rounds = options.rounds or (1 if options.quick else 5)
    groups = options.only or GROUPS
    with reporting(options) as (report, directory), ExitStack() as stack:
        report.say(f"measuring on {file_system(directory)}, with {os.cpu_count()} processors")
        real = None
        if not options.without_real and set(groups) & {"rates", "syncs"}:
            real = _real(stack, report, directory, sizes)
        if "rates" in groups:
            rates(report, directory, sizes, rounds, real)
            report.judge(judge(report))
        if "syncs" in groups:
            syncs(report, directory, sizes, min(rounds, 3), real)
        if "lookups" in groups:
            rows = lookups(report, directory, sizes.largest)
            files_walked(report, directory, sizes.index_entries)
            report.say(text_plot(rows))
            if options.plot is not None:
                save_plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
