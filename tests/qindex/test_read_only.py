"""``qindex.open(directory, read_only=True)``."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

import qindex
from qindex.engine.read_only import ReadOnlyEngine
from qindex.format import layout
from tests.golden import golden
from tests.hostile.tampering import FILES, Outside
from tests.qindex.reader_support import open_small, tree

ENGINE_WRITES = ("publish_to", "delete_queue", "compact", "sync", "flush", "schedule")
QUEUE_WRITES = (
    *("publish", "publish_many", "get", "get_many", "consume", "ack", "ack_many", "ack_up_to"),
    *("nack", "reject", "purge", "flush", "sync", "run", "redrive", "configure"),
)


def test_beside_a_writer(tmp_path: Path) -> None:
    with open_small(tmp_path) as writer, qindex.open(tmp_path, read_only=True) as engine:
        assert isinstance(engine, ReadOnlyEngine)
        queue = writer.queue("q")
        seen = engine.queue("q")
        assert len(seen) == 0
        assert seen
        queue.publish(b"0", key="k0", headers={"a": 1}, ttl=100)
        queue.publish(b"1")
        assert len(seen) == 2
        first, second = seen.peek(5)
        assert (first.body, first.key, first.headers) == (b"0", "k0", {"a": 1})
        assert first.expiry is not None
        assert (second.seq_id, second.body, second.expiry) == (1, b"1", None)
        assert first.timestamp > 1.7e18
        assert (first.settled, first.redelivered) == (True, False)
        with pytest.raises(qindex.UsageError, match="only looked at"):
            first.ack()
        assert [one.body for one in seen.peek()] == [b"0"]
        taken = queue.get()
        assert taken is not None
        assert [one.redelivered for one in seen] == [True, False]
        assert (seen.stats().messages, seen.stats().delivered_before) == (2, 1)
        taken.ack()
        assert [one.body for one in seen] == [b"1"]
        assert seen.findings == engine.findings == []


def test_two_readers_and_no_lock(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    before = tree(tmp_path)
    with (
        qindex.open(tmp_path, read_only=True) as first,
        qindex.open(tmp_path, read_only=True) as second,
    ):
        assert first.queue_names() == second.queue_names() == []
        assert tree(tmp_path) == before
        open_small(tmp_path).close()


def test_stats(tmp_path: Path) -> None:
    with open_small(tmp_path) as writer:
        writer.queue("a").publish_many([b"x"] * 100)
        writer.queue("b").publish(b"x")
        with qindex.open(tmp_path, read_only=True) as engine:
            stats = engine.stats()
            own = writer.stats()
    assert [one.name for one in stats.queues] == engine_names(own) == ["a", "b"]
    assert [one.ready for one in stats.queues] == [100, 1]
    assert stats.queues[0].next_seq_id == 100
    assert stats.queues[0].journal_entries == own.queues[0].journal_entries


def engine_names(stats: qindex.EngineStats) -> list[str]:
    return [one.name for one in stats.queues]


def test_every_writing_method_refuses(tmp_path: Path) -> None:
    with open_small(tmp_path) as writer:
        writer.queue("q").publish(b"x")
    before = tree(tmp_path)
    with qindex.open(tmp_path, read_only=True) as engine:
        queue = engine.queue("q")
        calls = [(engine, name) for name in ENGINE_WRITES] + [
            (queue, name) for name in QUEUE_WRITES
        ]
        for owner, name in calls:
            with pytest.raises(qindex.UsageError, match="opened read-only"):
                getattr(owner, name)(b"x")
            with pytest.raises(qindex.UsageError, match="opened read-only"):
                getattr(owner, name)()
    assert tree(tmp_path) == before


def test_the_methods_are_those_of_an_engine(tmp_path: Path) -> None:
    """What a writer has and a reader has not, somebody forgot."""
    with open_small(tmp_path) as writer:
        writer.queue("q").publish(b"x")
        with qindex.open(tmp_path, read_only=True) as engine:
            for full, reading in ((writer, engine), (writer.queue("q"), engine.queue("q"))):
                wanted = {name for name in dir(full) if not name.startswith("_")}
                plain = {"options", "name", "directory", "findings"}
                assert wanted - plain <= set(dir(reading))


def test_after_close(tmp_path: Path) -> None:
    with open_small(tmp_path) as writer:
        writer.queue("q").publish(b"x")
    engine = qindex.open(tmp_path, read_only=True)
    queue = engine.queue("q")
    engine.close()
    engine.close()
    for use in (
        engine.queue_names,
        engine.stats,
        queue.stats,
        queue.peek,
        queue.publish,
        lambda: engine.queue("q"),
        lambda: len(queue),
        lambda: list(queue),
    ):
        with pytest.raises(qindex.ClosedError):
            use()


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(qindex.NotAStoreError, match="no such directory"):
        qindex.open(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()
    with pytest.raises(qindex.NotAStoreError, match="neither"):
        qindex.open(tmp_path, read_only=True)
    with pytest.raises(qindex.UsageError, match="durability"):
        qindex.open(tmp_path, read_only=True, durability="none")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no_such_option"):
        qindex.open(tmp_path, read_only=True, no_such_option=1)  # type: ignore[call-overload]
    open_small(tmp_path).close()
    with qindex.open(tmp_path, read_only=True) as engine:
        with pytest.raises(qindex.UsageError, match="there is no queue 'q'"):
            engine.queue("q")
        with pytest.raises(qindex.UsageError, match="must be a str"):
            engine.queue(b"q")  # type: ignore[arg-type]
    with open_small(tmp_path) as writer:
        writer.queue("q")
        with pytest.raises(qindex.UsageError, match="at least 0"):
            qindex.open(tmp_path, read_only=True).queue("q").peek(-1)


def test_a_directory_of_a_node(caplog: pytest.LogCaptureFixture) -> None:
    store = golden("g1")
    with qindex.open(store.vhost_dir, read_only=True) as engine:
        assert "qg.prio" in engine.queue_names()
        queue = engine.queue("qg.exp")
        assert (len(queue), queue.stats().messages) == (20, 20)
        with caplog.at_level(logging.WARNING, "qindex.engine"):
            shown = list(queue)
    # Half of them are in the message store.
    assert len(shown) == 20
    # Not those of an engine's thread that another test has left.
    assert not [one for one in caplog.records if one.thread == threading.get_ident()]
    assert "314000000001" in {one.properties["expiration"] for one in shown}
    assert repr(queue) == "<ReadOnlyQueue 'qg.exp'>"
    assert repr(engine) == f"<ReadOnlyEngine {str(store.vhost_dir)!r}>"


def test_opened_with_a_variable(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    for read_only in (True, False):
        with qindex.open(tmp_path, read_only=read_only) as engine:
            assert isinstance(engine, ReadOnlyEngine) == read_only


@pytest.mark.parametrize("how", ["directory", "FIFO", "sparse"])
def test_something_else_in_the_place_of_the_transactions(tmp_path: Path, how: str) -> None:
    with open_small(tmp_path / "data") as writer:
        writer.queue("q").publish(b"x")
    place = tmp_path / "data" / layout.TRANSACTIONS
    FILES[how](place, Outside(tmp_path / "outside"))
    with qindex.open(tmp_path / "data", read_only=True) as engine:
        queue = engine.queue("q")
        for look in (queue.peek, queue.stats, queue.__len__, lambda: list(queue)):
            with pytest.raises(qindex.StorageError, match="can't be read") as raised:
                look()
            assert raised.value.path == str(place)
