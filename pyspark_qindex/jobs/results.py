"""The options of a job, its outcome, and the files of that.

::

    DIR/summary.json       figures, and the tables' names
    DIR/NAME.parquet/      each table, as Spark writes it
    DIR/NAME.json          each table that is not as long as the stores have messages: a line a row
    DIR/index.html         the page, complete in itself: plots inside it, nothing fetched

Others can't read them: a new DIR has mode 0700, and the files that are not Spark's have 0600.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Any, Final, Literal

from pyarrow.parquet import ParquetFile
from pyspark.sql import DataFrame

from journal.errors import StorageError, UsageError
from journal.fs.files import REAL, open_private, replace_file
from journal.shown import printable
from pyspark_qindex.jobs.fleet import store_names
from qindex.cli.tables import human_size
from qindex.compare.page import whole_page
from qindex.compare.plots import Axis, Line, line_plot

_STYLE: Final = """
.figures { display: flex; flex-wrap: wrap; gap: 10px; margin: 16px 0; }
.figures div { padding: 8px 16px; } .figures b { display: block; font-size: 20px; }
.bad { border-left: 4px solid var(--c1); }
th, td { text-align: left; overflow-wrap: anywhere; min-width: 5em; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.wide { min-width: 22em; } td:first-child { min-width: 14em; }
.bars td { border: 0; padding: 2px 8px; font-size: 13px; } .bars td:first-child { width: 42%; }
.bars td:nth-child(2) { width: 46%; }
.bars i { display: block; height: 12px; min-width: 1px; background: var(--c0); border-radius: 2px; }
.bars .less { background: var(--c2); }
"""
_LONGEST: Final = 40
_SIZE: Final = re.compile(r"(^|_)(bytes|size|garbage|live)(_|$)")
_FAR: Final = 1e11
"""Seconds: the year 5138."""
_MARKS: Final = 6
"""Marks of a time axis."""
Rows = Sequence[Mapping[str, Any]]
_ROWS_ON_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of a command. ``install``: for build-index. ``mode``: of the sources. ``top``:
    keys that stats show. For ingest, ``format``: of the tables; ``schema``: of the bodies, empty
    for the kept or inferred one; ``batch``: messages of a batch; ``accept_loss``: go on without
    what is lost. ``html``: the page of a report."""

    paths: list[str]
    out: str
    install: bool = True
    mode: str = "permissive"
    top: int = 20
    format: str = "parquet"
    schema: str = ""
    batch: int = 1_000_000
    html: str = ""
    accept_loss: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of one table: ``x`` and ``y`` name its columns (``x`` several: they are joined).
    ``most``: rows that are drawn."""

    title: str
    table: str
    kind: Literal["bars", "line"]
    x: tuple[str, ...]
    y: str
    most: int = 30


@dataclass(slots=True)
class Table:
    """A result. ``large``: as many rows as there are messages: it is written as Parquet alone, by
    the executors; others also as JSON, and shown. ``written``: its Parquet exists already."""

    rows: DataFrame
    large: bool = False
    title: str = ""
    written: bool = False


@dataclass(slots=True)
class Outcome:
    """``summary``: figures by name. ``shown``: the table that a terminal shows. ``found``: whether
    damage or differences were found (exit status 1). ``notes``: lines for people. ``kept``: rows
    that Spark keeps. ``targets``: the stores that were made, by the one they are from. ``page``: a
    file that gets the page, too, in the end."""

    summary: dict[str, Any]
    tables: dict[str, Table]
    shown: str = ""
    plots: Sequence[Plot] = ()
    found: bool = False
    notes: list[str] = field(default_factory=list)
    kept: Sequence[DataFrame] = ()
    targets: dict[str, str] = field(default_factory=dict)
    page: str = ""

    def __getitem__(self, name: str) -> DataFrame:
        """Return the rows of a table."""
        return self.tables[name].rows

    def finish(self) -> None:
        """Let Spark forget the rows that it keeps."""
        for one in self.kept:
            one.unpersist()


def render_page(job: str, outcome: Outcome, shown: Mapping[str, Rows], most: int) -> str:
    """Return the page. ``shown``: the first rows of each table, at most ``most``."""
    title = f"qindex pipeline {job}"
    moment = _moment(datetime.now(UTC).timestamp())
    parts = [f"<h1>{escape(title)}</h1>", f"<p class='soft'>{moment}</p>"]
    parts.append(f"<div class='figures'>{''.join(map(_figure, outcome.summary.items()))}</div>")
    parts += [f"<p>{escape(printable(note))}</p>" for note in outcome.notes]
    plots = "".join(_plot(plot, shown.get(plot.table, ())) for plot in outcome.plots)
    parts.append(f"<div class='grid2'>{plots}</div>")
    for name, table in outcome.tables.items():
        rows = shown.get(name)
        if rows is None:
            continue
        parts.append(f"<h2>{escape(table.title or name)}</h2>")
        parts.append(_table(rows) if rows else "<p class='soft'>none</p>")
        if len(rows) == most:
            parts.append(f"<p class='soft'>The first {most}; all are in {name}.json</p>")
    return whole_page(title, "\n".join(parts), _STYLE)


def _figure(figure: tuple[str, Any]) -> str:
    name, value = figure
    bad = " bad" if value and name.startswith("damage") else ""
    return f"<div class='card{bad}'><b>{_text(name, value)}</b>{escape(_title(name))}</div>"


def _title(name: str) -> str:
    return name.replace("_", " ")


def _table(rows: Rows) -> str:
    numbers = {name for name in rows[0] if any(_is_number(row[name]) for row in rows)}

    def marked(tag: str, name: str, text: str) -> str:
        wide = len(text) > 2 * _LONGEST
        kind = " class='number'" if name in numbers else " class='wide'" if wide else ""
        return f"<{tag}{kind}>{text}</{tag}>"

    head = "".join(marked("th", name, escape(_title(name))) for name in rows[0])
    lines = "".join(
        f"<tr>{''.join(marked('td', name, _text(name, value)) for name, value in row.items())}</tr>"
        for row in rows
    )
    return f"<div class='card wide'><table><tr>{head}</tr>{lines}</table></div>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(name: str, value: Any) -> str:
    """Return a value for people: bytes, seconds and moments by the name of their column."""
    if not _is_number(value):
        return escape(printable("" if value is None else str(value)))
    if name == "moment":
        return _moment(value)
    if name.startswith("age") and abs(value) < _FAR:
        return _age(round(value))
    if name == "share":
        return f"{value:.0%}"
    sign = "+" if name.endswith("change") and value > 0 else "-" if value < 0 else ""
    if _SIZE.search(name):
        return sign + human_size(abs(int(value)))
    return sign + (f"{abs(value):,.1f}" if isinstance(value, float) else f"{abs(value):,}")


def _age(seconds: int) -> str:
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    for (unit, size), (below, part) in pairwise(units):
        if seconds >= size:
            return f"{seconds // size:,} {unit} {seconds % size // part} {below}"
    return f"{seconds} s"


def _moment(moment: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    # A record may say any time, also one that no calendar has.
    return datetime.fromtimestamp(moment, UTC).strftime(form) if 0 <= moment < _FAR else "?"


def _plot(plot: Plot, rows: Rows) -> str:
    """Return a plot, or nothing where there is nothing to be seen."""
    drawn = [row for row in rows if row[plot.y]]
    if plot.kind == "bars":
        drawn.sort(key=lambda row: -abs(row[plot.y]))
    drawn = drawn[: plot.most]
    if not drawn:
        return ""
    shown = _line(plot, drawn) if plot.kind == "line" else _bars(plot, drawn)
    return f"<figure class='card'><h3>{escape(plot.title)}</h3>{shown}</figure>"


def _bars(plot: Plot, rows: Rows) -> str:
    longest = abs(rows[0][plot.y])
    stores = store_names([row["store"] for row in rows]) if "store" in plot.x else {}
    lines = "".join(
        f"<tr><td>{escape(_label(row, plot.x, stores))}</td>"
        f"<td><i{' class=less' if row[plot.y] < 0 else ''} "
        f"style='width:{abs(row[plot.y]) / longest:.1%}'></i></td>"
        f"<td class='number'>{_text(plot.y, row[plot.y])}</td></tr>"
        for row in rows
    )
    return f"<table class='bars'>{lines}</table>"


def _line(plot: Plot, rows: Rows) -> str:
    points = [(float(row[plot.x[0]]), float(row[plot.y])) for row in rows]
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    step = (last - first) / (_MARKS - 1)
    forms = ((300, "%H:%M:%S"), (86_400, "%H:%M"), (1e7, "%m-%d %H:%M"), (_FAR, "%Y-%m-%d"))
    short = next((form for most, form in forms if last - first < most), "%Y-%m-%d")
    ticks = [
        (moment, _moment(moment, short))
        for moment in (first + step * number for number in range(_MARKS - 1))
    ]
    ticks.append((last, ""))  # there is no room for its name
    steps = [points[0]]
    for (_, before), (moment, after) in pairwise(points):
        steps += [(moment, before), (moment, after)]
    return line_plot(plot.title, [Line(plot.title, 0, steps)], Axis("UTC", ticks=ticks), Axis(""))


def _label(row: Mapping[str, Any], names: Sequence[str], stores: Mapping[str, str]) -> str:
    short = {"store": lambda value: stores[value], "file": os.path.basename}
    parts = [short.get(name, str)(row[name]) for name in names if row[name] is not None]
    text = printable(" ".join(parts))
    return text if len(text) <= _LONGEST else "..." + text[-_LONGEST:]


def claim(directory: str) -> None:
    """Make the output directory. Raises :class:`UsageError` if it holds something,
    :class:`StorageError`."""
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        if os.listdir(directory):
            raise UsageError(f"{directory}: is not empty; give a new directory with --out")
        probe = os.path.join(directory, ".probe")
        with open(probe, "xb"):
            pass
        os.unlink(probe)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{directory}: is a file, not a directory") from error
    except OSError as error:
        raise StorageError(directory, "can't be written to", error) from error


def write_outcome(job: str, outcome: Outcome, directory: str) -> dict[str, list[dict[str, Any]]]:
    """Write all of it; return the first rows of each table that is shown."""
    shown: dict[str, list[dict[str, Any]]] = {}
    try:
        for name, table in outcome.tables.items():
            path = os.path.join(directory, f"{name}.parquet")
            if not table.written:
                table.rows.write.parquet(path)
            if not table.large:
                shown[name] = _write_json(path, os.path.join(directory, f"{name}.json"))
        summary = {"job": job, **outcome.summary, "tables": list(outcome.tables)}
        with open_private(os.path.join(directory, "summary.json")) as file:
            json.dump(summary, file, indent=2, ensure_ascii=False)
            file.write("\n")
        page = render_page(job, outcome, shown, _ROWS_ON_PAGE)
        with open_private(os.path.join(directory, "index.html")) as file:
            file.write(page)
        if outcome.page:
            replace_file(REAL, outcome.page, page.encode())
    except OSError as error:
        raise StorageError(error.filename or directory, "can't be written", error) from error
    return shown


def _write_json(parquet: str, path: str) -> list[dict[str, Any]]:
    """Write what Spark has written as JSON, too; returns the first rows. A batch at a time."""
    kept: list[dict[str, Any]] = []
    # The files' names are in the order of the rows.
    names = sorted(name for name in os.listdir(parquet) if name.endswith(".parquet"))
    with open_private(path) as file:
        for name in names:
            for batch in ParquetFile(os.path.join(parquet, name)).iter_batches():
                rows = batch.to_pylist()
                kept += rows[: _ROWS_ON_PAGE - len(kept)]
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return kept
