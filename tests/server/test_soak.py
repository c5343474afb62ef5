"""Every verb again and again, cancelled and not: both sides keep nothing of it."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import qindex
import qindex.aio
from tests.effort import by_tier, chance
from tests.server.support import WAIT, end_server, server_pid
from tests.server.test_hostile import memory

CALLS = by_tier(quick=40, all=400, nightly=10_000)
TOGETHER = 20
MOST = 4 << 20
"""Bytes that a server may have more after all calls of a verb."""

Call = Callable[[], Awaitable[Any]]


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Soak:
    """An engine, its queues, and the verbs."""

    def __init__(self, engine: qindex.aio.SharedEngine, queue: qindex.aio.SharedQueue) -> None:
        self.engine = engine
        self.queue = queue
        self.rng = chance("soak")

    async def taken(self, lease: float | None = None) -> qindex.aio.Delivery:
        await self.queue.publish(b"x")
        found = await self.queue.get(timeout=WAIT, lease=lease)
        assert found is not None
        return found

    async def settle(self, verb: str, lease: float | None = None, **how: Any) -> None:
        found = await self.taken(lease)
        await getattr(found, verb)(**how)

    async def extend(self) -> None:
        found = await self.taken(1000)
        await found.extend_lease(2000)
        await found.ack()

    async def ack_first(self) -> Any:
        return await self.queue.get(timeout=0, ack=await self.taken())

    async def delay_and_cancel(self) -> None:
        await self.queue.cancel(await self.queue.publish(b"late", delay=1e6))

    async def batch(self) -> None:
        await self.queue.publish_many([b"1", b"2"], ttl=1e6)
        await self.queue.ack_many(await self.queue.get_many(2, timeout=0, lease=1e6))

    async def consume(self) -> None:
        await self.queue.publish(b"x")
        async with self.queue.consume(prefetch=3, lease=self.rng.choice([None, 1e6])) as messages:
            async for one in messages:
                await one.ack()
                return

    async def transaction(self) -> None:
        one = await self.taken()
        async with self.engine.transaction() as together:
            await together.ack(one)
            await together.publish("other", b"y")

    async def made_and_deleted(self) -> None:
        name = f"short {self.rng.randrange(5)}"  # a cancelled call may leave it
        await self.engine.queue(name)
        with suppress(qindex.UsageError):  # another one has deleted it
            await self.engine.delete_queue(name)

    def verbs(self) -> dict[str, Call]:
        queue, engine = self.queue, self.engine
        return {
            "publish": lambda: queue.publish(b"x", key="k", unique="u", window=0.001),
            "publish_to": lambda: engine.publish_to(["q", "other"], b"x"),
            "get": lambda: queue.get(),
            "get for an hour": lambda: queue.get(3600, lease=3600),
            "get one": lambda: queue.get(seq_id=0),
            "get of several": lambda: engine.get(["q", queue], 3600),
            "get_many": lambda: queue.get_many(5, timeout=3600),
            "get ack": self.ack_first,
            "ack": lambda: self.settle("ack", 1e6),
            "nack": lambda: self.settle("nack", 1e6),
            "nack later": lambda: self.settle("nack", delay=1e6),
            "reject": lambda: self.settle("reject"),
            "move": lambda: self.settle("move", queue="other"),
            "extend_lease": self.extend,
            "cancel": self.delay_and_cancel,
            "batch": self.batch,
            "consume": self.consume,
            "transaction": self.transaction,
            "queue": self.made_and_deleted,
            "peek": lambda: queue.peek(5),
            "find": lambda: queue.find("k"),
            "reserve": lambda: queue.reserve(1),
            "ack_up_to": lambda: queue.ack_up_to(1 << 40),
            "configure": lambda: queue.configure(delivery_limit=100),
            "settings": queue.settings,
            "stats": engine.stats,
            "names": engine.queue_names,
            "sync": queue.sync,
            "purge": queue.purge,
        }

    async def some(self, call: Call) -> None:
        """Make calls together, half of which are cancelled sooner or later."""
        rng = self.rng

        async def one() -> Any:
            return await call()

        tasks = [asyncio.create_task(one()) for _ in range(TOGETHER)]
        for task in tasks:
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                task.cancel()
        await asyncio.wait(tasks, timeout=0.05)
        for task in tasks:
            task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, BaseException):
                kinds = (asyncio.CancelledError, qindex.DuplicateError)
                assert isinstance(found, kinds), repr(found)
            elif isinstance(found, qindex.aio.Delivery):
                await found.ack()
            elif isinstance(found, qindex.aio.Batch):
                await self.queue.ack_many(found)

    async def at_rest(self) -> None:
        """Wait until nothing is out: what a cancelled call was about to settle is let go here."""
        async with asyncio.timeout(WAIT):
            while True:
                await self.queue.ack_up_to(1 << 40)
                await self.queue.purge()
                stats = await self.queue.stats()
                if not (stats.unacked or stats.ready or stats.delayed):
                    return
                await asyncio.sleep(0.01)


def test_a_task_keeps_nothing_of_its_consumers(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            task: Any = asyncio.current_task()
            for _ in range(5):
                async for _ in queue.consume(timeout=0):
                    pass
            assert len(task._callbacks or ()) <= 1

    asyncio.run(main())
    end_server(tmp_path)


def test_every_verb_cancelled_and_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            soak = Soak(engine, await engine.queue("q"))
            pid = server_pid(tmp_path)
            for name, call in soak.verbs().items():
                await soak.some(call)
                await soak.at_rest()
                gc.collect()
                before = memory(pid), descriptors(pid), descriptors(os.getpid())
                for _ in range(CALLS // TOGETHER):
                    await soak.some(call)
                await soak.at_rest()
                gc.collect()
                link = engine._wire
                assert link is not None
                assert not link._waiting, name
                assert not link._dropped, name
                async with asyncio.timeout(WAIT):
                    # Connections of consumers are made in threads, and close a moment later.
                    while descriptors(pid) > before[1] + 8 or descriptors(os.getpid()) > before[2]:
                        await asyncio.sleep(0.01)
                assert memory(pid) - before[0] < MOST, name

    asyncio.run(main())
    end_server(tmp_path)
