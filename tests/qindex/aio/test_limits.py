"""Limits, dead letters and leases as coroutines meet them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from tests.qindex.aio.test_calls import run
from tests.qindex.support import WAIT


@pytest.mark.parametrize("size", [5, 100_000])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_block_suspends_and_is_woken(tmp_path: Path, size: int, durability: Any) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, durability=durability) as engine:
            queue = await engine.queue("q", max_length=2, overflow="block")
            await queue.publish_many([b"0" * size, b"1" * size])
            waiting = [asyncio.create_task(queue.publish(b"%d" % one * size)) for one in (2, 3)]
            many = asyncio.create_task(queue.publish_many([b"4" * size, b"5" * size]))
            both = asyncio.create_task(engine.publish_to(["q", "other"], b"6" * size))
            await asyncio.sleep(0.05)
            tasks = [*waiting, many, both]
            assert not any(task.done() for task in tasks)
            assert await queue.purge() == 2  # the helper's thread is free
            seen: list[bytes] = []
            while len(seen) < 5:
                delivery = await queue.get(WAIT)
                assert delivery is not None
                assert len(queue) <= 2
                seen.append(delivery.body[:1])
                await delivery.ack()
            await asyncio.gather(*tasks)
            assert sorted(seen) == [b"2", b"3", b"4", b"5", b"6"]
            assert not queue._queue._parts.state.room.waiting

    run(main)


def test_block_ends(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        queue = await engine.queue("q", max_length=1, overflow="block")
        await queue.publish(b"full")
        with pytest.raises(qindex.QueueFullError):
            await queue.publish(b"no", timeout=0.02)
        with pytest.raises(qindex.QueueFullError):
            await queue.publish_many([qindex.Message(b"no")], timeout=0)
        cancelled = asyncio.create_task(queue.publish(b"no"))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not queue._queue._parts.state.room.waiting
        assert len(queue) == 1
        waiting = asyncio.create_task(queue.publish(b"no"))
        await asyncio.sleep(0.01)
        await engine.close()
        with pytest.raises(qindex.ClosedError):
            await waiting

    run(main)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_dead_letters(tmp_path: Path, durability: Any) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, durability=durability) as engine:
            queue = await engine.queue("q", dead_letter="dead", delivery_limit=2)
            dead = await engine.queue("dead", max_length=2)
            assert queue.settings.delivery_limit == 2
            await queue.publish_many([b"0", b"1", b"2"])
            await queue.publish(b"3", ttl=0)
            first = await queue.get()
            assert first is not None
            await first.reject()
            for count in (1, 2):
                delivery = await queue.get()
                assert delivery is not None
                assert delivery.delivery_count == count
                await delivery.nack()
            while len(dead) < 2:
                await asyncio.sleep(0.005)
            last = await queue.get()
            assert last is not None
            with pytest.raises(qindex.QueueFullError):
                await last.reject()
            assert not last.settled
            assert await queue.get(0) is None
            batch = await dead.get_many(5)
            reasons = [one.headers["x-death"][0]["reason"] for one in batch]
            assert reasons == ["rejected", "limit"]
            await last.reject()
            await queue.sync()
            while engine._engine._moves.pending:  # of the expired one, which is moved meanwhile
                await asyncio.sleep(0.005)

    run(main)


def test_leases(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish_many([b"0", b"1"])
            first = await queue.get(lease=0.05)
            batch = await queue.get_many(1, lease=0.05)
            assert first is not None
            await batch[0].extend_lease(WAIT)
            again = await queue.get(WAIT)
            assert again is not None
            assert (again.body, again.delivery_count) == (b"0", 2)
            for settle in (first.ack(), first.extend_lease(1), first.nack()):
                with pytest.raises(qindex.LeaseExpiredError, match="lease"):
                    await settle
            await batch[0].ack()
            await again.ack()
            await queue.publish(b"2")
            counts = []
            async for delivery in queue.consume(timeout=0.3, lease=0.05):
                counts.append(delivery.delivery_count)
                if len(counts) == 3:
                    await delivery.ack()
            assert counts == [1, 2, 3]

    run(main)
