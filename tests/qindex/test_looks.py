"""Looks that ``qindex top`` makes again and again: as if each was the first, and at little cost."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qindex
from journal.files import RealFileSystem
from qindex.view.live_figures import Look, Looker, QueueLook
from tests.effort import not_quick
from tests.qindex.support import open_quietly, queue_directory


class CountingFileSystem(RealFileSystem):
    """The real file system; ``calls`` counts them by name."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        for name in ("open", "close", "pread", "listdir", "stat", "fstat", "mmap"):
            setattr(self, name, self._counted(name, getattr(RealFileSystem, name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.calls[name] += 1
            return call(*arguments)

        return counted


class UnsyncedFileSystem(RealFileSystem):
    """The real file system without its syncs: a thousand queues are soon made."""

    fdatasync = fsync = sync_dir = staticmethod(lambda _what: None)  # type: ignore[assignment]


def grow_old(store: Path) -> None:
    """Let the queues be such that nothing was written to just now."""
    for path in store.glob("queues/*/qindex.seq"):
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 10**10))


def plain(look: Look) -> list[QueueLook]:
    return [replace(one, age=None, rates=None) for one in look.queues]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[qindex.Engine]:
    with open_quietly(tmp_path, segment_entry_count=16, store_file_bytes=100_000) as engine:
        yield engine


def _publish(queue: qindex.Queue, chance: random.Random) -> None:
    queue.publish_many([b"x" * chance.choice((1, 50, 20_000))] * chance.randrange(1, 9))


def _take(queue: qindex.Queue, chance: random.Random) -> None:
    queue.get_many(chance.randrange(1, 9))


def _ack(queue: qindex.Queue, chance: random.Random) -> None:
    queue.ack_up_to(queue.stats().next_seq_id)


def _unseen(queue: qindex.Queue, chance: random.Random) -> None:
    """What leaves nothing in journal or segments, if the queue was empty."""
    queue.publish(b"x")
    queue.ack_many(queue.get_many(100))
    queue.flush()


@pytest.mark.parametrize("seed", range(6))
def test_a_look_is_as_the_first_would_be(engine: qindex.Engine, seed: int) -> None:
    chance = random.Random(seed)
    store = Path(engine.directory)
    looker = Looker(store)
    actions: list[Callable[[qindex.Queue, random.Random], object]] = [
        _publish,
        _take,
        _ack,
        _unseen,
        lambda queue, _: queue.flush(),
        lambda queue, _: queue.purge(),
        lambda queue, _: queue.sync(),
        lambda queue, _: engine.delete_queue(queue.name),
        lambda queue, _: None,
    ]
    for _ in range(60):
        act = chance.choice(actions)
        act(engine.queue(chance.choice("abc")), chance)
        assert plain(looker.look()) == plain(Looker(store).look())
        grow_old(store)


def test_a_message_grows_old_while_nothing_is_done(engine: qindex.Engine) -> None:
    engine.queue("q").publish(b"x")
    grow_old(Path(engine.directory))
    looker = Looker(engine.directory)
    first = looker.look().queues[0]
    again = looker.look().queues[0]
    assert first.age is not None
    assert again.age is not None
    assert again.age > first.age
    assert again.rates is not None
    assert again.rates.published == 0


def test_what_was_written_just_now_is_looked_at_again(engine: qindex.Engine) -> None:
    """Its time may be that of a write that is still to come."""
    engine.queue("q").publish(b"x")
    fs = CountingFileSystem()
    looker = Looker(engine.directory, fs)
    os.utime(queue_directory(engine.directory, "q") / "qindex.seq")
    looker.look()
    first = fs.calls.total()
    fs.calls.clear()
    looker.look()
    assert fs.calls.total() >= first - 2


@not_quick("a thousand queues")
def test_a_look_at_a_thousand_queues(tmp_path: Path) -> None:
    unsynced = UnsyncedFileSystem()
    with open_quietly(tmp_path, fs=unsynced) as engine:
        for number in range(1000):
            engine.queue(f"q{number}").publish_many([b"x"] * 3)
    with open_quietly(tmp_path, fs=unsynced) as engine:
        for number in range(500):
            engine.queue(f"q{number}").publish(b"y")
        grow_old(tmp_path)
        fs = CountingFileSystem()
        looker = Looker(tmp_path, fs)
        assert sum(one.messages for one in looker.look().queues) == 3500
        # Four to learn its name, eight to see that nothing was done to it.
        fs.calls.clear()
        assert len(looker.look().queues) == 1000
        assert fs.calls.total() < 12_500
        for number in range(10):
            engine.queue(f"q{number}").publish_many([b"z"] * 7)
        fs.calls.clear()
        assert sum(one.messages for one in looker.look().queues) == 3570
        assert fs.calls.total() < 13_000
    # A clean close leaves a file that names all queues: it is read once, not for each of them.
    grow_old(tmp_path)
    fs.calls.clear()
    Looker(tmp_path, fs).look()
    assert fs.calls.total() < 44_000
