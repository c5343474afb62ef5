"""Cancelled anywhere, a call has lost nothing and doubled nothing: the books are exact."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.aio.engine import open_store
from qindex.aio.shared_engine import SharedTransaction
from qindex.options import Durability
from tests.qindex.support import WAIT, GateFileSystem

Main = Callable[[], Coroutine[Any, Any, Any]]


def run(main: Main) -> Any:
    return asyncio.run(asyncio.wait_for(main(), WAIT))


async def cancelled(task: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_get_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            waiting = asyncio.create_task(queue.get())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await cancelled(waiting)
            assert queue._queue._parts.state.arrived.waiting == 0
            await queue.publish(b"a")
            delivery = await queue.get()
            assert delivery is not None
            assert not delivery.redelivered

    run(main)


def test_one_cancelled_as_it_is_woken_wakes_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            first = asyncio.create_task(queue.get())
            second = asyncio.create_task(queue.get())
            await asyncio.sleep(0.01)
            queue._queue.publish(b"a")  # rings the first, which has not run since
            first.cancel()
            await cancelled(first)
            delivery = await second
            assert delivery is not None
            assert delivery.body == b"a"

    run(main)


def test_one_cancelled_as_it_is_woken_wakes_a_thread(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            plain = queue._queue
            got: list[bytes] = []

            def consume() -> None:
                delivery = plain.get(WAIT)
                assert delivery is not None
                got.append(delivery.body)

            waiting = asyncio.create_task(queue.get())
            thread = threading.Thread(target=consume)
            thread.start()
            while plain._parts.state.arrived.waiting < 2:
                await asyncio.sleep(0.001)
            plain.publish(b"a")
            waiting.cancel()
            await cancelled(waiting)
            await asyncio.to_thread(thread.join)
            assert got == [b"a"]

    run(main)


def test_a_cancelled_confirm_has_published(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            for size in (10, 100_000):
                task = asyncio.create_task(queue.publish(b"x" * size, confirm=True))
                await asyncio.sleep(0)
                task.cancel()
                await cancelled(task)
            never = asyncio.create_task(queue.publish(b"never"))
            never.cancel()
            await cancelled(never)
            assert [len(one.body) for one in await queue.peek(9)] == [10, 100_000]
            others = await asyncio.gather(*(queue.publish(b"y", confirm=True) for _ in range(3)))
            assert others == [2, 3, 4]

    run(main)


def test_a_timeout_that_meets_the_message(tmp_path: Path) -> None:
    """wait_for and timeout() expire about when the message comes: it is got, or still there."""

    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            got = 0
            for n in range(300):
                asyncio.get_running_loop().call_later(
                    0.001, lambda: asyncio.ensure_future(queue.publish(b"x"))
                )
                delivery: qindex.aio.Delivery | None
                try:
                    if n % 2:
                        delivery = await asyncio.wait_for(queue.get(), 0.001)
                    else:
                        async with asyncio.timeout(0.001):
                            delivery = await queue.get()
                except TimeoutError:
                    while not len(queue):
                        await asyncio.sleep(0.0005)
                    delivery = await queue.get(timeout=0)
                assert delivery is not None
                assert not delivery.redelivered
                await delivery.ack()
                got += 1
            stats = await queue.stats()
            assert (got, stats.ready, stats.unacked) == (300, 0, 0)

    run(main)


def test_a_cancelled_open_gives_the_directory_back(tmp_path: Path) -> None:
    entered, held = threading.Event(), threading.Event()

    def before(name: str, what: object) -> None:
        if str(what).endswith("qindex.lock"):
            entered.set()
            held.wait(WAIT)

    async def main() -> None:
        async def use() -> None:
            async with open_store(tmp_path, fs=GateFileSystem(before)):
                pytest.fail("was cancelled before it was open")

        task = asyncio.create_task(use())
        await asyncio.to_thread(entered.wait, WAIT)
        task.cancel()
        await asyncio.sleep(0.01)
        held.set()
        await cancelled(task)

    run(main)
    with qindex.open(tmp_path):
        assert True


def test_a_cancelled_close_closes(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        queue = await engine.queue("q")
        await queue.publish(b"x")
        task = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await cancelled(task)
        with qindex.open(tmp_path) as plain:
            assert len(plain.queue("q")) == 1

    run(main)


def test_a_loop_that_ends_leaves_its_messages_to_others(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as plain:
        engine = qindex.aio.Engine(plain)
        queue = plain.queue("q")

        async def wait_here() -> None:
            twin = await engine.queue("q")
            await twin.get()

        dying = asyncio.new_event_loop()
        task = dying.create_task(wait_here())
        while not queue._parts.state.arrived.waiting:
            dying.run_until_complete(asyncio.sleep(0.001))
        dying.close()  # without a word to the task that waits
        got: list[bytes] = []

        async def wait_there() -> None:
            twin = await engine.queue("q")
            reader = asyncio.create_task(twin.get())
            await asyncio.sleep(0.01)
            await twin.publish(b"a")
            delivery = await reader
            assert delivery is not None
            got.append(delivery.body)

        run(wait_there)
        assert got == [b"a"]
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task
        gc.collect()
        queue.publish(b"b")
        assert queue._parts.state.arrived.waiting == 0
        delivery = queue.get(0)
        assert delivery is not None
        assert delivery.body == b"b"


class Books:
    """What publishers were told, and what consumers acknowledged."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.returned: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.never_begun: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        self.cancellations = 0


async def publish_at_random(queue: qindex.aio.Queue, books: Books, name: str, count: int) -> None:
    chance = random.Random(name)
    for n in range(count):
        body = f"{name}-{n}".encode() + b"." * chance.choice((0, 0, 0, 50, 20_000, 70_000))
        confirm = chance.random() < 0.5
        task = asyncio.create_task(queue.publish(body, confirm=confirm))
        action = chance.random()
        begun = action >= 0.05
        if begun:
            await asyncio.sleep(0)
        if action < 0.4:
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            books.cancellations += 1
            (books.cancelled if begun else books.never_begun).add(body)
        else:
            books.returned.add(body)


async def consume_at_random(
    queue: qindex.aio.Queue, books: Books, name: str, done: threading.Event
) -> None:
    chance = random.Random(name)

    async def take_one() -> None:
        got = await asyncio.wait_for(queue.get(), chance.random() * 0.003)
        assert got is not None
        async with got as delivery:
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.001)
            if chance.random() < 0.05:
                raise ZeroDivisionError
            body = delivery.body
            # Before: an ack that is cancelled has been made.
            with books.lock:
                books.acked[body] += 1
            await delivery.ack()

    while not (done.is_set() and not len(queue)):
        task = asyncio.create_task(take_one())
        if chance.random() < 0.4:
            await asyncio.sleep(chance.random() * 0.001)
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            books.cancellations += 1
        except (TimeoutError, ZeroDivisionError):
            continue


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_random_cancellation_under_load(tmp_path: Path, durability: Durability) -> None:
    """Two loops and a thread on one queue; publishers and consumers are cancelled at random."""
    books, done = Books(), threading.Event()
    with qindex.open(
        tmp_path, durability=durability, max_journal_entries=500, segment_entry_count=256
    ) as plain:
        engine = qindex.aio.Engine(plain)

        async def side(number: int) -> None:
            queue = await engine.queue("q")
            consumers = [
                asyncio.create_task(consume_at_random(queue, books, f"c{number}-{n}", done))
                for n in range(4)
            ]
            await asyncio.gather(
                *(publish_at_random(queue, books, f"p{number}-{n}", 300) for n in range(4))
            )
            finished.wait()
            await asyncio.gather(*consumers)

        def in_a_thread() -> None:
            queue = plain.queue("q")
            while not (done.is_set() and not len(queue)):
                delivery = queue.get(0.001)
                if delivery is not None:
                    delivery.ack()
                    with books.lock:
                        books.acked[delivery.body] += 1

        finished = _LastSets(2, done)
        threads = [threading.Thread(target=lambda n=n: asyncio.run(side(n))) for n in range(2)]
        threads.append(threading.Thread(target=in_a_thread))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        stats = plain.queue("q").stats()
        assert (stats.ready, stats.unacked) == (0, 0)
        assert plain.queue("q")._parts.state.arrived.waiting == 0
    assert books.cancellations > 200
    assert not [body for body, times in books.acked.items() if times > 1]
    acked = set(books.acked)
    assert acked == books.returned | books.cancelled
    assert not acked & books.never_begun


class _LastSets:
    """Sets ``event`` when ``count`` have called :meth:`wait` (which does not wait)."""

    def __init__(self, count: int, event: threading.Event) -> None:
        self._left = count
        self._lock = threading.Lock()
        self._event = event

    def wait(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._event.set()


class Mover:
    """A queue with one message, and the transaction that moves it to another queue."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.held: Any = None

    async def move(self, at_the_end: Callable[[], Any]) -> None:
        queue = await self.engine.queue("from")
        await queue.publish(b"x")
        self.held = await queue.get()
        async with self.engine.transaction() as tx:
            await tx.publish("to", self.held.body)
            await tx.ack(self.held)
            at_the_end()

    async def has_moved(self) -> bool:
        there = len(await (await self.engine.queue("to")).peek(9))
        assert self.held.settled == bool(there)
        if not there:
            await self.held.ack()
        stats = await (await self.engine.queue("from")).stats()
        assert (stats.ready, stats.unacked) == (0, 0)
        return bool(there)


@pytest.mark.parametrize("shared", [False, True])
def test_a_transaction_that_is_cancelled_as_its_block_ends_rolls_back(
    tmp_path: Path, shared: bool
) -> None:
    given: dict[str, Any] = {"shared": True, "linger": 0} if shared else {}

    async def main() -> None:
        async with qindex.aio.open(tmp_path, **given) as engine:
            mover = Mover(engine)

            def end() -> None:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

            await cancelled(asyncio.create_task(mover.move(end)))
            assert not await mover.has_moved()

    run(main)


def test_a_transaction_that_is_cancelled_as_it_commits_is_committed(tmp_path: Path) -> None:
    entered, held = threading.Event(), threading.Event()

    def hold_up() -> None:
        entered.set()
        held.wait(WAIT)

    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            mover = Mover(engine)
            helper = engine._ports.helper

            def end() -> None:
                helper.submit(hold_up)
                entered.wait(WAIT)

            task = asyncio.create_task(mover.move(end))
            while not (entered.is_set() and helper._executor._work_queue.qsize()):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            held.set()
            await cancelled(task)
            assert await mover.has_moved()

    run(main)


def test_a_shared_transaction_that_is_cancelled_as_it_commits_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        entered, held = asyncio.Event(), asyncio.Event()
        commit = SharedTransaction._end

        async def hold_up(self: SharedTransaction, **options: Any) -> None:
            entered.set()
            await held.wait()
            await commit(self, **options)

        monkeypatch.setattr(SharedTransaction, "_end", hold_up)
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            mover = Mover(engine)
            task = asyncio.create_task(mover.move(lambda: None))
            await entered.wait()
            task.cancel()
            await asyncio.sleep(0)
            held.set()
            await cancelled(task)
            assert await mover.has_moved()

    run(main)
