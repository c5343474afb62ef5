"""Consumers that are stopped, and an engine that closes once they have settled their messages."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

import qindex
import qindex.aio
from tests.waiting import WAIT

FEW = 10


@pytest.mark.parametrize("prefetch", [1, 100])
def test_a_consumer_that_waits_is_stopped(tmp_path: Path, prefetch: int) -> None:
    """It waits for a message, or for the ack of the one it has."""
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"0")
        consumer = queue.consume(prefetch)
        given: list[qindex.Delivery] = []
        thread = Thread(target=lambda: given.extend(consumer))
        thread.start()
        state = queue._parts.state
        while not (state.settled if prefetch == 1 else state.arrived).waiting:
            assert thread.is_alive()
        consumer.stop()
        thread.join(WAIT)
        assert not thread.is_alive()
        queue.publish(b"1")
        assert list(consumer) == []
        queue.ack(given[0])
        assert queue.get().body == b"1"


def test_a_signals_handler_stops_a_consumer(tmp_path: Path) -> None:
    def handler(*_: object) -> None:
        consumer.stop()

    ended = Event()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with qindex.open(tmp_path) as engine:
            queue = engine.queue("q")
            state = queue._parts.state
            consumer = queue.consume()

            def interrupt() -> None:
                while not state.arrived.waiting:
                    assert not ended.is_set()
                # Python loses a signal that comes just as the thread falls asleep.
                while not ended.wait(0.05):
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

            thread = Thread(target=interrupt)
            thread.start()
            assert list(consumer) == []
            ended.set()
            thread.join(WAIT)
            # In the middle of a call, which may be about to wait: it has looked at this before.
            consumer = queue.consume()
            with state.lock:
                handler()
                assert state.arrived.wait(WAIT)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_is_in_hand_is_settled_before_the_engine_closes(tmp_path: Path) -> None:
    engine = qindex.open(tmp_path)
    queue, results = engine.queue("q"), engine.queue("results")
    queue.publish_many([b"%d" % number for number in range(FEW)])
    taken, go_on = Event(), Event()

    def work() -> None:
        for delivery in queue.consume():
            taken.set()
            assert go_on.wait(WAIT)
            results.publish(delivery.body)
            queue.ack(delivery)

    def take(call: Callable[[], object]) -> None:
        with pytest.raises(qindex.ClosedError):
            call()

    worker = Thread(target=work)
    waiting = Thread(target=lambda: take(lambda: results.get()))
    for thread in (worker, waiting):
        thread.start()
    assert taken.wait(WAIT)
    closer = Thread(target=lambda: engine.close(drain=WAIT))
    closer.start()
    waiting.join(WAIT)
    for call in (lambda: queue.get(0), lambda: queue.get_many(2), lambda: results.get(0)):
        take(call)
    assert not engine.closed
    go_on.set()
    for thread in (worker, closer):
        thread.join(WAIT)
        assert not thread.is_alive()
    with qindex.open(tmp_path) as engine:
        left = engine.queue("q").get_many(FEW)
        assert [one.body for one in left] == [b"%d" % number for number in range(1, FEW)]
        assert not any(one.redelivered for one in left)
        assert [one.body for one in engine.queue("results").peek(FEW)] == [b"0"]


def test_an_engine_waits_no_longer_than_it_was_told(tmp_path: Path) -> None:
    engine = qindex.open(tmp_path)
    queue = engine.queue("q")
    queue.publish(b"x")
    delivery = queue.get()
    with pytest.raises(qindex.UsageError, match="number of seconds"):
        engine.close(drain="soon")  # type: ignore[arg-type]
    engine.close(drain=0.02)
    with pytest.raises(qindex.ClosedError):
        queue.ack(delivery)
    with qindex.open(tmp_path) as engine:
        assert engine.queue("q").get().redelivered


def test_coroutines(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        queue = await engine.queue("q")
        await queue.publish_many([b"%d" % number for number in range(FEW)])
        taken, go_on = asyncio.Event(), asyncio.Event()

        async def work(consumer: qindex.aio.Consumer) -> list[bytes]:
            seen = []
            async for delivery in consumer:
                seen.append(delivery.body)
                taken.set()
                await go_on.wait()
                await queue.ack(delivery)
            return seen

        full = queue.consume(prefetch=1)
        held = await anext(full)
        with_it = asyncio.ensure_future(anext(full, None))
        empty = (await engine.queue("empty")).consume()
        without = asyncio.ensure_future(anext(empty, None))
        await asyncio.sleep(0.01)
        for consumer in (full, empty):
            consumer.stop()
        assert list(await asyncio.gather(with_it, without)) == [None, None]
        await queue.ack(held)

        workers = [asyncio.ensure_future(work(queue.consume())) for _ in range(2)]
        await taken.wait()
        closing = asyncio.ensure_future(engine.close(drain=WAIT))
        await asyncio.sleep(0.03)
        assert not engine.closed
        with pytest.raises(qindex.ClosedError):
            await queue.get(0)
        go_on.set()
        assert await asyncio.gather(*workers) == [[b"1"], [b"2"]]
        await closing

    asyncio.run(main())
    with qindex.open(tmp_path) as engine:
        left = engine.queue("q").get_many(FEW)
        assert [one.body for one in left] == [b"%d" % number for number in range(3, FEW)]
        assert not any(one.redelivered for one in left)


def test_a_handler_stops_a_consumer_while_its_thread_holds_a_later_lock(tmp_path: Path) -> None:
    """The interrupted call exchanges files, and another thread has the queue: the handler can't
    wait for it there, and a thread wakes the consumer instead."""
    with qindex.open(tmp_path, background=False) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        consumer = queue.consume()
        next(consumer)
        ended, held, go_on = (Event() for _ in range(3))

        def consume() -> None:
            assert list(consumer) == []
            ended.set()

        def hold() -> None:
            with queue._parts.state.lock:
                held.set()
                go_on.wait(WAIT)

        threads = [Thread(target=consume, daemon=True), Thread(target=hold, daemon=True)]
        for thread in threads:
            thread.start()
        assert held.wait(WAIT)
        with queue._parts.state.index.journal._files:
            consumer.stop()
        go_on.set()
        assert ended.wait(WAIT)
        for thread in threads:
            thread.join()
