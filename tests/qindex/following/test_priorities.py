"""Follow a priority queue."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import qindex
from qindex.format.priorities import SHIFT
from tests.waiting import WAIT


def test_a_follower_gives_the_messages_of_all_priorities(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        jobs = engine.queue("jobs", max_priority=4)
        seqs = [jobs.publish(b"%d" % n, priority=n % 3) for n in range(9)]
        with qindex.follow(tmp_path, "jobs", timeout=1.0) as follower:
            given = [(one.seq_id, one.body, one.priority) for one in follower]
            wanted = sorted(zip(seqs, range(9), strict=True), key=lambda one: (-(one[1] % 3), one))
            assert given == [(seq, b"%d" % n, n % 3) for seq, n in wanted]
            jobs.publish(b"new level", priority=4)
            jobs.publish(b"low")
            found = [follower.get(timeout=WAIT) for _ in range(2)]
            assert {one.body for one in found if one is not None} == {b"new level", b"low"}
            assert {one.priority for one in found if one is not None} == {4, 0}
            assert follower.get(timeout=0) is None
            assert follower.missed == 0


def test_where_a_follower_starts(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        jobs = engine.queue("jobs", max_priority=4)
        for priority in (0, 2):
            jobs.publish_many([b"a", b"b", b"c"], priority=priority)
        with qindex.follow(tmp_path, "jobs", "latest", timeout=0.2) as follower:
            assert list(follower) == []
            jobs.publish(b"d", priority=2)
            last = follower.get(timeout=WAIT)
            assert last is not None
            assert last.body == b"d"
        with qindex.follow(tmp_path, "jobs", (2 << SHIFT) + 2, timeout=0.2) as follower:
            bodies = [(one.priority, one.body) for one in follower]
            assert bodies == [(2, b"c"), (2, b"d"), (0, b"a"), (0, b"b"), (0, b"c")]
        with pytest.raises(qindex.UsageError, match="no messages of the priority"):
            qindex.follow(tmp_path, "jobs", 3 << SHIFT)


def test_gaps_have_the_seq_ids_of_the_queue(tmp_path: Path) -> None:
    gaps: list[qindex.Gap] = []
    with qindex.open(tmp_path, segment_entry_count=4) as engine:
        jobs = engine.queue("jobs", max_priority=4)
        jobs.publish_many([b"x"] * 4, priority=3)
        jobs.publish(b"y", priority=3)
        jobs.ack_many(jobs.get_many(4))
        jobs.flush()
        with qindex.follow(tmp_path, "jobs", 3 << SHIFT, timeout=0.2, on_gap=gaps.append) as one:
            assert [found.body for found in one] == [b"y"]
            assert one.missed == 4
    assert [(gap.first, gap.stop) for gap in gaps] == [(3 << SHIFT, (3 << SHIFT) + 4)]


def test_a_follower_is_stopped_and_meets_the_end_of_the_queue(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        jobs = engine.queue("jobs", max_priority=4)
        jobs.publish(b"x", priority=1)
        follower = qindex.follow(tmp_path, "jobs")
        assert next(iter(follower)).body == b"x"
        threading.Timer(0.1, follower.stop).start()
        began = time.monotonic()
        assert follower.get(timeout=WAIT) is None
        assert time.monotonic() - began < WAIT
        follower.close()
        with qindex.follow(tmp_path, "jobs") as another:
            assert another.get(timeout=WAIT) is not None
            engine.delete_queue("jobs")
            with pytest.raises(qindex.QueueGoneError, match="'jobs' was deleted"):
                another.get(timeout=WAIT)


def test_a_priority_queue_that_was_waited_for_is_to_be_followed_again(tmp_path: Path) -> None:
    with qindex.follow(tmp_path, "jobs", wait=True) as follower, qindex.open(tmp_path) as engine:
        assert follower.get(timeout=0) is None
        engine.queue("jobs", max_priority=2).publish(b"x", priority=1)
        with pytest.raises(qindex.UsageError, match="follow it again"):
            follower.get(timeout=WAIT)
        with qindex.follow(tmp_path, "jobs", wait=True) as another:
            found = another.get(timeout=WAIT)
            assert found is not None
            assert found.body == b"x"
