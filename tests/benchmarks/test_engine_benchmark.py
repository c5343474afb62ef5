"""The benchmark of the engine: it runs, and each of its lines is well-formed and there."""

from __future__ import annotations

import importlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import engine
from benchmarks.bodies import BODY_BYTES, Bodies
from benchmarks.report import Bar, Report
from benchmarks.stopwatch import Sample, Stopwatch
from tests.effort import not_quick

FIGURE_KEYS = {
    "figure",
    "who",
    "value",
    "unit",
    "better",
    "ratio_to_floor",
    "ratio_to_best_peer",
    "best_peer",
    "spread",
    "cpu_us_per_op",
    "count",
    "rounds",
    "note",
}
BAR_KEYS = {"bar", "value", "unit", "limit", "holds", "by_cpu", "spread"}

RATES = {
    "publish",
    "get_ack_1k",
    "get_ack_10k",
    "publish_many",
    "get_many_ack_many",
    "publish_fsync",
    "publish_fsync_16_threads",
    "fsync_threads_over_one",
    "publish_many_fsync",
    "ack_fsync",
}
COSTS = {
    "bytes_at_rest",
    "bytes_allocated_at_rest",
    "bytes_dirtied_by_batches",
    "disk_after_drain",
    "memory_per_million",
    "open_clean_ms",
    "open_clean_memory",
    "open_clean_cpu",
    "open_clean_first_get",
    "open_killed_ms",
    "open_killed_memory",
    "open_killed_cpu",
    "open_killed_first_get",
}
OURS_ALONE = {
    "get_ack_10k_over_1k",
    "get_ack_64KiB",
    "get_ack_8KiB",
    "memory_per_100_million",
    "publish_64KiB",
    "publish_8KiB",
    "publish_keyed",
    "write_calls_per_publish",
}
SYNCS = {"syncs_per_publish", "syncs_per_get", "syncs_per_ack", "bytes_written_per_publish"}


def _run(tmp_path: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    output = tmp_path / "figures.jsonl"
    status = engine.main(
        ["--quick", "--rounds", "1", "--dir", str(tmp_path), "--json", str(output), *arguments]
    )
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    figures = [line for line in lines if "figure" in line]
    bars = [line for line in lines if "bar" in line]
    assert len(figures) + len(bars) == len(lines)
    assert list(tmp_path.iterdir()) == [output], "the run leaves its directory behind"
    return status, figures, bars


def _check_form(figures: list[dict[str, Any]], bars: list[dict[str, Any]]) -> None:
    for line in figures:
        assert set(line) == FIGURE_KEYS
        assert line["value"] in line["rounds"]
        assert line["better"] in ("higher", "lower")
        if line["unit"] == "msg/s":
            assert line["value"] > 0
            assert line["cpu_us_per_op"] > 0
            assert line["count"] > 0
    for line in bars:
        assert set(line) == BAR_KEYS
        assert (line["holds"] is None) == (line["value"] is None)


def _engine_imports() -> bool:
    try:
        return hasattr(importlib.import_module("qindex"), "open")
    except ImportError:
        return False


@pytest.mark.skipif(not _engine_imports(), reason="the engine does not import")
@not_quick("all groups of a benchmark")
def test_quick_run_of_the_engine_is_complete(tmp_path: Path) -> None:
    status, figures, bars = _run(tmp_path, "--who", "floor", "--who", "qindex")
    assert status == 0
    _check_form(figures, bars)
    ours = {line["figure"]: line for line in figures if line["who"] == "qindex"}
    assert set(ours) == RATES | COSTS | SYNCS | OURS_ALONE
    for name in RATES:
        assert ours[name]["ratio_to_floor"] > 0
    against_floor_only = [bar for bar in bars if "rocksdict" not in bar["bar"]]
    assert len(bars) > len(against_floor_only) > 12
    assert [bar["bar"] for bar in against_floor_only if bar["holds"] is None] == []


@not_quick("all groups of a benchmark")
def test_quick_run_of_a_peer_is_complete(tmp_path: Path) -> None:
    status, figures, bars = _run(tmp_path, "--who", "floor", "--who", "sqlite3")
    assert status == 0
    _check_form(figures, bars)
    names = {line["figure"] for line in figures if line["who"] == "sqlite3"}
    assert names - SYNCS == RATES | COSTS
    assert all(bar["holds"] is None for bar in bars), "nothing of ours was measured"


def test_a_group_alone(tmp_path: Path) -> None:
    status, figures, bars = _run(tmp_path, "--who", "floor", "--only", "publish")
    assert status == 0
    assert [line["figure"] for line in figures] == ["publish"]
    assert [bar["bar"] for bar in bars] == ["publish / floor", "publish / rocksdict"]


@pytest.mark.parametrize(
    "arguments",
    [["--only", "nothing"], ["--who", "nobody"], ["--rounds", "0"], ["--dir", "/dev/null"]],
)
def test_wrong_use_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        engine.main(arguments)
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def _report() -> Report:
    return Report(io.StringIO(), Console(file=io.StringIO()))


def test_a_ratio_is_the_median_of_the_ratios_within_a_round() -> None:
    report = _report()
    # A machine that is four times slower in the second round: the ratio does not notice.
    report.add(
        "rate",
        [
            {"floor": Sample(100.0), "qindex": Sample(50.0), "peer": Sample(25.0)},
            {"floor": Sample(25.0), "qindex": Sample(12.5), "peer": Sample(5.0)},
            {"floor": Sample(100.0), "qindex": Sample(60.0), "peer": Sample(30.0)},
        ],
        comparable=["peer"],
    )
    ours = report.find("rate")
    assert ours is not None
    assert ours.median == 50.0
    assert ours.ratio_to_floor == 0.5
    assert ours.ratio_to_best_peer == 2.0
    assert ours.best_peer == "peer"
    assert ours.spread == pytest.approx((60.0 - 12.5) / 50.0)
    peer = report.find("rate", "peer")
    assert peer is not None
    assert peer.best_peer is None, "a peer is not held against itself"


def test_the_best_peer_survives_a_kill_and_is_the_smallest_where_less_is_better() -> None:
    report = _report()
    report.add(
        "bytes",
        [{"qindex": Sample(165.0), "a": Sample(130.0), "b": Sample(120.0), "c": Sample(1.0)}],
        better="low",
        comparable=["a", "b"],
    )
    ours = report.find("bytes")
    assert ours is not None
    assert ours.best_peer == "b"
    assert ours.ratio_to_best_peer == pytest.approx(165.0 / 120.0)
    assert ours.ratio_to_floor is None


def test_bars() -> None:
    assert Bar.at_least("x", 0.5, 0.5).holds is True
    assert Bar.at_least("x", 0.49, 0.5).holds is False
    assert Bar.at_most("x", 20.1, 20.0).holds is False
    assert Bar.at_most("x", None, 20.0).holds is None


def test_stopwatch_counts_only_while_it_runs() -> None:
    watch = Stopwatch()
    with watch.running():
        sum(range(1000))
    wall, cpu = watch.wall, watch.cpu
    sum(range(100_000))
    assert (watch.wall, watch.cpu) == (wall, cpu)
    sample = watch.rate(10)
    assert sample.value == 10 / wall
    assert sample.count == 10


def test_bodies_are_distinct_and_repeatable() -> None:
    bodies = Bodies().take(20_001)
    assert len(set(bodies)) == len(bodies)
    assert {len(body) for body in bodies} == {BODY_BYTES}
    in_steps = Bodies()
    assert in_steps.take(9_999) + in_steps.take(2) + in_steps.take(10_000) == bodies


def test_a_wrong_body_is_not_measured() -> None:
    delivered = Bodies().take(5)
    delivered[3] = bytes(BODY_BYTES)
    with pytest.raises(RuntimeError, match="message 3 of 5"):
        Bodies().check(delivered)
