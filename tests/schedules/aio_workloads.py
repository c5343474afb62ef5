"""Workloads of the asyncio face: its loop, its two threads, and plain threads beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import qindex.aio
from journal.errors import StoreError
from tests.schedules.registry import workload
from tests.schedules.scheduler import Run, point, running
from tests.schedules.world import LARGE, SMALL, World


class _Selector:
    """In the place of the system's: wakes when a call comes from another thread, or in time."""

    def __init__(self) -> None:
        self._called = False

    def select(self, timeout: float | None) -> list[Any]:
        point("loop", "select")
        if not self._called and (timeout is None or timeout > 0):
            running().wait(self, timeout)
        self._called = False
        return []

    def call(self) -> None:
        point("loop", "call")
        self._called = True
        running().wake(self)


class _Loop(asyncio.BaseEventLoop):
    """A loop without files."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        self._selector.call()


class _AsyncWorld(World):
    """An engine with both faces."""

    def __init__(self, run: Run, queue: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(run, queue, **options)
        self.twin = qindex.aio.Engine(self.engine)

    def loop(self, *users: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        """Give what runs these coroutines together, in a loop of the calling thread."""

        async def all_users() -> None:
            await asyncio.gather(*(user() for user in users))

        def work() -> None:
            loop = _Loop()
            try:
                loop.run_until_complete(all_users())
            finally:
                loop.close()

        return work

    async def publish_awaited(self, size: int = SMALL, **options: Any) -> None:
        queue = await self.twin.queue("a")
        body = self.body(size)
        await self.awaited({body[:6]}, queue.publish(body, **options))

    async def awaited(self, names: set[bytes], call: Awaitable[Any]) -> None:
        self.maybe |= names
        try:
            await call
        except StoreError as error:
            # What was handed over before the end may be there: its sync has failed.
            self.raised.append(type(error).__name__)
            return
        self.there |= names - self.acking
        self.maybe -= names

    async def close_awaited(self) -> None:
        await self.twin.close()


@workload()
def aio_publish_plain_close(run: Run) -> None:
    w = _AsyncWorld(run)
    w.race(loop=w.loop(w.publish_awaited), closer=w.close)
    w.end()


@workload()
def aio_publish_fsync_close(run: Run) -> None:
    w = _AsyncWorld(run, durability="fsync")
    w.publish()

    async def use() -> None:
        await asyncio.gather(w.publish_awaited(), w.close_awaited())

    w.race(loop=w.loop(use))
    w.end()


@workload()
def aio_publish_stored_close(run: Run) -> None:
    w = _AsyncWorld(run)

    async def publish() -> None:
        await w.publish_awaited(LARGE)

    w.race(loop=w.loop(publish), closer=w.close)
    w.end()


@workload()
def aio_publish_confirm_plain_publish(run: Run) -> None:
    w = _AsyncWorld(run)
    w.publish()
    w.make_safe()

    async def publish() -> None:
        await w.publish_awaited(confirm=True)

    w.race(loop=w.loop(publish), publisher=lambda: w.publish(confirm=True))
    w.lose_power()
    w.durable = w.durable[0], set()
    w.end()


@workload()
def aio_get_waits_plain_publish(run: Run) -> None:
    w = _AsyncWorld(run)

    async def consume() -> None:
        queue = await w.twin.queue("a")
        delivery = await queue.get()
        assert delivery is not None
        name = delivery.body[:6]
        w.acking.add(name)
        w.there.discard(name)
        await delivery.ack()
        w.gone.add(name)

    w.race(loop=w.loop(consume), publisher=w.publish)
    w.end()


@workload()
def aio_get_waits_plain_close(run: Run) -> None:
    w = _AsyncWorld(run)

    async def consume() -> None:
        queue = await w.twin.queue("a")
        with suppress(StoreError):
            await queue.get()

    w.race(loop=w.loop(consume), closer=w.close)
    w.end()


@workload()
def aio_room_waits_plain_close(run: Run) -> None:
    w = _AsyncWorld(run, {"max_length": 1, "overflow": "block"})
    w.publish()
    w.race(loop=w.loop(w.publish_awaited), closer=w.close)
    w.end()


@workload()
def aio_close_plain_close(run: Run) -> None:
    w = _AsyncWorld(run)
    w.publish(LARGE)
    w.race(loop=w.loop(w.close_awaited), closer=w.close)
    w.end()


@workload()
def aio_close_cancelled(run: Run) -> None:
    """Cancelled twice, it closes all the same."""
    w = _AsyncWorld(run)
    w.publish()

    async def use() -> None:
        closing = asyncio.ensure_future(w.twin.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.sleep(0)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
        if not w.engine.closed:
            w.wrong = "a close that was cancelled has not closed"

    w.race(loop=w.loop(use), publisher=w.publish)
    w.end()
