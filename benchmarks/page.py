"""The part of docs/benchmarks-tables.md between its marks, made of the lines of the programs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
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
_PACKAGES = [
    "numpy",
    "msgpack",
    "xxhash",
    "isal",
    "pyspark",
    "pyarrow",
    "rocksdict",
    "persist-queue",
    "litequeue",
    "diskcache",
    "queuelib",
]

Section = tuple[str, str, Sequence[dict[str, Any]], float]
"""Name, title, lines and seconds of one program."""


def write_page(page: Path, sections: Iterable[Section]) -> None:
    """Put the tables between the marks of ``page``. Raises as :func:`split_page`."""
    before, after = split_page(page)
    sections = list(sections)
    parts = [_machine(), _bars(sections), *(_section(*each) for each in sections)]
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


def _bars(sections: Iterable[Section]) -> str:
    rows = [
        [name, *bar_row(line)] for name, _, lines, _ in sections for line in lines if "bar" in line
    ]
    return "### The bars\n\n" + markdown(("program", *BAR_HEADS), rows) if rows else ""


def _section(name: str, title: str, lines: Sequence[dict[str, Any]], seconds: float) -> str:
    figures = [line for line in lines if "figure" in line]
    parts = [f"### {title}", f"`python -m benchmarks.{name}`, {seconds:.0f} s."]
    if not lines:
        parts[1] = f"`python -m benchmarks.{name}` found nothing to compare with."
    if figures:
        parts.append(markdown(FIGURE_HEADS, [figure_row(figure) for figure in figures]))
    return "\n\n".join(parts)


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
    for package in _PACKAGES:
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
