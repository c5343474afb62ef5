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


def _step(
    directory: Path, name: str, capsys: pytest.CaptureFixture[str], idle: str = "0.02"
) -> dict[str, float]:
    arguments = ["--queues", str(_COUNT), "--messages", "3", "--open-files", "64"]
    assert not scale.main([*arguments, "--idle", idle, "--dir", str(directory), "--step", name])
    figures: dict[str, float] = json.loads(capsys.readouterr().out)
    return figures


def test_the_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = tmp_path / "store"
    assert _step(store, "publish", capsys)["threads"] >= 2
    assert _step(store, "open, closed cleanly", capsys)["messages_of_some"] == 3 * _COUNT
    # None becomes idle on the way, however slow the machine is: as many are open as may be, each
    # with its journal, and the checksums of that once there are some.
    in_turn = _step(store, "in turn", capsys, idle="600")
    assert before + FileBudget(64).journals < in_turn["handles"] <= before + 64
    at_rest = _step(store, "rest", capsys)
    assert at_rest["handles"] < before + 10
    assert 1000 < at_rest["traced_per_queue"] < 8192
    assert _step(store, "consume", capsys)["messages"] == 3 * _COUNT
    # Of each queue one message was published in a step, and one was taken.
    assert _step(store, "open, killed", capsys)["messages_of_some"] == _COUNT


@not_quick("thirty thousand messages, opened in six processes")
def test_a_deep_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines"
    arguments = ["--queues", "0", "--deep", "20000", "--dir", str(tmp_path), "--json", str(lines)]
    assert not scale.main(arguments)
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    steps = {one["step"]: one for one in found}
    assert steps["deep: open, closed cleanly"]["messages"] == 20_000
    # Ten thousand more were published before the kill.
    assert steps["deep: consume"]["messages"] == 30_000
    assert "deep: publish" in capsys.readouterr().out
    assert [path for path in tmp_path.iterdir() if path != lines] == []
