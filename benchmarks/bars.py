"""The bars: what the engine promises, held against what this run measured.

A ratio is the median of the ratios within a round. A bar whose figure is not in the run (another
group was chosen, a peer is not installed) is not judged.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.contender import RECORD_BYTES
from benchmarks.figures import ENOUGH_AFTER_DRAIN, backlog_figure, over_smallest
from benchmarks.measure import FLOOR, Bar, Report
from benchmarks.sizes import Sizes

__all__ = ["judge"]

_HAND_WRITTEN = "rocksdict"
_FLAT = 0.8
"""The share of its rate at the smallest backlog that a get keeps at every other, to be flat."""


def judge(report: Report, sizes: Sizes, groups: set[str]) -> list[Bar]:
    """Hold the figures of the groups that ran against their bars."""
    bars: list[Bar] = []
    for group, make in _BARS.items():
        if group in groups:
            bars += make(report, sizes)
    return bars


def _ratio(report: Report, figure: str, other: str, limit: float, called: str = "") -> Bar:
    return Bar.at_least(
        f"{figure} / {called or other}",
        report.ratio(figure, other),
        limit,
        by_cpu=report.cpu_ratio(figure, other),
    )


def _publish(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        _ratio(report, "publish", FLOOR, 0.5),
        _ratio(report, "publish", _HAND_WRITTEN, 1.2),
    ]


def _get_ack(report: Report, sizes: Sizes) -> list[Bar]:
    bars = []
    for name in map(backlog_figure, sizes.backlogs):
        bars += [
            _ratio(report, name, FLOOR, 0.3),
            _ratio(report, name, _HAND_WRITTEN, 1.2),
        ]
    found = [report.find(over_smallest(other, sizes)) for other in sizes.backlogs[1:]]
    known = [figure.value for figure in found if figure is not None]
    flat = min(known) if len(known) == len(found) else None
    return [*bars, Bar.at_least("get_ack: slowest backlog / smallest backlog", flat, _FLAT)]


def _publish_many(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        _ratio(report, "publish_many", FLOOR, 0.10, "one bulk write"),
        _ratio(report, "publish_many", _HAND_WRITTEN, 1.0),
    ]


def _get_many(report: Report, sizes: Sizes) -> list[Bar]:
    return [_ratio(report, "get_many_ack_many", FLOOR, 1.0, "floor of single writes")]


def _fsync(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        Bar.at_least("fsync: 16 threads / one", report.value("fsync_threads_over_one"), 4.0),
        Bar.at_least("fsync: batches", report.value("publish_many_fsync"), 1e6, "msg/s"),
    ]


def _syncs(report: Report, sizes: Sizes) -> list[Bar]:
    bars = []
    for phase, expected in (("publish", 1.0), ("get", 0.0), ("ack", 1.0)):
        value = report.value(f"syncs_per_{phase}")
        # One sync too few breaks a promise as much as one too many.
        holds = None if value is None else abs(value - expected) <= 0.01
        bars.append(Bar(f"syncs per {phase}", value, "", f"= {expected:g}", holds))
    written = report.value("bytes_written_per_publish")
    records = None if written is None else written / RECORD_BYTES
    return [*bars, Bar.at_most("bytes written per publish / record", records, 1.1)]


def _at_rest(report: Report, sizes: Sizes) -> list[Bar]:
    return [Bar.at_most("bytes at rest per message", report.value("bytes_at_rest"), RECORD_BYTES)]


def _drain(report: Report, sizes: Sizes) -> list[Bar]:
    value = report.value("disk_after_drain")
    return [Bar.at_most("disk after a drain", value, ENOUGH_AFTER_DRAIN, "bytes")]


def _million(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        Bar.at_most("open after a close", report.value("open_clean_ms"), 20.0, "ms"),
        Bar.at_most("memory of open after a close", report.value("open_clean_memory"), 5.0, "MB"),
        Bar.at_most("open after SIGKILL", report.value("open_killed_cpu"), 1.0, "CPU s"),
    ]


_BARS: dict[str, Callable[[Report, Sizes], list[Bar]]] = {
    "publish": _publish,
    "get_ack": _get_ack,
    "publish_many": _publish_many,
    "get_many": _get_many,
    "fsync": _fsync,
    "syncs": _syncs,
    "at_rest": _at_rest,
    "drain": _drain,
    "million": _million,
}
