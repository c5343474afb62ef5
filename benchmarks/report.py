"""Samples, figures and bars of a program: JSON lines as they arrive, and tables at the end.

A shared machine is loud, so nothing here rests on one number: every figure is measured in rounds
(floor, ours, each peer in turn, then the next round), a ratio is the median of the ratios within
a round, and the CPU time of the measuring process stands beside the wall time.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TextIO

from rich.console import Console

from benchmarks.stopwatch import Found, Rounds, Sample
from qindex.compare.figures import Figure
from qindex.compare.tables import print_table, short

OURS = "qindex"
FLOOR = "floor"
MANY = "msg/s"
"""The unit of a rate, where none other is named."""

FIGURE_HEADS = ("figure", "who", "value", "of the floor", "of the best peer", "spread", "CPU us")
BAR_HEADS = ("bar", "value", "limit", "holds", "by CPU", "spread")


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise held against its measured value; ``holds`` is ``None`` if not measured.

    ``by_cpu`` is the same ratio of CPU time instead of wall time: what it would be on a machine
    with nobody else on it, for work that one thread does. ``spread`` is that of the rounds, as a
    figure's. Both are shown, and decide nothing.
    """

    bar: str
    value: float | None
    unit: str
    limit: str
    holds: bool | None
    by_cpu: float | None = None
    spread: float | None = None

    @classmethod
    def at_least(cls, bar: str, value: float | None, limit: float, unit: str = "") -> Bar:
        holds = None if value is None else value >= limit
        return cls(bar, value, unit, f">= {limit:g}", holds)

    @classmethod
    def at_most(cls, bar: str, value: float | None, limit: float, unit: str = "") -> Bar:
        return cls(bar, value, unit, f"<= {limit:g}", None if value is None else value <= limit)


def figures_from_rounds(
    name: str,
    rounds: Rounds,
    *,
    unit: str,
    better: str,
    comparable: Iterable[str],
    notes: Mapping[str, str],
) -> list[Figure]:
    """Make a figure of each contender of the rounds.

    ``comparable`` are the peers that may be the best one (those that survive a kill); the best is
    taken by its median, and a peer is never compared with itself.
    """
    samples: dict[str, list[Sample]] = {}
    for round_ in rounds:
        for who, sample in round_.items():
            samples.setdefault(who, []).append(sample)
    figures = {}
    for who, got in samples.items():
        cpu = _median([sample.cpu_us for sample in got if sample.cpu_us is not None])
        figures[who] = Figure(
            name,
            name,
            unit,
            better,
            who,
            [sample.value for sample in got],
            cpu_us=cpu,
            count=got[-1].count,
            note=notes.get(who, ""),
        )
    choose = max if better == "high" else min
    for who in figures.keys() - {FLOOR}:
        rivals = [peer for peer in comparable if peer in figures and peer != who]
        best = choose(rivals, key=lambda peer: figures[peer].median) if rivals else None
        figures[who] = replace(
            figures[who],
            ratio_to_floor=_median(_ratios(rounds, who, FLOOR)),
            ratio_to_best_peer=_median(_ratios(rounds, who, best)) if best else None,
            best_peer=best,
        )
    return list(figures.values())


def _ratios(rounds: Rounds, who: str, other: str, what: str = "value") -> list[float]:
    found = [
        (getattr(samples[who], what), getattr(samples[other], what))
        for samples in rounds
        if who in samples and other in samples
    ]
    return [ours / theirs for ours, theirs in found if ours is not None and theirs]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def figure_line(figure: Figure) -> dict[str, Any]:
    """The JSON line of a figure, before it is rounded."""
    return {
        "figure": figure.key,
        "who": figure.contender,
        "value": figure.median,
        "unit": figure.unit,
        "better": f"{figure.better}er",
        "ratio_to_floor": figure.ratio_to_floor,
        "ratio_to_best_peer": figure.ratio_to_best_peer,
        "best_peer": figure.best_peer,
        "spread": figure.spread,
        "cpu_us_per_op": figure.cpu_us,
        "count": figure.count,
        "rounds": figure.values,
        "note": figure.note,
    }


def _rounded(value: Any) -> Any:
    """Keep four significant digits: more would pretend."""
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return float(f"{value:.4g}")


@dataclass(slots=True)
class Report:
    """Collects figures and bars; writes a JSON line as each arrives, and tables at the end."""

    output: TextIO
    console: Console
    figures: dict[tuple[str, str], Figure] = field(default_factory=dict)
    """By name and contender."""
    rounds: dict[str, Rounds] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def add(
        self,
        name: str,
        rounds: Rounds,
        *,
        unit: str = MANY,
        better: str = "high",
        comparable: Iterable[str] = (),
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Take in the rounds of one figure, and write its lines."""
        self.rounds[name] = rounds
        for figure in figures_from_rounds(
            name, rounds, unit=unit, better=better, comparable=comparable, notes=notes or {}
        ):
            self.figures[name, figure.contender] = figure
            self._write(figure_line(figure))

    def add_all(self, found: Found, **options: Any) -> None:
        """Take in all figures that were found."""
        for name, rounds in found.items():
            self.add(name, rounds, **options)

    def add_one(
        self, name: str, value: float, unit: str, better: str = "low", note: str = ""
    ) -> None:
        """Take in a figure of ours that is measured once."""
        self.add(name, [{OURS: Sample(value)}], unit=unit, better=better, notes={OURS: note})

    def judge(self, bar: Bar) -> None:
        """Take in a bar, and write its line."""
        self.bars.append(bar)
        self._write(asdict(bar))

    def value(self, figure: str, who: str = OURS) -> float | None:
        found = self.find(figure, who)
        return None if found is None else found.median

    def find(self, figure: str, who: str = OURS) -> Figure | None:
        return self.figures.get((figure, who))

    def hold_ratio(
        self, figure: str, other: str, limit: float, bar: str = "", *, most: bool = False
    ) -> None:
        """Hold our share of ``other``'s rate against a bar, at least ``limit``; with ``most`` our
        time in relation to theirs, at most ``limit``."""
        rounds = self.rounds.get(figure, ())
        ratios = _ratios(rounds, OURS, other)
        of_cpu = _ratios(rounds, *((OURS, other) if most else (other, OURS)), "cpu_us")
        hold = Bar.at_most if most else Bar.at_least
        held = hold(bar or f"{figure} / {other}", _median(ratios), limit)
        spread = Figure("", "", "", "", "", ratios).spread if ratios else None
        self.judge(replace(held, by_cpu=_median(of_cpu), spread=spread))

    def hold_least(self, bar: str, figure: str, limit: float, unit: str = "") -> None:
        """Hold a figure of ours against a bar, at least ``limit``."""
        self._hold(Bar.at_least(bar, self.value(figure), limit, unit), figure)

    def hold_most(self, bar: str, figure: str, limit: float, unit: str = "") -> None:
        """Hold a figure of ours against a bar, at most ``limit``."""
        self._hold(Bar.at_most(bar, self.value(figure), limit, unit), figure)

    def _hold(self, bar: Bar, figure: str) -> None:
        found = self.find(figure)
        self.judge(replace(bar, spread=found.spread if found else None))

    def _write(self, line: Mapping[str, Any]) -> None:
        rounded = {name: _rounded(value) for name, value in line.items()}
        # A count is a whole number.
        rounded |= {"count": line["count"]} if "count" in line else {}
        self.lines.append(rounded)
        self.output.write(json.dumps(rounded) + "\n")
        self.output.flush()

    def print_tables(self) -> None:
        rows = [[*figure_row(line), line["note"]] for line in self.lines if "figure" in line]
        heads, left = (*FIGURE_HEADS, "note"), ("figure", "who", "note")
        print_table(self.console, "figures (medians)", heads, rows, left, grouped=True)
        if self.bars:
            bars = [bar_row(line) for line in self.lines if "bar" in line]
            print_table(self.console, "bars", BAR_HEADS, bars, ("bar", "limit", "holds"))


def figure_row(line: Mapping[str, Any]) -> list[str]:
    """The cells of :data:`FIGURE_HEADS`, from a JSON line."""
    best = short(line["ratio_to_best_peer"])
    if best:
        best += f" ({line['best_peer']})"
    return [
        line["figure"],
        line["who"],
        f"{short(line['value'])} {line['unit']}".strip(),
        short(line["ratio_to_floor"]),
        best,
        f"{line['spread']:.0%}" if line["spread"] else "",
        short(line["cpu_us_per_op"]),
    ]


def bar_row(line: Mapping[str, Any]) -> list[str]:
    """The cells of :data:`BAR_HEADS`, from a JSON line."""
    return [
        line["bar"],
        f"{short(line['value'])} {line['unit']}".strip(),
        line["limit"],
        {True: "yes", False: "**no**", None: "not measured"}[line["holds"]],
        short(line["by_cpu"]),
        f"{line['spread']:.0%}" if line["spread"] else "",
    ]
