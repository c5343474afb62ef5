"""The benchmark of shared mode runs, and prints what it says."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.shared import OURS_ALONE, main
from tests.effort import not_quick


@not_quick("ten servers with their clients")
def test_in_small(tmp_path: Path) -> None:
    sizes = ["--processes", "2", "--seconds", "0.05", "--rounds", "1"]
    assert main([*sizes, "--dir", str(tmp_path), "--json", str(tmp_path / "lines")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    figures = {(line["figure"], line["who"]): line["value"] for line in lines}
    for name in ("publish", "get + ack", "batches"):
        assert figures[name, "qindex"] > 0
        assert figures[name, "sqlite3"] > 0
    for kind in OURS_ALONE:
        assert figures["get + ack", kind.name] > 0
    late = [figures[f"publish to a get that waits, p{percent}", "qindex"] for percent in (50, 99)]
    assert 0 < late[0] <= late[1]
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]
