"""The benchmark of priorities runs, and prints what it says."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.priorities import main


def test_in_small(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    arguments = ["--messages", "500", "--rounds", "2", "--dir", str(tmp_path)]
    assert main([*arguments, "--json", str(lines)]) == 0
    read = [json.loads(line) for line in lines.read_text().splitlines()]
    figures = [(line["figure"], line["who"]) for line in read if "figure" in line]
    assert len(figures) == 6
    assert {name for name, _ in figures} == {"publish", "get", "publish + get"}
    assert [line["bar"] for line in read if "bar" in line] == ["publish + get / without priorities"]
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]
