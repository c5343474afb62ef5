"""The benchmark of the RocketMQ store: it runs, and its lines are all there and well-formed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rocketstore
from benchmarks.rocket_rates import BARS
from tests.effort import not_quick

SYNCS = {"put_fsync", "put_fsync_16_threads", "fsync_threads_over_one"}
LOOKUPS = {"lookup_by_key_1000", "lookup_by_key_10000"}


@not_quick("all groups of a benchmark")
def test_all_groups_in_small_without_the_real_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocketstore, "class_path", lambda: ("", "left out"))
    lines = tmp_path / "lines"
    arguments = ["--messages", "1000", "--rounds", "1", "--dir", str(tmp_path)]
    assert rocketstore.main([*arguments, "--json", str(lines)]) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    figures: dict[str, dict[str, Any]] = {}
    for row in rows:
        if "figure" in row:
            figures.setdefault(row["figure"], {})[row["who"]] = row
    assert set(figures) == {*BARS, "get_32_keys", *SYNCS, *LOOKUPS}
    assert all(who["qindex"]["value"] > 0 for who in figures.values())
    floored = {name for name, who in figures.items() if "floor" in who}
    assert floored == {name for name in BARS if name.startswith("put")} | {"put_fsync"}
    bars = [row for row in rows if "bar" in row]
    assert len(bars) == len(BARS)
    assert all(bar["holds"] is None for bar in bars)
    # Nothing is left behind.
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--rounds", "0"], "at least 1"),
        (["--dir", "/nowhere"], "no directory"),
        (["--only", "everything"], "invalid choice"),
    ],
)
def test_wrong_use(wrong: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        rocketstore.main(wrong)
    assert end.value.code == 2
    assert says in capsys.readouterr().err
