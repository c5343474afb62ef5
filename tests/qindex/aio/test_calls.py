"""Each call of the asyncio face by itself: what it gives, what it raises, whom it wakes."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.aio.engine import open_store
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import WAIT, CountingFileSystem, GateFileSystem

Main = Callable[[], Coroutine[Any, Any, Any]]


def run(main: Main) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main(), WAIT)

    return asyncio.run(bounded())


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("plain", "twin", "extra"),
    [
        (qindex.Queue, qindex.aio.Queue, {"directory"}),
        (qindex.Engine, qindex.aio.Engine, {"options"}),
        (qindex.Delivery, qindex.aio.Delivery, set()),
    ],
)
def test_the_names_are_those_of_the_plain_interface(
    plain: type, twin: type, extra: set[str]
) -> None:
    assert public(plain) - extra <= public(twin) | set(getattr(twin, "__slots__", ())) | {"name"}


def test_publish_get_ack(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("orders")
            assert await engine.queue("orders") is queue
            assert await queue.publish(b"a", key="k", headers={"h": 1}, ttl=60.0) == 0
            assert await queue.reserve(2) == 1
            assert list(await queue.publish_many([b"b"])) == [1]
            assert list(await queue.publish_many([qindex.Message(b"c")])) == [2]
            assert len(queue) == 3
            assert [one.body for one in await queue.peek(5)] == [b"a", b"b", b"c"]
            first = await queue.get()
            assert first is not None
            async with first as delivery:
                assert (delivery.body, delivery.key, delivery.headers) == (b"a", "k", {"h": 1})
                assert delivery.expiry is not None
                assert not delivery.settled
            assert delivery.settled
            batch = await queue.get_many(5)
            assert (batch.bodies, batch.seq_ids) == ([b"b", b"c"], [1, 2])
            await batch[0].nack()
            await queue.ack(batch[1])
            again = await queue.get(timeout=0)
            assert again is not None
            assert (again.seq_id, again.redelivered) == (1, True)
            await queue.ack_many([again])
            assert await queue.get(timeout=0) is None
            assert await queue.get(timeout=0.01) is None
            assert not await queue.get_many(3, timeout=0.01)
            assert (await queue.stats()).ready == 0
            assert (await engine.stats()).queues[0].acked == 3
            await engine.sync()
            await engine.flush()
            await queue.flush()
            await queue.sync()
            assert await engine.compact() is None

    run(main)
    with qindex.open(tmp_path) as engine:
        assert len(engine.queue("orders")) == 0


def test_a_slice_of_a_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish_many([b"%d" % n for n in range(10)])
            first = await queue.get()
            assert first is not None
            batch = await queue.get_many(9)
            within = batch[2:4]
            assert isinstance(within, qindex.aio.Batch)
            assert (within.seq_ids, within.bodies) == ([3, 4], [b"3", b"4"])
            await queue.ack_many(within)
            together = [first] + batch[:1] + batch[-1:]
            assert [one.seq_id for one in together] == [0, 1, 9]
            await queue.ack_many(together)
            assert [one.seq_id for one in batch if not one.settled] == [2, 5, 6, 7, 8]

    run(main)


def test_one_message_to_several_queues_and_their_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            large = b"x" * 200_000
            assert await engine.publish_to(["a", "b"], large, confirm=True) == [0, 0]
            assert await engine.queue_names() == ["a", "b"]
            queue = await engine.queue("a")
            delivery = await queue.get()
            assert delivery is not None
            assert delivery.body == large
            await queue.nack(delivery)
            assert await queue.purge() == 1
            await queue.publish(large)
            await engine.delete_queue("a")
            with pytest.raises(qindex.ClosedError):
                await queue.publish(b"late")
            anew = await engine.queue("a")
            assert anew is not queue
            assert len(anew) == 0
            assert await anew.ack_up_to(10) == 0

    run(main)


def test_a_block_that_raises_gives_the_message_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"a")
            delivery = await queue.get()
            assert delivery is not None
            with pytest.raises(ZeroDivisionError):
                async with delivery:
                    raise ZeroDivisionError
            assert len(queue) == 1

    run(main)


def test_what_can_not_be_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue, other = await engine.queue("q"), await engine.queue("r")
            await queue.publish(b"a")
            delivery = await queue.get()
            assert delivery is not None
            wrong: Any = "text"
            for call in (
                queue.publish(wrong),
                queue.publish_many([b"fine", wrong]),
                queue.ack(wrong),
                queue.ack_many([wrong]),
                queue.nack(wrong),
                other.ack(delivery),
                queue.get_many(0),
                engine.queue(""),
                engine.delete_queue("none"),
                engine.publish_to([], b""),
            ):
                with pytest.raises(qindex.UsageError):
                    await call
            with pytest.raises(qindex.UsageError):
                queue.consume(prefetch=0)
            await delivery.ack()
            with pytest.raises(qindex.UsageError):
                await delivery.ack()
            assert len(queue) == 0

    run(main)
    with pytest.raises(qindex.UsageError):
        qindex.aio.open(tmp_path, read_only=True)  # type: ignore[call-overload]


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path):
            with pytest.raises(qindex.LockedError):
                await qindex.aio.open(tmp_path)

    run(main)


def test_an_engine_can_be_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        queue = await engine.queue("q")
        await engine.close()
        await engine.close()
        with pytest.raises(qindex.ClosedError):
            await queue.get()
        with pytest.raises(qindex.ClosedError):
            await engine.queue("q2")
        with pytest.raises(qindex.ClosedError):
            await queue.sync()

    run(main)


@pytest.mark.parametrize("publisher", ["loop", "thread"])
def test_who_waits_is_woken(tmp_path: Path, publisher: str) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in waiting)
            if publisher == "loop":
                await queue.publish(b"0")
                await queue.publish_many([b"1", b"2"])
            else:
                plain = engine._engine.queue("q")
                thread = threading.Thread(target=plain.publish_many, args=([b"0", b"1", b"2"],))
                thread.start()
                thread.join()
            got = await asyncio.gather(*waiting)
            assert [one.body for one in got if one is not None] == [b"0", b"1", b"2"]

    run(main)


def test_a_message_given_back_wakes_who_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"a")
            held = await queue.get()
            assert held is not None
            waiting = asyncio.create_task(queue.get_many(4, timeout=None))
            await asyncio.sleep(0.01)
            await held.nack()
            assert (await waiting).bodies == [b"a"]

    run(main)


def test_close_wakes_who_waits(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        queue = await engine.queue("q")
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0.01)
        await engine.close()
        with pytest.raises(qindex.ClosedError):
            await waiting

    run(main)


def test_consume_gives_no_more_than_prefetch(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish_many([b"%d" % n for n in range(10)])
            seen: list[qindex.aio.Delivery] = []
            consuming = queue.consume(prefetch=3, timeout=0)
            seen += [await anext(consuming) for _ in range(3)]
            fourth = asyncio.ensure_future(anext(consuming))
            await asyncio.sleep(0.01)
            assert not fourth.done()
            await seen[0].ack()
            await (await fourth).nack()
            messages = queue.consume(prefetch=2, timeout=None)
            first, second = await anext(messages), await anext(messages)
            third = asyncio.ensure_future(anext(messages))
            await asyncio.sleep(0.01)
            assert not third.done()
            await second.nack()
            assert (await third).seq_id == second.seq_id
            await first.ack()
            bodies = [one.body async for one in queue.consume(prefetch=100, timeout=0)]
            assert bodies == [b"%d" % n for n in range(5, 10)]

    run(main)


def test_many_confirms_share_a_sync(tmp_path: Path) -> None:
    fs = CountingFileSystem()

    async def main() -> None:
        async with open_store(tmp_path, fs=fs) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"x", confirm=True)
            before = fs.calls["fdatasync"]
            seqs = await asyncio.gather(*(queue.publish(b"x", confirm=True) for _ in range(1000)))
            assert seqs == list(range(1, 1001))
            assert 1 <= fs.calls["fdatasync"] - before <= 3

    run(main)


@pytest.mark.parametrize("size", [10, 100_000])
def test_in_fsync_mode_what_returned_is_on_disk(tmp_path: Path, size: int) -> None:
    fs = CountingFileSystem()

    def syncs() -> int:
        return fs.calls["fdatasync"]

    async def main() -> None:
        async with open_store(tmp_path, fs=fs, durability="fsync", background=False) as engine:
            queue = await engine.queue("q")
            for call in (
                lambda: queue.publish(b"x" * size),
                lambda: queue.publish_many([b"x" * size] * 3),
                lambda: queue.publish_many([]),
                lambda: engine.publish_to(["q"], b"x" * size),
            ):
                before, empty = syncs(), len(queue)
                await call()
                assert (syncs() > before) == (len(queue) > empty)
            delivery = await queue.get()
            assert delivery is not None
            second = await queue.get()
            assert second is not None
            batch = await queue.get_many(2)
            settles: list[Callable[[], Coroutine[Any, Any, Any]]] = [
                delivery.ack,
                lambda: second.reject(),
                lambda: queue.ack_many(batch),
            ]
            for settle in settles:
                before = syncs()
                await settle()
                assert syncs() == before + 1
            assert await queue.get() is not None
            before = syncs()
            assert await queue.ack_up_to(100) == 1
            assert syncs() == before + 1

    run(main)


def test_a_failed_sync_is_told_to_all_and_poisons(tmp_path: Path) -> None:
    fs = FaultyFileSystem()

    async def main() -> None:
        engine = await open_store(tmp_path, fs=fs, background=False)
        queue = await engine.queue("q")
        await queue.publish(b"fine", confirm=True)
        fs.fail("fdatasync", errno.EIO)
        ends = await asyncio.gather(
            *(queue.publish(b"x", confirm=True) for _ in range(20)), return_exceptions=True
        )
        assert {type(end) for end in ends} <= {qindex.StorageError, qindex.WritesRefusedError}
        with pytest.raises(qindex.WritesRefusedError):
            await queue.publish(b"x")
        assert [one.body for one in await queue.peek(1)] == [b"fine"]
        await engine.close()

    run(main)


def test_a_flush_that_takes_its_time_stops_publishers_but_not_the_loop(tmp_path: Path) -> None:
    held, entered = threading.Event(), threading.Event()

    published = threading.Event()

    def before(name: str, what: object) -> None:
        # The sync of a new segment's name: a step of a flush that is made without the lock.
        if name == "sync_dir" and published.is_set():
            entered.set()
            held.wait(WAIT)

    async def main() -> None:
        async with open_store(
            tmp_path, fs=GateFileSystem(before), max_journal_entries=100, flush_idle=0.01
        ) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"the journal is made, and seq_ids are reserved")
            published.set()

            async def publish() -> None:
                for _ in range(4000):
                    await queue.publish(b"x")

            task = asyncio.create_task(publish())
            ticks = 0
            for _ in range(200):
                await asyncio.sleep(0.001)
                ticks += 1
            reached = len(queue)
            assert entered.is_set() or task.done()
            if not task.done():
                # Stopped at about 16 times max_journal_entries, and the loop ran on.
                assert reached < 4000
                assert ticks == 200
            held.set()
            await task
            assert len(queue) == 4001

    run(main)


def test_without_a_housekeeper_flushes_are_made_aside(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(
            tmp_path, background=False, max_journal_entries=100, segment_entry_count=64
        ) as engine:
            queue = await engine.queue("q")
            for n in range(1000):
                await queue.publish(b"%d" % n)
            assert (await queue.stats()).flushes >= 5
            assert (await queue.stats()).journal_entries < 300
            bodies = [one.body async for one in queue.consume(prefetch=2000, timeout=0)]
            assert bodies == [b"%d" % n for n in range(1000)]

    run(main)


def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"x", confirm=True)
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                told = b"nothing"
                try:
                    asyncio._set_running_loop(None)
                    asyncio.run(_refusals(engine, queue))
                    told = b"refused"
                finally:
                    os.write(write, told)
                    os._exit(0)
            os.close(write)
            assert os.read(read, 100) == b"refused"
            os.close(read)
            os.waitpid(child, 0)
            delivery = await queue.get()
            assert delivery is not None
            await delivery.ack()

    run(main)


async def _refusals(engine: qindex.aio.Engine, queue: qindex.aio.Queue) -> None:
    for call in (
        queue.publish(b"y"),
        queue.publish(b"y" * 100_000),
        queue.get(),
        queue.sync(),
        queue.flush(),
        engine.queue("new"),
        engine.stats(),
        engine.publish_to(["q"], b"y"),
    ):
        with pytest.raises(qindex.ForkedError):
            await call
