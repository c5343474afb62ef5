"""Many moves to a dead-letter queue at a time share their syncs, and each still has its own end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.aio.engine import open_store
from tests.qindex.support import WAIT, CountingFileSystem, copy_live, drain, open_quietly

THREADS = 16
SYNCS = 3
"""Of one round of moves: what comes, the dead-letter queue, and the commit."""


class HeldFileSystem(CountingFileSystem):
    """Counts, and holds the next fdatasync until :attr:`go_on`, once :attr:`hold` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = threading.Event()
        self.held = threading.Event()
        self.go_on = threading.Event()
        counted = self.fdatasync

        def sync(fd: Any) -> None:
            if self.hold.is_set():
                self.hold.clear()
                self.held.set()
                assert self.go_on.wait(WAIT)
            counted(fd)

        self.fdatasync = sync

    def syncs(self) -> int:
        return self.calls["fdatasync"]


def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(WAIT / 0.002)):
        if condition():
            return
        threading.Event().wait(0.002)
    raise AssertionError("in vain")


def deliveries(queue: qindex.Queue, count: int) -> list[qindex.Delivery]:
    given = [queue.get(0) for _ in range(count)]
    assert all(one is not None for one in given)
    return [one for one in given if one is not None]


def nack_held(
    engine: qindex.Engine, fs: HeldFileSystem, given: list[qindex.Delivery]
) -> list[BaseException | None]:
    """Reject all, each in a thread of its own: the first is at the disk when the others come.
    Gives what each raised."""
    fs.hold.set()
    with ThreadPoolExecutor(len(given)) as pool:
        first = pool.submit(given[0].reject)
        assert fs.held.wait(WAIT)
        others = [pool.submit(one.reject) for one in given[1:]]
        until(lambda: len(engine._moves._asked) == len(others))
        fs.go_on.set()
        return [one.exception(WAIT) for one in [first, *others]]


def test_threads_share_the_syncs_of_their_nacks(tmp_path: Path) -> None:
    fs = HeldFileSystem()
    store = tmp_path / "0"
    with open_quietly(store, fs=fs, durability="fsync") as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"%d" % n for n in range(THREADS + 1)])
        given = deliveries(queue, THREADS + 1)
        given[0].reject()  # makes the queue and the file
        before = fs.syncs()
        assert nack_held(engine, fs, given[1:]) == [None] * THREADS
        # One round for the first, one for all that came while it was at the disk.
        assert fs.syncs() - before == 2 * SYNCS
        assert not engine._moves.pending
        assert queue.stats().unacked == 0
        killed = copy_live(store, tmp_path / "1")
    for directory in (store, killed):
        with open_quietly(directory) as engine:
            assert len(engine.queue("q")) == 0
            letters = {body for _, body, _ in drain(engine.queue("dead"))}
            assert letters == {b"%d" % n for n in range(THREADS + 1)}


def test_two_sources_in_one_round(tmp_path: Path) -> None:
    fs = HeldFileSystem()
    with open_quietly(tmp_path, fs=fs, durability="fsync") as engine:
        queues = [engine.queue(name, dead_letter="dead") for name in ("a", "b")]
        for queue in queues:
            queue.publish_many([b"0", b"1", b"2"])
        given = [one for queue in queues for one in deliveries(queue, 3)]
        given[0].reject()
        before = fs.syncs()
        assert nack_held(engine, fs, given[1:]) == [None] * 5
        # What comes from each source is announced for itself; the rest is shared.
        assert fs.syncs() - before == SYNCS + SYNCS + 1
        assert len(engine.queue("dead")) == 6


def test_what_does_not_fit_keeps_nothing_else_out(tmp_path: Path) -> None:
    fs = HeldFileSystem()
    with open_quietly(tmp_path, fs=fs, durability="fsync") as engine:
        dead = engine.queue("dead", max_bytes=10)
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"1", b"large" * 5, b"2", b"3", b"large" * 5])
        given = deliveries(queue, 5)
        failures = nack_held(engine, fs, given)
        for one, failure in zip(given, failures, strict=True):
            is_large = len(one.body) > 10
            assert isinstance(failure, qindex.QueueFullError) == is_large
            assert (failure is None) != is_large
            assert one.settled != is_large
        assert [one.body for one in dead.peek(9)] == [b"1", b"2", b"3"]
        assert queue.stats().unacked == 2
        for one in given:
            if not one.settled:
                one.ack()


def test_room_is_filled_to_the_last_message(tmp_path: Path) -> None:
    """Of a batch that does not fit as a whole, as much is moved as there is room for."""
    with open_quietly(tmp_path) as engine:
        dead = engine.queue("dead", max_length=37)
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"%d" % n for n in range(100)], ttl=0)
        assert queue.get(0) is None
        assert [one.body for one in dead.peek(99)] == [b"%d" % n for n in range(37)]
        assert queue.stats().unacked == 63


def test_a_dead_letter_queue_that_drops_its_head_into_the_next(tmp_path: Path) -> None:
    """A move makes room by another move: neither waits for the other."""
    with open_quietly(tmp_path, durability="fsync") as engine:
        engine.queue("last", max_length=2)
        middle = engine.queue("middle", max_length=1, overflow="drop-head", dead_letter="last")
        queue = engine.queue("q", dead_letter="middle")
        queue.publish_many([b"%d" % n for n in range(5)])
        given = deliveries(queue, 5)
        for one in given[:4]:
            one.reject()
        # What the middle one dropped last does not fit any more: it waits, and nothing more comes.
        with pytest.raises(qindex.QueueFullError):
            given[4].reject()
        assert [one.body for one in middle.peek(9)] == [b"3"]
        drain(engine.queue("last"))
        given[4].reject()
        assert [one.body for one in middle.peek(9)] == [b"4"]
        assert [one.body for one in engine.queue("last").peek(9)] == [b"2", b"3"]


def test_coroutines_share_the_syncs_of_their_nacks(tmp_path: Path) -> None:
    fs = CountingFileSystem()

    async def main() -> None:
        async with open_store(
            tmp_path, fs=fs, durability="fsync", background=False, flush_idle=1e6
        ) as engine:
            queue = await engine.queue("q", dead_letter="dead", delivery_limit=1)
            await queue.publish_many([b"%d" % n for n in range(401)])
            given = list(await queue.get_many(401))
            await given[0].reject()
            before = fs.calls["fdatasync"]
            calls = [one.reject() if n % 2 else one.nack() for n, one in enumerate(given[1:])]
            ends = await asyncio.gather(*calls, given[1].nack(), return_exceptions=True)
            assert ends[:-1] == [None] * 400
            assert isinstance(ends[-1], qindex.UsageError)
            # Those that were rejected together, and those that were delivered too often.
            assert fs.calls["fdatasync"] - before <= 2 * SYNCS
            assert len(await engine.queue("dead")) == 401
            assert (await queue.stats()).unacked == 0

    asyncio.run(main())


def test_a_cancelled_nack_is_carried_through(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, durability="fsync", flush_idle=1e6) as engine:
            queue = await engine.queue("q", dead_letter="dead")
            await queue.publish_many([b"%d" % n for n in range(20)])
            tasks = [asyncio.create_task(one.reject()) for one in await queue.get_many(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert ends[1::2] == [None] * 10
            assert all(isinstance(one, asyncio.CancelledError) for one in ends[::2])
            assert len(await engine.queue("dead")) == 20

    asyncio.run(main())
