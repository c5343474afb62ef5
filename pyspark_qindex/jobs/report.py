"""The page of a job's outcome: one HTML file, plots inside it as SVG, nothing fetched.

Plots need matplotlib (extra ``report``); without it the page has its tables alone, and says so.
"""

from __future__ import annotations

import html
import importlib.util
import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from pyspark_qindex.jobs.outcome import Outcome, Plot
from qindex.compare.page import PAGE_POLICY

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em;
       color: #1c2733; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto }
th, td { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #dde3e9;
         vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
svg { max-width: 100%; height: auto } .note { color: #5a6875 }
@media (prefers-color-scheme: dark) {
  body { color: #dbe4ec; background: #14191f } th, td { border-color: #313b45 }
  svg { background: #fff }
}
"""
_LONGEST: Final = 40

Rows = Sequence[Mapping[str, Any]]


def render_page(job: str, outcome: Outcome, shown: Mapping[str, Rows], most: int) -> str:
    """Return the page. ``shown``: the first rows of each table, at most ``most``."""
    parts = [f"<h1>qindex pipeline {html.escape(job)}</h1>"]
    moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    parts.append(f'<p class="note">{moment}</p>')
    parts.append(_table([{"figure": k, "value": v} for k, v in outcome.summary.items()]))
    parts += [f"<p>{html.escape(note)}</p>" for note in outcome.notes]
    plots = [plot for plot in outcome.plots if shown.get(plot.table)]
    if plots and importlib.util.find_spec("matplotlib") is None:
        parts.append('<p class="note">Plots need matplotlib: pip install qindex[report]</p>')
    else:
        for plot in plots:
            drawn = _draw(plot, shown[plot.table])
            if drawn:
                parts.append(f"<h2>{html.escape(plot.title)}</h2>{drawn}")
    for name, table in outcome.tables.items():
        rows = shown.get(name)
        if rows is None:
            continue
        parts.append(f"<h2>{html.escape(table.title or name)}</h2>")
        parts.append(_table(rows) if rows else '<p class="note">none</p>')
        if len(rows) == most:
            parts.append(f'<p class="note">The first {most}; all are in {name}.json</p>')
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">'
        f"<title>qindex pipeline {html.escape(job)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _table(rows: Rows) -> str:
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = "".join(f"<tr>{''.join(_cell(row[name]) for name in names)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{lines}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{html.escape('' if value is None else str(value))}</td>"
    text = f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
    return f'<td class="number">{text}</td>'


def _draw(plot: Plot, rows: Rows) -> str:
    """Return a plot as SVG, or nothing where there is nothing to be seen."""
    drawn = [row for row in rows if row[plot.y] is not None][: plot.most]
    if not drawn or not any(row[plot.y] for row in drawn):
        return ""
    from matplotlib.figure import Figure

    values = [float(row[plot.y]) for row in drawn]
    height = 3.2 if plot.kind == "line" else 0.9 + 0.24 * len(drawn)
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots()
    if plot.kind == "line":
        moments = [round(float(row[plot.x[0]]) * 1e6) for row in drawn]
        axes.plot(
            np.array(moments, "datetime64[us]"), values, drawstyle="steps-post", color="#2f6fab"
        )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("UTC")
    else:
        labels = [_label(row, plot.x) for row in drawn]
        places = range(len(drawn))
        axes.barh(places, values, color="#2f6fab")
        axes.set_yticks(places, labels)
        axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    # Without the XML head and the address of its schema: the page refers to nothing outside.
    found = re.search(r"<svg.*</svg>", text.getvalue(), re.S)
    return re.sub(r"<metadata>.*?</metadata>", "", found.group(0), flags=re.S) if found else ""


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    text = "/".join(str(row[name]).rsplit("/", 1)[-1] for name in names if row[name] is not None)
    # matplotlib takes text between two dollars for a formula.
    text = text.replace("$", r"\$")
    return text if len(text) <= _LONGEST else "..." + text[-_LONGEST:]
