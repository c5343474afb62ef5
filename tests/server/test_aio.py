"""A shared store for coroutines."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

import qindex
import qindex.aio
from tests.effort import by_tier, chance
from tests.server.support import WAIT, end_server, server_pid


def test_every_verb(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q", delivery_limit=3, dead_letter="letters")
            assert await queue.publish(b"0", key="k", headers={"h": 1}) == 0
            assert await queue.publish_many([b"1", qindex.Message(b"2", "m"), b"3"]) == range(1, 4)
            assert await queue.publish(qindex.Message(b"4"), confirm=True, ttl=100) == 4
            assert await engine.publish_to(["q", "other"], b"5") == [5, 0]
            async with await queue.get() as first:
                assert (first.body, first.key, first.headers) == (b"0", "k", {"h": 1})
            assert first.settled
            with pytest.raises(qindex.UsageError, match="settled already"):
                await first.ack()
            second = await queue.get(lease=100)
            await second.extend_lease(200)
            await second.nack()
            batch = await queue.get_many(2)
            assert (batch.bodies, batch[0].delivery_count) == ([b"1", b"2"], 2)
            await queue.ack_many(batch)
            with pytest.raises(qindex.UsageError, match="settled already"):
                await queue.ack_many(batch)
            assert [one.body for one in await queue.peek(9)] == [b"3", b"4", b"5"]
            third = await queue.get()
            await third.reject()
            letters = await engine.queue("letters")
            assert (await letters.get()).body == b"3"
            assert await letters.ack_up_to(100) == 1
            got = []
            async for one in queue.consume(prefetch=1, timeout=0.2):
                got.append(one.body)
                await one.ack()
            assert got == [b"4", b"5"]
            assert await queue.get(timeout=0) is None
            assert not await queue.get_many(3)
            assert await engine.queue_names() == ["letters", "other", "q"]
            assert (await queue.settings()).delivery_limit == 3
            stats = await queue.stats()
            assert (stats.ready, stats.unacked, stats.published) == (0, 0, 6)
            assert await queue.purge() == 0
            assert await queue.reserve(3) == 6
            for call in (queue.flush, queue.sync, engine.flush, engine.sync, engine.compact):
                await call()
            assert await engine.findings() == []
            assert (await engine.stats()).directory == str(tmp_path)
            assert await engine.delete_queue("other") == 1
            with pytest.raises(qindex.UsageError, match="a body must be"):
                await queue.publish("x")  # type: ignore[arg-type]
            held = await queue.get_many(3, timeout=0)
            assert len(held) == 0
            await queue.publish(b"held")
            await queue.get()
        assert engine.closed
        with pytest.raises(qindex.ClosedError):
            await queue.publish(b"x")

    asyncio.run(main())
    end_server(tmp_path)
    with qindex.open(tmp_path) as own:
        again = own.queue("q").get(timeout=0)
        assert again is not None
        assert again.body == b"held"


def test_many_coroutines_wait_and_are_cancelled_and_nothing_is_lost(tmp_path: Path) -> None:
    count = by_tier(quick=300, all=5000, nightly=50_000)

    async def main() -> None:
        rng = chance("cancel")
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            got: list[int] = []

            async def take() -> None:
                delivery = await queue.get()
                got.append(delivery.seq_id)
                await delivery.ack()

            tasks = [asyncio.ensure_future(take()) for _ in range(50)]
            for number in range(count):
                await queue.publish(b"%d" % number)
                if rng.random() < 0.5:
                    victim = rng.randrange(len(tasks))
                    tasks[victim].cancel()
                    tasks[victim] = asyncio.ensure_future(take())
                for at, task in enumerate(tasks):
                    if task.done():
                        tasks[at] = asyncio.ensure_future(take())
            async with asyncio.timeout(WAIT):
                # An ack that was cancelled was sent, and a message whose get was, is back.
                while (stats := await queue.stats()).acked < count:
                    await asyncio.sleep(0.01)
            assert (stats.ready, stats.unacked) == (0, 0)
            assert len(set(got)) == len(got)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await queue.publish(b"last")
            assert (await queue.get(timeout=WAIT)).body == b"last"  # type: ignore[union-attr]

    asyncio.run(main())


def test_a_loop_that_is_left_gives_back_what_it_was_not_given(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            await queue.publish_many([b"%d" % at for at in range(10)])
            async for delivery in queue.consume():
                await delivery.ack()
                break
            async with asyncio.timeout(WAIT):
                while (await queue.stats()).unacked:
                    await asyncio.sleep(0.01)
            taken = await queue.get_many(20)
            assert [one.delivery_count for one in taken] == [1] * 9

    asyncio.run(main())


def test_a_server_that_dies(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"x")
            held = await queue.get()
            waiting = asyncio.ensure_future(queue.get())
            await asyncio.sleep(0.1)
            os.kill(server_pid(tmp_path), signal.SIGKILL)
            with pytest.raises(qindex.DisconnectedError):
                await waiting
            with pytest.raises(qindex.LeaseExpiredError):
                await held.ack()
            async for delivery in queue.consume(timeout=WAIT):
                assert (delivery.body, delivery.redelivered) == (b"x", True)
                await delivery.ack()
                break
            assert await queue.publish(b"y") == 1

    asyncio.run(main())
