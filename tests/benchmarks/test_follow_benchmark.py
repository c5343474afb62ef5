"""The benchmark of a follower's lag runs, and prints what it says."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.follow import main


def test_in_small(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    assert main(["--count", "20000", "--dir", str(tmp_path), "--json", str(lines)]) == 0
    read = [json.loads(line) for line in lines.read_text().splitlines()]
    figures = {line["figure"]: line["value"] for line in read if "figure" in line}
    assert 0 < figures["lag_ms_p50"] <= figures["lag_ms_p99"] <= figures["lag_ms_p100"]
    assert figures["missed"] == 0
    assert [line["bar"] for line in read if "bar" in line] == ["99 % of the lags of a follower"]
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]
