"""Leases: what is not settled in time comes back to its place."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic

import pytest

import qindex
from qindex.format.entries import Entry
from qindex.queue.notes.entry_note import EntryNote, Lease
from qindex.queue.notes.leases import Leases
from tests.qindex.support import WAIT, open_quietly

SHORT = 0.05


def take(queue: qindex.Queue, timeout: float = WAIT, lease: float | None = None) -> qindex.Delivery:
    delivery = queue.get(timeout, lease=lease)
    assert delivery is not None
    return delivery


@pytest.mark.parametrize("background", [False, True])
def test_it_comes_back_to_its_place(tmp_path: Path, background: bool) -> None:
    with open_quietly(tmp_path, background=background) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1"])
        start = monotonic()
        first = take(queue, lease=SHORT)
        second = take(queue)
        assert (first.delivery_count, second.delivery_count) == (1, 1)
        again = take(queue)  # a get that waits is woken
        assert SHORT <= monotonic() - start < WAIT
        assert (again.body, again.redelivered, again.delivery_count) == (b"0", True, 2)
        assert first.settled
        late = (first.ack, first.nack, lambda: first.extend_lease(1), lambda: queue.ack(first))
        for settle in late:
            with pytest.raises(qindex.LeaseExpiredError, match="has run out"):
                settle()
        assert not again.settled
        again.ack()
        second.ack()
        assert queue.stats().unacked == 0
        assert not queue._parts.state.noted


def test_it_is_woken_in_order(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % number for number in range(6)])
        for lease in (0.15, 0.05, 0.1):
            take(queue, lease=lease)
        threading.Event().wait(0.3)
        assert [one.body for one in queue.get_many(9)] == [b"%d" % one for one in range(6)]


def test_settled_in_time(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2", b"3"])
        take(queue, lease=SHORT).ack()
        batch = queue.get_many(2, lease=SHORT)
        queue.ack_many(batch)
        take(queue, lease=SHORT).nack()
        assert all(note.lease is None for note in queue._parts.state.noted.values())
        kept = take(queue)  # without a lease now
        threading.Event().wait(3 * SHORT)
        assert not kept.settled
        with pytest.raises(qindex.UsageError, match="has no lease"):
            kept.extend_lease(1)
        kept.ack()
        assert queue.stats().acked == 4


def test_extend(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"0")
        delivery = take(queue, lease=0.1)
        for _ in range(5):
            delivery.extend_lease(0.3)
            assert queue.get(0.05) is None
        with pytest.raises(qindex.UsageError, match="would shorten"):
            delivery.extend_lease(0.05)
        assert take(queue).delivery_count == 2


def test_of_a_batch(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2" * 20_000])
        batch = queue.get_many(9, lease=SHORT)
        batch[1].extend_lease(WAIT)
        again = [take(queue), take(queue)]
        assert [one.body for one in again] == [b"0", b"2" * 20_000]
        with pytest.raises(qindex.LeaseExpiredError):
            queue.ack_many(batch)
        with pytest.raises(qindex.LeaseExpiredError):
            batch[0].ack()
        assert [one.settled for one in batch] == [True, False, True]
        batch[1].ack()
        queue.ack_many(again)
        assert queue.stats().unacked == 0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("max_priority", [None, 3])
def test_of_a_message_that_has_gone_since(
    tmp_path: Path, max_priority: int | None, shared: bool
) -> None:
    """Each call says so, and not only the first one."""
    with qindex.open(tmp_path, shared=shared) as engine:
        queue = engine.queue("q", max_priority=max_priority)
        queue.publish_many([b"0", b"1"])
        batch = queue.get_many(2, lease=SHORT)
        queue.ack_many([queue.get(), queue.get()])
        late = (batch[0].ack, batch[1].nack, batch[1].reject, lambda: batch[0].extend_lease(9))
        for settle in (*late, lambda: queue.ack_many(batch), batch[0].ack):
            with pytest.raises(qindex.LeaseExpiredError):
                settle()


def test_consume_with_a_lease(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1"])
        seen = []
        for delivery in queue.consume(prefetch=1, timeout=5 * SHORT, lease=SHORT):
            seen.append((delivery.body, delivery.delivery_count))
            if delivery.delivery_count == 2 or delivery.body == b"1":
                delivery.ack()
        assert seen == [(b"0", 1), (b"0", 2), (b"1", 1)]


def test_at_the_delivery_limit(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=2, dead_letter="dead")
        queue.publish(b"0")
        take(queue, lease=SHORT)
        take(queue, lease=SHORT)
        dead = take(engine.queue("dead"))
        assert dead.headers["x-death"][0]["reason"] == "limit"
        assert queue.get(0) is None
        assert queue.stats().unacked == 0


@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), 2e9, True, "1"])
def test_a_lease_that_cannot_be_right(tmp_path: Path, lease: float) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"0")
        for use in (lambda: queue.get(0, lease=lease), lambda: queue.get_many(1, lease=lease)):
            with pytest.raises(qindex.UsageError, match="lease"):
                use()
        delivery = take(queue, lease=WAIT)
        with pytest.raises(qindex.UsageError, match="lease"):
            delivery.extend_lease(lease)
        assert not delivery.settled


def test_without_leases_there_is_no_thread(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", max_length=9, delivery_limit=3)
        queue.publish(b"0")
        take(queue).nack()
        assert engine._alarm._thread._thread is None
        take(queue, lease=WAIT)
        thread = engine._alarm._thread._thread
        assert thread is not None
    assert not thread.is_alive()


def test_leases_end_with_the_engine(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish(b"0")
        take(engine.queue("q"), lease=SHORT)
    threading.Event().wait(2 * SHORT)
    with qindex.open(tmp_path) as engine:
        assert take(engine.queue("q")).redelivered
        engine.delete_queue("q")


def test_times_that_no_longer_hold_are_forgotten() -> None:
    noted: dict[int, EntryNote] = {}
    leases = Leases(noted)
    nobody = Entry(b"", 0, 0, None)
    for number in range(10_000):
        noted[number] = EntryNote()
        noted[number].lease = lease = Lease(1e6 + number, number, b"", nobody, 1, None)
        leases.add(lease)
        del noted[number]
    assert len(leases._times) < 2000
    assert leases.next_end() is None
    noted[1] = EntryNote()
    noted[1].lease = lease = Lease(5.0, 1, b"", nobody, 1, None)
    leases.add(lease)
    lease.ends = 7.0
    leases.add(lease)
    assert leases.due(6.0) == []
    assert [one.seq_id for one in leases.due(7.0)] == [1]
    assert leases.next_end() is None


def test_a_lease_that_was_extended_to_the_same_time_ends_once() -> None:
    noted = {7: EntryNote()}
    leases = Leases(noted)
    lease = Lease(5.0, 7, b"", 0, 1, None)
    noted[7].lease = lease
    leases.add(lease)
    leases.add(lease)
    assert leases.due(6.0) == [lease]
