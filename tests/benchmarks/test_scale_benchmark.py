"""The benchmark of many queues runs, and its figures are of what it says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import scale
from qindex.index.file_budget import FileBudget
from tests.effort import not_quick

_COUNT = 40


def _step(directory: Path, name: str, idle: float = 0.02) -> dict[str, float]:
    store = str(directory)
    return scale.run_step(name, store=store, count=_COUNT, depth=3, most_open=64, idle=idle)


@pytest.mark.rotates(2)
def test_the_steps(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = tmp_path / "store"
    assert _step(store, "publish")["threads"] >= 2
    assert _step(store, "open, closed cleanly")["messages_of_some"] == 3 * _COUNT
    # None becomes idle on the way, however slow the machine is: as many are open as may be, each
    # with its journal, and where maps keep handles those of the journal and its checksums.
    in_turn = _step(store, "in turn", idle=600)
    assert before + FileBudget(64).journals <= in_turn["handles"] <= before + 64
    at_rest = _step(store, "rest")
    assert at_rest["handles"] < before + 10
    assert 1000 < at_rest["traced_per_queue"] < 8192
    assert _step(store, "consume")["messages"] == 3 * _COUNT
    assert _step(store, "open, killed")["messages_of_some"] == 0


@not_quick("thirty thousand messages, opened in six processes")
def test_a_deep_queue(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    arguments = ["--queues", "0", "--deep", "20000", "--dir", str(tmp_path), "--json", str(lines)]
    assert not scale.main(arguments)
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    figures = {one["figure"]: one["value"] for one in found}
    assert figures["deep: open, closed cleanly: messages_of_some"] == 20_000
    # Ten thousand more were published before the kill.
    assert figures["deep: consume: messages"] == 30_000
    assert figures["deep: publish: cpu"] > 0
    assert [path for path in tmp_path.iterdir() if path != lines] == []
