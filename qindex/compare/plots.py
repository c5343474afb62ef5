"""Line plots as inline SVG, for a page that opens without network or scripts.

Colours are the page's CSS variables ``--c0`` to ``--c5``, so that a plot follows its light or dark
theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from qindex.compare.tables import short

_WIDTH, _HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 26, 48
_PLOT_WIDTH = _WIDTH - _LEFT - _RIGHT
_PLOT_HEIGHT = _HEIGHT - _TOP - _BOTTOM
_STEPS = (1, 2, 2.5, 5, 10)
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Axis:
    """A title with its unit, and where ticks are: ``(value, label)``; none: round numbers from 0.

    ``log``: a logarithmic axis, with a tick at each power of ten unless there are ticks.
    """

    title: str
    log: bool = False
    ticks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its points, its colour's number, and the name that the pointer shows.

    ``ranges``: low and high of each point, if it has a spread. ``marks``: draw the points.
    """

    name: str
    colour: int
    points: Sequence[tuple[float, float]]
    ranges: Sequence[tuple[float, float]] = ()
    marks: bool = False
    dashed: bool = False
    labels: Sequence[str] = field(default_factory=tuple)


def line_plot(name: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """Return one SVG element. ``name`` describes it for readers who can't see it."""
    xs = [point[0] for line in lines for point in line.points]
    ys = [point[1] for line in lines for point in line.points]
    ys += [value for line in lines for pair in line.ranges for value in pair]
    across, below = _Scale(x, xs, _LEFT, _PLOT_WIDTH), _Scale(y, ys, _TOP, _PLOT_HEIGHT)
    bottom = _TOP + _PLOT_HEIGHT
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">']
    for value, label in below.ticks:
        height = bottom - (below.place(value) - _TOP)
        parts += [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" '
            f'y1="{height:.1f}" y2="{height:.1f}"/>',
            f'<text class="tick end" x="{_LEFT - 8}" y="{height + 4:.1f}">{escape(label)}</text>',
        ]
    for value, label in across.ticks:
        at = across.place(value)
        parts += [
            f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 5}"/>',
            f'<text class="tick mid" x="{at:.1f}" y="{bottom + 19}">{escape(label)}</text>',
        ]
    parts += [
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>',
        f'<text class="name" x="{_LEFT - 58}" y="14">{escape(y.title)}</text>',
        f'<text class="name mid" x="{_LEFT + _PLOT_WIDTH / 2:.0f}" y="{_HEIGHT - 8}">'
        f"{escape(x.title)}</text>",
    ]
    for line in lines:
        parts += _drawn(line, across, below, bottom)
    return "\n".join([*parts, "</svg>"])


def _drawn(line: Line, across: _Scale, below: _Scale, bottom: int) -> list[str]:
    def height(value: float) -> float:
        return bottom - (below.place(value) - _TOP)

    at = [(across.place(one), height(other)) for one, other in line.points]
    colour = f"var(--c{line.colour})"
    path = " ".join(f"{one:.1f},{other:.1f}" for one, other in at)
    dash = ' stroke-dasharray="3 4"' if line.dashed else ""
    parts = [
        f'<polyline class="line" style="stroke:{colour}"{dash} points="{path}">'
        f"<title>{escape(line.name)}</title></polyline>"
    ]
    for (middle, _), (low, high) in zip(at, line.ranges, strict=False):
        # Side by side: ranges of several lines at one place would hide each other.
        place = middle + line.colour * 4
        parts.append(
            f'<line class="range" style="stroke:{colour}" x1="{place:.1f}" x2="{place:.1f}" '
            f'y1="{height(low):.1f}" y2="{height(high):.1f}"/>'
        )
    if line.marks:
        labels = line.labels or [line.name] * len(at)
        for (place, level), label in zip(at, labels, strict=True):
            parts.append(
                f'<circle class="mark" style="fill:{colour}" cx="{place:.1f}" cy="{level:.1f}" '
                f'r="4"><title>{escape(label)}</title></circle>'
            )
    return parts


class _Scale:
    """Values of one axis to places in the picture."""

    def __init__(self, axis: Axis, values: Sequence[float], start: int, length: int) -> None:
        self._log, self._start, self._length = axis.log, start, length
        if axis.log:
            above = [value for value in values if value > 0] or [1.0]
            self._low = 10.0 ** math.floor(math.log10(min(above)))
            self._high = 10.0 ** math.ceil(math.log10(max(max(above), self._low * 1.01)))
            exponents = range(round(math.log10(self._low)), round(math.log10(self._high)) + 1)
            self.ticks = axis.ticks or [(10.0**one, short(10.0**one)) for one in exponents]
        elif axis.ticks:
            self.ticks = axis.ticks
            self._low, self._high = axis.ticks[0][0], axis.ticks[-1][0]
        else:
            step = _step(max([*values, 1e-9]))
            count = math.ceil(max(values, default=1.0) / step - 1e-9) or 1
            self._low, self._high = 0.0, step * count
            self.ticks = [(step * one, short(step * one)) for one in range(count + 1)]

    def place(self, value: float) -> float:
        """Where a value is, in the units of the picture, from the axis's start."""
        low, high = self._low, self._high
        if self._log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        return self._start + (value - low) / (high - low) * self._length


def _step(largest: float) -> float:
    rough = largest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * one for one in _STEPS if power * one >= rough * 0.999)
