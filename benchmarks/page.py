"""The part of docs/benchmarks-tables.md between its marks, made of the lines of the programs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import qindex
from benchmarks.erlang_vm import node_paths
from benchmarks.report import BAR_HEADS, FIGURE_HEADS, bar_row, figure_row
from journal.compiled import build
from qindex.compare.tables import markdown

_BEGIN = "<!-- figures: begin -->"
_END = "<!-- figures: end -->"
_PACKAGES = (
    "numpy msgpack xxhash isal pyspark pyarrow rocksdict persist-queue litequeue diskcache queuelib"
)
LEFT_OUT = 2
"""Exit status of a program that has nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a program: its lines, the seconds it took, and its exit status."""

    name: str
    title: str
    lines: Sequence[dict[str, Any]]
    seconds: float
    status: int

    @property
    def failed(self) -> bool:
        """It ended early, or was ended; a bar that does not hold is no failure."""
        return self.status < 0 or (not self.lines and self.status != LEFT_OUT)


def write_page(page: Path, results: Sequence[Result]) -> None:
    """Put the tables between the marks of ``page``. Raises as :func:`split_page`."""
    before, after = split_page(page)
    parts = [_machine(), _bars(results), *map(_section, results)]
    body = "\n\n".join(part for part in parts if part)
    page.write_text(f"{before}{_BEGIN}\n\n{body}\n\n{_END}{after}", "utf-8")


def split_page(page: Path) -> tuple[str, str]:
    """Give what stands before and behind the marks of a page. Raises :class:`ValueError` without
    marks, and :class:`OSError`."""
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no marks {_BEGIN} and {_END}")
    return before, after


def _bars(results: Sequence[Result]) -> str:
    rows = [[each.name, *bar_row(line)] for each in results for line in each.lines if "bar" in line]
    return "### The bars\n\n" + markdown(("program", *BAR_HEADS), rows) if rows else ""


def _section(result: Result) -> str:
    program = f"`python -m benchmarks.{result.name}`"
    if not result.lines:
        return f"### {result.title}\n\n{program} found nothing to compare with."
    rows = [figure_row(line) for line in result.lines if "figure" in line]
    table = markdown(FIGURE_HEADS, rows)
    return f"### {result.title}\n\n{program}, {result.seconds:.0f} s.\n\n{table}"


def _machine() -> str:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    rows = [
        ["processor", f"{_processor()}, {os.cpu_count()} of them"],
        ["memory", f"{memory:.0f} GiB"],
        ["system", f"{platform.system()} {platform.release()}, {platform.machine()}"],
        ["Python", _python()],
        ["qindex", f"{qindex.__version__}, {build()}"],
        ["packages", ", ".join(_versions())],
        ["RabbitMQ's modules", node_paths()[0] or "not installed"],
        ["Java", _java()],
    ]
    return markdown(("what", "which"), rows)


def _python() -> str:
    """Which it is, and whether the distribution built it: how it was built counts."""
    which = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{which}, the distribution's" if sys.base_prefix == "/usr" else which


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or "unknown"
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else "unknown"


def _versions() -> list[str]:
    found = []
    for package in _PACKAGES.split():
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue  # not installed: its figures are not in the tables either
    return found


def _java() -> str:
    if shutil.which("java") is None:
        return "not installed"
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout).splitlines()[0].strip()
