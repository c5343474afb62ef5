"""The benchmark of the RocketMQ store: it runs, and its lines are all there and well-formed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rocketstore
from benchmarks.rocket_lookup import save_plot, text_plot
from benchmarks.rocket_rates import BARS
from tests.effort import not_quick

SYNCS = {"put_fsync", "put_fsync_16_threads", "fsync_threads_over_one", "put_many_fsync"}
LOOKUPS = {"lookup_by_key_1000", "lookup_by_key_10000"}
WALKED = {"index_files_walked": 10, "index_files_walked_1s": 2}


@not_quick("all groups of a benchmark")
def test_all_groups_in_small_without_the_real_store(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    arguments = ["--quick", "--without-real", "--dir", str(tmp_path)]
    assert rocketstore.main([*arguments, "--json", str(lines)]) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    figures: dict[str, dict[str, Any]] = {}
    for row in rows:
        if "figure" in row:
            figures.setdefault(row["figure"], {})[row["who"]] = row
    assert set(figures) == {*BARS, "get_32_keys", *SYNCS, *LOOKUPS, *WALKED}
    assert all(who["qindex"]["value"] > 0 for who in figures.values())
    floored = {name for name, who in figures.items() if "floor" in who}
    assert floored == {name for name in BARS if name.startswith("put")} | {
        "put_fsync",
        "put_many_fsync",
    }
    # A range of one second in the middle of the store's time leaves most index files unopened.
    for name, most in WALKED.items():
        assert figures[name]["qindex"]["unit"] == "of 10 files"
        assert 1 <= figures[name]["qindex"]["value"] <= most
    bars = [row for row in rows if "bar" in row]
    assert len(bars) == len(BARS)
    assert all(bar["holds"] is None for bar in bars)
    # Nothing is left behind.
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


def test_the_picture_is_small_and_says_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [(1000, 3.5), (10_000, 3.75), (10_000_000, 4.25)]
    picture = tmp_path / "lookups.svg"
    save_plot(rows, picture)
    svg = picture.read_text()
    assert len(svg) < 60_000
    for text in ("microseconds", "messages in the store", "10,000,000", "4.2"):
        assert text in svg
    save_plot(rows, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == svg
    save_plot(rows, tmp_path / "lookups.png")
    assert (tmp_path / "lookups.png").read_bytes().startswith(b"\x89PNG")
    assert "10,000,000 messages  ####" in text_plot(rows)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--rounds", "0"], "at least 1"),
        (["--largest", "10"], "at least 1000"),
        (["--plot", "lookups.txt"], ".svg or .png"),
        (["--dir", "/nowhere"], "no directory"),
        (["--only", "everything"], "invalid choice"),
    ],
)
def test_wrong_use(wrong: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        rocketstore.main(wrong)
    assert end.value.code == 2
    assert says in capsys.readouterr().err
