"""Many threads on one queue: exactly once, in order for each publisher, woken, never stuck."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qindex
from tests.effort import by_tier
from tests.qindex.support import WAIT, copy_live, drain, open_quietly


def start(*works: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()


def until(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT / 0.002)):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError("it never came to that")


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_four_publishers_and_four_consumers(
    tmp_path: Path, background: bool, durability: Any
) -> None:
    each = 1500 if durability == "os" else 60
    engine = qindex.open(
        tmp_path / "store",
        background=background,
        durability=durability,
        max_journal_entries=200,
        segment_entry_count=128,
        flush_idle=0.01,
        rest_idle=0.01,
    )
    queue = engine.queue("q")
    total = 4 * each
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(4)]
    counted = threading.Semaphore(0)
    problems: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                problems.append(error)
                raise

        return run

    def publisher(who: int) -> None:
        number = 0
        while number < each:
            if number % 10 == 3:
                bodies = [b"%d %d" % (who, number + at) for at in range(min(7, each - number))]
                queue.publish_many(bodies)
                number += len(bodies)
            else:
                key = "k" if number % 10 == 5 else None
                queue.publish(b"%d %d" % (who, number), key=key)
                number += 1

    def consumer(who: int) -> None:
        turn = 0
        while True:
            turn += 1
            if turn % 4 == 0:
                taken: list[qindex.Delivery] = list(queue.get_many(5, timeout=WAIT))
            else:
                one = queue.get(timeout=WAIT)
                taken = [] if one is None else [one]
            if taken and taken[0].body == b"end":
                taken[0].ack()
                for one in taken[1:]:
                    one.nack()
                return
            if turn % 9 == 0:
                for one in taken:
                    one.nack()
                continue
            ends = [one for one in taken if one.body == b"end"]
            for one in taken:
                if one.body != b"end":
                    by, number = map(int, one.body.split())
                    found[who].append((one.seq_id, by, number))
                    counted.release()
            queue.ack_many([one for one in taken if one not in ends])
            for one in ends:
                one.nack()

    def made(work: Callable[[int], None], who: int) -> Callable[[], None]:
        return guarded(lambda: work(who))

    threads = start(*(made(publisher, who) for who in range(4)))
    consumers = start(*(made(consumer, who) for who in range(4)))
    join(threads)
    for _ in range(total):
        assert counted.acquire(timeout=WAIT)
    for _ in range(4):
        queue.publish(b"end")
    join(consumers)
    assert problems == []
    assert (len(queue), queue.stats().unacked) == (0, 0)
    everything = sorted(one for part in found for one in part)
    assert len({seq for seq, _, _ in everything}) == total
    for who in range(4):
        assert [number for _, by, number in everything if by == who] == list(range(each))
    copy = copy_live(tmp_path / "store", tmp_path / "copy") if not background else None
    engine.close()
    for store in (tmp_path / "store", copy):
        if store is not None:
            with open_quietly(store) as again:
                assert drain(again.queue("q")) == []


def test_a_publish_wakes_a_getter(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        found: list[bytes] = []

        def getter() -> None:
            for delivery in queue.consume(timeout=WAIT):
                found.append(delivery.body)
                delivery.ack()
                if delivery.body == b"end":
                    return

        threads = start(getter)
        for body, publish in (
            (b"0", lambda: queue.publish(b"0")),
            (b"1", lambda: queue.publish(b"1", key="k")),
            (b"2", lambda: queue.publish_many([b"2"])),
            (b"end", lambda: queue.publish(b"end")),
        ):
            until(lambda: queue._parts.state.arrived.waiting == 1)
            publish()
            until(lambda body=body: body in found)  # type: ignore[misc]
        join(threads)


def test_a_requeue_wakes_a_getter(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        held = queue.get(0)
        assert held is not None
        found: list[qindex.Delivery | None] = []
        threads = start(lambda: found.append(queue.get(WAIT)))
        until(lambda: queue._parts.state.arrived.waiting == 1)
        held.nack()
        join(threads)
        assert found[0] is not None
        assert found[0].redelivered


def test_a_consumer_that_waits_for_acks_takes_no_getters_wake_up(tmp_path: Path) -> None:
    """It sleeps first, so a wake-up for the next sleeper would go to it."""
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"held")
        held: list[qindex.Delivery] = []
        consumer_done = threading.Event()

        def consumer() -> None:
            for delivery in queue.consume(prefetch=1, timeout=WAIT):
                held.append(delivery)
                if delivery.body == b"second":
                    consumer_done.set()
                    return

        threads = start(consumer)
        until(lambda: queue._parts.state.settled.waiting == 1)
        found: list[qindex.Delivery | None] = []
        threads += start(lambda: found.append(queue.get(None)))
        until(lambda: queue._parts.state.arrived.waiting == 1)
        queue.publish(b"for the getter")
        until(lambda: found)
        assert found[0] is not None
        assert found[0].body == b"for the getter"
        held[0].ack()
        queue.publish(b"second")
        assert consumer_done.wait(WAIT)
        join(threads)


@pytest.mark.parametrize("how", ["ack", "nack", "ack_many", "ack_up_to"])
def test_prefetch_holds_back_until_something_is_settled(tmp_path: Path, how: str) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % at for at in range(5)])
        given: list[qindex.Delivery] = []

        def consumer() -> None:
            for delivery in queue.consume(prefetch=2, timeout=WAIT):
                given.append(delivery)
                if len(given) == 3:
                    return

        threads = start(consumer)
        until(lambda: queue._parts.state.settled.waiting == 1)
        assert (len(given), queue.stats().unacked) == (2, 2)
        if how == "ack":
            given[0].ack()
        elif how == "nack":
            given[0].nack()
        elif how == "ack_many":
            queue.ack_many(given[:1])
        else:
            queue.ack_up_to(given[0].seq_id)
        join(threads)
        assert given[2].body == (b"0" if how == "nack" else b"2")


def test_consume_ends_when_the_time_is_up(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2"])
        assert [one.body for one in queue.consume(timeout=0)] == [b"0", b"1", b"2"]
        queue.ack_up_to(9)
        queue.publish_many([b"3", b"4", b"5"])
        bodies = []
        for one in queue.consume(prefetch=2, timeout=0.01):
            bodies.append(one.body)
            one.ack()
        assert bodies == [b"3", b"4", b"5"]


@pytest.mark.parametrize("timeout", [0, 0.01, -5])
def test_timeouts(tmp_path: Path, timeout: float) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        assert queue.get(timeout) is None
        assert len(queue.get_many(3, timeout)) == 0
        queue.publish(b"late", ttl=0)
        assert queue.get(timeout) is None


def test_timeouts_without_an_end(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        found: list[bytes] = []

        def getter(timeout: float) -> None:
            delivery = queue.get(timeout)
            assert delivery is not None
            found.append(delivery.body)

        threads = start(lambda: getter(float("inf")), lambda: getter(1e18))
        until(lambda: queue._parts.state.arrived.waiting == 2)
        queue.publish_many([b"0", b"1"])
        join(threads)
        assert sorted(found) == [b"0", b"1"]


def test_each_of_many_waiting_getters_gets_one(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        found: list[int] = []
        lock = threading.Lock()

        def getter() -> None:
            delivery = queue.get(WAIT)
            assert delivery is not None
            with lock:
                found.append(delivery.seq_id)

        threads = start(*[getter] * 10)
        until(lambda: queue._parts.state.arrived.waiting == 10)
        queue.publish_many([b"x"] * 6)
        for _ in range(4):
            queue.publish(b"x")
        join(threads)
        assert sorted(found) == list(range(10))


@pytest.mark.parametrize("end", ["close", "delete"])
@pytest.mark.parametrize("what", ["get", "get_many", "consume", "prefetch"])
def test_who_waits_at_the_end_is_told(tmp_path: Path, end: str, what: str) -> None:
    engine = open_quietly(tmp_path)
    queue = engine.queue("q")
    outcome: list[BaseException] = []

    def waiter() -> None:
        try:
            if what == "get":
                queue.get()
            elif what == "get_many":
                queue.get_many(5, timeout=None)
            else:
                for _ in queue.consume(prefetch=1):
                    pass
        except qindex.StoreError as error:
            outcome.append(error)

    if what == "prefetch":
        queue.publish(b"x")
    threads = start(waiter, waiter)
    until(lambda: queue._parts.state.arrived.waiting + queue._parts.state.settled.waiting == 2)
    if end == "close":
        engine.close()
    else:
        engine.delete_queue("q")
    join(threads)
    assert [type(error) for error in outcome] == [qindex.ClosedError] * 2
    engine.close()


@pytest.mark.parametrize("turn", range(15))
def test_publishing_while_the_engine_closes(tmp_path: Path, turn: int) -> None:
    """Each publish that returned is there afterwards, and each that did not, raised."""
    durability: Any = "fsync" if turn % 3 == 0 else "os"
    engine = open_quietly(tmp_path, max_journal_entries=30, durability=durability)
    queue = engine.queue("q")
    returned: list[int] = []
    acked: list[int] = []
    problems: list[BaseException] = []
    running = threading.Semaphore(0)

    def until_closed(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                while True:
                    work()
            except qindex.ClosedError:
                return
            except BaseException as error:
                problems.append(error)

        return run

    def publish() -> None:
        returned.append(queue.publish(b"x"))
        running.release()

    def consume() -> None:
        delivery = queue.get()
        assert delivery is not None
        if delivery.seq_id % 2:
            delivery.ack()
            acked.append(delivery.seq_id)

    threads = start(until_closed(publish), until_closed(publish), until_closed(consume))
    for _ in range(20 + 7 * turn):
        assert running.acquire(timeout=WAIT)
    engine.close()
    join(threads)
    assert problems == []
    with open_quietly(tmp_path) as again:
        found = {seq for seq, _, _ in drain(again.queue("q"))}
        # An ack or two may have been made whose return was a ClosedError (its sync came late).
        missing = set(returned) - set(acked) - found
        assert len(missing) <= (durability == "fsync")
        assert not found & set(acked)


def test_looking_while_others_work(tmp_path: Path) -> None:
    with open_quietly(tmp_path, max_journal_entries=20) as engine:
        queue = engine.queue("q")
        stop = threading.Event()
        problems: list[BaseException] = []

        def look() -> None:
            try:
                batch = None
                while not stop.is_set():
                    seqs = [one.seq_id for one in queue.peek(50)]
                    assert seqs == sorted(seqs)
                    stats = engine.stats().queues[0]
                    assert stats.ready >= 0
                    assert len(queue) >= 0
                    batch = batch or queue.get_many(3)
                    assert all(one.settled in (True, False) for one in batch)
                    assert repr(queue).startswith("<Queue 'q'")
            except BaseException as error:
                problems.append(error)

        threads = start(look, look)
        for _ in range(by_tier(quick=100, all=300, nightly=300)):
            queue.publish_many([b"x"] * 5)
            queue.ack_many(queue.get_many(5))
        stop.set()
        join(threads)
        assert problems == []


def test_a_batch_that_waited_for_what_was_given_back_owns_it(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        held = queue.get(0)
        assert held is not None
        batches: list[qindex.Batch] = []
        threads = start(lambda: batches.append(queue.get_many(5, timeout=WAIT)))
        until(lambda: queue._parts.state.arrived.waiting == 1)
        held.nack()
        join(threads)
        assert batches[0].seq_ids == [0]
        assert not batches[0][0].settled
        queue.ack_many(batches[0])
        assert (len(queue), queue.stats().unacked) == (0, 0)
