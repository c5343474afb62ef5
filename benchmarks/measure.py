"""Timing, medians, ratios, JSON lines and tables.

A shared machine is loud, so nothing here rests on one number: every figure is measured in rounds
(floor, ours, each peer in turn, then the next round), a ratio is the median of the ratios within
a round, and the CPU time of the measuring process stands beside the wall time.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.table import Table

__all__ = [
    "Bar",
    "Figure",
    "Report",
    "Rounds",
    "Sample",
    "figures_from_rounds",
    "human",
    "ratio_of_rounds",
    "spread_of",
]

OURS = "qindex"
FLOOR = "floor"

MANY = "msg/s"
"""The unit of a rate, where none other is named."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one contender in one round. ``cpu_us`` is process CPU for each operation."""

    value: float
    cpu_us: float | None = None
    count: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sample:
        return cls(data["value"], data.get("cpu_us"), data.get("count", 0))


@dataclass(slots=True)
class Figure:
    """One figure of one contender: the median of its rounds.

    ``ratio_to_floor`` and ``ratio_to_best_peer`` are medians of the ratios within a round;
    ``spread`` is (largest - smallest) / median of the rounds. ``better`` says which way is good.
    """

    figure: str
    who: str
    value: float
    unit: str
    better: str
    rounds: list[float]
    spread: float
    cpu_us_per_op: float | None = None
    count: int = 0
    ratio_to_floor: float | None = None
    ratio_to_best_peer: float | None = None
    best_peer: str | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "figure": self.figure,
            "who": self.who,
            "value": _round(self.value),
            "unit": self.unit,
            "better": self.better,
            "ratio_to_floor": _round(self.ratio_to_floor),
            "ratio_to_best_peer": _round(self.ratio_to_best_peer),
            "best_peer": self.best_peer,
            "spread": _round(self.spread),
            "cpu_us_per_op": _round(self.cpu_us_per_op),
            "count": self.count,
            "rounds": [_round(value) for value in self.rounds],
            "note": self.note,
        }


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

    def to_json(self) -> dict[str, Any]:
        return {
            "bar": self.bar,
            "value": _round(self.value),
            "unit": self.unit,
            "limit": self.limit,
            "holds": self.holds,
            "by_cpu": _round(self.by_cpu),
            "spread": _round(self.spread),
        }


Rounds = Sequence[Mapping[str, Sample]]
"""For each round, the sample of each contender that was measured in it."""


def ratio_of_rounds(rounds: Rounds, who: str, other: str) -> float | None:
    """Give the median of ``who / other`` within a round, or ``None`` if never both measured."""
    ratios = _ratios(rounds, who, other)
    return statistics.median(ratios) if ratios else None


def _ratios(rounds: Rounds, who: str, other: str) -> list[float]:
    return [
        samples[who].value / samples[other].value
        for samples in rounds
        if who in samples and other in samples and samples[other].value
    ]


def spread_of(values: Sequence[float]) -> float:
    """Give (largest - smallest) / median."""
    median = statistics.median(values)
    return (max(values) - min(values)) / median if median else 0.0


def figures_from_rounds(
    name: str,
    rounds: Rounds,
    *,
    unit: str,
    better: str,
    comparable: Iterable[str],
    notes: Mapping[str, str] | None,
) -> list[Figure]:
    """Turn the rounds of one figure into one :class:`Figure` for each contender.

    ``comparable`` are the peers that may be the best one (those that survive a kill); the best is
    taken by its median, and a peer is never compared with itself.
    """
    values: dict[str, list[Sample]] = {}
    for samples in rounds:
        for who, sample in samples.items():
            values.setdefault(who, []).append(sample)
    medians = {who: statistics.median(s.value for s in got) for who, got in values.items()}
    figures = []
    for who, got in values.items():
        numbers = [sample.value for sample in got]
        cpu = [sample.cpu_us for sample in got if sample.cpu_us is not None]
        median = medians[who]
        figure = Figure(
            figure=name,
            who=who,
            value=median,
            unit=unit,
            better=better,
            rounds=numbers,
            spread=spread_of(numbers),
            cpu_us_per_op=statistics.median(cpu) if cpu else None,
            count=got[-1].count,
            note=(notes or {}).get(who, ""),
        )
        if FLOOR in medians and who != FLOOR:
            figure.ratio_to_floor = ratio_of_rounds(rounds, who, FLOOR)
        rivals = [peer for peer in comparable if peer in medians and peer != who]
        if rivals and who != FLOOR:
            choose = max if better == "higher" else min
            figure.best_peer = choose(rivals, key=medians.__getitem__)
            figure.ratio_to_best_peer = ratio_of_rounds(rounds, who, figure.best_peer)
        figures.append(figure)
    return figures


def _round(value: float | None) -> float | None:
    """Keep four significant digits: more would pretend."""
    return None if value is None else float(f"{value:.4g}")


@dataclass(slots=True)
class Report:
    """Collects figures and bars; writes a JSON line as each arrives, and tables at the end."""

    lines: TextIO
    console: Console
    figures: list[Figure] = field(default_factory=list)
    rounds: dict[str, Rounds] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def add(
        self,
        name: str,
        rounds: Rounds,
        *,
        unit: str = MANY,
        better: str = "higher",
        comparable: Iterable[str] = (),
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Take in the rounds of one figure, and write its lines."""
        self.rounds[name] = rounds
        for figure in figures_from_rounds(
            name, rounds, unit=unit, better=better, comparable=comparable, notes=notes
        ):
            self.figures.append(figure)
            self._line(figure.to_json())

    def judge(self, bars: Iterable[Bar]) -> None:
        for bar in bars:
            self.bars.append(bar)
            self._line(bar.to_json())

    def value(self, figure: str, who: str = OURS) -> float | None:
        found = self.find(figure, who)
        return None if found is None else found.value

    def find(self, figure: str, who: str = OURS) -> Figure | None:
        for candidate in self.figures:
            if candidate.figure == figure and candidate.who == who:
                return candidate
        return None

    def ratio(self, figure: str, other: str, who: str = OURS) -> float | None:
        """Give ``who / other``, the median of the ratios within a round."""
        return ratio_of_rounds(self.rounds.get(figure, ()), who, other)

    def cpu_ratio(self, figure: str, other: str, who: str = OURS) -> float | None:
        """Give the ratio of the rates that CPU time alone would allow, as :meth:`ratio`."""
        ratios = []
        for samples in self.rounds.get(figure, ()):
            ours, theirs = samples.get(who), samples.get(other)
            if ours is not None and theirs is not None and ours.cpu_us and theirs.cpu_us:
                ratios.append(theirs.cpu_us / ours.cpu_us)
        return statistics.median(ratios) if ratios else None

    def hold_ratio(self, figure: str, other: str, limit: float, called: str = "") -> Bar:
        """Hold our share of ``other``'s rate against a bar, at least ``limit``."""
        ratios = _ratios(self.rounds.get(figure, ()), OURS, other)
        return replace(
            Bar.at_least(f"{figure} / {called or other}", self.ratio(figure, other), limit),
            by_cpu=self.cpu_ratio(figure, other),
            spread=spread_of(ratios) if len(ratios) > 1 else None,
        )

    def hold_least(self, bar: str, figure: str, limit: float, unit: str = "") -> Bar:
        """Hold a figure of ours against a bar, at least ``limit``."""
        held = Bar.at_least(bar, self.value(figure), limit, unit)
        return replace(held, spread=self._spread_of(figure))

    def hold_most(self, bar: str, figure: str, limit: float, unit: str = "") -> Bar:
        """Hold a figure of ours against a bar, at most ``limit``."""
        held = Bar.at_most(bar, self.value(figure), limit, unit)
        return replace(held, spread=self._spread_of(figure))

    def _spread_of(self, figure: str) -> float | None:
        found = self.find(figure)
        return found.spread if found is not None and len(found.rounds) > 1 else None

    def _line(self, data: Mapping[str, Any]) -> None:
        self.lines.write(json.dumps(data) + "\n")
        self.lines.flush()

    def print_tables(self) -> None:
        table = Table(title="figures (medians)", header_style="bold")
        for heading in ("figure", "who"):
            table.add_column(heading, no_wrap=True)
        for heading in ("value", "unit", "/ floor", "/ best", "best peer", "spread", "cpu us"):
            justify: Literal["left", "right"] = "right"
            if heading in ("unit", "best peer"):
                justify = "left"
            table.add_column(heading, justify=justify, no_wrap=True)
        table.add_column("note", no_wrap=True)
        previous = ""
        for figure in self.figures:
            if previous and figure.figure != previous:
                table.add_section()
            table.add_row(
                figure.figure if figure.figure != previous else "",
                figure.who,
                human(figure.value),
                figure.unit,
                human(figure.ratio_to_floor),
                human(figure.ratio_to_best_peer),
                figure.best_peer or "",
                f"{figure.spread:.0%}" if len(figure.rounds) > 1 else "",
                human(figure.cpu_us_per_op),
                figure.note,
                style="bold" if figure.who == OURS else None,
            )
            previous = figure.figure
        self.console.print(table)
        if self.bars:
            self._print_bars()

    def _print_bars(self) -> None:
        table = Table(title="bars", header_style="bold")
        for heading in ("bar", "value", "limit", "holds", "by CPU", "spread"):
            numeric = heading in ("value", "by CPU", "spread")
            table.add_column(heading, justify="right" if numeric else "left")
        for bar in self.bars:
            verdict = {True: "[green]yes", False: "[red]NO", None: "not measured"}[bar.holds]
            value = "" if bar.value is None else f"{human(bar.value)} {bar.unit}".strip()
            spread = "" if bar.spread is None else f"{bar.spread:.0%}"
            table.add_row(bar.bar, value, bar.limit, verdict, human(bar.by_cpu), spread)
        self.console.print(table)


def human(value: float | None) -> str:
    """Write a number to three digits with k or M: ``1.23M``, ``45.6k``, ``0.789``."""
    if value is None:
        return ""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
