"""The parts that the programs of this directory share: common options, a directory, a report."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from rich.console import Console

from benchmarks.measure import Report

__all__ = ["common_parser", "console", "reporting"]


def common_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Give a parser that knows ``--rounds``, ``--dir`` and ``--json``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="directory on the disk to measure on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON lines there")
    return parser


def console() -> Console:
    """Give standard error, for tables, wide enough for them where it is no terminal."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else 160)


@contextmanager
def reporting(options: argparse.Namespace) -> Iterator[tuple[Report, Path]]:
    """Give a report and a new directory, which is removed in the end; tables are printed then."""
    with ExitStack() as stack:
        lines: TextIO = sys.stdout
        if options.json is not None:
            lines = stack.enter_context(options.json.open("w", encoding="utf-8"))
        root = Path(tempfile.mkdtemp(prefix="benchmark-", dir=options.dir))
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        report = Report(lines, console())
        yield report, root
        report.print_tables()
