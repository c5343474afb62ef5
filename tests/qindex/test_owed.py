"""What the core finds due it notes, and whoever made the call does it."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from journal.fs.files import PathLike, RealFileSystem
from qindex.aio.engine import open_store
from qindex.queue.dead_letters import MAX_WAITING
from qindex.queue.flushing import Flusher
from tests.qindex.support import open_quietly
from tests.waiting import WAIT, wait_until


def test_a_publish_of_the_core_notes_the_flush_and_the_face_does_it(tmp_path: Path) -> None:
    with open_quietly(tmp_path, max_journal_entries=8) as engine:
        queue = engine.queue("q")
        for _ in range(100):
            queue._producer.publish(b"x")
        assert queue.stats().flushes == 0
        assert queue._state.owed == [queue._parts.flusher]
        queue.publish(b"x")
        assert queue.stats().flushes == 1
        assert not queue._state.owed


def test_the_flush_of_a_dead_letter_queue_is_owed_by_who_rejects(tmp_path: Path) -> None:
    with open_quietly(tmp_path, max_journal_entries=8) as engine:
        queue, dead = engine.queue("q", dead_letter="dead"), engine.queue("dead")
        queue.publish_many([b"x"] * 20)
        batch = list(queue.get_many(20))
        for delivery in batch[:12]:
            queue._settler.reject(delivery)
        assert dead._parts.flusher in queue._state.owed
        assert not dead._state.owed
        assert dead.stats().flushes == 0
        batch[12].reject()
        assert dead.stats().flushes == 1
        assert not queue._state.owed


def test_a_call_in_the_middle_of_another_one_pays_nothing(tmp_path: Path) -> None:
    with open_quietly(tmp_path, max_journal_entries=8) as engine:
        queue = engine.queue("q")
        with queue._state.calls.here():  # as a signal's handler in the middle of a call
            for _ in range(20):
                queue.publish(b"x")
            assert queue.stats().flushes == 0
        queue.publish(b"x")
        assert queue.stats().flushes == 1


MANY = 2500


def _expired(directory: Path, **options: Any) -> None:
    """Make a store in which as many messages have expired, with one message after them."""
    with open_quietly(directory, **options) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"old"] * MANY, ttl=0.001)
        queue.publish(b"new")
    time.sleep(0.01)


def test_a_get_over_many_expired_messages_ends_early(tmp_path: Path) -> None:
    _expired(tmp_path)
    with open_quietly(tmp_path) as engine:
        queue, letters = engine.queue("q"), engine.queue("q")._parts.letters
        assert queue._deliverer.get() is None
        assert MAX_WAITING <= len(letters.waiting) < MANY // 2
        assert queue._state.owed == [letters]
        assert queue.get().body == b"new"
        assert len(engine.queue("dead")) == MANY


@pytest.mark.parametrize("many", [False, True])
def test_every_face_gets_the_message_after_them(tmp_path: Path, many: bool) -> None:
    """With ``timeout=0``, too, though the core ends its calls early."""

    async def coroutines(directory: Path, shared: bool) -> list[bytes]:
        async with qindex.aio.open(directory, shared=shared) as engine:
            queue = await engine.queue("q")
            if many:
                return [one.body for one in await queue.get_many(10)]
            delivery = await queue.get(timeout=0)
            return [] if delivery is None else [delivery.body]

    def threads(directory: Path, shared: bool) -> list[bytes]:
        with qindex.open(directory, shared=shared) as engine:
            queue = engine.queue("q")
            if many:
                return [one.body for one in queue.get_many(10)]
            delivery = queue.get(timeout=0)
            return [] if delivery is None else [delivery.body]

    for shared in (False, True):
        for number, face in enumerate((threads, lambda *how: asyncio.run(coroutines(*how)))):
            directory = tmp_path / f"{shared}-{number}"
            _expired(directory)
            assert face(directory, shared) == [b"new"]


def test_the_journal_of_a_target_is_flushed_between_rounds(tmp_path: Path) -> None:
    with open_quietly(tmp_path, max_journal_entries=512) as engine:
        queue, dead = engine.queue("q", dead_letter="dead"), engine.queue("dead")
        queue.publish_many([b"x"] * 4 * MAX_WAITING, ttl=0.001)
        time.sleep(0.01)
        assert queue.get(timeout=0) is None
        assert len(dead) == 4 * MAX_WAITING
        assert dead.stats().flushes >= 3


class _WatchedFileSystem(RealFileSystem):
    """The real file system; ``threads`` are those that synced."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def _note(self) -> None:
        self.threads.add(threading.get_ident())

    def fdatasync(self, fd: int, /) -> None:  # type: ignore[override]
        self._note()
        RealFileSystem.fdatasync(fd)

    def sync_dir(self, path: PathLike, /) -> None:  # type: ignore[override]
        self._note()
        RealFileSystem.sync_dir(path)


def test_no_call_syncs_on_an_event_loop(tmp_path: Path) -> None:
    """Not even a publish that has to move what is stuck at the head of its queue first."""
    fs = _WatchedFileSystem()

    async def main() -> None:
        loop = threading.get_ident()
        async with open_store(tmp_path, fs=fs, durability="fsync", background=False) as engine:
            dead = await engine.queue("dead", max_length=1)
            queue = await engine.queue(
                "q", dead_letter="dead", max_length=2, overflow="drop-head", delivery_limit=1
            )
            other = await engine.queue("other", dead_letter="refused", delivery_limit=1)
            for each in (dead, queue, other):
                # The first of many thousand messages reserves their seq_ids, with a sync.
                await each.publish(b"x")
                await each.purge()
            fs.threads.clear()
            for _ in range(4):
                await queue.publish(b"x")
            await asyncio.to_thread(wait_until, queue._queue._parts.room.is_stuck)
            with pytest.raises(qindex.QueueFullError, match="nothing can be dropped"):
                await queue.publish(b"x")
            await dead.purge()
            await queue.publish(b"x")  # there is room in its target now
            await other.publish_many([b"x"] * 2)
            await other.reject(await other.get())
            await other.nack(await other.get())
            with suppress(ZeroDivisionError):
                async with engine.transaction() as tx:
                    await tx.publish("other", b"y")
                    raise ZeroDivisionError
            assert fs.threads
            assert loop not in fs.threads

    asyncio.run(main())


@pytest.mark.interpreted
@pytest.mark.parametrize("way", ["publish", "reject", "nack"])
def test_a_loop_goes_on_while_a_flush_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The flush goes on only once the loop has turned."""
    may_go_on = threading.Event()
    flush = Flusher.write_and_empty

    def held_up(flusher: Flusher, *, held: bool = False) -> None:
        assert held or may_go_on.wait(WAIT), "the loop stood still"
        flush(flusher, held=held)

    monkeypatch.setattr(Flusher, "write_and_empty", held_up)

    async def main() -> None:
        async with qindex.aio.open(tmp_path, background=False, max_journal_entries=8) as engine:
            queue = await engine.queue("q", dead_letter="dead", delivery_limit=1)
            asyncio.get_running_loop().call_later(0.05, may_go_on.set)
            if way == "publish":
                for _ in range(20):
                    await queue.publish(b"x")
            else:
                may_go_on.set()
                await queue.publish_many([b"x"] * 20)
                batch = await queue.get_many(20)
                may_go_on.clear()
                asyncio.get_running_loop().call_later(0.05, may_go_on.set)
                for delivery in batch:
                    await getattr(queue, way)(delivery)
            may_go_on.set()

    asyncio.run(main())
