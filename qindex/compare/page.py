"""The page of a comparison: one HTML file, no scripts, nothing loaded from anywhere.

:func:`whole_page` also frames the pages of Spark's jobs.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from qindex.compare.figures import Figure, clear_best, show_range, show_value, side_by_side, verdict
from qindex.compare.load import QUANTILES
from qindex.compare.plots import Axis, Line, line_plot
from qindex.compare.run import Plan, Results
from qindex.compare.workload import PRESETS, Workload

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser itself refuses whatever the page might load or run."""
_BINS = 40
_LAST_QUANTILE = 0.99995
"""Where the longest one is drawn: on this axis it would be infinitely far to the right."""

_STYLE = """
:root { color-scheme: light dark; --page: #f9f9f7; --card: #fcfcfb; --ink: #0b0b0b;
  --soft: #52514e; --grid: #e1e0d9; --axis: #a3a199;
  --c0: #2a78d6; --c1: #d9581f; --c2: #1a8f66; --c3: #8a5bd0;
  --c4: #c43f7a; --c5: #7a6a2f; }
@media (prefers-color-scheme: dark) { :root { --page: #0d0d0d; --card: #1a1a19; --ink: #ffffff;
  --soft: #c3c2b7; --grid: #2c2c2a; --axis: #6b6a63; --c0: #5a9df0; --c1: #ef7d48; --c2: #35b888;
  --c3: #ae8bea; --c4: #e672a3; --c5: #b9a55a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 20px 56px; max-width: 1240px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 6px; }
h2 { font-size: 18px; margin: 36px 0 12px; } h3 { font-size: 15px; margin: 0 0 2px; }
p { margin: 0 0 8px; } .soft, figcaption { color: var(--soft); } .after { margin-top: 12px; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
  gap: 16px; }
.card { background: var(--card); border: 1px solid var(--grid); border-radius: 10px;
  padding: 16px 18px; margin: 0; min-width: 0; }
.card ul { margin: 8px 0 0; padding-left: 20px; } .card li { margin-bottom: 6px; }
figcaption { font-size: 13px; margin: 0 0 6px; }
.key { display: inline-flex; align-items: center; gap: 6px; margin-right: 16px;
  font-size: 13px; }
.key i { width: 14px; height: 4px; border-radius: 2px; display: inline-block; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 12px; }
svg .name { font-weight: 600; } .end { text-anchor: end; } .mid { text-anchor: middle; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--axis); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .range { stroke-width: 2; opacity: 0.55; } svg .mark { stroke: var(--card); stroke-width: 2; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--grid);
  font-variant-numeric: tabular-nums; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
td small { color: var(--soft); display: block; }
td.best { font-weight: 600; } td small { font-weight: 400; }
"""


def describe(load: Workload) -> str:
    """A workload in one or two sentences."""
    kind, *numbers = load.sizes.split(":")
    sizes = {
        "fixed": f"bodies of {numbers[0]} bytes",
        "uniform": f"bodies of {numbers[0]} to {numbers[-1]} bytes",
        "lognormal": f"bodies of {numbers[0]} bytes in the middle, log-normally spread",
    }[kind]
    parts = [
        sizes,
        f"{_number(load.publishers, 'publishing thread')} and "
        f"{_number(load.consumers, 'consuming thread')}",
        _number(load.queues, "queue"),
    ]
    if load.groups > 1:
        parts.append(f"{load.groups} groups of consumers that each get every message")
    parts.append(f"{_number(load.batch, 'message')} a call")
    if load.lookups:
        parts.append("messages have keys")
    if load.ack_lag:
        parts.append(f"acknowledged {load.ack_lag} messages late")
    if load.think_us:
        parts.append(f"consumers take {load.think_us:g} µs for a message until publishing ends")
    promise = "on disk" if load.durability == "fsync" else "safe from the death of the process"
    amount = f"{load.messages:,} messages" if load.messages else f"{load.seconds:g} seconds"
    first = ", ".join(parts)
    return (
        f"{first[0].upper()}{first[1:]}. What a call returned is {promise}. "
        f"Each round: {amount} at full speed, then {load.seconds:g} seconds at {load.rate:,.0f} "
        "messages a second for the latencies."
    )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def make_page(plan: Plan, results: Results, figures: Sequence[Figure]) -> str:
    """The whole page as text."""
    title = f"qindex compare: {plan.workload.name}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='soft'>{escape(describe(plan.workload))}</p>",
        "<h2>What each design is good at on this load</h2>",
        _words(plan, figures),
        "<h2>Plots</h2>",
        f"<div class='grid2'>{''.join(_plots(plan, results))}</div>",
        "<h2>All figures</h2>",
        _table(plan, figures),
        "<h2>How it was measured</h2>",
        _method(plan),
    ]
    return whole_page(title, "\n".join(body))


def whole_page(title: str, body: str, style: str = "") -> str:
    """Return a page that loads and runs nothing. ``style`` is added to the style sheet."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta http-equiv='Content-Security-Policy' content=\"{_POLICY}\">"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<link rel='icon' href='data:,'>"
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head>\n<body>\n"
        f"{body}\n</body></html>\n"
    )


def _words(plan: Plan, figures: Sequence[Figure]) -> str:
    said = verdict(plan, figures)
    cards = []
    for number, kind in enumerate(plan.kinds[:2]):
        lines = said.better.get(kind.name) or ["Nothing that shows above the spread of the rounds."]
        if said.rounds < 3:
            lines = ["Fewer than three rounds were run: nothing is said about which is better."]
        items = "".join(f"<li>{escape(one)}</li>" for one in lines)
        cards.append(
            f"<section class='card'><h3>{_key(number, kind.title)}</h3><ul>{items}</ul></section>"
        )
    close = "; ".join(said.too_close)
    after = f"<p class='soft after'>Too close to tell: {escape(close)}.</p>" if close else ""
    return f"<div class='grid2'>{''.join(cards)}</div>{after}"


def _key(number: int, title: str) -> str:
    return f"<span class='key'><i style='background:var(--c{number})'></i>{escape(title)}</span>"


def _card(plan: Plan, title: str, caption: str, plot: str) -> str:
    keys = "".join(_key(number, kind.title) for number, kind in enumerate(plan.kinds))
    return (
        f"<figure class='card'><h3>{escape(title)}</h3><figcaption>{escape(caption)}</figcaption>"
        f"<div>{keys}</div>{plot}</figure>"
    )


def _plots(plan: Plan, results: Results) -> list[str]:
    call = "call" if plan.workload.batch == 1 else f"call of {plan.workload.batch} messages"
    plots = [
        _latency(plan, results, "publish_us", "Publish latency",
                 f"How long a publish {call} takes."),
        _latency(plan, results, "delivery_us", "Delivery latency",
                 "From the moment a message is due until its consumer has it."),
        _over_time(plan, results),
        _disk(plan, results),
    ]  # fmt: skip
    if results.reopened:
        plots.append(_recovery(plan, results))
    return plots


def _latency(plan: Plan, results: Results, name: str, title: str, caption: str) -> str:
    lines = []
    for number, kind in enumerate(plan.kinds):
        rounds = [load[name] for load in results.loads[kind.name]]
        points = [
            (_tail(quantile), statistics.median(one[place] for one in rounds))
            for place, quantile in enumerate(QUANTILES)
        ]
        lines.append(Line(kind.title, number, points))
    ticks = [
        (0.0, "0"),
        (0.5, "50 %"),
        (0.9, "90 %"),
        (0.99, "99 %"),
        (0.999, "99.9 %"),
        (1.0, "max"),
    ]
    across = Axis("share of all that were at least this fast",
                  ticks=[(_tail(share), label) for share, label in ticks])  # fmt: skip
    caption += " Lower is better; the right end shows the slowest ones. Both axes are logarithmic."
    plot = line_plot(title, lines, across, Axis("microseconds", log=True))
    return _card(plan, title, caption, plot)


def _tail(share: float) -> float:
    return -math.log10(1 - min(share, _LAST_QUANTILE))


def _typical(results: Results, name: str) -> list[list[float]]:
    """The samples of the round with the middle rate."""
    rounds = sorted(results.loads[name], key=lambda load: float(load["rate"]))
    samples: list[list[float]] = rounds[len(rounds) // 2]["samples"]
    return samples


def _over_time(plan: Plan, results: Results) -> str:
    lines = []
    for number, kind in enumerate(plan.kinds):
        samples = _typical(results, kind.name)[:-1]
        groups = plan.workload.groups
        for column, share, what in ((1, 1, "published"), (2, groups, "delivered")):
            points = _rates(samples, column, share)
            lines.append(Line(f"{kind.title}, {what}", number, points, dashed=column == 1))
    caption = (
        "The middle round at full speed. Solid: delivered (to all groups); dotted: published. "
        "Higher is better; a line ends when its round is done."
    )
    plot = line_plot("Throughput over time", lines, Axis("seconds since the start"),
                     Axis("messages / s"))  # fmt: skip
    return _card(plan, "Throughput over time", caption, plot)


def _rates(samples: list[list[float]], column: int, share: int) -> list[tuple[float, float]]:
    step = max(1, len(samples) // _BINS)
    kept = samples[::step]
    # The rest of the last bin is at its end, not lost.
    kept = kept if kept[-1] is samples[-1] else [*kept, samples[-1]]
    points = []
    for before, after in pairwise(kept):
        seconds = after[0] - before[0]
        if seconds > 0.005:
            rate = (after[column] - before[column]) / share / seconds
            points.append(((after[0] + before[0]) / 2, rate))
    return points or [(0.0, 0.0)]


def _disk(plan: Plan, results: Results) -> str:
    lines = [
        Line(kind.title, number,
             [(one[0], one[3] / (1 << 20)) for one in _typical(results, kind.name)])
        for number, kind in enumerate(plan.kinds)
    ]  # fmt: skip
    caption = (
        "The same round: blocks that the store's files take, up to its close. Lower is better."
    )
    plot = line_plot("Disk space over time", lines, Axis("seconds since the start"), Axis("MiB"))
    return _card(plan, "Disk space over time", caption, plot)


def _recovery(plan: Plan, results: Results) -> str:
    lines = []
    for number, kind in enumerate(plan.kinds):
        points, ranges, labels = [], [], []
        for backlog, rounds in results.reopened.get(kind.name, {}).items():
            took = [one["seconds"] * 1e3 for one in rounds]
            points.append((float(backlog), statistics.median(took)))
            ranges.append((min(took), max(took)))
            labels.append(f"{kind.title}: {backlog:,} messages, {points[-1][1]:.0f} ms")
        if points:
            lines.append(Line(kind.title, number, points, ranges, marks=True, labels=labels))
    caption = (
        "A process is killed with kill -9 while so many messages wait; from opening the store "
        "again to the first message. Lower is better; bars reach from the fastest round to the "
        "slowest."
    )
    plot = line_plot("Recovery", lines, Axis("messages waiting"), Axis("milliseconds"))
    return _card(plan, "Recovery after kill -9", caption, plot)


def _table(plan: Plan, figures: Sequence[Figure]) -> str:
    head = "".join(f"<th>{escape(kind.title)}</th>" for kind in plan.kinds)
    rows = []
    for some, of_kinds in side_by_side(plan, figures):
        more = "more" if some.better == "high" else "less"
        best = clear_best([one for one in of_kinds if one is not None])
        cells = "".join(_cell(one, best) for one in of_kinds)
        rows.append(f"<tr><td>{escape(some.title)}<small>{more} is better</small></td>{cells}</tr>")
    return (
        f"<div class='card wide'><table><thead><tr><th>median; below it the lowest and the highest "
        f"round; bold: better in every round</th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(figure: Figure | None, best: Figure | None) -> str:
    if figure is None:
        return "<td>none</td>"
    mark = " class='best'" if figure is best else ""
    spread = ""
    if figure.rounds > 1:
        spread = f"<small>{escape(show_range(figure))}</small>"
    return f"<td{mark}>{escape(show_value(figure))}{spread}</td>"


def _method(plan: Plan) -> str:
    notes = [f"{kind.title}: {kind.note}." for kind in plan.kinds if kind.note]
    lines = [
        f"{_number(plan.rounds, 'round')} of each contender, taking turns, each in a process of "
        f"its own and a fresh directory. Python {platform.python_version()}, {platform.system()} "
        f"{platform.release()}, {os.cpu_count()} processors.",
        "Every delivered body is compared with the one that was published; a message lost, altered "
        "or delivered twice ends the comparison with an error.",
        "CPU and memory include the publishing and consuming threads, which are the same for all. "
        "Memory is the process's own, without pages of mapped files.",
        "File pages made dirty are counted by the kernel for the process (write_bytes in "
        "/proc/self/io), in whole pages, whether by a write or through a memory map; bytes of "
        "write calls (wchar) do not include what goes through a map.",
        *notes,
    ]
    items = "".join(f"<li>{escape(one)}</li>" for one in lines)
    return f"<div class='card'><p>{_command(plan)}</p><ul>{items}</ul></div>"


def _command(plan: Plan) -> str:
    """The command that runs the same again."""
    load = plan.workload
    preset = PRESETS.get(load.name)
    options = f" --rounds {plan.rounds}" + (" --peers" if len(plan.kinds) > 2 else "")
    if preset is not None and load in (preset, preset.quick()):
        quick = " --quick" if plan.quick else ""
        return f"<code>qindex compare {escape(load.name)}{options}{quick}</code>"
    text = escape(json.dumps(load.to_dict()))
    command = f"<code>qindex compare --workload FILE{options}</code>"
    return f"{command} with this file: <code>{text}</code>"
