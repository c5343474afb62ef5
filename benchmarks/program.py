"""Shared by the programs of this directory: options, a directory, a report, a child process."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from rich.console import Console

from benchmarks.report import Report
from qindex.compare.child import Child
from qindex.compare.contender import Fifo

_ROOT = Path(__file__).resolve().parents[1]


def common_parser(
    name: str, description: str | None, rounds: int | None = None
) -> argparse.ArgumentParser:
    """Return a parser that knows ``--dir``, ``--json``, and ``--rounds`` where there are any."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        epilog="Figures and bars are JSON lines; tables and progress go to standard error.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"of each ({rounds})")
    parser.add_argument("--dir", type=Path, help="directory on the disk to measure on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="of the JSON lines (stdout)")
    return parser


def parse_common(
    parser: argparse.ArgumentParser, arguments: Iterable[str] | None
) -> argparse.Namespace:
    """Parse, and refuse what no program can do."""
    options = parser.parse_args(None if arguments is None else list(arguments))
    if getattr(options, "rounds", 1) < 1:
        parser.error("--rounds must be at least 1")
    if options.dir is not None and not options.dir.is_dir():
        parser.error(f"--dir {options.dir} is no directory")
    return options


def console() -> Console:
    """Return standard error, for tables, wide enough for them where it is no terminal."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else 160)


def child(patience: float | None = None) -> Child:
    """Start a process that functions of the benchmarks can be called in."""
    return Child(_ROOT, patience)


def installed(kinds: Iterable[type[Fifo]], report: Report) -> dict[str, type[Fifo]]:
    """Return the contenders that can be run here by name, and say which are left out."""
    there = {}
    for kind in kinds:
        if kind.is_installed():
            there[kind.name] = kind
        else:
            report.say(f"{kind.name} is not installed: left out")
    return there


@contextmanager
def fresh(root: Path) -> Iterator[Path]:
    """Give a new directory, which is removed in the end."""
    path = Path(tempfile.mkdtemp(dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _file_system(path: Path) -> str:
    """Name the file system that holds ``path``: on one in memory a sync costs nothing."""
    best, name = Path(), "an unknown file system"
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, mount, kind, *_ = line.split()
            if path.resolve().is_relative_to(mount) and len(Path(mount).parts) >= len(best.parts):
                best, name = Path(mount), kind
    if name in ("tmpfs", "ramfs"):
        return f"{name} (in memory: fsync figures mean nothing here; choose a disk with --dir)"
    return name


@contextmanager
def reporting(options: argparse.Namespace) -> Iterator[tuple[Report, Path]]:
    """Give a report and a new directory, which is removed in the end; tables are printed then."""
    with ExitStack() as stack:
        lines: TextIO = sys.stdout
        if options.json is not None:
            lines = stack.enter_context(options.json.open("w", encoding="utf-8"))
        root = Path(tempfile.mkdtemp(prefix="benchmark-", dir=options.dir)).absolute()
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        report = Report(lines, console())
        report.say(f"measuring on {_file_system(root)}, with {os.cpu_count()} processors")
        yield report, root
        report.print_tables()
