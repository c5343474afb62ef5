"""Publishes and acks in several queues happen together, or not at all."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from journal.fs.files import REAL
from qindex.format.transactions import read_transactions
from qindex.queue.dead_letters import DeadLetters
from qindex.tools.repair import repair_store
from tests.effort import by_tier, chance
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import WAIT, copy_live, open_quietly

LARGE = b"large" * 5000


# A block that is to raise does so at its end, after several calls.
# ruff: noqa: PT012


class FailedError(Exception):
    """Ends a block."""


def bodies(queue: qindex.Queue) -> list[bytes]:
    return [one.body for one in queue.peek(100)]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_all_of_it_happens_at_the_end_of_the_block(tmp_path: Path, durability: Any) -> None:
    with qindex.open(tmp_path, durability=durability) as engine:
        orders, invoices = engine.queue("orders"), engine.queue("invoices")
        orders.publish_many([b"1", b"2"])
        first, second = orders.get_many(2)
        with engine.transaction() as tx:
            assert tx.publish(invoices, LARGE, key="k", headers={"n": 1}, properties={"p": 2}) == 0
            tx.ack(first)
            assert tx.publish("mails", b"mail") == 0
            tx.ack(second)
            assert invoices.publish(b"of somebody else") == 1
            assert (len(invoices), len(engine.queue("mails")), orders.stats().unacked) == (1, 0, 2)
            assert (invoices.stats().pending, invoices.stats().messages) == (1, 1)
            assert engine.queue("mails").get(timeout=0) is None
            assert invoices.purge() == 1
            with pytest.raises(qindex.UsageError, match="settled already"):
                first.ack()
            assert first.settled
        assert first.settled
        with pytest.raises(qindex.UsageError, match="settled already"):
            first.nack()
        message = invoices.get(timeout=0)
        assert message is not None
        assert (message.body, message.key, message.headers) == (LARGE, "k", {"n": 1})
        assert (message.properties, message.redelivered) == ({"p": 2}, False)
        assert bodies(engine.queue("mails")) == [b"mail"]
        assert (len(orders), orders.stats().unacked, orders.stats().acked) == (0, 0, 2)
        assert (invoices.stats().published, invoices.stats().redelivered) == (2, 0)
    assert qindex.verify(tmp_path).findings == []
    with qindex.open(tmp_path) as engine:
        assert [len(engine.queue(name)) for name in ("orders", "invoices", "mails")] == [0, 1, 1]
    assert not (tmp_path / "qindex.transactions").exists()


def test_an_exception_undoes_it(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        orders, mails = engine.queue("orders"), engine.queue("mails", max_length=2)
        orders.publish(b"1")
        delivery = orders.get()
        with pytest.raises(FailedError), engine.transaction() as tx:
            tx.publish(mails, b"one", unique="u")
            tx.publish(mails, LARGE)
            with pytest.raises(qindex.DuplicateError):
                mails.publish(b"two", unique="u")
            with pytest.raises(qindex.QueueFullError):
                tx.publish(mails, b"too many")
            tx.ack(delivery)
            raise FailedError
        assert mails.publish_many([b"two", b"three"]) == range(2, 4)
        assert bodies(mails) == [b"two", b"three"]
        assert engine.stats().message_store.live == 0  # type: ignore[union-attr]
        delivery.nack()
        assert bodies(orders) == [b"1"]
        assert mails.get().body == b"two"
        mails.publish(b"four", unique="u")
    assert qindex.verify(tmp_path).findings == []


def test_a_window_begins_with_the_commit(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with qindex.open(store) as engine:
        queue = engine.queue("q")
        with pytest.raises(FailedError), engine.transaction() as tx:
            tx.publish(queue, b"undone", unique="u", window=1e6)
            copy_live(store, tmp_path / "killed before")
            raise FailedError
        queue.publish(b"0", unique="u")
        queue.get().ack()
        with engine.transaction() as tx:
            tx.publish(queue, b"done", unique="u", window=1e6)
        queue.get().ack()
        with pytest.raises(qindex.DuplicateError, match="window"):
            queue.publish(b"1", unique="u")
        copy_live(store, tmp_path / "killed after")
    for name in ("killed after", "store"):
        with open_quietly(tmp_path / name) as engine, pytest.raises(qindex.DuplicateError):
            engine.queue("q").publish(b"1", unique="u")
    for _ in range(2):
        with open_quietly(tmp_path / "killed before") as engine:
            engine.queue("q").publish(b"1", unique="u")
            engine.queue("q").get().ack()


def test_priorities(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with qindex.open(store) as engine:
        jobs = engine.queue("jobs", max_priority=255)
        jobs.publish(b"source", priority=200)
        delivery = jobs.get()
        with engine.transaction() as tx:
            tx.publish(jobs, b"low")
            seq = tx.publish(jobs, b"high", properties={"priority": 255})
            tx.ack(delivery)
            killed = copy_live(store, tmp_path / "killed before")
        with pytest.raises(FailedError), engine.transaction() as tx:
            tx.publish(jobs, b"undone", properties={"priority": 255})
            raise FailedError
        after = copy_live(store, tmp_path / "killed after")
        assert jobs.peek(1)[0].seq_id == seq
    for directory, wanted in (
        (killed, [b"source"]),
        (after, [b"high", b"low"]),
        (store, [b"high", b"low"]),
    ):
        with qindex.open(directory, read_only=True) as reader:
            there = [one.body for one in reader.queue("jobs").peek(9)]
            assert there[:1] + there[-1:] == wanted[:1] + wanted[-1:]
        assert repair_store(directory, directory.with_suffix(".new"), fs=REAL).complete
        for each in (directory.with_suffix(".new"), directory):
            with open_quietly(each) as engine:
                assert bodies(engine.queue("jobs")) == wanted


def test_a_consumer_that_waits_gets_what_is_committed(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        taken: list[bytes] = []

        consumer = queue.consume()

        def consume() -> None:
            for one in consumer:
                one.ack()
                taken.append(one.body)

        thread = threading.Thread(target=consume)
        thread.start()
        with engine.transaction() as tx:
            tx.publish(queue, b"first")
            for number in range(200):
                queue.publish(b"%d" % number)
            while len(taken) < 200:
                thread.join(0.001)
            assert queue.publish(b"later") == 201
        while len(taken) < 202:
            thread.join(0.001)
        consumer.stop()
        thread.join(WAIT)
        assert sorted(taken) == sorted([b"first", b"later", *(b"%d" % n for n in range(200))])


def test_order_is_that_of_the_seq_ids(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"0")
        with engine.transaction() as tx:
            tx.publish(queue, b"1")
            queue.publish(b"2")
            tx.publish(queue, b"3")
            assert bodies(queue) == [b"0", b"2"]
            first = queue.get()
        first.nack()
        assert bodies(queue) == [b"0", b"1", b"2", b"3"]
        assert [one.body for one in queue.consume(timeout=0)] == [b"0", b"1", b"2", b"3"]


def test_a_delay_counts_from_the_publish(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with qindex.open(store) as engine:
        queue = engine.queue("q")
        queue.publish(b"before", delay=1e6)
        with engine.transaction() as tx:
            seq = tx.publish(queue, b"later", delay=1e6)
            queue.flush()
            assert queue.stats().delayed == 1
            assert not queue.cancel(seq)
        assert queue.stats().delayed == 2
        with pytest.raises(FailedError), engine.transaction() as tx:
            tx.publish(queue, b"never", delay=1e6)
            killed = copy_live(store, tmp_path / "killed")
            raise FailedError
    for directory in (store, killed):
        with open_quietly(directory) as engine:
            queue = engine.queue("q")
            assert (queue.stats().delayed, len(queue)) == (2, 0)
            assert queue.cancel(seq)
            assert queue.stats().delayed == 1


def test_what_is_wrong_changes_nothing(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "one") as engine, qindex.open(tmp_path / "two") as other:
        queue = engine.queue("q")
        queue.publish_many([b"1", b"2"])
        other.queue("q").publish(b"elsewhere")
        tx = engine.transaction()
        with pytest.raises(qindex.UsageError, match="in a with block"):
            tx.publish(queue, b"x")
        delivery, second = queue.get(), queue.get(lease=1000)
        with tx:
            wrong: Any
            for wrong in (None, 5, b"x"):
                with pytest.raises(qindex.UsageError):
                    tx.ack(wrong)
            with pytest.raises(qindex.UsageError, match="another engine"):
                tx.ack(other.queue("q").get())
            with pytest.raises(qindex.UsageError):
                tx.publish(queue, "text")  # type: ignore[arg-type]
            with pytest.raises(qindex.UsageError):
                tx.publish("", b"x")
            tx.ack(second)
            tx.ack(delivery)
            with pytest.raises(qindex.UsageError, match="settled already"):
                tx.ack(delivery)
        with pytest.raises(qindex.UsageError, match="is over"):
            tx.publish(queue, b"x")
        with pytest.raises(qindex.UsageError, match="used once"), tx:
            pass
        assert queue.stats().acked == 2
        reader = qindex.open(tmp_path / "one", read_only=True)
        with pytest.raises(qindex.UsageError, match="read-only"):
            reader.transaction()


def test_a_close_rolls_back(tmp_path: Path) -> None:
    engine = qindex.open(tmp_path)
    queue = engine.queue("q")
    queue.publish(b"1")
    delivery = queue.get()
    with pytest.raises(qindex.UsageError, match="is over"), engine.transaction() as tx:
        tx.publish(queue, b"never")
        tx.ack(delivery)
        engine.close()
    with qindex.open(tmp_path) as engine:
        assert engine.findings == []
        assert bodies(engine.queue("q")) == [b"1"]


def test_a_queue_that_is_deleted_ends_it(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        with pytest.raises(qindex.ClosedError), engine.transaction() as tx:
            tx.publish("kept", b"x")
            tx.publish("gone", b"x")
            engine.delete_queue("gone")
        assert bodies(engine.queue("kept")) == []


def killed_in_it(tmp_path: Path) -> Path:
    """A store whose process died in one transaction, and after another one."""
    with open_quietly(tmp_path / "store") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"acked", b"not acked", b"stays"])
        with engine.transaction() as tx:
            tx.publish("done", b"done")
            tx.publish("done", LARGE)
            tx.ack(queue.get())
        with pytest.raises(FailedError), engine.transaction() as tx:
            tx.publish("done", b"undone")
            tx.publish("done", LARGE)
            tx.ack(queue.get())
            copy_live(tmp_path / "store", tmp_path / "killed")
            raise FailedError
    return tmp_path / "killed"


def test_readers_and_tools_know_of_it(tmp_path: Path) -> None:
    store = killed_in_it(tmp_path)
    with qindex.open(store, read_only=True) as reader:
        assert [one.body for one in reader.queue("done").peek(9)] == [b"done", LARGE]
        assert len(reader.queue("done")) == 2
    assert qindex.verify(store).damage == []
    assert repair_store(store, tmp_path / "new", fs=REAL).complete
    assert qindex.verify(tmp_path / "new").findings == []
    for directory in (store, tmp_path / "new"):
        with open_quietly(directory) as engine:
            assert bodies(engine.queue("done")) == [b"done", LARGE]
            assert bodies(engine.queue("q")) == [b"not acked", b"stays"]
            assert engine.stats().message_store.messages == 1  # type: ignore[union-attr]


def test_a_damaged_file_loses_no_message(tmp_path: Path) -> None:
    """What it said of commits is not known then: all messages stay."""
    store = killed_in_it(tmp_path)
    data = (store / "qindex.transactions").read_bytes()
    found, damaged = read_transactions(data)
    assert (len(found), damaged) == (2, [])
    data = data[: len(data.rstrip(b"\0")) + 20]
    for at in range(0, len(data), by_tier(quick=17, all=3, nightly=1)):
        one = copy_live(store, tmp_path / f"{at}")
        flipped = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        (one / "qindex.transactions").write_bytes(flipped)
        torn = not read_transactions(flipped)[1]
        assert bool(qindex.verify(one).damage) != torn
        with open_quietly(one) as engine:
            assert bool(engine.findings) != torn
            assert bodies(engine.queue("done"))[:2] == [b"done", LARGE]
            assert bodies(engine.queue("q"))[-2:] == [b"not acked", b"stays"]
        assert qindex.verify(one).damage == []


def test_a_full_disk_undoes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qindex.engine.transaction_log._ROOM", 1)  # each frame asks for room
    monkeypatch.setattr("qindex.engine.transaction_log._MAX_ROOM", 1)
    fs = FaultyFileSystem()
    with open_quietly(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        queue.publish(b"1")
        delivery = queue.get()
        for name in ("qindex.transactions", "0.rdq"):
            with engine.transaction() as tx:
                tx.publish("other", LARGE)
                fs.fail("", errno.ENOSPC, path=name)
                with pytest.raises(qindex.StorageError):
                    tx.publish("other", LARGE)
        with pytest.raises(qindex.StorageError), engine.transaction() as tx:
            tx.publish("other", b"undone")
            tx.ack(delivery)
            fs.fail("", errno.ENOSPC, path="qindex.transactions")
        delivery.ack()
        assert bodies(engine.queue("other")) == [LARGE] * 2


def test_a_failed_append_leaves_its_seq_id_to_another(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_quietly(tmp_path / "store", fs=fs) as engine:
        queue = engine.queue("q")
        queue.publish(b"1")
        with engine.transaction() as tx:
            tx.publish("other", b"x")
            fs.fail("", errno.ENOSPC, path="journal.jif")
            with pytest.raises(qindex.StorageError):
                for _ in range(100_000):
                    tx.publish(queue, b"2" * 1000)
            fs.heal()
            queue.publish(b"3")
            copy_live(tmp_path / "store", tmp_path / "killed")
    with open_quietly(tmp_path / "killed") as engine:
        assert bodies(engine.queue("q")) == [b"1", b"3"]
        assert bodies(engine.queue("other")) == []


def test_acks_do_not_count_for_a_new_queue_of_the_name(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "store") as engine:
        queue = engine.queue("q")
        queue.publish(b"old")
        with engine.transaction() as tx:
            tx.ack(queue.get())
        engine.delete_queue("q")
        engine.queue("q").publish(b"new")
        copy_live(tmp_path / "store", tmp_path / "killed")
    with open_quietly(tmp_path / "killed") as engine:
        assert bodies(engine.queue("q")) == [b"new"]


class FailingRoom:
    """Asks the room of a queue, and fails behind each append."""

    def __init__(self, room: Any) -> None:
        self._room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._room, name)

    def keep_within(self) -> None:
        raise qindex.StorageError("dead letters", "no move", OSError(errno.EMFILE, "too many"))


def test_an_error_behind_the_append_takes_the_message_back(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        with engine.transaction() as tx:
            tx.publish("other", b"x")
            producer = queue._parts.producer
            producer.room, room = FailingRoom(producer.room), producer.room  # type: ignore[assignment]
            with pytest.raises(qindex.StorageError, match="no move"):
                tx.publish(queue, b"2", key="k")
            producer.room = room
            assert queue.stats().pending == 0
        assert (bodies(queue), bodies(engine.queue("other"))) == ([], [b"x"])


def test_no_error_denies_a_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise qindex.StorageError("journal.jif", "no ack", OSError(errno.EIO, "error"))

    with open_quietly(tmp_path, durability="fsync") as engine:
        queue = engine.queue("q")
        queue.publish(b"1")
        with monkeypatch.context() as patch, engine.transaction() as tx:
            tx.publish("other", b"x")
            tx.ack(queue.get())
            patch.setattr(DeadLetters, "end_moved", fail)
        assert "left for later" in caplog.text
    with open_quietly(tmp_path) as engine:
        assert (bodies(engine.queue("q")), bodies(engine.queue("other"))) == ([], [b"x"])


def test_a_rollback_is_forgotten_once_it_is_durable(tmp_path: Path) -> None:
    path = tmp_path / "qindex.transactions"
    with open_quietly(tmp_path) as engine:
        with pytest.raises(FailedError), engine.transaction() as tx:
            tx.publish("q", b"undone")
            raise FailedError
        assert len(engine._moves.log._live) == 1
        engine.sync()
        assert len(engine._moves.log._live) == 0
        assert path.exists()
        assert bodies(engine.queue("q")) == []


def test_queues_of_other_engines_are_refused(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "a") as first, qindex.open(tmp_path / "b") as second:
        other = second.queue("q")
        with first.transaction() as tx:
            with pytest.raises(qindex.UsageError, match="of another engine"):
                tx.publish(other, b"1")
            with pytest.raises(qindex.UsageError, match="of another engine"):
                tx.publish(other, b"1", key="k")
        assert bodies(other) == []


def test_a_delivery_of_a_transaction_is_not_moved(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish(b"1")
        delivery = queue.get()
        with engine.transaction() as tx:
            tx.ack(delivery)
            with pytest.raises(qindex.UsageError, match="settled already"):
                delivery.reject()
        assert delivery.settled


def test_the_file_holds_what_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qindex.engine.transaction_log._SHORTEN_FROM", 2048)
    monkeypatch.setattr("qindex.engine.transaction_log._ROOM", 1024)
    path = tmp_path / "store" / "qindex.transactions"
    with qindex.open(tmp_path / "store") as engine:
        with engine.transaction() as tx:
            pass
        assert not path.exists()
        with engine.transaction() as long:
            long.publish("q", b"long")
            for _ in range(500):
                with engine.transaction() as tx:
                    tx.publish("q", b"short")
            assert path.stat().st_size < 5000
            for _ in range(500):
                long.publish("q", b"long")
            copy_live(tmp_path / "store", tmp_path / "killed")
    with open_quietly(tmp_path / "killed") as engine:
        assert bodies(engine.queue("q")) == [b"short"] * 100
        assert len(engine.queue("q")) == 500


def test_coroutines(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, durability="fsync") as engine:
            queue = await engine.queue("q", max_length=2, overflow="block")
            await queue.publish(b"1")
            delivery = await queue.get()
            async with engine.transaction() as tx:
                assert await tx.publish(queue, b"2") == 1
                assert await tx.publish("other", LARGE) == 0
                await tx.ack(delivery)
            assert [one.body for one in await queue.peek(5)] == [b"2"]
            with pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0.05), engine.transaction() as tx:
                    await tx.publish(queue, b"3")
                    await tx.publish(queue, b"no room for it")
            assert [one.body for one in await queue.peek(5)] == [b"2"]
            assert len(await engine.queue("other")) == 1

    asyncio.run(main())


def test_many_threads_each_move_what_they_take(tmp_path: Path) -> None:
    count = by_tier(quick=400, all=4000, nightly=40_000)
    with qindex.open(tmp_path) as engine:
        engine.queue("a").publish_many([b"%d" % number for number in range(count)])

        def work(source: str, target: str, seed: int) -> None:
            rng = chance(f"threads {seed}")
            for delivery in engine.queue(source).consume(timeout=0.2):
                try:
                    with engine.transaction() as tx:
                        tx.publish(target, delivery.body)
                        tx.publish("log", delivery.body)
                        tx.ack(delivery)
                        if rng.random() < 0.2:
                            raise FailedError
                except FailedError:
                    delivery.nack()

        ways = [("a", "b", 0), ("a", "b", 1), ("b", "c", 2), ("b", "c", 3)]
        threads = [threading.Thread(target=work, args=way) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        there = Counter(one.body for one in engine.queue("c").get_many(count + 1))
        assert there == Counter({b"%d" % number: 1 for number in range(count)})
        assert (len(engine.queue("log")), len(engine.queue("a"))) == (2 * count, 0)


PIPELINE = """
import os, sys, qindex
with qindex.open(sys.argv[1], durability=sys.argv[2]) as engine:
    source = engine.queue("in")
    if not os.path.exists(sys.argv[3]):
        source.publish_many([b"%d" % number for number in range(int(sys.argv[4]))])
        open(sys.argv[3], "w").close()
    for delivery in source.consume(timeout=0):
        with engine.transaction() as tx:
            tx.publish("out", delivery.body)
            tx.publish("log", delivery.body * 3)
            tx.ack(delivery)
"""


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_killed_again_and_again(tmp_path: Path, durability: str) -> None:
    """Each message is in one queue, or in both of the others."""
    rng = chance("kills of transactions")
    count = by_tier(quick=1500, all=6000, nightly=60_000)
    store, made = tmp_path / "store", tmp_path / "made"
    command = [sys.executable, "-P", "-c", PIPELINE, str(store), durability, str(made), str(count)]
    kills = 0
    while True:
        with subprocess.Popen(command) as process:
            try:
                process.wait(WAIT if not made.exists() else rng.uniform(0.2, 0.5))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
                process.wait()
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL
        with open_quietly(store) as engine:
            left, out, log = (
                Counter(one.body for one in engine.queue(name).get_many(count + 1))
                for name in ("in", "out", "log")
            )
            assert left + out == Counter({b"%d" % number: 1 for number in range(count)})
            assert log == Counter({body * 3: times for body, times in out.items()})
