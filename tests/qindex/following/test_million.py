"""A million messages, followed while another process publishes, consumes, flushes, compacts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

import qindex
from tests.effort import not_quick
from tests.qindex.following.publisher import body_of
from tests.waiting import WAIT

ROOT = Path(__file__).parents[3]
COUNT = 1_000_000


@not_quick("a million messages")
@pytest.mark.timeout(240)
def test_a_million_messages_none_doubled_and_none_missed_in_silence(tmp_path: Path) -> None:
    store = tmp_path / "store"
    gone: list[qindex.Gap] = []
    command = [sys.executable, "-m", "tests.qindex.following.publisher", str(store), str(COUNT)]
    started = perf_counter()
    with (
        qindex.follow(store, "q", wait=True, timeout=60, on_gap=gone.append) as follower,
        subprocess.Popen(command, cwd=ROOT) as child,
    ):
        expected = 0
        given = 0
        keys = 0
        for delivery in follower:
            seq = delivery.seq_id
            if seq != expected:
                assert seq > expected
                missed = sum(len(gap) for gap in gone if expected <= gap.first < seq)
                assert missed == seq - expected, (expected, seq, gone)
            assert delivery.body == body_of(seq)
            if delivery.key is not None:
                assert delivery.key == f"k{seq}"
                keys += 1
            expected = seq + 1
            given += 1
            if expected == COUNT:
                break
        assert child.wait(WAIT) == 0
        assert follower.get(timeout=0) is None
    assert expected == COUNT
    assert given + follower.missed == COUNT
    # Half of them are never acknowledged: those it can't have missed.
    assert given >= COUNT // 2
    assert keys > 0
    with qindex.open(store, read_only=True) as after:
        assert len(after.queue("q")) == COUNT - COUNT // 2
    print(f"{given} given, {follower.missed} gone, {perf_counter() - started:.1f} s")


@pytest.mark.timeout(120)
@pytest.mark.rotates(2)
def test_a_publisher_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """What was given is what recovery finds, and what is published after it follows on."""
    store = tmp_path / "store"
    command = [sys.executable, "-m", "tests.qindex.following.publisher", str(store), str(COUNT)]
    expected = 0
    with qindex.follow(store, "q", wait=True) as follower:
        for _ in range(3):
            with subprocess.Popen(command, cwd=ROOT) as child:
                until = expected + 20_000
                while expected < until:
                    delivery = follower.get(timeout=60)
                    assert delivery is not None
                    if follower.missed == 0:
                        assert delivery.seq_id == expected
                    assert delivery.seq_id >= expected
                    assert delivery.body == body_of(delivery.seq_id)
                    expected = delivery.seq_id + 1
                child.kill()
            while (delivery := follower.get(timeout=0)) is not None:
                expected = delivery.seq_id + 1
            with qindex.open(store) as engine:
                assert engine.queue("q").stats().next_seq_id == expected
