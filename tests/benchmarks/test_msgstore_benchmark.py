"""The benchmark of large messages runs, and prints what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.effort import not_quick

ROOT = Path(__file__).parents[2]


@not_quick("all groups of a benchmark")
def test_the_engine_groups_in_small(tmp_path: Path) -> None:
    sizes = "--megabytes 4 --rounds 1 --seconds 0.2 --steady-seconds 0.5 --space-megabytes 48"
    groups = ["engine_peers", "engine_space", "engine_steady"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.msgstore", *groups, *sizes.split()]
        + ["--dir", str(tmp_path), "--json", str(tmp_path / "lines")],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr.decode()
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    figures = {(line["figure"], line["who"]) for line in lines if "figure" in line}
    assert {
        ("engine_publish_get_ack_64KiB", "qindex"),
        ("engine_publish_get_ack_64KiB", "sqlite3"),
        ("engine_disk_after_90%_acked", "qindex"),
        ("engine_publish_p99", "compacting"),
        ("engine_steady_load", "qindex"),
    } <= figures
    bars = {line["bar"]: line for line in lines if "bar" in line}
    assert bars["engine: disk after 90 % acked / live"]["holds"]
    assert all(isinstance(bar["holds"], bool) for bar in bars.values())
    # Nothing is left behind.
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


def test_an_unknown_group_is_wrong_use() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.msgstore", "nonsense"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"no group nonsense" in done.stderr
