"""What waits for a full dead-letter queue is bounded in memory, and all of it arrives, in order."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import qindex
from qindex.queue.dead_letters import MAX_WAITING, Postponed
from tests.qindex.support import WAIT, copy_live, drain, open_quietly, queue_directory
from tests.traced_memory import tracing

BODY = 2000


def body(number: int, size: int = BODY) -> bytes:
    return b"%08d" % number + bytes(size - 8)


def numbers(queue: qindex.Queue) -> list[int]:
    return [int(body[:8]) for _, body, _ in drain(queue)]


def make_room(queue: qindex.Queue, source: qindex.Queue) -> list[int]:
    """Take what is in the dead-letter queue until nothing more comes from its source."""
    seen: list[int] = []
    end = monotonic() + WAIT
    while source.stats().unacked or len(queue):
        assert monotonic() < end
        seen += numbers(queue)
        source._parts.letters.move_waiting(again=True)  # as the alarm does, each second
    return seen


def expire_all(queue: qindex.Queue, count: int, **options: Any) -> None:
    for first in range(0, count, 500):
        queue.publish_many(
            [body(n) for n in range(first, min(first + 500, count))], ttl=0, **options
        )
    assert queue.get(0) is None
    assert queue.stats().unacked == count


@pytest.mark.rotates(2)
def test_memory_is_bounded(tmp_path: Path) -> None:
    count = 4 * MAX_WAITING
    with open_quietly(tmp_path, background=False, segment_entry_count=1000) as engine:
        engine._alarm.stop()  # who tries again has them for a moment
        engine.queue("dead", max_length=1).publish(body(count))
        queue = engine.queue("q", dead_letter="dead")
        with tracing():
            expire_all(queue, count)
            queue.flush()
            assert queue.get(0) is None
            held, _ = tracemalloc.get_traced_memory()
        # All bodies are four times as much as those that may wait in memory.
        assert held < 2 * MAX_WAITING * BODY < count * BODY
        assert len(queue._parts.letters.waiting) == MAX_WAITING
        assert len(queue._parts.letters._postponed) == count - MAX_WAITING


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("flushed", [False, True])
def test_all_of_it_arrives_in_order(tmp_path: Path, durability: str, flushed: bool) -> None:
    count = 3 * MAX_WAITING + 7
    store = tmp_path / "0"
    with open_quietly(
        store, background=False, durability=durability, segment_entry_count=1000
    ) as engine:
        dead = engine.queue("dead", max_length=MAX_WAITING + 300)
        queue = engine.queue("q", dead_letter="dead")
        expire_all_but_room(queue, count, MAX_WAITING + 300)
        if flushed:
            queue.flush()
        killed = copy_live(store, tmp_path / "1")
        assert make_room(dead, queue) == list(range(count))
        assert queue.stats().dead_letters.total == count
        assert not queue._parts.letters._postponed
        assert queue.stats().unacked == 0
    with open_quietly(store) as engine:
        assert len(engine.queue("q")) == len(engine.queue("dead")) == 0
    # A crash while they wait: each is in one of the two, and those that waited come again.
    with open_quietly(killed, background=False) as engine:
        queue, dead = engine.queue("q"), engine.queue("dead")
        assert queue.get(0) is None
        assert sorted(make_room(dead, queue)) == list(range(count))


def expire_all_but_room(queue: qindex.Queue, count: int, room: int) -> None:
    for first in range(0, count, 500):
        queue.publish_many([body(n) for n in range(first, min(first + 500, count))], ttl=0)
    assert queue.get(0) is None
    assert queue.stats().unacked == count - room


def test_large_messages_wait_on_disk(tmp_path: Path) -> None:
    with open_quietly(tmp_path, background=False, segment_entry_count=1000) as engine:
        engine._alarm.stop()
        dead = engine.queue("dead", max_length=1)
        dead.publish(body(99))
        queue = engine.queue("q", dead_letter="dead")
        for n in range(30):
            queue.publish(body(n, 500_000 if n % 3 else 50), key="k", ttl=0)
        assert queue.get(0) is None
        assert sum(len(one.message.body) for one in queue._parts.letters.waiting) < 1_000_000
        assert len(queue._parts.letters._postponed) == 29
        assert make_room(dead, queue) == [99, *range(30)]
        # Their places in the message store are free: nothing refers to them any more.
        engine.sync()
        stats = engine.stats().message_store
        assert stats is not None
        assert (stats.live, stats.messages) == (0, 0)


def test_what_was_delivered_too_often_waits_too(tmp_path: Path) -> None:
    count = MAX_WAITING + 50
    with open_quietly(tmp_path, background=False, segment_entry_count=1000) as engine:
        engine._alarm.stop()
        dead = engine.queue("dead", max_length=1)
        dead.publish(body(count))
        queue = engine.queue("q", dead_letter="dead", delivery_limit=1)
        queue.publish_many([body(n) for n in range(count)])
        for delivery in queue.get_many(count):
            delivery.nack()
        assert len(queue._parts.letters._postponed) == 50
        dead_reasons: set[str] = set()
        seen: list[int] = []
        while queue.stats().unacked or len(dead):
            for one in dead.get_many(5000):
                seen.append(int(one.body[:8]))
                dead_reasons |= {death["reason"] for death in one.headers.get("x-death", ())}
            dead.ack_up_to(1 << 60)
            queue._parts.letters.move_waiting(again=True)
        assert seen == [count, *range(count)]
        assert dead_reasons == {"limit"}


def test_one_that_is_damaged_meanwhile_is_set_aside(tmp_path: Path) -> None:
    count = MAX_WAITING + 20
    with open_quietly(tmp_path, background=False, segment_entry_count=1000) as engine:
        engine._alarm.stop()
        dead = engine.queue("dead", max_length=1)
        dead.publish(body(count))
        queue = engine.queue("q", dead_letter="dead")
        expire_all(queue, count)
        queue.flush()
        path = queue_directory(tmp_path, "q") / "1.idx"
        data = bytearray(path.read_bytes())
        at = data.index(body(MAX_WAITING + 10)[:8])
        data[at : at + 16] = b"damaged damaged "
        path.write_bytes(data)
        wanted = [n for n in range(count) if n != MAX_WAITING + 10]
        assert make_room(dead, queue) == [count, *wanted]
        assert queue.stats().unacked == 0
        asides = list(path.parent.rglob("1.idx.*[0-9]"))
        assert any(b"damaged damaged " in one.read_bytes() for one in asides)


def test_the_list_of_them() -> None:
    waiting = Postponed()
    for seq in (5, 6, 9, 7, 8):
        waiting.add(seq, "expired" if seq % 2 else "limit")
    assert waiting.first(2) == {5: "expired", 6: "limit"}
    # Only so far as they ascend: they are read in the order of the file.
    assert list(waiting.first(100)) == [5, 6, 9]
    waiting.drop(3)
    assert waiting.first(100) == {7: "expired", 8: "limit"}
    waiting.drop(2)
    assert not waiting
    assert waiting.first(1) == {}


@pytest.mark.rotates(2)
def test_a_queue_whose_letters_wait_does_not_rest(tmp_path: Path) -> None:
    with open_quietly(tmp_path, background=False) as engine:
        engine._alarm.stop()
        engine.queue("dead", max_length=1).publish(body(0))
        queue = engine.queue("q", dead_letter="dead")
        expire_all(queue, 2 * MAX_WAITING)
        assert not engine._roster.put_to_rest(queue._parts)
        found = make_room(engine.queue("dead"), queue)
        assert found == [0, *range(2 * MAX_WAITING)]
        assert engine._roster.put_to_rest(queue._parts)
