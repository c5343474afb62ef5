"""A segment that was drained, deleted and used again: nobody goes on with its old state map."""

from __future__ import annotations

from pathlib import Path

from journal.findings import Cause
from tests.qindex.support import copy_live, drain, open_quietly


def test_a_segment_that_is_used_again_after_it_was_deleted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_quietly(store) as engine:
        engine.queue("q").publish_many([b"0", b"1", b"2"])
    with open_quietly(store) as engine:
        queue = engine.queue("q")
        for _ in range(3):
            delivery = queue.get(0)
            assert delivery is not None
            delivery.ack()
        queue.flush()
        assert queue.publish(b"3") == 3
        with queue.get(0) as delivery:  # type: ignore[union-attr]
            assert delivery is not None
            assert (delivery.body, delivery.redelivered) == (b"3", False)
        queue.flush()
        assert len(queue) == 0
        with open_quietly(copy_live(store, tmp_path / "copy")) as copied:
            assert all(one.cause is Cause.CRASH for one in copied.findings)
            assert drain(copied.queue("q")) == []


def test_the_same_with_batches(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_quietly(store) as engine:
        engine.queue("q").publish_many([b"0", b"1", b"2"])
    with open_quietly(store) as engine:
        queue = engine.queue("q")
        assert [body for _, body, _ in drain(queue)] == [b"0", b"1", b"2"]
        queue.flush()
        queue.publish_many([b"3", b"4"])
        assert drain(queue) == [(3, b"3", False), (4, b"4", False)]
        queue.flush()
        with open_quietly(copy_live(store, tmp_path / "copy")) as copied:
            assert drain(copied.queue("q")) == []


def test_looking_at_a_settled_delivery_does_not_bring_its_segment_back(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 9)
        batch = queue.get_many(8)
        queue.ack_many(batch)
        queue.flush()
        before = queue.stats().segments
        assert all(delivery.settled for delivery in batch)
        assert queue.stats().segments == before


def test_a_flush_while_messages_of_the_segment_are_read_ahead(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(32)])
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        other = engine.queue("other")
        expected = 0
        while (delivery := queue.get(0)) is not None:
            assert (delivery.seq_id, delivery.redelivered) == (expected, False)
            expected += 1
            delivery.ack()
            if expected % 8 == 3:
                queue.flush()
            queue.publish(b"more") if expected < 4 else other.publish(b"x")
            queue.flush()
            delivery = queue.get(0)
            if delivery is None:
                break
            assert delivery.seq_id == expected
            delivery.nack()
            queue.flush()
            again = queue.get(0)
            assert again is not None
            assert (again.seq_id, again.redelivered) == (expected, True)
            expected += 1
            again.ack()
        assert expected == 34
