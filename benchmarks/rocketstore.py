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

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.engine import file_system
from benchmarks.program import common_parser, parse_common, reporting
from benchmarks.report import Report
from benchmarks.rocket_lookup import files_walked, lookups, save_plot, text_plot
from benchmarks.rocket_rates import REAL_SIZES, Real, Sizes, judge, rates, syncs
from tests.rocketstore.real_store import RealStore, class_path

GROUPS = ("rates", "syncs", "lookups")
QUICK = Sizes(8_000, 20_000, 1, 0.05, 5_000, 10_000, 20_000)


def _real(stack: ExitStack, report: Report, directory: Path, sizes: Sizes) -> Real | None:
    path, reason = class_path()
    if not path:
        report.say(f"without the real store: {reason}")
        return None
    start = time.monotonic()
    process = RealStore(path, directory / "real-0", REAL_SIZES)
    stack.callback(process.kill)
    real = Real(process, directory, sizes)
    report.say(f"the real store is warm: {time.monotonic() - start:.1f} s")
    return real


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common_parser("rocketstore", __doc__, rounds=5)
    names = ", ".join(GROUPS)
    parser.add_argument(
        "--only", action="append", choices=GROUPS, metavar="GROUP", help=f"these only: {names}"
    )
    parser.add_argument("--quick", action="store_true", help="small counts: shows that all works")
    parser.add_argument("--index-keys", type=int, help="keys of the IndexFile (10,000,000)")
    parser.add_argument("--largest", type=int, help="largest store looked up in (10,000,000)")
    parser.add_argument("--without-real", action="store_true", help="leave the real store out")
    parser.add_argument("--plot", type=Path, help="draw the lookups there (.svg or .png)")
    parser.set_defaults(rounds=None)
    options = parse_common(parser, arguments)
    for name, least in (("index_keys", 1), ("largest", 1000)):
        if (value := getattr(options, name)) is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    if options.plot is not None and options.plot.suffix not in (".svg", ".png"):
        parser.error(f"--plot {options.plot}: .svg or .png are right")
    sizes = QUICK if options.quick else Sizes()
    sizes = replace(
        sizes,
        index_keys=options.index_keys or sizes.index_keys,
        largest=options.largest or sizes.largest,
    )
    rounds = options.rounds or (1 if options.quick else 5)
    groups = options.only or GROUPS
    with reporting(options) as (report, directory), ExitStack() as stack:
        report.say(f"measuring on {file_system(directory)}, with {os.cpu_count()} processors")
        real = None
        if not options.without_real and set(groups) & {"rates", "syncs"}:
            real = _real(stack, report, directory, sizes)
        if "rates" in groups:
            rates(report, directory, sizes, rounds, real)
            judge(report)
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
