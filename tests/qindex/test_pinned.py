"""A moment of files that change: races made by hand, and a writer in another process."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest

import qindex
from journal.fs.files import REAL, RealFileSystem
from journal.locks.directory_lock import DirectoryLock
from qindex.format.plain_record import CHECK_END, CHECK_START
from qindex.recovery.delivery_rules import DirectoryRules
from qindex.recovery.point_in_time import BusyError, pin_queue
from qindex.view.reader import StoreReader
from tests.effort import by_tier
from tests.qindex.reader_support import open_small, queue_dir, writer_process
from tests.waiting import WAIT

READS = by_tier(quick=15, all=200, nightly=2000)

WRITER = """
import random, sys
import qindex
chance = random.Random(7)
engine = qindex.open(sys.argv[1], max_journal_entries=int(sys.argv[2]), flush_idle=0.01,
                     rest_idle=0.01, segment_entry_count=int(sys.argv[3]))
queue = engine.queue("q")
print("ready", flush=True)
number = 0
while True:
    for _ in range(chance.randrange(40)):
        key = f"k{number}" if chance.random() < 0.5 else None
        queue.publish(b"%d" % number * chance.randrange(1, 20), key=key)
        number += 1
    if chance.random() < 0.3:
        count = chance.randrange(1, 300)
        queue.publish_many([b"%d" % (number + at) for at in range(count)])
        number += count
    # About as many as come; 300 stay.
    batch = queue.get_many(max(1, len(queue) - 300))
    for delivery in batch[: len(batch) // 2]:
        queue.ack(delivery)
    queue.ack_many(batch[len(batch) // 2 :])
"""


RULES = DirectoryRules(16384)


@pytest.mark.parametrize(("journal", "segment"), [(300, 64), (4000, 512), (65536, 16384)])
def test_a_live_writer_is_read_again_and_again(tmp_path: Path, journal: int, segment: int) -> None:
    rows_seen = 0
    last_head = -1
    with writer_process(WRITER, tmp_path, journal, segment) as writer:
        reader = StoreReader(tmp_path)
        while next(iter(reader.queue("q")), None) is None:
            assert writer.poll() is None
        for _ in range(READS):
            queue = reader.queue("q")
            seqs = []
            for row in queue:
                assert row.error is None
                digits = b"%d" % row.seq_id
                assert row.body == digits * (len(row.body or b"") // len(digits))
                assert row.key in (None, f"k{row.seq_id}")
                seqs.append(row.seq_id)
            assert queue.findings == []
            assert seqs == sorted(set(seqs))
            if seqs:
                # What is left out was acknowledged meanwhile; the writer acknowledges in order.
                missing = set(range(seqs[0], seqs[-1])) - set(seqs)
                later = next(iter(queue), None)
                assert not missing or (later is not None and max(missing) < later.seq_id)
                assert seqs[0] >= last_head
                last_head = seqs[0]
            rows_seen += len(seqs)
        assert writer.poll() is None
    assert rows_seen > READS * by_tier(quick=10, all=100, nightly=100)


def test_list_beside_a_live_writer(tmp_path: Path) -> None:
    with writer_process(WRITER, tmp_path, 300, 64) as writer:
        reader = StoreReader(tmp_path)
        next_seq = 0
        for _ in range(50):
            (found,) = reader.queues()
            assert found.next_seq_id >= next_seq
            assert found.messages <= found.next_seq_id
            next_seq = found.next_seq_id
        assert writer.poll() is None


def test_a_segment_that_is_deleted_while_it_is_read_held_acknowledged_messages(
    tmp_path: Path,
) -> None:
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(b"%d" % n for n in range(200))
        queue.flush()
        reader = StoreReader(tmp_path).queue("q")
        rows = reader.entries()
        shown = [next(rows).body]
        queue.ack_many(queue.get_many(128))
        queue.flush()
        assert not (queue_dir(tmp_path) / "1.idx").exists()
        shown += [row.body for row in rows]
        assert shown == [b"%d" % n for n in range(200) if not 64 <= n < 128]
        assert reader.findings == []


def test_a_segment_that_came_again_under_its_number_is_another_one(tmp_path: Path) -> None:
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(b"%d" % n for n in range(70))
        queue.flush()
        reader = StoreReader(tmp_path).queue("q")
        rows = reader.entries()
        shown = [next(rows).body]
        queue.ack_many(queue.get_many(70))
        queue.flush()
        queue.publish_many(b"%d" % n for n in range(70, 100))
        queue.flush()
        assert (queue_dir(tmp_path) / "1.idx").exists()
        shown += [row.body for row in rows]
        assert shown == [b"%d" % n for n in range(64)]
        assert reader.findings == []


def test_a_publish_under_way_is_not_there_yet(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2"])
        third = queue.stats().journal_bytes
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    path = queue_dir(tmp_path / "copy") / "journal.jif"
    whole = path.read_bytes()
    at = third // 3 * 2
    unsealed = bytearray(whole)
    unsealed[at + CHECK_START : at + CHECK_END] = bytes(8)
    path.write_bytes(unsealed)

    def seal() -> None:
        sleep(0.01)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(whole[at:third])

    sealer = threading.Thread(target=seal)
    held = DirectoryLock(REAL, tmp_path / "copy" / "qindex.lock")  # as a writer has it
    reader = StoreReader(tmp_path / "copy").queue("q")
    sealer.start()
    first_look = [row.body for row in reader]
    sealer.join()
    held.release()
    assert first_look in ([b"0", b"1"], [b"0", b"1", b"2"])
    assert reader.findings == []
    assert [row.body for row in reader] == [b"0", b"1", b"2"]


def test_a_publish_that_was_killed_is_a_torn_tail(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2"])
        third = queue.stats().journal_bytes
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    path = queue_dir(tmp_path / "copy") / "journal.jif"
    at = third // 3 * 2
    unsealed = bytearray(path.read_bytes())
    unsealed[at + CHECK_START : at + CHECK_END] = bytes(8)
    path.write_bytes(unsealed)
    reader = StoreReader(tmp_path / "copy").queue("q")
    assert [row.body for row in reader] == [b"0", b"1"]
    assert [finding.offset for finding in reader.findings] == [at]
    with qindex.open(tmp_path / "copy") as engine:
        assert len(engine.queue("q")) == 2


class RestlessFileSystem(RealFileSystem):
    """Each time the directory is listed, one more segment is there."""

    def __init__(self, directory: Path) -> None:
        self._made = 0

        def listdir(path: os.PathLike[str] | str, /) -> list[str]:
            (directory / f"{self._made}.idx").write_bytes(b"")
            self._made += 1
            return os.listdir(path)

        self.listdir = listdir  # type: ignore[assignment]


def test_files_that_never_keep_still_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qindex.recovery.point_in_time._LONGEST_PAUSE", 0.0)
    with pytest.raises(BusyError, match="changed each of 200 times"):
        pin_queue(RestlessFileSystem(tmp_path), str(tmp_path), RULES)


def test_a_journal_that_was_emptied_meanwhile_is_read_anew(tmp_path: Path) -> None:
    """A flush between reading the journal and looking at it again."""
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(b"%d" % n for n in range(10))
        directory = queue_dir(tmp_path)
        flushed: list[bool] = []

        class FlushingFileSystem(RealFileSystem):
            def __init__(self) -> None:
                def pread(fd: int, length: int, offset: int, /) -> bytes:
                    data = os.pread(fd, length, offset)
                    if length > 4096 and not flushed:
                        flushed.append(True)
                        queue.flush()
                    return data

                self.pread = pread

        pinned = pin_queue(FlushingFileSystem(), str(directory), RULES)
        assert flushed
        assert len(pinned.reading.walk) == 0
        assert list(pinned.segments) == [0]
        queue.ack_many(queue.get_many(10))


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pin_queue(RealFileSystem(), str(tmp_path / "gone"), RULES)


def test_damage_is_told_within_a_moment(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as engine:
        engine.queue("q").publish_many([random.Random(1).randbytes(300)] * 50)
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    path = queue_dir(tmp_path / "copy") / "journal.jif"
    data = bytearray(path.read_bytes())
    data[5000:5300] = random.Random(2).randbytes(300)
    path.write_bytes(data)
    started = monotonic()
    reader = StoreReader(tmp_path / "copy").queue("q")
    assert 46 <= len(list(reader)) <= 49
    assert reader.findings
    assert monotonic() - started < WAIT / 2


@pytest.mark.parametrize(("body", "size"), [(100, -25), (500, 4096), (1000, 4096)])
def test_a_segment_that_was_pinned_in_the_middle_of_a_write(
    tmp_path: Path, body: int, size: int
) -> None:
    """The flush goes on, and writes the checksums: the torn record is none of a crash. A large
    write shows page by page."""
    with open_small(tmp_path) as engine:
        engine.queue("q").publish_many([b"%d" % number * body for number in range(9)])
        engine.flush()
    path = queue_dir(tmp_path) / "0.idx"
    data = path.read_bytes()
    path.write_bytes(data[:size])
    store = StoreReader(tmp_path)
    view = store.pin(store.directories()[0])
    path.write_bytes(data)
    seqs = [row.seq_id for row in view.rows()]
    assert seqs == list(range(len(seqs)))
    assert len(seqs) == (len(data) + size if size < 0 else size) // (len(data) // 9)
    assert not view.findings
