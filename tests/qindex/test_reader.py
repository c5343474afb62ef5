"""The read-only view of our own stores: open, closed, crashed, damaged."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from journal.errors import NotAStoreError, StorageError, UsageError
from journal.findings import Cause
from journal.fs.files import PathLike, RealFileSystem
from qindex.view.reader import StoreReader
from tests.qindex.reader_support import LookingFileSystem, open_small, queue_dir, rows_of, tree


def bodies(store: Path, name: str = "q") -> list[bytes | None]:
    return [row.body for row in rows_of(store, name)]


def test_all_fields(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"plain")
        queue.publish(
            b"rich",
            key="o-1",
            headers={"a": [1, b"x"]},
            properties={"p": 2},
            ttl=60,
            persistent=False,
        )
        delivery = queue.get()
        assert delivery is not None
        first, second = rows_of(tmp_path)
        timestamp = delivery.timestamp
    assert (first.seq_id, first.body, first.size, first.key) == (0, b"plain", 5, None)
    assert (first.persistent, first.redelivered, first.expiry) == (True, True, 0)
    assert (first.headers, first.properties, first.error) == ({}, {}, None)
    assert first.location == "journal"
    assert first.timestamp == timestamp
    assert len(first.msg_id) == 16
    assert first.msg_id != second.msg_id
    assert (second.body, second.key, second.headers) == (b"rich", "o-1", {"a": [1, b"x"]})
    assert (second.properties, second.persistent, second.redelivered) == ({"p": 2}, False, False)
    assert second.expiry > first.timestamp // 1000 + 59_000_000


def test_open_flushed_closed_and_crashed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    expected = [b"%d" % n for n in range(50, 300)]
    with open_small(store) as engine:
        queue = engine.queue("q")
        queue.publish_many(b"%d" % n for n in range(200))
        queue.ack_many(queue.get_many(40))
        engine.flush()
        queue.ack_many(queue.get_many(10))
        queue.publish_many(b"%d" % n for n in range(200, 300))
        assert bodies(store) == expected
        assert {row.location for row in rows_of(store)} == {"journal", "segment"}
        shutil.copytree(store, tmp_path / "crashed")
    assert bodies(tmp_path / "crashed") == expected
    assert bodies(store) == expected
    assert {row.location for row in rows_of(store)} == {"journal", "segment"}
    with open_small(store) as engine:
        engine.queue("q").flush()
    assert bodies(store) == expected
    assert {row.location for row in rows_of(store)} == {"segment"}


def test_nothing_is_touched(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        engine.queue("q").publish_many([b"x"] * 100)
        before = tree(tmp_path)
        reader = StoreReader(tmp_path, LookingFileSystem())
        assert [one.ready for one in reader.queues()] == [100]
        assert len(list(reader.queue("q"))) == 100
        assert tree(tmp_path) == before


def test_summary(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"12345"] * 100)
        queue.ack_many(queue.get_many(10))
        queue.get_many(20)
        queue.publish(b"gone", ttl=0)
        found = StoreReader(tmp_path).queue("q").summary()
        assert (found.name, found.messages, found.delivered_before) == ("q", 90, 20)
        assert (found.bytes, found.segments, found.next_seq_id) == (450, 0, 101)
        assert found.journal_entries == 101 + 30 + 10
        assert found.file_bytes == (queue_dir(tmp_path) / "journal.jif").stat().st_size
    closed = StoreReader(tmp_path).queue("q").summary()
    assert (closed.messages, closed.delivered_before, closed.next_seq_id) == (90, 20, 101)
    assert (closed.journal_entries, closed.segments) == (141, 0)
    with open_small(tmp_path) as engine:
        engine.queue("q").flush()
    closed = StoreReader(tmp_path).queue("q").summary()
    assert (closed.messages, closed.delivered_before, closed.next_seq_id) == (90, 20, 101)
    assert (closed.journal_entries, closed.segments) == (0, 2)


def test_next_seq_id_of_an_empty_queue(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b""] * 10)
        queue.ack_many(queue.get_many(10))
        queue.flush()
        assert StoreReader(tmp_path).queue("q").summary().next_seq_id == 10
    assert StoreReader(tmp_path).queue("q").summary().next_seq_id == 10
    (tmp_path / "qindex.clean").unlink()
    assert StoreReader(tmp_path).queue("q").summary().next_seq_id == 10


def test_requeued_messages_come_in_their_place(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2"])
        first = queue.get()
        assert first is not None
        queue.nack(first)
        assert [(row.seq_id, row.redelivered) for row in rows_of(tmp_path)] == [
            (0, True),
            (1, False),
            (2, False),
        ]


def test_queue_names(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        for name in ("b", "a", "ü"):
            engine.queue(name).publish(name.encode())
        reader = StoreReader(tmp_path)
        assert reader.queue_names() == ["a", "b", "ü"]
        assert bodies(tmp_path, "ü") == ["ü".encode()]
        held = reader.queue("a")
        engine.delete_queue("a")
        assert reader.queue_names() == ["b", "ü"]
        with pytest.raises(UsageError, match="queue 'a' is gone"):
            held.summary()
        assert held.summary_if_there() is None
        with pytest.raises(UsageError, match="there is no queue 'a'"):
            reader.queue("a")


def test_a_queue_whose_name_is_lost_goes_by_its_directory_s(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        engine.queue("q").publish(b"x")
    directory = queue_dir(tmp_path)
    (directory / ".queue_name").write_bytes(b"VHOST: /\nQUEUE: other\n")
    reader = StoreReader(tmp_path)
    assert reader.queue_names() == [directory.name]
    assert [finding.path for finding in reader.findings] == [str(directory / ".queue_name")]
    assert [row.body for row in reader.queue(directory.name)] == [b"x"]
    assert bodies(tmp_path, "q") == [b"x"]
    (directory / ".queue_name").unlink()
    assert StoreReader(tmp_path).queue_names() == [directory.name]


def test_leavings_are_no_queues(tmp_path: Path) -> None:
    with open_small(tmp_path):
        queues = tmp_path / "queues"
        (queues / "HALF").mkdir()
        (queues / "HALF" / ".queue_name.tmp").write_bytes(b"VH")
        (queues / "GONE.deleted").mkdir()
        (queues / "a file").write_bytes(b"")
        assert StoreReader(tmp_path).queue_names() == []


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thing").write_bytes(b"")
    with pytest.raises(NotAStoreError, match="is a file"):
        StoreReader(tmp_path / "file")
    with pytest.raises(NotAStoreError, match="no such directory"):
        StoreReader(tmp_path / "missing")
    with pytest.raises(NotAStoreError, match="neither a qindex store nor a RabbitMQ"):
        StoreReader(tmp_path / "other")


def test_a_store_without_its_queues_directory_is_empty(tmp_path: Path) -> None:
    with open_small(tmp_path):
        pass
    (tmp_path / "queues").rmdir()
    assert StoreReader(tmp_path).queues() == []


class FailingFileSystem(RealFileSystem):
    """Fails to open one file."""

    def __init__(self, name: str, number: int) -> None:
        def fail(path: PathLike, flags: int, mode: int = 0o666, /) -> int:
            if os.fspath(path).endswith(name) and self.armed:
                raise OSError(number, os.strerror(number), path)
            return os.open(path, flags, mode)

        self.armed = True
        self.open = fail  # type: ignore[method-assign]


def test_a_segment_that_can_t_be_read_costs_its_messages_alone(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(b"%d" % n for n in range(200))
        queue.flush()
        queue.publish_many(b"%d" % n for n in range(200, 210))
        queue.ack_many(queue.get_many(70))
        fs = FailingFileSystem("/1.idx", errno.EIO)
        fs.armed = False
        reader = StoreReader(tmp_path, fs).queue("q")
        assert next(reader.entries()).body == b"70"
        fs.armed = True
        shown = [row.body for row in reader.entries()]
    assert shown == [b"%d" % n for n in range(128, 210)]
    (finding,) = reader.findings
    assert (finding.path, finding.cause) == (str(queue_dir(tmp_path) / "1.idx"), Cause.DAMAGE)


def test_an_unreadable_segment_after_the_pin_is_a_finding(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(b"%d" % n for n in range(200))
        queue.flush()
        queue.ack_many(queue.get_many(2))
        fs = FailingFileSystem("/1.idx", errno.EIO)
        fs.armed = False
        reader = StoreReader(tmp_path, fs).queue("q")
        entries = reader.entries()
        shown = [next(entries).body]
        fs.armed = True
        shown += [row.body for row in entries]
    assert shown == [b"%d" % n for n in range(2, 200) if not 64 <= n < 128]
    (finding,) = reader.findings
    assert (finding.path, finding.cause) == (str(queue_dir(tmp_path) / "1.idx"), Cause.DAMAGE)
    assert "can't be read" in finding.what


def test_no_permission_is_an_error_of_ours(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    with pytest.raises(StorageError, match="the store can't be read"):
        StoreReader(tmp_path, FailingFileSystem("qindex.store", errno.EACCES))


def test_one_flipped_bit_costs_at_most_one_message_and_is_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_small(store) as engine:
        queue = engine.queue("q")
        for n in range(150):
            queue.publish(b"body %d" % n, key=f"k{n}" if n % 3 else None)
        queue.ack_many(queue.get_many(5))
        queue.flush()
        queue.publish_many(b"body %d" % n for n in range(150, 200))
        queue.ack_many(queue.get_many(5))
        shutil.copytree(store, tmp_path / "copy")
    directory = queue_dir(tmp_path / "copy")
    whole = rows_of(tmp_path / "copy")
    assert len(whole) == 190
    known = {(row.seq_id, row.body) for row in whole}
    acknowledged = {(n, b"body %d" % n) for n in range(10)}
    flips = 0
    for name in ("0.idx", "1.idx", "journal.jif"):
        path = directory / name
        good = path.read_bytes()
        used = len(good.rstrip(b"\0"))
        for at in range(7, used, used // 30):
            bad = bytearray(good)
            bad[at] ^= 1 << at % 8
            path.write_bytes(bad)
            reader = StoreReader(tmp_path / "copy").queue("q")
            rows = list(reader)
            shown = {(row.seq_id, row.body) for row in rows}
            assert shown <= known | acknowledged
            assert len(known - shown) <= 1
            assert [row.seq_id for row in rows] == sorted(row.seq_id for row in rows)
            if shown != known:
                assert {finding.path for finding in reader.findings} == {str(path)}
            flips += 1
        path.write_bytes(good)
    assert flips >= 90
    assert rows_of(tmp_path / "copy") == whole


@pytest.mark.parametrize("cut", range(0, 130, 7))
def test_a_journal_cut_anywhere_keeps_what_is_before(tmp_path: Path, cut: int) -> None:
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0" * 20, b"1" * 20, b"2" * 20])
        end = queue.stats().journal_bytes
        shutil.copytree(tmp_path, tmp_path / "copy")
    path = queue_dir(tmp_path / "copy") / "journal.jif"
    data = path.read_bytes()[: end - cut]
    path.write_bytes(data)
    length = end // 3
    whole = len(data) // length
    reader = StoreReader(tmp_path / "copy").queue("q")
    assert [row.body for row in reader] == [b"0" * 20, b"1" * 20, b"2" * 20][:whole]
    torn = [finding.offset for finding in reader.findings]
    assert torn in ([], [whole * length])
    assert bool(torn) == any(data[whole * length :])
