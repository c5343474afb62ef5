"""Readers without a lock, and the messages that are in the message store."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import qindex
from journal.fs.files import PathLike
from qindex.view.reader import StoreReader
from tests.qindex.messages_support import PERSISTENT, SyncLog, big, rdq_files, stored
from tests.qindex.reader_support import LookingFileSystem, rows_of, tree
from tests.qindex.support import WAIT, copy_live


def bodies(store: Path, name: str = "q") -> list[bytes | None]:
    return [row.body for row in rows_of(store, name)]


def test_open_flushed_crashed_and_closed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with stored(store) as engine:
        queue = engine.queue("q")
        for number in range(30):
            queue.publish(big(number) if number % 3 else b"small", key=f"k{number}", ttl=1000)
        queue.flush()
        queue.publish(big(30))
        queue.ack_many(queue.get_many(10))
        expected = [big(n) if n % 3 else b"small" for n in range(10, 30)] + [big(30)]
        before = tree(store)
        rows = rows_of(store)
        assert [row.body for row in rows] == expected
        assert [row.key for row in rows] == [*(f"k{n}" for n in range(10, 30)), None]
        assert all(row.timestamp and row.error is None for row in rows)
        assert {row.location for row in rows} == {"segment", "store"}
        assert tree(store) == before
        crashed = copy_live(store, tmp_path / "crashed")
    assert bodies(crashed) == bodies(store) == expected


def test_read_only_engine(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.publish_to(["q", "other"], big(1), key="k", headers={"h": 1})
        engine.publish_to(["q"], b"small")
        engine.publish_to(["q"], big(2), persistent=False)
        with qindex.open(tmp_path, read_only=True) as looking:
            (first,) = looking.queue("other").peek(9)
            assert (first.body, first.key, first.headers) == (big(1), "k", {"h": 1})
            assert [one.body for one in looking.queue("q")] == [big(1), b"small", big(2)]
            assert looking.queue("q").findings == []


def test_a_store_without_stored_messages_pays_nothing(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("stored").publish_many([big(n) for n in range(20)])
        engine.queue("q").publish_many([b"small"] * 20)
    fs = SyncLog()
    reader = StoreReader(tmp_path, fs)
    assert len(list(reader.queue("q"))) == 20
    assert [one.bytes for one in reader.queues()] == [100, sum(len(big(n)) for n in range(20))]
    assert not [name for name in fs.opened if name.endswith(".rdq")]
    rows = iter(reader.queue("stored"))
    assert not [name for name in fs.opened if name.endswith(".rdq")]
    next(rows)
    assert [name for name in fs.opened if name.endswith(".rdq")]


def test_a_message_that_is_gone_is_told_and_shown_without_a_body(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("q").publish_many([big(n) for n in range(20)])
        engine.flush()
    files = rdq_files(tmp_path)
    data = files[1].read_bytes()
    gone = [n for n in range(20) if big(n) in data]
    files[1].unlink()
    for _ in range(2):
        reader = StoreReader(tmp_path, LookingFileSystem()).queue("q")
        rows = list(reader)
        assert [row.seq_id for row in rows if row.body is None] == gone
        assert [row.body for row in rows if row.body is not None] == [
            big(n) for n in range(20) if n not in gone
        ]
        assert len(reader.findings) == len(gone)
        for row, finding in zip((rows[n] for n in gone), reader.findings, strict=True):
            assert (row.location, row.size) == ("store", len(big(row.seq_id)))
            assert row.error is not None
            assert "not in the message store" in row.error
            assert row.error in finding.what
            assert finding.path.endswith(".idx")
    summary = StoreReader(tmp_path).message_store()
    assert summary is not None
    assert (summary.missing, summary.messages) == (len(gone), 20 - len(gone))
    assert summary.references == 20
    shutil.rmtree(tmp_path / PERSISTENT)
    assert [row.body for row in rows_of(tmp_path)] == [None] * 20
    assert StoreReader(tmp_path).message_store() is None


def test_a_flipped_bit_anywhere_costs_one_message_and_is_named(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("q").publish_many([big(n) for n in range(4)])
    (path,) = rdq_files(tmp_path)
    good = path.read_bytes()
    wanted = [big(n) for n in range(4)]
    for at in range(0, len(good), 23):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        reader = StoreReader(tmp_path).queue("q")
        rows = list(reader)
        assert [row.seq_id for row in rows] == [0, 1, 2, 3]
        lost = [row for row in rows if row.body is None]
        assert [row.body for row in rows if row.body is not None] == [
            body for row, body in zip(rows, wanted, strict=True) if row.body is not None
        ]
        assert len(lost) <= 1
        # The place is named: of the message, or of a frame around it that could be put right.
        told = [one.path for one in reader.findings] + [row.error or "" for row in lost]
        assert any(str(path) in one or "not in the message store" in one for one in told)
        path.write_bytes(good)
    assert bodies(tmp_path) == wanted


# -- beside a writer ------------------------------------------------------------------------------


class Pausing(LookingFileSystem):
    """A reader's file system on which something happens before the n-th open of an .rdq file."""

    def __init__(self, at: int, happens: object) -> None:
        super().__init__()
        self.count = 0
        real = self.open

        def open_(path: PathLike, flags: int, mode: int = 0o666, /) -> int:
            if str(path).endswith(".rdq"):
                self.count += 1
                if self.count == at:
                    assert callable(happens)
                    happens()
            return real(path, flags, mode)

        self.open = open_  # type: ignore[method-assign]


@pytest.mark.parametrize("at", range(1, 16))
def test_compaction_at_any_moment_of_a_look(tmp_path: Path, at: int) -> None:
    """Files are combined and deleted between the listing, the scan and the reading."""
    with stored(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([big(n) for n in range(40)])
        batch = queue.get_many(40)
        queue.ack_many([one for number, one in enumerate(batch) if number % 4])

        fs = Pausing(at, engine.compact)
        reader = StoreReader(tmp_path, fs).queue("q")
        assert [row.body for row in reader] == [big(n) for n in range(0, 40, 4)]
        assert reader.findings == []
        report = engine.compact()
        assert report is not None
        assert fs.count < at or report.files_written == 0


@pytest.mark.parametrize("at", range(1, 16))
def test_acks_at_any_moment_of_a_look(tmp_path: Path, at: int) -> None:
    """What is acknowledged and deleted meanwhile is left out without a word."""
    with stored(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([big(n) for n in range(40)])
        batch = queue.get_many(40)

        def acknowledge() -> None:
            queue.ack_many([one for number, one in enumerate(batch) if number % 4])
            engine.compact()

        reader = StoreReader(tmp_path, Pausing(at, acknowledge)).queue("q")
        found = [row.body for row in reader]
        assert set(found) >= {big(n) for n in range(0, 40, 4)}
        assert None not in found
        assert found == sorted(found, key=lambda body: int((body or b"").split()[0]))
        assert reader.findings == []


@contextmanager
def busy(engine: qindex.Engine, kept: list[bytes]) -> Iterator[None]:
    """Publish and acknowledge at full speed; the messages ``kept`` stay."""
    queue = engine.queue("q")
    for body in kept:
        queue.publish(body)
    held = queue.get_many(len(kept))
    assert len(held) == len(kept)
    stop = threading.Event()

    def work() -> None:
        number = 1000
        while not stop.is_set():
            queue.publish_many([big(number + n) for n in range(8)])
            queue.ack_many(queue.get_many(8))
            number += 8

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join(WAIT)
        assert not worker.is_alive()


@pytest.mark.timeout(120)
def test_looks_beside_a_busy_writer(tmp_path: Path) -> None:
    kept = [big(n) for n in range(30)]
    with stored(tmp_path, background=True, max_journal_entries=300, flush_idle=0.05) as engine:
        with busy(engine, kept):
            for _ in range(25):
                reader = StoreReader(tmp_path, LookingFileSystem()).queue("q")
                rows = list(reader)
                assert [row.error for row in rows if row.body is None] == []
                assert [row.body for row in rows[:30]] == kept
                assert reader.findings == []
        stats = engine.stats().message_store
        assert stats is not None
        assert stats.compaction.files_deleted > 20


def test_a_queue_that_is_deleted_during_a_look(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("q").publish_many([big(n) for n in range(40)])

        def delete() -> None:
            engine.delete_queue("q")
            engine.compact()

        reader = StoreReader(tmp_path, Pausing(14, delete)).queue("q")
        found = [row.body for row in reader]
        assert found == [big(n) for n in range(len(found))]
        assert reader.findings == []
