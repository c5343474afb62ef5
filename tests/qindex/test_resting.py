"""Queues at rest: no files, little memory, and nothing that a user could tell them by."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

import qindex
import qindex.aio
from journal.block_sums import heal
from journal.fs.files import MAPS_KEEP_HANDLES, PathLike, RealFileSystem
from qindex.index.file_budget import FileBudget
from qindex.shelf.idle_queues import Roster
from tests.effort import by_tier
from tests.qindex.support import (
    WAIT,
    CountingFileSystem,
    copy_live,
    drain,
    open_quietly,
    queue_directory,
)
from tests.traced_memory import tracing
from tests.waiting import wait_until


def rest(engine: qindex.Engine, *queues: qindex.Queue) -> None:
    for queue in queues:
        assert engine._roster.put_to_rest(queue._parts)
        assert is_at_rest(queue)


def is_at_rest(queue: qindex.Queue) -> bool:
    return queue._parts.state.index.journal.at_rest


def open_files() -> int:
    gc.collect()  # what other tests have left must not be closed between two counts
    return open_now()


def open_now() -> int:
    """Count them without a collection, which takes its time behind thousands of tests."""
    return len(os.listdir("/proc/self/fd"))


# -- what nobody can see --------------------------------------------------------------------------


def test_order_and_deliveries_are_as_they_were(tmp_path: Path) -> None:
    """Read ahead, given back, with a consumer, in the file and in the journal."""
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % number for number in range(20)])
        held = [queue.get(0) for _ in range(6)]
        for one in (held[4], held[1]):
            assert one is not None
            queue.nack(one)
        rest(engine, queue)
        queue.publish(b"20")
        again, fresh = queue.get(0), queue.get(0)
        assert again is not None
        assert fresh is not None
        assert (again.body, again.redelivered) == (b"1", True)
        assert (fresh.body, fresh.redelivered) == (b"4", True)
        rest(engine, queue)
        for one in (held[0], held[2], held[3], held[5], again):
            assert one is not None
            if not one.settled:
                queue.ack(one)
        queue.nack(fresh)
        rest(engine, queue)
        assert [one.body for one in queue.peek(30)] == [b"4", *(b"%d" % n for n in range(6, 21))]
        rest(engine, queue)
        expected = [b"4", *(b"%d" % number for number in range(6, 21))]
        assert [body for _, body, _ in drain(queue)] == expected


def test_what_is_with_a_consumer_is_not_taken_for_settled(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"a", b"b"])
        one, batch = queue.get(0), queue.get_many(5)
        assert one is not None
        rest(engine, queue)
        assert not one.settled
        assert not any(each.settled for each in batch)
        assert queue.stats().unacked == 2
        queue.ack(one)
        queue.ack_many(batch)
        assert (len(queue), queue.stats().unacked) == (0, 0)


def test_figures_go_on(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"a", confirm=True)
        before = queue.stats()
        rest(engine, queue)
        at_rest = queue.stats()
        assert at_rest.journal_syncs >= before.journal_syncs > 0
        assert at_rest.sync_durations.count == at_rest.journal_syncs
        queue.publish(b"b", confirm=True)
        assert queue.stats().journal_syncs == at_rest.journal_syncs + 1
        assert (queue.stats().published, queue.stats().ready) == (2, 2)


@pytest.mark.parametrize("transient", [False, True])
def test_a_clean_close_of_queues_at_rest(tmp_path: Path, transient: bool) -> None:
    with open_quietly(tmp_path) as engine:
        for name in "abc":
            engine.queue(name).publish_many([b"1", b"2"])
            if transient:
                engine.queue(name).publish(b"3", persistent=False)
        rest(engine, engine.queue("a"), engine.queue("b"))
        engine.queue("b").publish(b"4")
    for name in "abc":
        journal = queue_directory(tmp_path, name) / "journal.jif"
        assert 0 < journal.stat().st_size == len(journal.read_bytes().rstrip(b"\0"))
    with open_quietly(tmp_path) as engine:
        assert len(engine._shelf.resting) == 3
        assert not engine.findings
        assert [body for _, body, _ in drain(engine.queue("b"))] == [b"1", b"2", b"4"]
        assert [body for _, body, _ in drain(engine.queue("a"))] == [b"1", b"2"]


def test_a_queue_at_rest_is_purged_and_deleted(tmp_path: Path) -> None:
    with open_quietly(tmp_path, embed_below=64) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"small", b"x" * 100, b"y" * 100])
        rest(engine, queue)
        assert queue.purge() == 3
        store = engine.stats().message_store
        assert store is not None
        assert store.messages == 0
        queue.publish(b"z" * 100)
        rest(engine, queue)
        engine.delete_queue("q")
        store = engine.stats().message_store
        assert store is not None
        assert store.messages == 0
        with pytest.raises(qindex.ClosedError, match="deleted"):
            queue.publish(b"late")
        assert not engine._roster.awake()


def test_after_close_a_queue_at_rest_says_so(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"a")
        rest(engine, queue)
    for call in (lambda: queue.publish(b"b"), lambda: queue.get(0), queue.peek):
        with pytest.raises(qindex.ClosedError):
            call()


# -- who is waiting, and what is timed ------------------------------------------------------------


def test_a_waiting_consumer_gets_what_wakes_the_queue(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        found: list[bytes] = []

        def consume() -> None:
            for delivery in queue.consume(timeout=WAIT):
                found.append(delivery.body)
                delivery.ack()
                if len(found) == 3:
                    return

        thread = threading.Thread(target=consume)
        thread.start()
        for number in range(3):
            wait_until(lambda: queue._parts.state.arrived.waiting)
            rest(engine, queue)
            queue.publish(b"%d" % number)
            wait_until(lambda: len(found) == number + 1)  # noqa: B023
        thread.join(WAIT)
        assert found == [b"0", b"1", b"2"]


def test_a_lease_ends_while_the_queue_is_at_rest(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"a")
        assert queue.get(0, lease=0.05) is not None
        rest(engine, queue)
        delivery = queue.get(WAIT)
        assert delivery is not None
        assert delivery.redelivered


def test_dead_letters_come_from_and_to_queues_at_rest(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        source, target = engine.queue("q", dead_letter="dead"), engine.queue("dead")
        source.publish_many([b"a", b"b"])
        delivery = source.get(0)
        assert delivery is not None
        rest(engine, source)
        source.reject(delivery)
        rest(engine, source, target)
        engine.sync()
        assert [body for _, body, _ in drain(target)] == [b"a"]
        assert [body for _, body, _ in drain(source)] == [b"b"]


# -- what is durable ------------------------------------------------------------------------------


def test_a_sync_reaches_queues_at_rest(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    with open_quietly(tmp_path, fs=fs) as engine:
        queues = [engine.queue(str(number)) for number in range(5)]
        for queue in queues:
            queue.publish(b"a")
        rest(engine, *queues)
        queues[0].publish(b"b")
        for expected in (5, 0):
            fs.calls.clear()
            engine.sync()
            assert fs.calls["fdatasync"] == expected
            assert all(map(is_at_rest, queues[1:]))


def test_a_flush_reaches_queues_at_rest(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queues = [engine.queue(str(number)) for number in range(3)]
        for queue in queues:
            queue.publish_many([b"a", b"b"])
        rest(engine, *queues)
        assert all(queue.stats().journal_entries for queue in queues)
        engine.flush()
        assert not any(queue.stats().journal_entries for queue in queues)
        assert all([body for _, body, _ in drain(queue)] == [b"a", b"b"] for queue in queues)


def test_queues_at_rest_are_flushed_after_a_while(tmp_path: Path) -> None:
    with qindex.open(tmp_path, flush_idle=0.3, rest_idle=0.02) as engine:
        queues = [engine.queue(str(number)) for number in range(40)]
        for queue in queues:
            queue.publish(b"a")
        wait_until(lambda: not engine._roster.awake())
        wait_until(lambda: not any(queue.stats().journal_entries for queue in queues))
        wait_until(lambda: all(map(is_at_rest, queues)))
        assert all(queue.stats().flushes == 1 for queue in queues)


def test_many_positions_and_states_come_back(tmp_path: Path) -> None:
    """Of several segments, with entries in the file, in the journal, acknowledged and out."""
    with open_quietly(tmp_path, segment_entry_count=64) as engine:
        queue = engine.queue("q")
        bodies = [b"%d" % number * (1 + number % 7) for number in range(500)]
        queue.publish_many(bodies[:100])
        queue.flush()
        queue.publish_many(bodies[100:])
        out = queue.get_many(150)
        queue.ack_many(out[20:])
        rest(engine, queue)
        assert not queue._parts.state.index.positions
        queue.ack_many(out[:5])
        queue.nack(out[7])
        rest(engine, queue)
        expected = [bodies[7], *bodies[150:]]
        assert [one.body for one in queue.peek(500)] == expected
        rest(engine, queue)
        queue.flush()
        assert [body for _, body, _ in drain(queue)] == expected


def test_a_failing_sync_at_rest_is_not_forgotten(tmp_path: Path) -> None:
    class Failing(RealFileSystem):
        failing = False

        def fdatasync(self, fd: int, /) -> None:  # type: ignore[override]
            if self.failing and os.readlink(f"/proc/self/fd/{fd}").endswith(".jif"):
                raise OSError(errno.EIO, "Input/output error")
            os.fdatasync(fd)

    fs = Failing()
    engine = open_quietly(tmp_path, fs=fs)
    queue = engine.queue("q")
    queue.publish(b"a")
    rest(engine, queue)
    fs.failing = True
    with pytest.raises(qindex.StorageError, match="sync failed"):
        engine.sync()
    assert engine.stats().writes_refused is not None
    with pytest.raises(qindex.WritesRefusedError):
        queue.publish(b"b")
    assert [one.body for one in queue.peek(2)] == [b"a"]
    engine.close()
    with open_quietly(tmp_path) as engine:
        assert [body for _, body, _ in drain(engine.queue("q"))] == [b"a"]


def test_a_queue_at_rest_is_woken_on_a_full_disk(tmp_path: Path) -> None:
    """Its file keeps its room: there, consuming is what makes room."""

    class Full(RealFileSystem):
        full = False

        def fallocate(self, fd: int, offset: int, length: int, /) -> None:  # type: ignore[override]
            if self.full and os.fstat(fd).st_size < offset + length:
                raise OSError(errno.ENOSPC, "No space left on device")
            RealFileSystem.fallocate(fd, offset, length)

    fs = Full()
    with open_quietly(tmp_path, fs=fs) as engine:
        queue, other = engine.queue("q"), engine.queue("never used")
        queue.publish_many([b"a", b"b"])
        rest(engine, queue)
        fs.full = True
        assert [body for _, body, _ in drain(queue)] == [b"a", b"b"]
        with pytest.raises(qindex.StorageError):
            other.publish(b"c")
        fs.full = False
        other.publish(b"c")


def test_a_kill_loses_nothing_of_queues_at_rest(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "store") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"a", b"b", b"c"])
        delivery = queue.get(0)
        assert delivery is not None
        queue.ack(delivery)
        rest(engine, queue)
        copy_live(tmp_path / "store", tmp_path / "at rest")
        queue.publish(b"d")
        copy_live(tmp_path / "store", tmp_path / "awake")
    for name, expected in (("at rest", [b"b", b"c"]), ("awake", [b"b", b"c", b"d"])):
        with open_quietly(tmp_path / name) as engine:
            assert [body for _, body, _ in drain(engine.queue("q"))] == expected
            assert engine.queue("q").publish(b"e") == 3 + (name == "awake")


# -- when -----------------------------------------------------------------------------------------


def test_idle_queues_go_to_rest_by_themselves(tmp_path: Path) -> None:
    with qindex.open(tmp_path, flush_idle=0.02, rest_idle=0.02) as engine:
        before = open_files()
        queues = [engine.queue(str(number)) for number in range(30)]
        for queue in queues:
            queue.publish(b"a")
        wait_until(lambda: not engine._roster.awake())
        assert open_files() == before
        assert all(map(is_at_rest, queues))
        wake = queues[7].get(0)
        assert wake is not None
        assert engine._roster.awake() == [queues[7]._parts]


def test_a_queue_that_nobody_used_opens_no_file(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish(b"a")
        engine.flush()
    with open_quietly(tmp_path) as engine:
        before = open_files()
        queue = engine.queue("q")
        assert (len(queue), [one.body for one in queue.peek()]) == (1, [b"a"])
        assert open_files() == before


def test_those_not_used_for_long_go_first(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        roster = engine._roster = engine._shelf._roster = Roster(3, None)
        queues = [engine.queue(str(number)) for number in range(6)]
        for queue in queues[:3]:
            queue.publish(b"a")
        queues[0].publish(b"b")
        queues[3].publish(b"c")
        queues[0].publish(b"d")
        queues[4].publish(b"e")
        assert len(roster.awake()) == 3
        assert {queues[0]._parts, queues[4]._parts} <= set(roster.awake())
        queues[0].publish(b"f")
        queues[5].publish(b"g")
        assert {queues[0]._parts, queues[5]._parts} <= set(roster.awake())


def test_a_queue_in_use_is_not_waited_for(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine._roster = engine._shelf._roster = Roster(1, None)
        busy, other = engine.queue("busy"), engine.queue("other")
        busy.publish(b"a")
        with busy._parts.state.lock:
            other.publish(b"b")  # would wait for ever
            assert len(engine._roster.awake()) == 2
        engine.queue("third").publish(b"c")
        assert [one.state.name for one in engine._roster.awake()] == ["third"]


# -- how much -------------------------------------------------------------------------------------


def test_the_budget() -> None:
    for most in (64, 100, 512, 4096):
        budget = FileBudget(most)
        each = 3 if MAPS_KEEP_HANDLES else 1
        assert each * budget.journals + 2 * budget.store_files + 16 <= most
        assert budget.journals >= 10
    assert FileBudget(1 << 30).journals < 1 << 29  # what the process may is respected


@pytest.mark.rotates(3)
def test_files_of_the_message_store_are_within_the_budget(tmp_path: Path) -> None:
    with open_quietly(tmp_path, max_open_files=64, embed_below=64, store_file_bytes=4096) as engine:
        before = open_files()
        queue = engine.queue("q")
        queue.publish_many([b"%d" % number * 1000 for number in range(100)])
        store = engine.stats().message_store
        assert store is not None
        assert store.files > 40
        most = 0
        for number in range(100):
            delivery = queue.get(0)
            assert delivery is not None
            assert delivery.body == b"%d" % number * 1000
            most = max(most, open_now() - before)
        assert 8 <= most <= 8 + 3 + 2  # an eighth of them, the journal, and what is being read


@pytest.mark.rotates(2)
def test_memory_of_an_idle_queue(tmp_path: Path) -> None:
    """9 kB at the most, its name and the objects of this test included."""
    count = 200
    with open_quietly(tmp_path) as engine:

        def put_to_rest() -> None:
            for parts in engine._roster.awake():
                assert engine._roster.put_to_rest(parts)

        def use(names: list[str]) -> list[qindex.Queue]:
            queues = [engine.queue(name) for name in names]
            for queue in queues:
                queue.publish_many([b"x" * 100] * 20)
                queue.ack_many(queue.get_many(10))
            put_to_rest()
            return queues

        use(["first"])  # what the first use of anything takes is no queue's
        taken = []
        for turn in range(2):  # other threads may take memory during one of them
            with tracing():
                queues = use(
                    [f"queue {number}" for number in range(turn * count, turn * count + count)]
                )
                gc.collect()
                taken.append(tracemalloc.get_traced_memory()[0] / len(queues))
        assert min(taken) < 9000


def test_threads_on_more_queues_than_may_be_awake(tmp_path: Path) -> None:
    count, rounds = 40, by_tier(quick=6, all=60, nightly=60)
    with qindex.open(tmp_path, max_open_files=64, flush_idle=0.01, rest_idle=0.01) as engine:
        before = open_files()
        queues = [engine.queue(str(number)) for number in range(count)]
        most = 0
        taken: list[list[bytes]] = [[] for _ in queues]
        done = threading.Event()

        def publish(seed: int) -> None:
            order = random.Random(seed)
            for number in range(rounds):
                for at in order.sample(range(count), 10):
                    queues[at].publish(b"%d %d" % (seed, number))

        def consume(part: int) -> None:
            order = random.Random(part)
            while True:
                last = done.is_set()
                for at in order.sample(range(part, count, 2), count // 2):
                    batch = queues[at].get_many(7)
                    taken[at] += [one.body for one in batch]
                    queues[at].ack_many(batch)
                if last and not any(map(len, queues)):
                    return

        publishers = [threading.Thread(target=publish, args=(seed,)) for seed in range(2)]
        consumers = [threading.Thread(target=consume, args=(part,)) for part in range(2)]
        for thread in publishers + consumers:
            thread.start()
        while any(thread.is_alive() for thread in publishers):
            most = max(most, open_now() - before)
            time.sleep(0.001)
        done.set()
        for thread in publishers + consumers:
            thread.join(WAIT)
            assert not thread.is_alive()
        assert most <= 64
        assert sum(map(len, taken)) == 2 * rounds * 10
        for bodies in taken:
            for seed in (b"0 ", b"1 "):
                numbers = [int(body[2:]) for body in bodies if body.startswith(seed)]
                assert numbers == sorted(set(numbers))


@pytest.mark.rotates(3)
def test_an_event_loop_stays_within_the_limit(tmp_path: Path) -> None:
    async def run() -> int:
        most = 0
        async with qindex.aio.open(tmp_path, max_open_files=64) as engine:
            before = open_files()
            queues = [await engine.queue(str(number)) for number in range(60)]
            for _ in range(2):
                for queue in queues:
                    await queue.publish(b"a")
                    most = max(most, open_now() - before)
            for queue in queues:
                batch = await queue.get_many(5)
                assert len(batch) == 2
                await queue.ack_many(batch)
        return most

    assert asyncio.run(run()) <= 64


def test_a_get_from_an_empty_queue_at_rest_does_not_wake_it(tmp_path: Path) -> None:
    with qindex.open(tmp_path, background=False) as engine:
        queue = engine.queue("q")
        queue.publish(b"m")
        queue.ack_many(queue.get_many(1))
        rest(engine, queue)
        assert queue.get(timeout=0) is None
        assert not queue.get_many(10)
        assert is_at_rest(queue)


def test_figures_stay_as_they_were(tmp_path: Path) -> None:
    with qindex.open(tmp_path, background=False) as engine:
        queue = engine.queue("q", dead_letter="letters")
        queue.publish_many([b"1", b"2", b"3"])
        queue.publish(b"4", ttl=0.001)
        first, second = queue.get_many(2)
        queue.nack(first)
        again = queue.get(timeout=0)
        assert again is not None
        queue.ack(again)
        queue.reject(second)
        before = queue.stats()
        assert (before.redelivered, before.acked) == (1, 1)
        rest(engine, queue)
        after = queue.stats()
        names = ("published", "delivered", "acked", "redelivered", "refused", "given_up")
        for name in (*names, "dead_letters"):
            assert getattr(after, name) == getattr(before, name), name


def test_the_checksums_of_a_journal_go_on_after_a_clean_close(tmp_path: Path) -> None:
    journal = queue_directory(tmp_path, "q") / "journal.jif"
    sums = journal.with_name("journal.jif.sum")
    inodes = set()
    for number in range(3):
        with open_quietly(tmp_path) as engine:
            engine.queue("q").publish(b"%d" % number)
            assert journal.stat().st_size <= 1 << 15  # with room for a few messages alone
        inodes.add(sums.stat().st_ino)
        healed = heal(journal.read_bytes(), sums.read_bytes())
        assert (healed.sound, healed.torn) == (journal.stat().st_size, False)
    assert len(inodes) == 1


def _closed_with(directory: Path, first: int, acked: int) -> Path:
    """Publish ten messages, acknowledge some, and close; gives the journal."""
    with open_quietly(directory) as engine:
        queue = engine.queue("q")
        queue.flush()
        queue.publish_many([b"%03d" % (first + number) for number in range(10)])
        queue.ack_many(queue.get_many(acked))
    return queue_directory(directory, "q") / "journal.jif"


def test_a_journal_of_an_earlier_close_is_damage(tmp_path: Path) -> None:
    journal = _closed_with(tmp_path, 0, 3)
    sums = journal.with_name("journal.jif.sum")
    earlier = {path: path.read_bytes() for path in (journal, sums)}
    _closed_with(tmp_path, 100, 3)
    for path, data in earlier.items():
        assert path.stat().st_size == len(data)
        path.write_bytes(data)
    with open_quietly(tmp_path) as engine:
        with pytest.raises(qindex.DamageError, match="7 messages with it; it had 14"):
            engine.queue("q")
        assert len(engine.queue("q")) == 7
        assert [found.path for found in engine.findings] == [str(journal)]


def test_what_an_open_would_not_repair_is_still_known_to_the_next(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        for name in "ab":
            engine.queue(name).publish_many([b"x"] * 9)
    lost = [queue_directory(tmp_path, name) / "journal.jif" for name in "ab"]
    for path in lost:
        path.unlink()
    lost[1].with_name("journal.jif.sum").unlink()
    with pytest.raises(qindex.DamageError, match="nothing was changed"):
        open_quietly(tmp_path)
    with open_quietly(tmp_path, repair=True) as engine:
        assert {str(path) for path in lost} <= {found.path for found in engine.findings}


@pytest.mark.parametrize("byte", [1, 7, 9, 15])
def test_damaged_heads_of_checksums_cost_nothing(tmp_path: Path, byte: int) -> None:
    journal = _closed_with(tmp_path, 0, 3)
    sums = journal.with_name("journal.jif.sum")
    data = bytearray(sums.read_bytes())
    data[byte] ^= 0x5A
    sums.write_bytes(data)
    with open_quietly(tmp_path) as engine:
        assert len(engine.queue("q")) == 7
        assert engine.queue("q").publish(b"next") == 10


def test_short_runs_leave_no_garbage(tmp_path: Path) -> None:
    for _ in range(3):
        with open_quietly(tmp_path) as engine:
            queue = engine.queue("q")
            queue.publish_many([bytes(10_000)] * 100)
            queue.ack_many(queue.get_many(100))
    assert (queue_directory(tmp_path, "q") / "journal.jif").stat().st_size < 1 << 18


def test_a_queue_that_is_deleted_while_it_is_synced(tmp_path: Path) -> None:
    under_way, deleted = threading.Event(), threading.Event()

    class Slow(RealFileSystem):
        def sync_dir(self, path: PathLike, /) -> None:  # type: ignore[override]
            if threading.current_thread() is not threading.main_thread():
                under_way.set()
                assert deleted.wait(WAIT)
            super().sync_dir(path)

    with open_quietly(tmp_path, fs=Slow()) as engine:
        engine.queue("q").publish(b"x")
        syncer = threading.Thread(target=engine.sync)
        syncer.start()
        assert under_way.wait(WAIT)
        engine.delete_queue("q")
        deleted.set()
        syncer.join(WAIT)
        assert engine.stats().writes_refused is None
        engine.queue("other").publish(b"y")
