"""Settings of a queue that is in use are changed: at once, for all who use it, and kept."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.format.settings import QueueSettings
from tests.qindex.support import drain, open_quietly


def taken(queue: qindex.Queue) -> qindex.Delivery:
    delivery = queue.get(0)
    assert delivery is not None
    return delivery


def test_a_limit_is_raised_and_lowered(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=2)
        queue.publish_many([b"a", b"b"])
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"c")
        engine.queue("q", max_length=3)
        queue.publish(b"c")
        with pytest.raises(qindex.QueueFullError, match="max_length=3"):
            queue.publish(b"d")
        engine.queue("q", max_length=1, overflow="drop-head")
        assert len(queue) == 3  # nothing is dropped by a change alone
        queue.publish(b"e")
        assert [one.body for one in queue.peek(9)] == [b"e"]
    with open_quietly(tmp_path) as engine:
        assert engine.queue("q").settings == QueueSettings(max_length=1, overflow="drop-head")


def test_who_waits_for_room_sees_the_new_limit(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=1, overflow="block")
        queue.publish(b"a")
        waiting = [threading.Thread(target=queue.publish, args=(body,)) for body in (b"b", b"c")]
        for thread in waiting:
            thread.start()
        while queue._parts.state.room.waiting < 2:
            time.sleep(0.001)
        engine.queue("q", max_length=qindex.UNSET)
        for thread in waiting:
            thread.join()
        queue.publish(b"d")
        assert sorted(body for _, body, _ in drain(queue)) == [b"a", b"b", b"c", b"d"]


def test_bytes_are_counted_from_the_change_on(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x" * 10] * 5)
        engine.queue("q", max_bytes=60)
        queue.publish(b"y" * 10)
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"z")
        taken(queue).ack()
        engine.queue("q", max_bytes=qindex.UNSET)
        queue.publish(b"w" * 500)
        assert queue._parts.state.most_plain > 0  # as quick as a queue that never had one
        taken(queue).ack()
        engine.queue("q", max_bytes=550)
        limits = queue._parts.state.limits
        assert limits is not None
        assert limits.bytes == 540
        queue.publish(b"v" * 10)
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"z")


def test_a_delivery_limit_and_a_dead_letter_queue_come_and_go(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"a", b"b"])
        taken(queue).nack()
        engine.queue("q", delivery_limit=2, dead_letter="dead")
        taken(queue).nack()
        dead = engine.queue("dead")
        assert [one.body for one in dead.peek(9)] == [b"a"]
        taken(queue).reject()
        assert [one.body for one in dead.peek(9)] == [b"a", b"b"]
        engine.queue("q", delivery_limit=qindex.UNSET, dead_letter=qindex.UNSET)
        queue.publish(b"c")
        for _ in range(5):
            taken(queue).nack()
        taken(queue).reject()
        assert len(dead) == 2
        assert len(queue) == 0


def test_counts_of_deliveries_from_before_a_limit_are_kept(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish(b"a")
        taken(engine.queue("q")).nack()
        engine.queue("q", delivery_limit=5)
        taken(engine.queue("q")).nack()
    with open_quietly(tmp_path) as engine:
        delivery = taken(engine.queue("q"))
        assert delivery.delivery_count == 3


def test_a_ttl_is_for_what_comes_after_it(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"before")
        engine.queue("q", message_ttl=1e-6)
        queue.publish(b"gone")
        engine.queue("q", message_ttl=qindex.UNSET)
        queue.publish(b"after")
        assert queue.get_many(9).bodies == [b"before", b"after"]


def test_wrong_settings_change_nothing(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=5)
        several: list[dict[str, Any]] = [{"max_length": 0}, {"dead_letter": "q"}, {"overflow": "x"}]
        for wrong in several:
            with pytest.raises(qindex.UsageError):
                engine.queue("q", **wrong)
        assert queue.settings == QueueSettings(max_length=5)


def test_coroutines_see_the_new_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"a")
            assert await engine.queue("q", max_length=1, overflow="block") is queue
            waiting = asyncio.create_task(queue.publish(b"b"))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            delivery = await queue.get(0)
            assert delivery is not None
            await delivery.ack()
            await waiting
            with pytest.raises(qindex.QueueFullError):
                await queue.publish(b"c", timeout=0)

    asyncio.run(main())
