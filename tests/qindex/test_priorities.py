"""Priority queues as users meet them: publish, get, settle, limits, dead letters, reopen, kill."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import qindex
import qindex.aio
from qindex.engine.opening import open_store
from qindex.format.priorities import SHIFT, split_seq_id
from qindex.format.rabbitmq.names import directory_name
from qindex.tools.verify import verify
from tests.faulty_fs import FaultyFileSystem
from tests.waiting import WAIT, wait_until


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[qindex.Engine]:
    with qindex.open(tmp_path / "data") as opened:
        yield opened


def bodies(queue: qindex.Queue) -> list[bytes]:
    """Take and acknowledge all that is ready."""
    found = []
    while (delivery := queue.get(0)) is not None:
        found.append(delivery.body)
        delivery.ack()
    return found


def directories(root: Path) -> set[str]:
    return set(os.listdir(root / "data" / "queues"))


def run_and_kill(code: str) -> None:
    """Run a program in a child that dies with SIGKILL at its end."""
    code = f"{code}\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(qindex.__file__))}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL


# -- order --------------------------------------------------------------------------------------


def test_higher_numbers_come_first_and_first_in_first_out_within_one(engine: qindex.Engine) -> None:
    """Demand, priority: one documented direction; a high message sent later is received next."""
    queue = engine.queue("jobs", max_priority=10)
    for number, priority in enumerate([0, 5, 10, 5, None, 0, 10]):
        queue.publish(b"%d" % number, priority=priority)
    assert bodies(queue) == [b"2", b"6", b"1", b"3", b"0", b"4", b"5"]
    queue.publish(b"low", priority=1)
    queue.publish(b"high", priority=9)
    assert bodies(queue) == [b"high", b"low"]


def test_an_urgent_message_comes_after_the_running_one_at_most(engine: qindex.Engine) -> None:
    """Demand, priority: with concurrency 1, at most the running job precedes it."""
    queue = engine.queue("jobs", max_priority=3)
    queue.publish_many([b"low %d" % n for n in range(200)])
    done = []
    for delivery in queue.consume(prefetch=100, timeout=0):
        done.append(delivery.body)
        if len(done) == 5:
            queue.publish(b"urgent", priority=3)
        delivery.ack()
    assert done[5] == b"urgent"
    assert len(done) == 201


def test_low_priorities_wait_as_long_as_there_are_higher_ones(engine: qindex.Engine) -> None:
    """Demand, priority: there is no longest wait, and the documentation says so."""
    queue = engine.queue("jobs", max_priority=1)
    queue.publish(b"low")
    for _ in range(50):
        queue.publish(b"high", priority=1)
        assert queue.get().body == b"high"
    assert queue.get().body == b"low"
    docs = Path(__file__).parents[2] / "docs" / "limits.md"
    assert "A message may wait forever" in docs.read_text()


def test_a_requeued_message_returns_to_its_place(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=2)
    queue.publish_many([b"a", b"b"], priority=1)
    queue.publish(b"low")
    first = queue.get()
    queue.publish(b"high", priority=2)
    first.nack()
    assert bodies(queue) == [b"high", b"a", b"b", b"low"]


def test_the_priority_is_in_the_record_and_in_the_seq_id(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=255)
    seq = queue.publish(b"x", priority=255, properties={"app": "a"}, key="k")
    assert split_seq_id(seq) == (255, 0)
    assert 0 < seq < 1 << 63
    assert queue.publish(b"y", priority=255) == seq + 1
    delivery = queue.get()
    assert delivery.seq_id == seq
    assert delivery.priority == 255
    assert delivery.properties == {"app": "a", "priority": 255}
    assert delivery.key == "k"
    plain = queue.publish(b"z")
    assert plain == 0
    queue.get().ack()
    taken = queue.get()
    assert (taken.seq_id, taken.priority, taken.properties) == (0, 0, {})


def test_a_priority_among_the_properties_counts_up_to_the_highest(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=4)
    seqs = [
        queue.publish(b"1", properties={"priority": 3}),
        queue.publish(qindex.Message(b"2", properties={"priority": 200})),
        queue.publish(b"3", properties={"priority": "high"}),
        queue.publish(qindex.Message(b"4", properties={"priority": 1}), priority=2),
    ]
    assert [seq >> SHIFT for seq in seqs] == [3, 4, 0, 2]
    properties = {one.body: one.properties["priority"] for one in queue.get_many(1)}
    assert properties == {b"2": 200}  # as it was sent
    assert queue.get().body == b"1"
    last = queue.get()
    assert (last.body, last.properties["priority"]) == (b"4", 2)


def test_publish_many_takes_one_priority_a_call(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=4)
    seqs = queue.publish_many([b"a", bytearray(b"b")], priority=2)
    assert seqs == range(2 << SHIFT, (2 << SHIFT) + 2)
    mixed: list[qindex.Message | bytes] = [qindex.Message(b"c", properties={"priority": 1}), b"d"]
    with pytest.raises(qindex.UsageError, match="message 1 of the batch has priority 0"):
        queue.publish_many(mixed)
    assert queue.publish_many(mixed, priority=3) == range(3 << SHIFT, (3 << SHIFT) + 2)
    alike = [qindex.Message(b"e", properties={"priority": 1})] * 2
    assert queue.publish_many(alike) == range(1 << SHIFT, (1 << SHIFT) + 2)
    assert queue.publish_many([], priority=1) == range((1 << SHIFT) + 2, (1 << SHIFT) + 2)
    assert bodies(queue) == [b"c", b"d", b"a", b"b", b"e", b"e"]


@pytest.mark.parametrize("priority", [-1, 5, True, "1", 1.0])
def test_a_wrong_priority_publishes_nothing(engine: qindex.Engine, priority: object) -> None:
    queue = engine.queue("jobs", max_priority=4)
    with pytest.raises(qindex.UsageError, match="priority must be"):
        queue.publish(b"x", priority=priority)  # type: ignore[arg-type]
    with pytest.raises(qindex.UsageError, match="priority must be"):
        queue.publish_many([b"x"], priority=priority)  # type: ignore[arg-type]
    assert queue.stats().published == 0


def test_a_queue_without_priorities_refuses_one(engine: qindex.Engine) -> None:
    """Demand, priority: it is not ignored."""
    queue = engine.queue("plain")
    with pytest.raises(qindex.UsageError, match="'plain' has no priorities"):
        queue.publish(b"x", priority=0)
    with pytest.raises(qindex.UsageError, match="has no priorities"):
        queue.publish_many([b"x"], priority=1)
    assert len(queue) == 0


# -- settling -----------------------------------------------------------------------------------


def test_a_batch_goes_on_with_the_next_priority(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=5)
    low = queue.publish_many([b"l%d" % n for n in range(3)])
    high = queue.publish_many([b"h%d" % n for n in range(3)], priority=2)
    seqs = [*high, *low]
    first = queue.get()
    first.nack()
    batch = queue.get_many(5)
    assert batch.seq_ids == seqs[:5]
    assert batch.bodies == [b"h0", b"h1", b"h2", b"l0", b"l1"]
    assert [(one.seq_id, one.body) for one in batch] == list(
        zip(batch.seq_ids, batch.bodies, strict=True)
    )
    assert [one.redelivered for one in batch] == [True, False, False, False, False]
    assert [batch[at].delivery_count for at in range(5)] == [2, 1, 1, 1, 1]
    assert batch[-1].body == b"l1"
    for part in (slice(1, 4), slice(None, None, 2), slice(None, None, -1), slice(4, 0, -2)):
        assert batch[part].seq_ids == seqs[:5][part]
        assert [one.seq_id for one in batch[part]] == seqs[:5][part]
    assert len(batch[2:2]) == 0
    with pytest.raises(IndexError):
        batch[5]
    batch[1].ack()
    with pytest.raises(qindex.UsageError, match="settled already"):
        queue.ack_many(batch)
    assert queue.stats().unacked == 4
    queue.ack_many(batch[2:])
    assert [one.settled for one in batch] == [False, True, True, True, True]
    batch[0].nack()
    rest = queue.get_many(10)
    assert rest.bodies == [b"h0", b"l2"]
    with pytest.raises(qindex.UsageError, match="settled already"):
        batch[0].ack()
    queue.ack_many([*rest])
    assert queue.stats().messages == 0


def test_a_damaged_message_ends_a_batch_before_it(tmp_path: Path) -> None:
    with qindex.open(tmp_path, segment_entry_count=4) as engine:
        queue = engine.queue("jobs", max_priority=2)
        queue.publish_many([b"high"] * 2, priority=2)
        queue.publish_many([b"x" * 50, b"sound"])
        queue.flush()
        file = tmp_path / "queues" / directory_name("/", "jobs", 0) / "0.idx"
        data = bytearray(file.read_bytes())
        data[data.index(b"x" * 50)] ^= 0xFF
        file.write_bytes(data)
        batch = queue.get_many(10)
        assert batch.bodies == [b"high", b"high"]
        with pytest.raises(qindex.DamageError):
            queue.get_many(10)
        assert queue.get_many(10).bodies == [b"sound"]


def test_nothing_of_a_mixed_batch_is_acknowledged_if_one_is_wrong(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=2)
    for priority in (0, 1, 2):
        queue.publish(b"x", priority=priority)
    taken = [queue.get() for _ in range(3)]
    taken[2].ack()
    with pytest.raises(qindex.UsageError, match="settled already"):
        queue.ack_many(taken)
    assert queue.stats().unacked == 2
    with pytest.raises(qindex.UsageError, match="not a delivery"):
        queue.ack_many([*taken[:2], b"body"])  # type: ignore[list-item]
    assert queue.stats().unacked == 2
    queue.ack_many(taken[:2])
    assert queue.stats().messages == 0


def test_ack_up_to_acts_within_a_priority(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=2)
    for priority in (0, 1, 2):
        queue.publish_many([b"x"] * 3, priority=priority)
    taken = [queue.get() for _ in range(9)]
    middle = [one for one in taken if one.priority == 1]
    assert queue.ack_up_to(middle[1].seq_id) == 2
    assert queue.stats().unacked == 7
    assert [one.settled for one in middle] == [True, True, False]


def test_leases_rejects_and_cancels_reach_the_level_of_their_message(
    engine: qindex.Engine,
) -> None:
    queue = engine.queue("jobs", max_priority=9, dead_letter="dead")
    queue.publish(b"lapses", priority=9)
    lapsed = queue.get(lease=0.05)
    again = queue.get(timeout=WAIT)
    assert again is not None
    assert (again.seq_id, again.redelivered, again.delivery_count) == (lapsed.seq_id, True, 2)
    with pytest.raises(qindex.LeaseExpiredError):
        lapsed.ack()
    again.reject("broken")
    dead = engine.queue("dead").get(timeout=WAIT)
    assert dead is not None
    assert dead.headers["x-death"][0]["seq_id"] == again.seq_id
    assert dead.headers["x-death"][0]["cause"] == "broken"
    assert dead.properties == {"priority": 9}
    seq = queue.publish(b"cancelled", priority=4)
    assert not queue.cancel(4)
    assert queue.cancel(seq)
    assert not queue.cancel(seq)
    assert queue.stats().messages == 0
    queue.publish(b"longer", priority=3)
    taken = queue.get(lease=5)
    queue.extend_lease(taken, 60)
    with pytest.raises(qindex.UsageError, match="would shorten"):
        taken.extend_lease(1)
    taken.ack()


def test_a_delivery_of_another_queue_is_refused(engine: qindex.Engine) -> None:
    one = engine.queue("one", max_priority=9)
    other = engine.queue("other", max_priority=9)
    one.publish(b"x", priority=7)
    delivery = one.get()
    with pytest.raises(qindex.UsageError, match="belongs to queue 'one', not to 'other'"):
        other.ack(delivery)
    with pytest.raises(qindex.UsageError, match="not a delivery"):
        one.ack(b"x")  # type: ignore[arg-type]
    delivery.ack()


def test_dead_letters_and_moves_between_priority_queues_keep_their_priority(
    engine: qindex.Engine,
) -> None:
    jobs = engine.queue("jobs", max_priority=9, dead_letter="dead", delivery_limit=1)
    dead = engine.queue("dead", max_priority=5)
    for priority in (1, 9, 4):
        jobs.publish(b"%d" % priority, priority=priority)
    while (delivery := jobs.get(0)) is not None:
        delivery.nack()
    assert [dead.get(timeout=WAIT).priority for _ in range(3)] == [5, 4, 1]  # type: ignore[union-attr]
    jobs.publish(b"moved", priority=3)
    jobs.get().move("dead")
    moved = dead.get(timeout=WAIT)
    assert moved is not None
    assert (moved.body, moved.priority) == (b"moved", 3)
    engine.publish_to(["jobs", "dead"], qindex.Message(b"both", properties={"priority": 8}))
    assert (jobs.get().priority, dead.get().priority) == (8, 5)


def test_a_transaction_spans_priorities(engine: qindex.Engine) -> None:
    jobs = engine.queue("jobs", max_priority=5)
    jobs.publish_many([b"a", b"b"], priority=1)
    jobs.publish(b"c", priority=4)
    taken = [jobs.get() for _ in range(3)]
    with engine.transaction() as tx:
        seqs = [tx.publish("jobs", b"%d" % n, priority=n) for n in (2, 5, 2)]
        seqs.append(tx.publish(jobs, qindex.Message(b"m", properties={"priority": 3})))
        for one in taken:
            tx.ack(one)
        assert jobs.get(0) is None
    assert [seq >> SHIFT for seq in seqs] == [2, 5, 2, 3]
    assert jobs.stats().unacked == 0
    assert bodies(jobs) == [b"5", b"m", b"2", b"2"]

    def fail(tx: qindex.Transaction) -> None:
        with tx:
            tx.publish("jobs", b"undone", priority=5)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail(engine.transaction())
    assert jobs.get(0) is None
    plain = engine.queue("plain")
    with engine.transaction() as tx, pytest.raises(qindex.UsageError, match="has no priorities"):
        tx.publish(plain, b"x", priority=1)


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_with_priorities_is_whole_after_a_kill(
    tmp_path: Path, *, committed: bool
) -> None:
    directory = tmp_path / "data"
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    run_and_kill(
        f"""
import os, signal, qindex
engine = qindex.open({str(directory)!r})
jobs = engine.queue("jobs", max_priority=3)
jobs.publish(b"old", priority=2)
delivery = jobs.get()
with engine.transaction() as tx:
    tx.publish("jobs", b"new", priority=3)
    tx.publish("jobs", b"low")
    tx.ack(delivery)
    {"pass" if committed else kill}
"""
    )
    wanted = [b"new", b"low"] if committed else [b"old"]
    with qindex.open(directory, read_only=True) as reading:
        assert [one.body for one in reading.queue("jobs") if one.body != b"old"] == [
            one for one in wanted if one != b"old"
        ]
    qindex.repair(directory, tmp_path / "repaired")
    for path in (directory, tmp_path / "repaired"):
        with qindex.open(path) as engine:
            assert bodies(engine.queue("jobs")) == wanted


# -- limits, purge, figures ---------------------------------------------------------------------


def test_limits_are_of_all_priorities_together(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=3, max_length=3)
    for priority in (0, 2, 3):
        queue.publish(b"x", priority=priority)
    for priority in (0, 1, 3):
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"x", priority=priority)
    queue.get().ack()
    queue.publish(b"x", priority=1)
    assert queue.stats().refused == 3
    sized = engine.queue("sized", max_priority=3, max_bytes=100)
    sized.publish(b"x" * 60, priority=1)
    with pytest.raises(qindex.QueueFullError):
        sized.publish(b"x" * 60, priority=2)
    sized.publish(b"x" * 40, priority=2)


def test_limits_hold_after_a_reopen_and_for_levels_made_later(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("jobs", max_priority=3, max_bytes=100)
        queue.publish(b"x" * 60, priority=2)
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("jobs")
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"x" * 60, priority=3)
        engine.queue("jobs", max_bytes=200)
        queue.publish(b"x" * 60, priority=3)
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"x" * 81, priority=1)
        queue.publish(b"x" * 80, priority=1)


def test_drop_head_drops_the_oldest_of_the_lowest_priority(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=3, max_length=3, overflow="drop-head")
    queue.publish(b"low 1")
    queue.publish(b"low 2")
    queue.publish(b"high", priority=3)
    queue.publish(b"middle", priority=1)
    assert [one.body for one in queue.peek(10)] == [b"high", b"middle", b"low 2"]
    queue.publish(b"high 2", priority=3)
    queue.publish(b"low 3")
    assert bodies(queue) == [b"high", b"high 2", b"middle"]
    assert queue.stats().given_up.overflow == 3


def test_a_publisher_waits_for_room_in_any_priority(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=3, max_length=1, overflow="block")
    queue.publish(b"first", priority=3)
    published = threading.Event()

    def publish() -> None:
        queue.publish(b"second")
        published.set()

    thread = threading.Thread(target=publish)
    thread.start()
    assert not published.wait(0.1)
    queue.get().ack()
    assert published.wait(WAIT)
    thread.join()
    assert queue.get().body == b"second"


def test_stats_len_and_purge_are_of_all_priorities(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=4)
    queue.publish_many([b"x"] * 3, priority=2)
    queue.publish_many([b"x"] * 2)
    queue.publish(b"later", priority=4, delay=1000)
    taken = queue.get()
    stats = queue.stats()
    assert (stats.ready, stats.unacked, stats.delayed) == (4, 1, 1)
    assert stats.ready_by_priority == (2, 0, 2, 0, 0)
    assert stats.published == 6
    assert stats.delivered == 1
    assert stats.next_due is not None
    assert len(queue) == 4
    assert repr(queue) == "<Queue 'jobs', 4 ready, 1 unacked>"
    assert queue.purge() == 5
    assert len(queue) == 0
    taken.ack()
    assert engine.stats().queues[0].messages == 0


def test_peek_shows_the_order_of_delivery(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=2)
    for priority in (0, 2, 1, 2):
        queue.publish(b"%d" % priority, priority=priority)
    seen = queue.peek(3)
    assert [(one.body, one.priority) for one in seen] == [(b"2", 2), (b"2", 2), (b"1", 1)]
    assert queue.peek(0) == []
    assert len(queue) == 4


def test_unique_keys_hold_in_all_priorities(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=3)
    seq = queue.publish(b"x", priority=3, unique="o-17")
    for priority in (None, 1, 3):
        with pytest.raises(qindex.DuplicateError) as caught:
            queue.publish(b"y", priority=priority, unique="o-17")
        assert caught.value.seq_id == seq
    queue.get().ack()
    queue.publish(b"z", priority=1, unique="o-17")
    assert bodies(queue) == [b"z"]


def test_delayed_messages_come_in_the_order_of_their_priority_once_due(
    engine: qindex.Engine,
) -> None:
    queue = engine.queue("jobs", max_priority=3)
    queue.publish(b"low", delay=0.05)
    queue.publish(b"high", delay=0.1, priority=3)
    time.sleep(0.15)
    queue.publish(b"now")
    assert bodies(queue) == [b"high", b"low", b"now"]
    queue.publish(b"late", delay=0.2, priority=2)
    given = queue.get(timeout=WAIT)
    assert given is not None
    assert given.body == b"late"


def test_a_waiting_consumer_gets_what_comes_to_any_priority(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=9)
    found: list[bytes] = []

    def consume() -> None:
        for delivery in queue.consume(timeout=WAIT):
            found.append(delivery.body)
            delivery.ack()
            if delivery.body == b"end":
                return

    thread = threading.Thread(target=consume)
    thread.start()
    for priority in (3, 9, 0):
        time.sleep(0.02)
        queue.publish(b"%d" % priority, priority=priority)
    time.sleep(0.02)
    queue.publish(b"end")
    thread.join(WAIT)
    assert found == [b"3", b"9", b"0", b"end"]


def test_many_threads_share_a_priority_queue(engine: qindex.Engine) -> None:
    queue = engine.queue("jobs", max_priority=4)
    count, consumers = 400, 4
    taken: list[int] = []

    def publish(first: int) -> None:
        for number in range(first, count, 2):
            queue.publish(b"%d" % number, priority=number % 5)

    def consume() -> None:
        while (delivery := queue.get(timeout=2)) is not None:
            taken.append(int(delivery.body))
            delivery.ack()

    threads = [threading.Thread(target=publish, args=(first,)) for first in (0, 1)]
    threads += [threading.Thread(target=consume) for _ in range(consumers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(taken) == list(range(count))
    assert queue.stats().messages == 0


def test_stop_and_drain_end_consumers(tmp_path: Path) -> None:
    engine = qindex.open(tmp_path)
    queue = engine.queue("jobs", max_priority=2)
    consumer = queue.consume()
    ended = threading.Event()

    def consume() -> None:
        for _ in consumer:
            pass
        ended.set()

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.05)
    consumer.stop()
    assert ended.wait(WAIT)
    thread.join()
    queue.publish(b"x", priority=2)
    held = queue.get()
    closing = threading.Thread(target=engine.close, args=(WAIT,))
    closing.start()
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        try:
            queue.get(0)
        except qindex.ClosedError:
            break
    else:
        pytest.fail("the queue goes on delivering while its engine closes")
    held.ack()
    closing.join(WAIT)
    assert not closing.is_alive()
    with pytest.raises(qindex.ClosedError):
        queue.publish(b"x", priority=1)
    with pytest.raises(qindex.ClosedError):
        queue.get(timeout=1)


# -- the directory ------------------------------------------------------------------------------


def test_a_directory_for_each_priority_is_made_at_first_use(
    engine: qindex.Engine, tmp_path: Path
) -> None:
    queue = engine.queue("jobs", max_priority=10)
    name = [directory_name("/", "jobs", priority) for priority in range(11)]
    assert directories(tmp_path) == {name[0]}
    queue.publish(b"x", priority=7)
    assert directories(tmp_path) == {name[0], name[7]}
    assert (tmp_path / "data" / "queues" / name[0] / "qindex.settings").exists()
    assert not (tmp_path / "data" / "queues" / name[7] / "qindex.settings").exists()
    assert engine.queue_names() == ["jobs"]
    assert engine.delete_queue("jobs") == 1
    assert directories(tmp_path) == set()
    assert engine.queue_names() == []


def test_the_order_survives_a_reopen_and_a_kill(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    run_and_kill(
        f"""
import qindex
engine = qindex.open({str(directory)!r}, max_journal_entries=10)
queue = engine.queue("jobs", max_priority=3)
for number in range(40):
    queue.publish(b"%d" % number, priority=number % 4)
queue.get(); queue.get().ack()
"""
    )
    wanted = [str(n).encode() for priority in (3, 2, 1, 0) for n in range(priority, 40, 4)]
    wanted.remove(b"7")
    with qindex.open(directory) as engine:
        assert engine.queue_names() == ["jobs"]
        queue = engine.queue("jobs")
        assert queue.settings.max_priority == 3
        first = queue.get()
        assert (first.body, first.redelivered) == (b"3", True)
        first.nack()
    with qindex.open(directory) as engine:
        queue = engine.queue("jobs")
        assert bodies(queue) == wanted
        assert queue.publish(b"next", priority=2) == (2 << SHIFT) + 10


def test_an_open_queue_with_a_ttl_expires_in_every_priority(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("jobs", max_priority=3, message_ttl=0.2, dead_letter="dead")
        queue.publish(b"high", priority=3)
    with qindex.open(tmp_path) as engine:
        dead = engine.queue("dead").get(timeout=WAIT)
        assert dead is not None
        assert dead.body == b"high"


def test_max_priority_is_fixed_once_there_are_messages(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("jobs", max_priority=3)
        assert engine.queue("jobs", max_priority=5) is queue
        seq = queue.publish(b"x", priority=5)
        with pytest.raises(qindex.UsageError, match="max_priority=5, and messages: 1"):
            engine.queue("jobs", max_priority=3)
        assert engine.queue("jobs", max_priority=5) is queue
        with pytest.raises(qindex.UsageError, match="can't be taken away"):
            engine.queue("jobs", max_priority=qindex.UNSET)
    with qindex.open(tmp_path) as engine:
        with pytest.raises(qindex.UsageError, match="max_priority=5, and messages: 1"):
            engine.queue("jobs", max_priority=3)
        queue = engine.queue("jobs")
        assert queue.get().seq_id == seq


@pytest.mark.parametrize("value", [0, 256, -1, True, "5"])
def test_a_wrong_max_priority_is_refused(engine: qindex.Engine, value: object) -> None:
    with pytest.raises(qindex.UsageError, match="max_priority must be"):
        engine.queue("jobs", max_priority=value)  # type: ignore[arg-type]
    assert engine.queue_names() == []


@pytest.mark.parametrize("reopen", [False, True])
def test_a_plain_queue_becomes_a_priority_queue_while_it_is_empty(
    tmp_path: Path, *, reopen: bool
) -> None:
    engine = qindex.open(tmp_path)
    plain = engine.queue("jobs", max_length=5)
    plain.publish(b"x")
    with pytest.raises(qindex.UsageError, match="has no priorities, and messages: 1"):
        engine.queue("jobs", max_priority=3)
    taken = plain.get()
    with pytest.raises(qindex.UsageError, match="and messages: 1"):
        engine.queue("jobs", max_priority=3)
    taken.ack()
    if reopen:
        engine.close()
        engine = qindex.open(tmp_path)
    queue = engine.queue("jobs", max_priority=3)
    assert queue.settings.max_length == 5
    assert queue.publish(b"y") == 1  # no seq_id is used twice
    queue.publish(b"z", priority=3)
    if not reopen:
        with pytest.raises(qindex.ClosedError):
            plain.publish(b"x")
    engine.close()
    assert len(list((tmp_path / "queues").iterdir())) == 2
    with qindex.open(tmp_path) as engine:
        assert engine.queue_names() == ["jobs"]
        assert bodies(engine.queue("jobs")) == [b"z", b"y"]


def test_a_change_that_a_crash_cut_short_is_undone_or_finished(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("jobs").publish(b"x")
        engine.queue("other", max_priority=1)
    name = directory_name("/", "jobs", 0)
    directory = tmp_path / "queues" / name
    directory.mkdir()
    (directory / ".queue_name").write_bytes(b"VHOST: /\nQUEUE: jobs\0\0\n")
    (tmp_path / "qindex.clean").unlink()
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("jobs")
        assert bodies(queue) == [b"x"]
        assert queue.settings.max_priority is None
        assert not directory.exists()
        engine.queue("jobs", max_priority=2).publish(b"high", priority=2)
    plain = tmp_path / "queues" / directory_name("/", "jobs")
    plain.mkdir()
    (plain / ".queue_name").write_bytes(b"VHOST: /\nQUEUE: jobs\n")
    (tmp_path / "qindex.clean").unlink()
    with qindex.open(tmp_path) as engine:
        assert bodies(engine.queue("jobs")) == [b"high"]
        assert not plain.exists()


def test_messages_in_directories_of_both_kinds_are_not_mixed(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "a") as engine:
        engine.queue("jobs").publish(b"plain")
    with qindex.open(tmp_path / "b") as engine:
        engine.queue("jobs", max_priority=1).publish(b"high", priority=1)
    for one in (tmp_path / "b" / "queues").iterdir():
        one.rename(tmp_path / "a" / "queues" / one.name)
    (tmp_path / "a" / "qindex.clean").unlink()
    with qindex.open(tmp_path / "a") as engine:
        with pytest.raises(qindex.UsageError, match="export its messages"):
            engine.queue("jobs")
        assert engine.delete_queue("jobs") == 2


def test_a_directory_that_is_lost_is_no_reason_to_refuse_the_others(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("jobs", max_priority=3)
        queue.publish(b"kept", priority=1)
        queue.publish(b"lost", priority=3)
    lost = tmp_path / "queues" / directory_name("/", "jobs", 3)
    for one in lost.iterdir():
        one.unlink()
    lost.rmdir()
    with qindex.open(tmp_path, repair=True) as engine:
        queue = engine.queue("jobs")
        assert bodies(queue) == [b"kept"]
        queue.publish(b"high", priority=3)
        assert bodies(queue) == [b"high"]


def test_damaged_settings_are_set_aside_and_no_message_is_lost(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("jobs", max_priority=9, max_length=50)
        for priority in (0, 4):
            queue.publish(b"%d" % priority, priority=priority)
    settings = tmp_path / "queues" / directory_name("/", "jobs", 0) / "qindex.settings"
    settings.write_bytes(b"damaged")
    with qindex.open(tmp_path) as engine, pytest.raises(qindex.DamageError, match="settings"):
        engine.queue("jobs")
    with qindex.open(tmp_path, repair=True) as engine:
        queue = engine.queue("jobs", max_priority=7)
        assert queue.settings.max_priority == 7
        assert queue.settings.max_length is None
        assert bodies(queue) == [b"4", b"0"]


def test_a_level_that_finds_no_room_is_made_later(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_store(tmp_path, fs=fs, background=False) as engine:
        queue = engine.queue("jobs", max_priority=9)
        queue.publish(b"low")
        for call in ("mkdir", "write", "rename", "open"):
            fs.fail(call, errno.ENOSPC)
            with pytest.raises(qindex.StorageError):
                queue.publish(b"high", priority=7)
            fs.heal()
            assert len(queue) == 1
        queue.publish(b"high", priority=7)
        assert bodies(queue) == [b"high", b"low"]
    assert verify(tmp_path).findings == []


def test_an_early_close_and_flush_leave_all_levels_on_disk(tmp_path: Path) -> None:
    with qindex.open(tmp_path, durability="fsync") as engine:
        queue = engine.queue("jobs", max_priority=3)
        for priority in range(4):
            queue.publish(b"%d" % priority, priority=priority, confirm=True)
        queue.sync()
        queue.flush()
        assert queue.stats().journal_entries == 0
        queue.publish(b"after", priority=2)
    with qindex.open(tmp_path) as engine:
        assert bodies(engine.queue("jobs")) == [b"3", b"2", b"after", b"1", b"0"]


# -- the first of several queues ------------------------------------------------------------------


def test_the_first_of_several_queues_that_has_a_message(engine: qindex.Engine) -> None:
    one, other = engine.queue("one"), engine.queue("other", max_priority=2)
    assert engine.get([one, other], timeout=0) is None
    other.publish(b"b", priority=2)
    one.publish(b"a")
    first = engine.get([one, "other"], timeout=0)
    assert first is not None
    assert (first.body, first.queue_name) == (b"a", "one")
    first.ack()
    assert first.queue_name == ""
    second = engine.get([one, other, one], timeout=WAIT, lease=60)
    assert second is not None
    assert (second.body, second.queue_name, second.priority) == (b"b", "other", 2)
    second.extend_lease(100)
    began = time.monotonic()
    assert engine.get([one, other], timeout=0.1) is None
    assert time.monotonic() - began >= 0.1


def _has(found: list[tuple[str, bytes]], count: int) -> bool:
    return len(found) == count


def test_a_message_for_any_of_several_queues_wakes_who_waits(engine: qindex.Engine) -> None:
    names = ["a", "b", "c"]
    found: list[tuple[str, bytes]] = []

    def consume() -> None:
        while (delivery := engine.get(names, timeout=WAIT)) is not None:
            found.append((delivery.queue_name, delivery.body))
            delivery.ack()
            if delivery.body == b"end":
                return

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.03)
    for count, name in enumerate(("c", "a", "b"), 1):
        engine.queue(name).publish(name.encode())
        wait_until(partial(_has, found, count))
    engine.queue("b").publish(b"end", delay=0.05)
    thread.join(WAIT)
    assert found == [("c", b"c"), ("a", b"a"), ("b", b"b"), ("b", b"end")]


def test_a_ring_that_is_not_used_wakes_another_one(engine: qindex.Engine) -> None:
    """Consumers of several queues, and of one of them, share the messages; none is left behind."""
    one, other = engine.queue("one"), engine.queue("other")
    taken: list[bytes] = []

    def of_both() -> None:
        while (delivery := engine.get([one, other], timeout=1)) is not None:
            taken.append(delivery.body)
            delivery.ack()

    def of_one() -> None:
        while (delivery := other.get(timeout=1)) is not None:
            taken.append(delivery.body)
            delivery.ack()

    threads = [threading.Thread(target=of_both) for _ in range(3)]
    threads.append(threading.Thread(target=of_one))
    for thread in threads:
        thread.start()
    for number in range(300):
        (one if number % 2 else other).publish(b"%d" % number)
        if number % 50 == 0:
            time.sleep(0.01)
    for thread in threads:
        thread.join(WAIT)
    assert sorted(map(int, taken)) == list(range(300))


def test_wrong_lists_of_queues_are_refused(engine: qindex.Engine, tmp_path: Path) -> None:
    with pytest.raises(qindex.UsageError, match="at least one queue"):
        engine.get([], timeout=0)
    with pytest.raises(qindex.UsageError, match="queues"):
        engine.get("jobs", timeout=0)
    with qindex.open(tmp_path / "other") as another:
        foreign = another.queue("q")
        with pytest.raises(qindex.UsageError, match="is of another engine"):
            engine.get([foreign], timeout=0)


def test_the_end_of_the_engine_ends_who_waits_for_several_queues(tmp_path: Path) -> None:
    engine = qindex.open(tmp_path)
    raised: list[BaseException] = []

    def consume() -> None:
        try:
            engine.get(["a", "b"])
        except qindex.ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.1)
    engine.close()
    thread.join(WAIT)
    assert len(raised) == 1


# -- coroutines -----------------------------------------------------------------------------------


def test_coroutines_use_priorities_and_several_queues(tmp_path: Path) -> None:
    async def use() -> None:
        async with qindex.aio.open(tmp_path, durability="fsync") as engine:
            jobs = await engine.queue("jobs", max_priority=5)
            await asyncio.gather(*(jobs.publish(b"%d" % n, priority=n) for n in range(6)))
            await jobs.publish(b"none")
            seqs = await jobs.publish_many([b"a", b"b"], priority=4)
            assert seqs.start >> SHIFT == 4
            message = qindex.Message(b"m", properties={"priority": 3})
            assert await jobs.publish(message) >> SHIFT == 3
            batch = await jobs.get_many(1)
            assert batch.bodies == [b"5"]
            await jobs.ack_many(batch)
            order = []
            async for delivery in jobs.consume(timeout=0):
                order.append((delivery.priority, delivery.body))
                await delivery.ack()
            wanted = [(4, b"4"), (4, b"a"), (4, b"b"), (3, b"3"), (3, b"m"), (2, b"2"), (1, b"1")]
            assert order == [*wanted, (0, b"0"), (0, b"none")]
            with pytest.raises(qindex.UsageError, match="priority must be"):
                await jobs.publish(b"x", priority=6)

            other = await engine.queue("other")
            waiting = asyncio.create_task(engine.get([other, "jobs"], timeout=WAIT))
            await asyncio.sleep(0.05)
            await jobs.publish(b"late", priority=2)
            late = await waiting
            assert late is not None
            assert (late.body, late.queue_name, late.priority) == (b"late", "jobs", 2)
            await late.ack()
            assert await engine.get([other, jobs], timeout=0.01) is None
            with pytest.raises(qindex.UsageError, match="at least one queue"):
                await engine.get([])

    asyncio.run(use())


def test_a_cancelled_wait_for_several_queues_takes_nothing(tmp_path: Path) -> None:
    async def use() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            one, other = await engine.queue("one"), await engine.queue("other")
            waiting = [asyncio.create_task(engine.get([one, other])) for _ in range(3)]
            await asyncio.sleep(0.05)
            await other.publish(b"x")
            waiting[0].cancel()
            done, _ = await asyncio.wait(
                waiting[1:], timeout=WAIT, return_when=asyncio.FIRST_COMPLETED
            )
            (first,) = done
            taken = first.result()
            assert taken is not None
            assert taken.body == b"x"
            for task in waiting:
                task.cancel()

    asyncio.run(use())


# -- shared mode ----------------------------------------------------------------------------------


def test_a_shared_store_has_priority_queues(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True) as engine:
        jobs = engine.queue("jobs", max_priority=5)
        assert jobs.settings.max_priority == 5
        seqs = [jobs.publish(b"%d" % n, priority=n) for n in (0, 5, 2)]
        assert [seq >> SHIFT for seq in seqs] == [0, 5, 2]
        jobs.publish_many([b"a", b"b"], priority=2)
        jobs.publish(qindex.Message(b"m", key="k"), priority=4)
        assert jobs.stats().ready_by_priority == (1, 0, 3, 0, 1, 1)
        assert len(jobs) == 6
        first = jobs.get()
        assert (first.body, first.priority) == (b"5", 5)
        first.nack()
        batch = list(jobs.get_many(100))
        assert [one.body for one in batch] == [b"5", b"m", b"2", b"a", b"b", b"0"]
        jobs.ack_many(batch)
        assert jobs.stats().messages == 0
        with pytest.raises(qindex.UsageError, match="priority must be 0 to 5"):
            jobs.publish(b"x", priority=6)
        with pytest.raises(qindex.UsageError, match="has no priorities"):
            engine.queue("plain").publish(b"x", priority=1)
        with engine.transaction() as tx:
            assert tx.publish("jobs", b"together", priority=3) >> SHIFT == 3
            tx.publish("jobs", b"too")
        found = jobs.get()
        assert (found.body, found.priority, found.properties) == (b"together", 3, {"priority": 3})
        assert jobs.get().body == b"too"


def test_with_a_prefetch_of_one_a_shared_consumer_gets_an_urgent_message_next(
    tmp_path: Path,
) -> None:
    """Demand, priority: with concurrency 1, at most the running job precedes it."""
    with qindex.open(tmp_path, shared=True) as engine:
        jobs = engine.queue("jobs", max_priority=3)
        jobs.publish_many([b"low"] * 20)
        done = []
        for delivery in jobs.consume(prefetch=1, timeout=0.5):
            done.append(delivery.body)
            if len(done) == 5:
                jobs.publish(b"urgent", priority=3)
            delivery.ack()
        assert done == [b"low"] * 5 + [b"urgent"] + [b"low"] * 15
