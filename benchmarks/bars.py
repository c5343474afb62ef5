"""The bars: what the engine promises, held against what this run measured.

A ratio is the median of the ratios within a round. A bar whose figure is not in the run (another
group was chosen, a peer is not installed) is not judged.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bodies import RECORD_BYTES
from benchmarks.figures import ENOUGH_AFTER_DRAIN, WITHOUT_KEY, backlog_figure, over_smallest
from benchmarks.report import FLOOR, Bar, Report
from benchmarks.sizes import Sizes

__all__ = ["judge"]

_HAND_WRITTEN = "rocksdict"
_FLAT = 0.85
"""The share of its rate at the smallest backlog that a get keeps at every other, to be flat."""


def judge(report: Report, sizes: Sizes, groups: set[str]) -> list[Bar]:
    """Hold the figures of the groups that ran against their bars."""
    bars: list[Bar] = []
    for group, make in _BARS.items():
        if group in groups:
            bars += make(report, sizes)
    return bars


def _publish(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        report.hold_ratio("publish", FLOOR, 3),
        report.hold_ratio("publish", _HAND_WRITTEN, 7),
    ]


def _keyed(report: Report, sizes: Sizes) -> list[Bar]:
    return [report.hold_ratio("publish_keyed", WITHOUT_KEY, 0.5)]


def _get_ack(report: Report, sizes: Sizes) -> list[Bar]:
    bars = []
    for name in map(backlog_figure, sizes.backlogs):
        bars += [
            report.hold_ratio(name, FLOOR, 3),
            report.hold_ratio(name, _HAND_WRITTEN, 10),
        ]
    found = [report.find(over_smallest(other, sizes)) for other in sizes.backlogs[1:]]
    known = [figure.median for figure in found if figure is not None]
    flat = min(known) if len(known) == len(found) else None
    return [*bars, Bar.at_least("get_ack: slowest backlog / smallest backlog", flat, _FLAT)]


def _publish_many(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        report.hold_ratio("publish_many", FLOOR, 0.2, "one bulk write"),
        report.hold_ratio("publish_many", _HAND_WRITTEN, 2),
    ]


def _get_many(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        report.hold_ratio("get_many_ack_many", FLOOR, 1, "floor of single writes"),
        report.hold_ratio("get_many_ack_many", _HAND_WRITTEN, 1.5),
    ]


def _large(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        Bar.at_most(f"{figure} / a plain write of it", report.ratio(figure, FLOOR), limit)
        for figure, limit in (("publish_8KiB", 2.5), ("get_ack_8KiB", 2), ("publish_64KiB", 1.5))
    ]


def _fsync(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        report.hold_least("fsync: 16 threads / one", "fsync_threads_over_one", 8),
        report.hold_least("fsync: batches", "publish_many_fsync", 1e6, "msg/s"),
        report.hold_ratio("publish_many_fsync", _HAND_WRITTEN, 1.5),
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
    return [report.hold_most("bytes at rest per message", "bytes_at_rest", RECORD_BYTES)]


def _drain(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        report.hold_most("disk after a drain", "disk_after_drain", ENOUGH_AFTER_DRAIN, "bytes"),
    ]


def _million(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        report.hold_most("open after a close", "open_clean_ms", 20, "ms"),
        report.hold_most("memory of open after a close", "open_clean_memory", 5, "MB"),
        report.hold_most("open after SIGKILL", "open_killed_cpu", 0.25, "CPU s"),
    ]


def _memory(report: Report, sizes: Sizes) -> list[Bar]:
    return [
        report.hold_most("memory of a backlog of 100 million", "memory_per_100_million", 25, "MB"),
    ]


_BARS: dict[str, Callable[[Report, Sizes], list[Bar]]] = {
    "publish": _publish,
    "keyed": _keyed,
    "get_ack": _get_ack,
    "publish_many": _publish_many,
    "get_many": _get_many,
    "large": _large,
    "fsync": _fsync,
    "syncs": _syncs,
    "at_rest": _at_rest,
    "drain": _drain,
    "million": _million,
    "memory": _memory,
}
