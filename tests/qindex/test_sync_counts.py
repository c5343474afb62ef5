"""How often the disk is asked: one fdatasync a publish, none a get, one an ack, shared by many."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import (
    WAIT,
    CountingFileSystem,
    copy_live,
    drain,
    open_quietly,
    queue_directory,
)


def test_one_sync_a_publish_none_a_get_one_an_ack(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    with open_quietly(tmp_path, fs=fs, durability="fsync", segment_entry_count=1000) as engine:
        queue = engine.queue("q")
        queue.publish(b"warm")
        delivery = queue.get(0)

        def cost(call: Callable[[], object]) -> int:
            before = fs.calls["fdatasync"]
            call()
            return fs.calls["fdatasync"] - before

        assert delivery is not None
        assert cost(delivery.ack) == 1
        assert [cost(lambda: queue.publish(b"x")) for _ in range(5)] == [1] * 5
        assert cost(lambda: queue.publish(b"x", key="k")) == 1
        assert cost(lambda: queue.publish_many([b"x"] * 30)) == 1
        taken: list[qindex.Delivery | None] = []
        assert cost(lambda: taken.extend(queue.get(0) for _ in range(5))) == 0
        for one in taken:
            assert one is not None
            assert cost(one.ack) == 1
        batches: list[qindex.Batch] = []
        assert cost(lambda: batches.append(queue.get_many(10))) == 0
        assert cost(lambda: queue.nack(batches[0][9])) == 0
        assert cost(lambda: queue.ack_many(batches[0][:5])) == 1
        assert cost(lambda: queue.ack_up_to(10**9)) == 1
        assert cost(lambda: queue.ack_up_to(10**9)) == 0
        assert cost(lambda: queue.ack_many([])) == 0
        assert cost(lambda: queue.peek(3)) == 0
        assert cost(queue.purge) == 1


def test_the_default_asks_for_none(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    with open_quietly(tmp_path, fs=fs, segment_entry_count=1000) as engine:
        queue = engine.queue("q")
        queue.publish(b"warm")
        before = fs.calls["fdatasync"]
        for _ in range(50):
            queue.publish(b"x")
        queue.ack_many(queue.get_many(20))
        assert fs.calls["fdatasync"] == before
        queue.publish(b"x", confirm=True)
        assert fs.calls["fdatasync"] == before + 1
        queue.publish_many([b"x"], confirm=True)
        queue.publish(b"x", key="k", confirm=True)
        queue.publish(b"x")
        queue.sync()
        assert fs.calls["fdatasync"] == before + 4
        queue.sync()  # there is nothing more to do
        engine.sync()
        assert fs.calls["fdatasync"] == before + 4


def test_a_sync_that_has_nothing_to_do_does_not_count(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    with open_quietly(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        before = fs.calls["fdatasync"]
        queue.sync()
        queue.sync()
        assert queue.stats().journal_syncs == fs.calls["fdatasync"] - before == 1


def test_sixteen_threads_share_their_syncs(tmp_path: Path) -> None:
    """Each sync is held until many callers wait for the next: they need one more."""
    threads, each = 16, 20
    fs = CountingFileSystem()
    real = fs.fdatasync
    pause = threading.Event()

    def slow(fd: int) -> None:
        pause.wait(0.001)  # as a disk would
        real(fd)

    fs.fdatasync = slow  # type: ignore[assignment]
    with open_quietly(tmp_path, fs=fs, durability="fsync", segment_entry_count=1000) as engine:
        queue = engine.queue("q")
        queue.publish(b"warm")
        before = fs.calls["fdatasync"]
        workers = [
            threading.Thread(target=lambda: [queue.publish(b"x") for _ in range(each)])
            for _ in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(WAIT)
            assert not worker.is_alive()
        assert len(queue) == threads * each + 1
        assert fs.calls["fdatasync"] - before <= threads * each // 3
        assert queue.stats().journal_syncs == fs.calls["fdatasync"] - before + 1


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_after_a_failed_sync_writing_is_refused_and_reading_goes_on(
    tmp_path: Path, durability: str
) -> None:
    fs = FaultyFileSystem()
    store = tmp_path / "store"
    engine = open_quietly(store, fs=fs, durability=durability)
    queue, other = engine.queue("q"), engine.queue("other")
    queue.publish_many([b"0", b"1", b"2"])
    other.publish(b"theirs")
    held = queue.get(0)
    assert held is not None
    fs.fail("fdatasync", errno.EIO)
    with pytest.raises(qindex.StorageError, match="sync failed"):
        queue.publish(b"3", confirm=True)
    for write in (
        lambda: queue.publish(b"x"),
        lambda: queue.publish(b"x" * 1000),
        lambda: queue.publish(b"x", key="k"),
        lambda: queue.publish_many([b"x"]),
        lambda: queue.publish_many([bytes(50_000)] * 3),
        lambda: other.publish(b"x"),
        lambda: engine.queue("a new one"),
        held.ack,
        lambda: queue.ack_many([held]),
        lambda: queue.get(0),
        lambda: queue.get_many(2),
        queue.purge,
        queue.flush,
        queue.sync,
        other.sync,
    ):
        for _ in range(2):
            with pytest.raises(qindex.WritesRefusedError, match="sync failed"):
                write()
    assert [one.body for one in queue.peek(9)] == [b"1", b"2", b"3"]
    assert len(other.peek(9)) == len(other) == 1
    assert (len(queue), queue.stats().unacked) == (3, 1)
    assert "sync failed" in str(engine.stats().writes_refused)
    held.nack()  # takes no write
    assert [one.body for one in queue.peek(9)] == [b"0", b"1", b"2", b"3"]
    copy = copy_live(store, tmp_path / "copy")
    engine.close()
    for found in (copy, store):
        with open_quietly(found) as again:
            assert [body for _, body, _ in drain(again.queue("q"))] == [b"0", b"1", b"2", b"3"]
            assert len(again.queue("other")) == 1


def killed_at_rest(tmp_path: Path, *, stored: bool = False) -> Path:
    """Leave three queues whose messages were all flushed when their process died."""
    with open_quietly(tmp_path / "store", embed_below=100) as engine:
        for name in "abc":
            queue = engine.queue(name)
            queue.publish(b"x" * (1000 if stored else 1))
            queue.flush()
        return copy_live(tmp_path / "store", tmp_path / "killed")


def journal_of(store: Path, name: str) -> Path:
    return queue_directory(store, name) / "journal.jif"


def test_an_open_after_a_kill_asks_for_none_where_nothing_is_to_be_done(tmp_path: Path) -> None:
    killed = killed_at_rest(tmp_path)
    fs = CountingFileSystem()
    engine = open_quietly(killed, fs=fs)
    assert (engine.findings, fs.calls.total()) == ([], 0)
    # The journal that says nothing goes before the queue is used, or at the close.
    queue = engine.queue("a")
    assert fs.calls == {"sync_dir": 1}
    assert not journal_of(killed, "a").exists()
    assert journal_of(killed, "b").exists()
    assert drain(queue) == [(0, b"x", False)]
    assert queue.publish(b"y") == 1
    engine.close()
    assert not journal_of(killed, "b").exists()
    before = fs.calls.total()
    with open_quietly(killed, fs=fs) as engine:
        assert engine.findings == []
        assert [[one[1] for one in drain(engine.queue(name))] for name in "abc"] == [
            [b"y"],
            [b"x"],
            [b"x"],
        ]
        assert fs.calls.total() == before + 1  # of the snapshot's removal


def test_no_journal_is_left_beside_a_message_store(tmp_path: Path) -> None:
    killed = killed_at_rest(tmp_path, stored=True)
    with open_quietly(killed, embed_below=100) as engine:
        assert not any(journal_of(killed, name).exists() for name in "abc")
        assert engine.findings == []


def test_a_journal_that_cant_be_removed_durably_ends_the_writing(tmp_path: Path) -> None:
    killed = killed_at_rest(tmp_path)
    fs = CountingFileSystem()
    engine = open_quietly(killed, fs=fs)

    def fail(_: object) -> None:
        raise OSError(errno.EIO, "planted")

    fs.sync_dir = fail  # type: ignore[method-assign]
    with pytest.raises(qindex.StorageError, match="journal"):
        engine.queue("a")
    assert [one.body for one in engine.queue("a").peek(9)] == [b"x"]
    with pytest.raises(qindex.WritesRefusedError):
        engine.queue("a").publish(b"y")
    engine.close()
    assert [drain(open_quietly(killed).queue("a"))] == [[(0, b"x", False)]]
