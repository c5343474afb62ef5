"""The table of queues: as wide as the terminal, with sizes for people; or with all there is."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from qindex.cli.output import key_text, print_line, settings_text
from qindex.view.reader import QueueSummary

_WIDE = (
    "name",
    "messages",
    "ready",
    "delayed",
    "unacked",
    "delivered_before",
    "bytes",
    "file_bytes",
    "segments",
    "journal_entries",
    "next_seq_id",
)
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SHORTEST_NAME = 12
_INDENT = "    "


def width() -> int | None:
    """Return the columns of the terminal, or what COLUMNS says; ``None`` where neither is there."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return shutil.get_terminal_size().columns


def human_size(size: int) -> str:
    """Show bytes in three digits or so: ``512 B``, ``1.5 KiB``, ``23 MiB``."""
    if size < 1024:
        return f"{size} B"
    shown = float(size)
    for unit in _UNITS:
        shown /= 1024
        if shown < 1023.5 or unit == _UNITS[-1]:
            break
    return f"{shown:.1f} {unit}" if shown < 9.95 else f"{shown:,.0f} {unit}"


def human_count(count: int | None) -> str:
    """Show a number with its thousands apart; ``-`` for an unknown one."""
    return "-" if count is None else f"{count:,}"


def print_queues(found: Sequence[QueueSummary], *, wide: bool) -> None:
    """Print a table of queues. ``wide``: exact figures, all of them, in lines of any length."""
    if wide:
        _print_wide(found)
        return
    rows: list[tuple[str, ...]] = [("name", "messages", "ready", "unacked", "bytes", "on disk")]
    rows += [
        (
            key_text(one.name),
            human_count(one.messages),
            human_count(one.ready),
            human_count(one.unacked),
            human_size(one.bytes),
            human_size(one.file_bytes),
        )
        for one in found
    ]
    if any(one.versions for one in found):
        rows = _with_versions(rows, found)
    if any(one.delayed for one in found):
        delayed = ["delayed", *(human_count(one.delayed) for one in found)]
        rows = [(*row[:3], one, *row[3:]) for row, one in zip(rows, delayed, strict=True)]
    columns = width()
    if columns is not None:
        if columns - _width_of_figures(rows) < _SHORTEST_NAME:
            on_disk = rows[0].index("on disk")
            rows = [(*row[:on_disk], *row[on_disk + 1 :]) for row in rows]
        most = max(columns - _width_of_figures(rows), _SHORTEST_NAME)
        rows = [(_cut(row[0], most), *row[1:]) for row in rows]
    lines = aligned(rows)
    print_line(lines[0])
    for line, one in zip(lines[1:], found, strict=True):
        print_line(line)
        print_flowing(settings_text(one.settings), indent=_INDENT)


def _width_of_figures(rows: Sequence[tuple[str, ...]]) -> int:
    return sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[1:])


def print_flowing(text: str, *, indent: str = "") -> None:
    """Print a text, if there is any, broken between words where the terminal ends."""
    columns = width()
    lines = textwrap.wrap(
        text,
        10**9 if columns is None else columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        print_line(line)


def _with_versions(
    rows: Sequence[tuple[str, ...]], found: Sequence[QueueSummary]
) -> list[tuple[str, ...]]:
    """Add the versions of RabbitMQ's queue files."""
    cells = ["version", *("+".join(map(str, one.versions)) or "-" for one in found)]
    return [(*row, cell) for row, cell in zip(rows, cells, strict=True)]


def _cut(name: str, most: int) -> str:
    """Leave out the middle of a name that is too long."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return name[: most - 1 - tail] + "…" + name[len(name) - tail :]


def _print_wide(found: Sequence[QueueSummary]) -> None:
    rows: list[tuple[str, ...]] = [_WIDE]
    for one in found:
        figures = [getattr(one, name) for name in _WIDE[1:]]
        shown = ["-" if value is None else str(value) for value in figures]
        rows.append((key_text(one.name), *shown))
    if any(one.versions for one in found):
        rows = _with_versions(rows, found)
    settings = [settings_text(one.settings) for one in found]
    last = ["settings" if any(settings) else "", *settings]
    for line, said in zip(aligned(rows), last, strict=True):
        print_line(f"{line}  {said}".rstrip())


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return lines: the first column to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
