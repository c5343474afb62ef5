"""The benchmark of the asyncio face runs, and prints what it says."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.aio import main


def test_in_small(tmp_path: Path) -> None:
    sizes = ["--count", "2000", "--confirmed", "200", "--rounds", "1"]
    assert main([*sizes, "--dir", str(tmp_path), "--json", str(tmp_path / "lines")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    figures = {line["figure"]: line["value"] for line in lines if "figure" in line}
    assert set(figures) >= {"publish", "aio_publish", "aio_confirmed", "asyncio_alone"}
    assert all(value > 0 for value in figures.values())
    assert {line["bar"] for line in lines if "bar" in line} >= {"aio publish / plain publish"}
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]
