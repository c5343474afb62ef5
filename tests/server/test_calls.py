"""What takes more than one request, or waits in the server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.client.link import Link
from qindex.server import protocol as wire
from qindex.server.pushing import how_many_fit
from tests.effort import by_tier
from tests.server.support import WAIT, end_store, server_pid

MIB = 1 << 20


def test_large_messages_and_batches_pass_in_parts(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        body = bytes(range(256)) * (20 * MIB // 256)
        queue.publish(body, headers={"n": 1})
        with queue.get() as delivery:
            assert delivery.body == body
            assert delivery.headers == {"n": 1}
        bodies = [bytes([at]) * (300 << 10) for at in range(60)]
        assert queue.publish_many(bodies) == range(1, 61)
        batch = queue.get_many(60)
        assert batch.bodies == bodies
        assert batch.seq_ids == list(range(1, 61))
        assert [one.body for one in batch[50:]] == bodies[50:]
        assert (batch[-1].body, batch[13].seq_id) == (bodies[-1], 14)
        batch[13].nack()
        with pytest.raises(qindex.UsageError, match="seq_id 14 is settled"):
            queue.ack_many(batch)
        queue.ack_many([one for one in batch if one.seq_id != 14])
        assert [one.seq_id for one in queue.consume(timeout=0)] == [14]
        with pytest.raises(qindex.UsageError, match="bytes"):
            queue.publish(bytes(129 * MIB))
        assert queue.stats().ready == 0


def test_a_publish_waits_for_room_that_another_client_makes(tmp_path: Path) -> None:
    with (
        qindex.open(tmp_path, shared=True, linger=0) as engine,
        qindex.open(tmp_path, shared=True) as other,
    ):
        queue = engine.queue("q", max_length=2, overflow="block")
        queue.publish_many([b"1", b"2"])
        for call in (queue.publish, lambda one, **options: queue.publish_many([one], **options)):
            began = time.monotonic()
            with pytest.raises(qindex.QueueFullError, match="max_length=2"):
                call(b"late", timeout=0.1)
            assert time.monotonic() - began >= 0.1
        assert queue.stats().refused == 2
        waiting = threading.Thread(target=queue.publish, args=(b"3",))
        waiting.start()
        time.sleep(0.1)
        other.queue("q").get().ack()
        waiting.join(WAIT)
        assert [one.body for one in other.queue("q").get_many(9)] == [b"2", b"3"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_what_waits_for_room_is_published_once(tmp_path: Path, durability: Any, size: int) -> None:
    with (
        qindex.open(tmp_path, shared=True, linger=0, durability=durability) as engine,
        qindex.open(tmp_path, shared=True) as other,
    ):
        queue, seen = engine.queue("q", max_length=1, overflow="block"), other.queue("q")
        queue.publish(b"first")
        bodies = [bytes([at]) * size for at in range(12)]
        ways: list[Any] = [
            lambda one: queue.publish(one, confirm=True),
            lambda one: queue.publish_many([one]),
            lambda one: engine.publish_to(["q"], one),
        ]
        threads = [
            threading.Thread(target=ways[at % 3], args=(one,)) for at, one in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        got = []
        for _ in range(13):
            with seen.get(timeout=WAIT) as delivery:  # type: ignore[union-attr]
                got.append(delivery.body)
        for thread in threads:
            thread.join(WAIT)
        assert sorted(got) == sorted([b"first", *bodies])
        stats = queue.stats()
        assert (stats.published, stats.ready, stats.unacked, stats.refused) == (13, 0, 0, 0)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_get_that_waited_takes_one_message(tmp_path: Path, durability: Any) -> None:
    with (
        qindex.open(tmp_path, shared=True, linger=0, durability=durability) as engine,
        qindex.open(tmp_path, shared=True) as other,
    ):
        queue, sender = engine.queue("q"), other.queue("q")
        queue.publish(b"0")
        delivery = queue.get()
        for number in range(1, 4):
            waiting: list[Any] = []
            taker = threading.Thread(
                target=lambda held=delivery, got=waiting: got.append(queue.get(WAIT, ack=held))
            )
            taker.start()
            while queue.stats().unacked:
                time.sleep(0.005)
            sender.publish(b"%d" % number)
            taker.join(WAIT)
            delivery = waiting[0]
            assert delivery.body == b"%d" % number
            sender.publish_many([b"next", b"last"])
            assert [one.body for one in sender.get_many(9)] == [b"next", b"last"]
            sender.ack_up_to(1 << 40)
            sender.publish(b"0")
            delivery = queue.get()


def test_threads_share_an_engine_and_a_consumer(tmp_path: Path) -> None:
    count = by_tier(quick=400, all=5000, nightly=50_000)
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        failed: list[BaseException] = []
        got: list[bytes] = []

        def guarded(call: Any, *arguments: Any) -> threading.Thread:
            def run() -> None:
                try:
                    call(*arguments)
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def publish(name: int) -> None:
            for at in range(count):
                queue.publish(b"%d-%d" % (name, at), confirm=at % 100 == 0)

        consumer = queue.consume(prefetch=7)
        handed: list[qindex.Delivery] = []
        there = threading.Condition()

        def consume() -> None:
            for delivery in consumer:
                with there:
                    handed.append(delivery)
                    there.notify()

        def settle() -> None:
            while len(got) < 3 * count:
                with there:
                    there.wait_for(lambda: handed or len(got) == 3 * count, 0.05)
                    if not handed:
                        continue
                    delivery = handed.pop()
                delivery.ack()
                got.append(delivery.body)

        publishers = [guarded(publish, name) for name in range(3)]
        consuming = guarded(consume)
        settlers = [guarded(settle) for _ in range(3)]
        for thread in [*publishers, *settlers]:
            thread.join(WAIT)
        consumer.stop()
        consuming.join(WAIT)
        assert not failed
        assert not consuming.is_alive()
        assert sorted(got) == sorted(b"%d-%d" % (a, b) for a in range(3) for b in range(count))
        stats = queue.stats()
        assert (stats.acked, stats.ready, stats.unacked) == (3 * count, 0, 0)


def test_a_stopped_consumer_keeps_no_message_from_others(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"a", b"b", b"c"])
        consumer = queue.consume(prefetch=1)
        first, found = next(consumer), []
        consumer.stop()
        first.nack(delay=0, count=False)  # the loop's body still runs
        while (one := queue.get(1)) is not None:
            found.append((one.body, one.delivery_count))
            one.ack()
        assert sorted(found) == [(b"a", 1), (b"b", 1), (b"c", 1)]
        assert list(consumer) == []
        with qindex.open(tmp_path, shared=True) as other:
            again = other.queue("q")
            again.publish_many([b"d", b"e"])
            ahead = queue.consume(prefetch=2)
            held = next(ahead)
            ahead.stop()
            got = again.get(1)
            assert (held.body, got.body if got else None) == (b"d", b"e")
            held.ack()
            assert again.stats().unacked == 1


def test_waiting_calls_end_with_the_engine_and_a_drain_waits(tmp_path: Path) -> None:
    engine = qindex.open(tmp_path, shared=True, linger=0)
    with qindex.open(tmp_path, shared=True) as other:
        queue = engine.queue("q")
        queue.publish(b"x")
        held = queue.get()
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                engine.queue("empty").get()
            except qindex.StoreError as error:
                raised.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        threading.Timer(0.2, held.ack).start()
        began = time.monotonic()
        engine.close(drain=WAIT)
        assert 0.15 < time.monotonic() - began < WAIT / 2
        waiting.join(WAIT)
        assert isinstance(raised[0], qindex.ClosedError)
        assert not isinstance(raised[0], qindex.DisconnectedError)
        assert engine.closed
        with pytest.raises(qindex.ClosedError):
            queue.get(timeout=0)
        assert other.queue("q").stats().acked == 1


def test_a_message_wakes_those_who_wait_each_once(tmp_path: Path) -> None:
    with (
        qindex.open(tmp_path, shared=True, linger=0) as engine,
        qindex.open(tmp_path, shared=True) as other,
    ):
        queue = engine.queue("q")
        got: list[bytes] = []

        def take() -> None:
            delivery = queue.get(timeout=WAIT)
            assert delivery is not None
            delivery.ack()
            got.append(delivery.body)

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for at in range(5):
            other.queue("q").publish(b"%d" % at)
        other.queue("q").publish_many([b"5", b"6", b"7"])
        for thread in threads:
            thread.join(WAIT)
        assert sorted(got) == [b"%d" % at for at in range(8)]


def test_fsync_each_call_is_synced_and_syncs_are_shared(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0, durability="fsync") as engine:
        queue = engine.queue("q")
        threads = [
            threading.Thread(target=lambda: [queue.publish(b"x") for _ in range(20)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert len(queue) == 160
        assert 1 <= queue.stats().journal_syncs <= 160
        before = queue.stats().journal_syncs
        delivery = queue.get()
        again = queue.get(ack=delivery)
        again.ack()
        assert queue.stats().journal_syncs > before
        assert server_pid(tmp_path)


def test_a_flush_that_falls_behind_holds_publishers_up(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0, max_journal_entries=100) as engine:
        queue = engine.queue("q")
        for _ in range(by_tier(quick=3000, all=30_000, nightly=300_000)):
            queue.publish(b"x")
        assert queue.stats().flushes > 0
        assert queue.stats().journal_entries < 100 * 64


def test_a_lease_in_consume_begins_as_the_message_is_handed_out(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"1", b"2", b"3"])
        seen = []
        for delivery in queue.consume(prefetch=10, timeout=0, lease=0.5):
            time.sleep(0.3)
            seen.append(delivery.body)
            delivery.ack()
        assert seen == [b"1", b"2", b"3"]
        queue.publish(b"late")
        consumer = queue.consume(prefetch=1, timeout=WAIT, lease=0.05)
        first = next(consumer)
        second = next(consumer)  # its lease has run out: there is credit again
        assert (second.body, second.redelivered) == (b"late", True)
        with pytest.raises(qindex.LeaseExpiredError):
            first.ack()


@pytest.mark.interpreted
def test_a_delivery_is_of_the_session_that_it_came_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another thread has found another server before the call returns."""
    exchange = Link.exchange

    def exchange_late(self: Link, request: Any, number: Any = None) -> Any:
        reply = exchange(self, request, number)
        if request[1] in (wire.GET, wire.GET_MANY):
            queue.at = (self.generation + 1, 99)
        return reply

    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"1", b"2", b"3"])
        generation = queue.at[0]
        monkeypatch.setattr(Link, "exchange", exchange_late)
        for taken in (queue.get(), queue.get(lease=100), queue.get_many(1)[0]):
            owner: Any = taken._queue
            assert owner.generation == generation


def test_the_close_of_an_engine_ends_its_consumers(tmp_path: Path) -> None:
    said: list[qindex.StoreError] = []
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        consumer = engine.queue("q").consume(timeout=float("inf"))

        def wait() -> None:
            try:
                next(consumer)
            except qindex.StoreError as error:
                said.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        deadline = time.monotonic() + WAIT
        while not consumer._is_waiting:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    waiting.join(WAIT)
    assert isinstance(said[0], qindex.ClosedError)


def test_a_long_wait_is_not_cut(tmp_path: Path) -> None:
    """The system counts the milliseconds of a wait in 31 bits."""
    with qindex.open(tmp_path, shared=True, linger=3_000_000) as engine:
        queue = engine.queue("q")
        for seconds in (30 * 86_400, 1e9, float("inf")):
            messages = queue.consume(timeout=seconds)
            timer = threading.Timer(0.1, queue.publish, [b"late"])
            timer.start()
            next(messages).ack()
            messages.stop()
            timer = threading.Timer(0.1, queue.publish, [b"late"])
            timer.start()
            late = queue.get(seconds)
            assert late is not None
            late.ack()
            timer.join()
    end_store(tmp_path)


def test_a_frame_has_no_more_than_fits() -> None:
    large = bytes(wire.MAX_BODIES // 4)
    assert how_many_fit([large] * 9) == 5
    assert how_many_fit([b"x"] * 9) == 9
    assert how_many_fit([]) == 0
