"""A shared store for coroutines."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.aio.wire import Wire
from qindex.server import protocol as wire
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


def killed(directory: Path) -> None:
    os.kill(server_pid(directory), signal.SIGKILL)


async def gone(engine: qindex.aio.SharedEngine, link: Wire | None = None) -> None:
    """Wait until the loop has seen that the server is gone."""
    link = link or engine._wire
    assert link is not None
    async with asyncio.timeout(WAIT):
        while not link.is_lost:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_of_an_earlier_server_ends_no_later_one(tmp_path: Path, fails: bool) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            lost = engine.transaction()
            await lost.__aenter__()
            await lost.publish("q", b"lost")
            killed(tmp_path)
            await gone(engine)
            async with engine.transaction() as later:
                await later.publish("q", b"later")
                with pytest.raises(qindex.DisconnectedError, match="rolled back"):
                    await lost.publish("q", b"lost")
                if fails:
                    error = KeyError("of the block")
                    await lost.__aexit__(KeyError, error, None)
                else:
                    with pytest.raises(qindex.DisconnectedError, match="rolled back"):
                        await lost.__aexit__(None, None, None)
            assert [one.body for one in await (await engine.queue("q")).peek(9)] == [b"later"]

    asyncio.run(main())
    end_server(tmp_path)


def test_what_is_of_an_earlier_server_is_never_used_with_another(tmp_path: Path) -> None:
    """Queues get other numbers, and deliveries the same tags."""

    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            a, b = await engine.queue("a"), await engine.queue("b")
            await a.publish_many([b"for a"] * 3)
            await b.publish(b"for b")
            held, batch = await a.get(), await a.get_many(2)
            killed(tmp_path)
            await gone(engine)
            assert (await b.get()).body == b"for b"  # b is the first one by now
            for call in (held.ack, held.nack, held.reject, lambda: held.move("b")):
                with pytest.raises(qindex.LeaseExpiredError):
                    await call()
            for settle in (a.ack, a.nack, lambda one: a.get(0, ack=one)):
                with pytest.raises((qindex.LeaseExpiredError, qindex.UsageError)):
                    await settle(held)
            with pytest.raises(qindex.LeaseExpiredError):
                await a.ack_many(batch)
            async with engine.transaction() as transaction:
                with pytest.raises(qindex.LeaseExpiredError):
                    await transaction.ack(batch[0])
            found = await engine.get([a, b])
            assert found is not None
            assert (found.body, found.queue_name) == (b"for a", "a")
            assert (await b.stats()).unacked == 1

            join = engine._join

            async def killed_between() -> object:
                engine._join = join  # type: ignore[method-assign]
                killed(tmp_path)
                await gone(engine)
                await b.stats()
                return await join()

            engine._join = killed_between  # type: ignore[method-assign, assignment]
            async with a.consume(prefetch=1, timeout=WAIT) as messages:
                assert (await anext(messages)).body == b"for a"

    asyncio.run(main())
    end_server(tmp_path)


def test_a_session_ends_with_any_of_its_connections(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            await queue.publish_many([b"1", b"2", b"3"])
            held = await queue.get()
            one, other = queue.consume(prefetch=1), queue.consume(prefetch=1)
            assert [(await anext(each)).body for each in (one, other)] == [b"2", b"3"]
            link = one._link
            assert link is not None
            assert link._transport is not None
            link._transport.abort()
            await gone(engine, link)
            # What the session held is back, and with the next one.
            assert [each.body for each in await queue.get_many(3, timeout=WAIT)] == [
                b"1",
                b"2",
                b"3",
            ]
            with pytest.raises(qindex.LeaseExpiredError):
                await held.ack()
            assert other._link is not None

    asyncio.run(main())
    end_server(tmp_path)


def test_a_consumer_that_is_cancelled_as_it_connects_ends_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"x")
            held = await queue.get()
            loop = asyncio.get_running_loop()
            connect = loop.create_unix_connection

            async def cancelled(*given: Any, **how: Any) -> Any:
                task: Any = asyncio.current_task()
                loop.call_soon(task.cancel)
                return await connect(*given, **how)

            monkeypatch.setattr(loop, "create_unix_connection", cancelled)
            taken = asyncio.create_task(anext(queue.consume()))
            await asyncio.wait([taken])
            assert taken.cancelled()
            await asyncio.sleep(0.02)
            await held.ack()

    asyncio.run(main())
    end_server(tmp_path)


def test_a_consumer_that_is_cancelled_as_it_begins_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Wire._send

    def cancelled(self: Wire, values: tuple[Any, ...]) -> int:
        if values[0] == wire.CONSUME:
            task: Any = asyncio.current_task()
            self.loop.call_soon(task.cancel)
        return send(self, values)

    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            await queue.publish_many([b"x"] * 10)
            monkeypatch.setattr(Wire, "_send", cancelled)
            begun = asyncio.create_task(anext(queue.consume(prefetch=5)))
            await asyncio.wait([begun])
            assert begun.cancelled()
            monkeypatch.undo()
            assert len(await queue.get_many(10, timeout=WAIT)) == 10

    asyncio.run(main())
    end_server(tmp_path)


def test_a_consumer_that_is_left_keeps_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            await queue.publish_many([b"x"] * 10)

            async def at_rest(out: int) -> None:
                async with asyncio.timeout(WAIT):
                    while (await queue.stats()).unacked > out:
                        await asyncio.sleep(0.005)

            async with queue.consume(prefetch=5) as consumer:
                await (await anext(consumer)).ack()
            assert (await queue.stats()).unacked == 0  # at once
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)

            stopped = queue.consume(prefetch=5)
            kept = await anext(stopped)
            await asyncio.to_thread(stopped.stop)
            await at_rest(1)
            await kept.ack()

            started = asyncio.Event()
            consumers = []

            async def work(*, busy: bool) -> None:
                consumer = queue.consume(prefetch=5)
                consumers.append(consumer)
                async for one in consumer:
                    async with one:
                        started.set()
                        if busy:
                            await asyncio.sleep(WAIT)

            for busy in (True, False):
                started.clear()
                task = asyncio.create_task(work(busy=busy))
                await started.wait()
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])  # which keeps its traceback
                if not busy:
                    await queue.publish_many([b"y"] * 10)
                    await asyncio.sleep(0.05)
                await at_rest(0)
            assert len(consumers) == 2
            waiting = asyncio.create_task(anext(queue.consume(timeout=float("inf"))))
            assert (await waiting).body in (b"x", b"y")

    asyncio.run(main())
    end_server(tmp_path)


def test_gets_that_are_cancelled_at_any_moment(tmp_path: Path) -> None:
    count = by_tier(quick=300, all=3000, nightly=10_000)

    async def main() -> None:
        rng = chance("timeouts")
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            got = 0
            for number in range(count):
                if number % 2:
                    await queue.publish(b"x")
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.random() * 0.002):
                        if number % 3:
                            await queue.get(ack=None)
                            got += 1
                        else:
                            got += len(await queue.get_many(3, timeout=None))
            async with asyncio.timeout(WAIT):
                while (stats := await queue.stats()).unacked > got:
                    await asyncio.sleep(0.005)
            # None is lost, and none is held that nobody has.
            assert (stats.unacked, stats.ready) == (got, count // 2 - got)

    asyncio.run(main())
    end_server(tmp_path)


def test_a_second_loop(tmp_path: Path) -> None:
    opened: list[qindex.aio.SharedQueue] = []

    async def begin() -> qindex.aio.SharedEngine:
        engine = await qindex.aio.open(tmp_path, shared=True, linger=0)
        opened.append(await engine.queue("q"))
        await opened[0].publish_many([b"1", b"2"])
        await opened[0].get()
        return engine

    engine = asyncio.run(begin())

    async def go_on() -> None:
        # What the first loop has taken came back.
        assert [one.body for one in await opened[0].get_many(3, timeout=WAIT)] == [b"1", b"2"]

        def in_another_thread() -> None:
            async def use() -> None:
                await opened[0].stats()

            with pytest.raises(qindex.UsageError, match="another event loop"):
                asyncio.run(use())

        await asyncio.to_thread(in_another_thread)
        await engine.close()

    asyncio.run(go_on())
    end_server(tmp_path)


def test_batches_are_published_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            monkeypatch.setattr(wire, "PART", 1000)
            bodies = [b"%d" % at * 100 for at in range(100)]
            assert await queue.publish_many(bodies) == range(100)
            # One of the parts is refused.
            wrong: Any = qindex.Message(b"x", timestamp="now")  # type: ignore[arg-type]
            batch = [*bodies, wrong, *bodies]
            with pytest.raises(qindex.UsageError, match="nothing of it is published"):
                await queue.publish_many(batch)
            monkeypatch.setattr(wire, "MAX_PARTS", 15_000)
            with pytest.raises(qindex.UsageError, match="none of its messages is published"):
                await queue.publish_many(bodies)
            assert await queue.publish_many(bodies[:5]) == range(100, 105)
            monkeypatch.setattr(wire, "MAX_ACKS", 10)
            await queue.ack_many(await queue.get_many(25))
            held = await queue.get_many(30)
            await held[15].ack()
            again = list(held)
            with pytest.raises(qindex.UsageError, match="settled already"):
                await queue.ack_many(again)
            owner: Any = again[0]._plain._queue
            owner.settled.clear()  # as if another process had done it
            again[15]._plain._queue = owner
            with pytest.raises(qindex.UsageError, match="first 10 deliveries are acknowledged"):
                await queue.ack_many(again)
            assert (await queue.stats()).acked == 25 + 1 + 10

    asyncio.run(main())
    end_server(tmp_path)


def test_a_call_that_is_too_large_is_not_sent(tmp_path: Path) -> None:
    async def main() -> None:
        options: Any = {"shared": True, "linger": 0, "max_message_bytes": 1000}
        async with qindex.aio.open(tmp_path, **options) as engine:
            queue = await engine.queue("q")
            held = await queue.publish(b"x")
            large = {"h": bytes(17 << 20)}
            with pytest.raises(qindex.UsageError, match="too many for one call"):
                await queue.publish(b"y", headers=large)
            assert await queue.publish(b"z") == held + 1
            with qindex.open(tmp_path, **options) as plain:
                with pytest.raises(qindex.UsageError, match="too many for one call"):
                    plain.queue("q").publish_many([qindex.Message(b"y", headers=large)])
                assert plain.queue("q").publish_many([b""] * 10) == range(2, 12)

    asyncio.run(main())
    end_server(tmp_path)


def test_options_of_open_are_checked(tmp_path: Path) -> None:
    for shared in (True, False):
        with pytest.raises(TypeError, match="durabilty"):
            qindex.aio.open(tmp_path, shared=shared, durabilty="fsync")  # type: ignore[call-overload]
    with pytest.raises(qindex.UsageError, match="shared must be"):
        qindex.aio.open(tmp_path, shared=1)  # type: ignore[call-overload]

    async def main() -> None:
        with pytest.raises(qindex.UsageError, match="linger"):
            await qindex.aio.open(tmp_path, shared=True, linger=-1)
        for shared in (True, False):
            async with qindex.aio.open(tmp_path / "s", shared=shared, linger=0) as engine:
                assert isinstance(engine, qindex.aio.AnyEngine)
                assert isinstance(await engine.queue("q"), qindex.aio.AnyQueue)
            if shared:
                await asyncio.to_thread(end_server, tmp_path / "s")

    asyncio.run(main())
