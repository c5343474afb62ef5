"""The engine: queues by name, TTL, statistics, stores made and opened again."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from time import time_ns
from typing import Any
from unittest import mock

import pytest

import qindex
from journal.errors import StoreError
from journal.fs.files import REAL
from qindex.format.layout import MARKER
from qindex.recovery.store_directory import find_marker, is_empty_store
from qindex.view.reader import StoreReader
from tests.qindex.support import (
    WAIT,
    copy_live,
    drain,
    open_quietly,
    queue_directory,
    wait_until,
)
from tests.traced_memory import tracing


def test_the_example_of_the_package(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "made" / "on the way") as engine:
        orders = engine.queue("orders")
        assert orders.publish(b"first", key="o-17") == 0
        with orders.get(timeout=WAIT) as delivery:  # type: ignore[union-attr]
            assert delivery is not None
            assert (delivery.body, delivery.key) == (b"first", "o-17")


def test_queues_are_there_after_a_crash(tmp_path: Path) -> None:
    engine = open_quietly(tmp_path / "first")
    assert engine.queue("a") is engine.queue("a")
    engine.queue("b").publish(b"x")
    with open_quietly(copy_live(tmp_path / "first", tmp_path / "copy")) as again:
        assert again.queue_names() == ["a", "b"]
        assert (len(again.queue("a")), len(again.queue("b"))) == (0, 1)
        assert bool(again.queue("a"))
    engine.close()


def test_the_entry_count_is_kept(tmp_path: Path) -> None:
    with open_quietly(tmp_path, segment_entry_count=5) as engine:
        engine.queue("q").publish_many([b"x"] * 12)
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish_many([b"x"] * 12)
        engine.flush()
    names = sorted(path.name for path in queue_directory(tmp_path, "q").glob("*.idx"))
    assert names == ["0.idx", "1.idx", "2.idx", "3.idx", "4.idx"]
    assert find_marker(REAL, str(tmp_path))


def test_segments_have_16384_entries(tmp_path: Path) -> None:
    with qindex.open(tmp_path, background=False) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 16_385)
        queue.flush()
        assert queue.stats().segments == 2
    names = sorted(path.name for path in queue_directory(tmp_path, "q").glob("*.idx"))
    assert names == ["0.idx", "1.idx"]


def test_creating_that_was_cut_short_before_the_marker(tmp_path: Path) -> None:
    (tmp_path / "qindex.lock").write_bytes(b"123\n")
    (tmp_path / "qindex.store.tmp").write_bytes(b"half")
    assert is_empty_store(os.listdir(tmp_path))
    with open_quietly(tmp_path) as engine:
        engine.queue("q")
    assert (tmp_path / MARKER).exists()


def test_message_ttl(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"0", ttl=0)
        queue.publish(b"1", ttl=1e6)
        queue.publish_many([b"2", b"3"], ttl=0)
        queue.publish(b"4")
        wait_until(lambda: len(queue) == 4)  # an expired message counts until it is at the head
        assert [one.body for one in queue.peek(9)] == [b"1", b"2", b"3", b"4"]
        delivery = queue.get(0)
        assert delivery is not None
        assert delivery.body == b"1"
        assert delivery.expiry is not None
        assert delivery.expiry > 1e15
        assert queue.get_many(10).bodies == [b"4"]
        assert len(queue) == 0


def test_many_expired_messages_hide_none(tmp_path: Path) -> None:
    with open_quietly(tmp_path, segment_entry_count=1000) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"late"] * 5000, ttl=0)
        queue.publish(b"in time")
        wait_until(lambda: len(queue) == 1)
        assert [one.body for one in queue.peek(1)] == [b"in time"]
        assert queue.get_many(3).bodies == [b"in time"]
        queue.publish_many([b"late"] * 3000, ttl=0)
        assert len(queue.get_many(3)) == 0
        assert len(queue) == 0


def test_a_message_that_expires_while_it_is_read_ahead_or_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        for body in (b"0", b"1", b"2"):
            queue.publish(body, ttl=1000.0)
        first = queue.get(0)
        assert first is not None
        from qindex.queue import run_clock

        monkeypatch.setattr(run_clock, "time_ns", lambda: time_ns() + 2000 * 10**9)
        first.nack()
        assert queue.get(0) is None
        assert (len(queue), queue.stats().unacked) == (0, 0)


def test_a_wall_clock_that_is_set_forward_for_a_moment(tmp_path: Path) -> None:
    """All messages with a ttl were dropped for good. Within a run what has passed counts."""
    ahead = 3600 * 10**9
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", message_ttl=100.0)
        queue.publish(b"queue's")
        queue.publish(b"own", ttl=50.0)
        with mock.patch("time.time_ns", return_value=time_ns() + ahead):
            assert [one.body for one in queue.peek(5)] == [b"queue's", b"own"]
            queue.nack(queue.get_many(1)[0])
            queue.publish(b"published meanwhile", ttl=50.0)
        assert [one.body for one in queue.get_many(5)] == [
            b"queue's",
            b"own",
            b"published meanwhile",
        ]
    [expiry] = {
        0 < row.expiry - time_ns() // 1000 <= 100 * 10**6
        for row in StoreReader(tmp_path).queue("q").entries()
    }
    assert expiry


def test_queue_ttl_is_kept_with_the_queue(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", message_ttl=1e-6)
        queue.publish(b"late")
        queue.publish_many([b"late"])
        queue.publish(b"late", ttl=100)
        assert queue.get(0) is None
        assert engine.queue("q") is queue
        assert engine.queue("q", message_ttl=1e-6) is queue
    with open_quietly(tmp_path) as engine:
        assert engine.queue("q").settings.message_ttl == 1e-6
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", message_ttl=1e6)
        queue.publish(b"late", ttl=0)
        queue.publish(b"in time")
        assert queue.get_many(5).bodies == [b"in time"]
    with open_quietly(tmp_path) as engine:
        assert engine.queue("q").settings.message_ttl == 1e6


def test_an_expired_message_is_gone_after_a_crash_too(tmp_path: Path) -> None:
    engine = open_quietly(tmp_path / "first")
    engine.queue("q").publish(b"late", ttl=0)
    with open_quietly(copy_live(tmp_path / "first", tmp_path / "copy")) as again:
        assert again.queue("q").get(0) is None
    engine.close()


def test_statistics(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x" * 100] * 20)
        queue.flush()
        queue.publish_many([b"x" * 100] * 5)
        batch = queue.get_many(10)
        queue.ack_many(batch[:4])
        stats = queue.stats()
        assert (stats.name, stats.ready, stats.unacked) == ("q", 15, 6)
        assert (stats.published, stats.acked, stats.next_seq_id) == (25, 4, 25)
        assert (stats.journal_entries, stats.flushes) == (5 + 10 + 4, 1)
        assert (
            stats.segment_bytes
            == stats.flushed_bytes
            == sum(path.stat().st_size for path in queue_directory(tmp_path, "q").glob("*.idx"))
        )
        assert stats.journal_bytes > 500
        whole = engine.stats()
        assert whole.queues == (stats,)
        assert (whole.directory, whole.writes_refused) == (str(tmp_path), None)
        assert whole.dirty_bytes >= stats.journal_bytes
        assert repr(queue) == "<Queue 'q', 15 ready, 6 unacked>"
    with open_quietly(tmp_path) as engine:
        stats = engine.queue("q").stats()
        assert (stats.published, stats.acked, stats.ready) == (0, 0, 21)


def test_counts_go_on_after_a_drain_and_a_flush(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        for turn in range(5):
            queue.publish_many([b"x"] * 13)
            queue.publish(b"late", ttl=0)
            drain(queue)
            queue.flush()
            assert queue.stats().acked == queue.stats().published == (turn + 1) * 14
            assert (len(queue), queue.stats().segment_bytes) == (0, 0)


@pytest.mark.parametrize("options", [{}, {"record_format": "rabbitmq"}], ids=repr)
def test_records_of_both_kinds_go_through_everything(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    engine = open_quietly(tmp_path / "first", **options)
    queue = engine.queue("q")
    queue.publish(b"0", key="k", headers={"n": 1, "s": "x"})
    queue.publish_many([b"1", b"2" * 1000])
    queue.flush()
    queue.publish(b"3", persistent=False)
    queue.publish(b"4", headers={"deep": {"list": [1, "a", True]}})
    with open_quietly(copy_live(tmp_path / "first", tmp_path / "copy"), **options) as again:
        found = again.queue("q").get_many(9)
        assert found.bodies == [b"0", b"1", b"2" * 1000, b"4"]
        assert found[0].key == "k"
        assert found[0].headers["n"] == 1
        assert found[3].headers["deep"] == {"list": [1, "a", True]}
    assert queue.get_many(9).bodies[3] == b"3"
    engine.close()


def test_what_a_rabbitmq_record_can_not_hold(tmp_path: Path) -> None:
    with open_quietly(tmp_path, record_format="rabbitmq") as engine:
        queue = engine.queue("q")
        for wrong in (
            {"properties": {"no_such": 1}},
            {"properties": {"priority": "high"}},
            {"properties": {"exchange": 5}},
            {"key": "\ud800"},
            {"headers": {"x": object()}},
        ):
            with pytest.raises(StoreError):
                queue.publish(b"x", **wrong)
        assert len(queue) == 0
        assert queue.publish(b"x") == 0
        assert len(drain(queue)) == 1


def test_a_backlog_stays_on_disk(tmp_path: Path) -> None:
    """200,000 messages of 100 bytes: 20 MB of bodies, and next to no memory."""
    count = 200_000
    with qindex.open(tmp_path, background=False) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x" * 100] * 1000)
        queue.flush()
        with tracing():
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(count // 5000):
                queue.publish_many([b"y" * 100] * 5000)
            queue.flush()
            grown = tracemalloc.get_traced_memory()[0] - before
        print(f"\nmemory for each million queued: {grown * 1_000_000 // count:,} bytes")
        assert grown < 2_000_000
        assert len(queue) == count + 1000


def test_sparse_segments_are_read_in_small_pieces(tmp_path: Path) -> None:
    """Two messages held, 400 large ones acknowledged between them: not all of it is read."""
    with open_quietly(tmp_path, segment_entry_count=1000) as engine:
        queue = engine.queue("q")
        for at in range(402):
            queue.publish(b"%d" % at + bytes(100_000))
            if at % 100 == 99:
                queue.flush()
        batch = queue.get_many(402)
        queue.ack_many(batch[1:-1])
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        assert len(queue) == 2
        with tracing():
            taken = queue.get_many(10)
            peak = tracemalloc.get_traced_memory()[1]
        assert [int(body.rstrip(b"\0")) for body in taken.bodies] == [0, 401]
        assert peak < 10_000_000


def test_a_full_disk(tmp_path: Path) -> None:
    """A real one: a small file system in memory, where the system lets us mount it."""
    if os.getuid() != 0:
        pytest.skip("mounting a file system needs root")
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=2m tmpfs {small} 2>/dev/null"):
        pytest.skip("this system lets nobody mount a file system")
    try:
        ballast = small / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        engine = open_quietly(small / "store", max_journal_entries=500, segment_entry_count=64)
        queue = engine.queue("q")
        published: list[int] = []

        def fill() -> None:
            while True:
                published.append(queue.publish(b"%d" % len(published) + bytes(500)))

        with pytest.raises(qindex.StorageError, match="space"):
            fill()
        assert len(queue) == len(published) > 100
        with pytest.raises(qindex.StorageError, match="space"):
            queue.publish_many([bytes(500)] * 10_000)
        assert len(queue) == len(published)
        assert engine.stats().writes_refused is None
        assert [one.seq_id for one in queue.peek(10**6)] == published
        # Closing says what could not be done; nothing is lost by it.
        with pytest.raises(qindex.StorageError, match="space"):
            engine.close()
        again = open_quietly(small / "store")  # served from its journal
        assert [one.seq_id for one in again.queue("q").peek(10**6)] == published
        again.close()  # nothing is to be written
        ballast.unlink()
        with open_quietly(small / "store") as again:
            queue = again.queue("q")
            assert [one.seq_id for one in queue.peek(10**6)] == published
            assert queue.purge() == len(published)
            assert queue.publish(b"room again") == len(published)
            assert drain(queue) == [(len(published), b"room again", False)]
    finally:
        # Lazily: the failed engine is still referred to by the exceptions above.
        os.system(f"umount -l {small}")
