"""What is said in words follows from the figures, and nothing is said within their spread."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from qindex.compare.figures import Figure, clear_best, figures_of, show_range, show_value, verdict
from qindex.compare.load import QUANTILES
from qindex.compare.page import make_page
from qindex.compare.peers import DESIGNS
from qindex.compare.run import Plan, Results
from qindex.compare.workload import PRESETS, Workload


def _round(rate: float, latency: float, after: int) -> dict[str, Any]:
    curve = [latency * (1 + place) for place in range(len(QUANTILES))]
    samples = [[0.1 * one, 100 * one, 90 * one, 4096 * one] for one in range(12)]
    return {
        "messages": 1000, "bytes": 100_000, "rate": rate, "publish_rate": rate, "cpu_us": 10.0,
        "publish_us": curve, "delivery_us": curve, "memory_bytes": 1 << 20, "samples": samples,
        "disk_peak_bytes": 1 << 20, "disk_after_bytes": after,
        "io": {"wchar": 5000, "write_bytes": 200_000},
    }  # fmt: skip


def results_of(
    plan: Plan, rates: Sequence[float], others: Sequence[float], latency: float = 5.0
) -> Results:
    results = Results()
    results.loads["qindex"] = [_round(one, 5.0, 4096) for one in rates]
    results.loads["rocketstore"] = [_round(one, latency, 1 << 24) for one in others]
    for kind in plan.kinds:
        reopened = [{"seconds": 0.1, "cpu_seconds": 0.1}] * len(rates)
        results.reopened[kind.name] = dict.fromkeys(plan.backlogs(), reopened)
        results.lookups[kind.name] = [{"lookup_us": 3.0}] * len(rates)
    return results


def _plan(load: Workload | None = None) -> Plan:
    return Plan(load or PRESETS["task-queue"], DESIGNS)


def test_a_difference_larger_than_the_spread_is_said_with_its_numbers() -> None:
    plan = _plan()
    figures = figures_of(plan, results_of(plan, [2000, 2100, 2200], [900, 1000, 1100]))
    said = verdict(plan, figures)
    assert any("2,100 messages/s" in one and "2.1 times" in one for one in said.better["qindex"])
    assert any("4 KiB on disk, the commit log 16 MiB" in one for one in said.better["qindex"])
    assert not said.better["rocketstore"]
    assert any("CPU" in one for one in said.too_close)


@pytest.mark.parametrize(
    ("rates", "others"),
    [
        ([2000, 2100, 900], [950, 1000, 1100]),  # one round of the better is worse
        ([1050, 1060, 1070], [1000, 1010, 1020]),  # clear, but less than a tenth
        ([2000], [1000]),
        ([2000, 2100], [900, 1000]),  # too few rounds to know a spread
    ],
)
def test_within_the_spread_nothing_is_said(rates: list[float], others: list[float]) -> None:
    plan = _plan()
    said = verdict(plan, figures_of(plan, results_of(plan, rates, others)))
    assert not any("times)" in one for words in said.better.values() for one in words)


def test_the_better_one_is_the_lower_where_less_is_better() -> None:
    plan = _plan()
    said = verdict(plan, figures_of(plan, results_of(plan, [9, 9, 9], [9, 9, 9], latency=50.0)))
    assert any("publish calls return" in one for one in said.better["qindex"])


def _figure(name: str, low: float, median: float, high: float, better: str = "low") -> Figure:
    return Figure("x", "x", "us", better, name, [low, median, high])


def test_the_clear_best_of_many() -> None:
    first, second = _figure("a", 1, 2, 3), _figure("b", 4, 5, 6)
    third = _figure("c", 2.5, 50, 60)
    assert clear_best([first, second]) is first
    assert clear_best([first, second, third]) is None
    high = [_figure("a", 1, 2, 3, "high"), _figure("b", 4, 5, 6, "high")]
    assert clear_best(high) is high[1]
    assert clear_best([first]) is None


@pytest.mark.parametrize(
    ("unit", "value", "shown"),
    [
        ("us", 12.345, "12.3 µs"),
        ("us", 12_345, "12.3 ms"),
        ("s", 2, "2 s"),
        ("bytes", 0, "0 bytes"),
        ("bytes", 1536, "1.5 KiB"),
        ("times", 1.2345, "1.23"),
        ("messages/s", 123_456, "123,000 messages/s"),
    ],
)
def test_values_are_shown_in_units_one_can_read(unit: str, value: float, shown: str) -> None:
    assert show_value(Figure("k", "t", unit, "low", "c", [value])) == shown


def test_a_range_names_its_unit_once() -> None:
    assert show_range(_figure("a", 1.0, 2.0, 3.0)) == "1 to 3 µs"
    assert show_range(_figure("a", 1.0, 2.0, 3000.0)) == "1 µs to 3 ms"


def test_the_page_holds_all_and_loads_nothing() -> None:
    load = PRESETS["event-log"]
    plan = _plan(load)
    results = results_of(plan, [2000, 2100, 2200], [900, 1000, 1100])
    page = make_page(plan, results, figures_of(plan, results))
    assert page.count("<svg") == 5
    assert "qindex compare event-log --rounds 3" in page
    assert "lookup of a message by key" in page
    assert not re.search(r"https?:|<script|<link[^>]*href='(?!data:)|src=|url\(|nan\b", page)


def test_a_name_in_the_page_is_text_and_a_changed_load_is_given_whole() -> None:
    plan = _plan(Workload(name="<b>&", queues=7))
    results = results_of(plan, [1, 1, 1], [1, 1, 1])
    page = make_page(plan, results, figures_of(plan, results))
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "&quot;queues&quot;: 7" in page
