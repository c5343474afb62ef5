"""Figures from the rounds: medians, their spread, and what may be said in words because of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from qindex.compare.contender import Contender
from qindex.compare.load import QUANTILES
from qindex.compare.run import Plan, Results

_LEAST_ROUNDS = 3
_CLEAR = 1.1


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one contender: its value in each round.

    ``key`` names it for programs, ``title`` for readers; ``better`` is ``"high"`` or ``"low"``.
    The benchmarks know more of it: the process's CPU time for each of ``count`` operations, and
    the medians of the ratios within a round to the floor, and to the best of the peers.
    """

    key: str
    title: str
    unit: str
    better: str
    contender: str
    values: Sequence[float]
    cpu_us: float | None = None
    count: int = 0
    ratio_to_floor: float | None = None
    ratio_to_best_peer: float | None = None
    best_peer: str | None = None
    note: str = ""

    @property
    def rounds(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def spread(self) -> float:
        """(highest - lowest) / median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        names = ("key", "title", "unit", "better", "contender", "median", "low", "high", "rounds")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class _Kind:
    key: str
    title: str
    unit: str
    better: str
    get: Callable[[dict[str, Any]], float | None]
    words: str = ""
    """The sentence about a difference: of ``{best}`` and ``{other}``, ``{a}`` and ``{b}``."""


def _at(name: str, quantile: float) -> Callable[[dict[str, Any]], float]:
    place = QUANTILES.index(quantile)
    return lambda load: float(load[name][place])


def _written(load: dict[str, Any]) -> float | None:
    written = load["io"].get("write_bytes")
    # A file system in memory writes no pages: the kernel counts none.
    return written / load["bytes"] if written else None


_LOADS: Sequence[_Kind] = (
    _Kind("rate", "throughput, publish to delivery", "messages/s", "high",
          lambda load: load["rate"],
          "{best} moves {a} from publisher to consumer, {other} {b} ({ratio} times)."),
    _Kind("publish_rate", "publish rate", "messages/s", "high",
          lambda load: load["publish_rate"],
          "Publishers get rid of {a} in {best}, {b} in {other} ({ratio} times)."),
    _Kind("publish_p50", "publish call, p50", "us", "low", _at("publish_us", 0.5),
          "Half of the publish calls return within {a} in {best}, within {b} in {other}."),
    _Kind("publish_p99", "publish call, p99", "us", "low", _at("publish_us", 0.99)),
    _Kind("publish_p999", "publish call, p99.9", "us", "low", _at("publish_us", 0.999),
          "One publish call in a thousand takes longer than {a} in {best}, {b} in {other}."),
    _Kind("publish_max", "publish call, longest", "us", "low", _at("publish_us", 1.0)),
    _Kind("delivery_p50", "publish to delivery, p50", "us", "low", _at("delivery_us", 0.5),
          "Half of the messages reach their consumer within {a} in {best}, "
          "within {b} in {other}."),
    _Kind("delivery_p99", "publish to delivery, p99", "us", "low", _at("delivery_us", 0.99)),
    _Kind("delivery_p999", "publish to delivery, p99.9", "us", "low",
          _at("delivery_us", 0.999),
          "One message in a thousand is on its way for longer than {a} in {best}, "
          "{b} in {other}."),
    _Kind("delivery_max", "publish to delivery, longest", "us", "low", _at("delivery_us", 1.0)),
    _Kind("cpu", "CPU for each message, load included", "us", "low",
          lambda load: load["cpu_us"],
          "A message costs {a} of CPU in {best}, {b} in {other} (the load's own share is the same "
          "in both)."),
    _Kind("memory", "memory at most, mapped files apart", "bytes", "low",
          lambda load: float(load["memory_bytes"]),
          "{best} takes {a} of memory at most, {other} {b}."),
    _Kind("written_by_calls", "bytes of write calls", "bytes/message", "low",
          lambda load: load["io"]["wchar"] / load["messages"] if load["io"] else None),
    _Kind("amplification", "file pages made dirty / bytes published", "times", "low", _written,
          "For each byte published {best} makes {a} bytes of file pages dirty, {other} {b}."),
    _Kind("disk_peak", "disk space at most", "bytes", "low",
          lambda load: float(load["disk_peak_bytes"]),
          "{best} takes {a} of disk space at most, {other} {b}."),
    _Kind("disk_after", "disk space when all is acknowledged", "bytes", "low",
          lambda load: float(load["disk_after_bytes"]),
          "When everything is acknowledged, {best} holds {a} on disk, {other} {b}."),
)  # fmt: skip
_LOOKUP = _Kind(
    "lookup", "lookup of a message by key", "us", "low", lambda one: one["lookup_us"],
    "A lookup by key takes {a} in {best}, {b} in {other}.",
)  # fmt: skip
_RECOVERY_WORDS = (
    "After kill -9 with {backlog:,} messages waiting, the first one is delivered {a} after the "
    "start in {best}, {b} in {other}."
)


def figures_of(plan: Plan, results: Results) -> list[Figure]:
    """All figures; those of one kind side by side, in the contenders' order."""
    figures = [
        one
        for kind in _LOADS
        for contender in plan.kinds
        for one in _figure(kind, contender, results.loads.get(contender.name, ()))
    ]
    for backlog in plan.backlogs():
        kind = _recovery(backlog)
        for contender in plan.kinds:
            reopened = results.reopened.get(contender.name, {}).get(backlog, ())
            figures += _figure(kind, contender, reopened)
    for contender in plan.kinds:
        figures += _figure(_LOOKUP, contender, results.lookups.get(contender.name, ()))
    return figures


def side_by_side(plan: Plan, figures: Sequence[Figure]) -> list[tuple[Figure, list[Figure | None]]]:
    """The rows of a table: one of the figures of a kind, and that of each contender."""
    rows: dict[str, dict[str, Figure]] = {}
    for one in figures:
        rows.setdefault(one.key, {})[one.contender] = one
    return [
        (next(iter(row.values())), [row.get(kind.name) for kind in plan.kinds])
        for row in rows.values()
    ]


def _recovery(backlog: int) -> _Kind:
    return _Kind(
        f"recovery_{backlog}", f"kill -9 to first delivery, {backlog:,} waiting", "s", "low",
        lambda one: one["seconds"], _RECOVERY_WORDS,
    )  # fmt: skip


def _figure(
    kind: _Kind, contender: type[Contender], rounds: Iterable[dict[str, Any]]
) -> list[Figure]:
    values = [value for one in rounds if (value := kind.get(one)) is not None]
    if not values:
        return []
    return [Figure(kind.key, kind.title, kind.unit, kind.better, contender.name, values)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of the figures on the two designs: sentences by contender, and the titles of the
    figures of which the spread is larger than the difference."""

    better: dict[str, list[str]]
    too_close: list[str]
    rounds: int


def verdict(plan: Plan, figures: Sequence[Figure]) -> Verdict:
    """Hold the first two contenders against each other.

    A sentence is made only where every round of one is better than every round of the other, in
    at least three rounds, and the medians differ by a tenth or more.
    """
    first, second = plan.kinds[:2]
    better: dict[str, list[str]] = {first.name: [], second.name: []}
    too_close: list[str] = []
    names = {kind.name: "the " + kind.title.partition(" (")[0] for kind in (first, second)}
    largest = plan.backlogs()[-1]
    for kind in (*_LOADS, _recovery(largest), _LOOKUP):
        pair = [one for one in figures if one.key == kind.key][:2]
        of_both = [one.contender for one in pair] == [first.name, second.name]
        if not kind.words or not of_both or min(one.rounds for one in pair) < _LEAST_ROUNDS:
            continue
        best = clear_best(pair)
        if best is None:
            too_close.append(kind.title)
            continue
        other = pair[0] if best is pair[1] else pair[1]
        ratio = max(best.median, other.median) / max(min(best.median, other.median), 1e-9)
        sentence = kind.words.format(
            best=names[best.contender], other=names[other.contender], a=show_value(best),
            b=show_value(other), ratio=f"{ratio:.1f}", backlog=largest,
        )  # fmt: skip
        better[best.contender].append(sentence[0].upper() + sentence[1:])
    return Verdict(better, too_close, plan.rounds)


def clear_best(figures: Sequence[Figure]) -> Figure | None:
    """The figure of which every round is better than every round of all others, and the median by
    a tenth at least; ``None`` if there is none, or if there were fewer than three rounds."""
    if len(figures) < 2 or min(one.rounds for one in figures) < _LEAST_ROUNDS:
        return None
    sign = 1 if figures[0].better == "high" else -1
    best, second = sorted(figures, key=lambda one: sign * one.median, reverse=True)[:2]
    if sign > 0:
        apart = best.low > max(one.high for one in figures if one is not best)
    else:
        apart = best.high < min(one.low for one in figures if one is not best)
    smaller, larger = sorted((best.median, second.median))
    return best if apart and smaller * _CLEAR <= larger else None


def show_range(figure: Figure) -> str:
    """The lowest and the highest round; a unit that both have is shown once."""
    low, high = show_value(figure, figure.low), show_value(figure, figure.high)
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(' ' + unit) else low} to {high}"


def show_value(figure: Figure, value: float | None = None) -> str:
    """A figure's median (or another value of its kind) with its unit, to three digits."""
    number = figure.median if value is None else value
    if figure.unit == "us":
        return _scaled(number / 1e6, _SECONDS)
    if figure.unit == "s":
        return _scaled(number, _SECONDS)
    if figure.unit == "bytes":
        return _scaled(number, _BYTES)
    if figure.unit == "times":
        return f"{number:.2f}"
    return f"{_three(number)} {figure.unit}"


_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES = ((float(1 << 30), "GiB"), (float(1 << 20), "MiB"), (1024.0, "KiB"), (1.0, "bytes"))


def _scaled(number: float, units: Sequence[tuple[float, str]]) -> str:
    for size, unit in units:
        if abs(number) >= size:
            return f"{_three(number / size)} {unit}"
    return f"{_three(number / units[-1][0])} {units[-1][1]}"


def _three(number: float) -> str:
    if abs(number) >= 100:
        return f"{float(f'{number:.3g}'):,.0f}"
    return f"{number:.3g}"
