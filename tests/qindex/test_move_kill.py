"""A child that moves messages between queues is killed with SIGKILL, again and again: each message
is in exactly one queue, or was acknowledged."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import qindex
from tests import effort
from tests.waiting import WAIT

KILLS = effort.by_tier(quick=3, all=12, nightly=120)


@pytest.mark.timeout(600)
def test_each_message_is_in_one_queue(tmp_path: Path) -> None:
    chance = effort.chance("kills of moves")
    told: dict[str, set[int]] = {kind: set() for kind in "PMIA"}
    moved, first = 0, chance.randrange(3)
    for kill in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.qindex.move_child", str(tmp_path), str(kill * 10**6)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdout is not None
        until = (50, 500, 1500)[(kill + first) % 3]
        for count, line in enumerate(child.stdout, 1):
            if count == until:
                child.send_signal(signal.SIGKILL)
            if line.endswith(b"\n"):
                kind, number = line.split()
                told[kind.decode()].add(int(number))
        assert child.wait(WAIT) == -signal.SIGKILL
        with qindex.open(tmp_path, background=False) as engine:
            assert all(one.cause is qindex.Cause.CRASH for one in engine.findings)
            there = Counter(
                int(one.body.split()[0])
                for name in ("full", "q", "dead")
                for one in _all(engine.queue(name))
            )
            twice = [number for number, count in there.items() if count > 1]
            assert not twice, f"in two queues: {twice[:5]}"
            lost = told["P"] - there.keys() - told["I"] - _expired(told["P"])
            assert not lost, f"in no queue: {sorted(lost)[:5]}"
            back = there.keys() & told["A"]
            assert not back, f"acknowledged, and back: {sorted(back)[:5]}"
            in_source = {int(one.body.split()[0]) for one in _all(engine.queue("q"))}
            assert not in_source & told["M"]
            # What was not told of, and is gone, was acknowledged without its return being told.
            told["A"] |= told["I"] - there.keys()
            told["I"] &= told["A"]
            moved = len(told["M"])
    assert moved > 10 * KILLS
    with qindex.open(tmp_path) as engine:
        dead = engine.queue("dead", max_length=qindex.UNSET)
        for name in ("full", "q"):
            queue = engine.queue(name)
            while (delivery := queue.get(0)) is not None:
                delivery.reject()
        there = Counter(int(one.body.split()[0]) for one in _all(dead))
        assert max(there.values()) == 1
        assert not told["P"] - told["A"] - there.keys()


def _expired(numbers: set[int]) -> set[int]:
    """Those that can't be seen by peek while they are ready, for their time is up."""
    return {number for number in numbers if number % 5 == 0}


def _all(queue: qindex.Queue) -> list[qindex.Delivery]:
    return queue.peek(10**6)
