"""When a flush comes, what it writes, what it deletes, and what becomes of it when it fails."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from journal.block_sums import extent
from qindex.engine.opening import open_store
from tests.faulty_fs import FaultyFileSystem
from tests.memory_fs import MemoryFileSystem
from tests.qindex.support import (
    WAIT,
    CountingFileSystem,
    GateFileSystem,
    copy_live,
    drain,
    open_quietly,
    queue_directory,
)


def until(condition: Callable[[], object]) -> None:
    """Wait, generously, until other threads have made ``condition`` true."""
    pause = threading.Event()
    for _ in range(int(WAIT / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it never came to that")


def segment_files(store: Path, name: str = "q") -> list[str]:
    return sorted(path.name for path in queue_directory(store, name).glob("*.idx"))


# -- when ---------------------------------------------------------------------------------------


def test_an_idle_queue_is_flushed(tmp_path: Path) -> None:
    with qindex.open(tmp_path, flush_idle=0.02) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        until(lambda: queue.stats().flushes)
        assert queue.stats().journal_entries == 0
        assert segment_files(tmp_path) == ["0.idx"]


def test_a_drained_queue_gives_its_disk_back_with_no_call_made(tmp_path: Path) -> None:
    with qindex.open(tmp_path, flush_idle=0.02) as engine:
        queue = engine.queue("q")
        for _ in range(4):
            queue.publish_many([bytes(1000)] * 1000)
        queue.flush()
        assert queue.stats().segment_bytes > 4_000_000
        drain(queue)
        until(lambda: queue.stats().segment_bytes == 0)
        until(lambda: queue.stats().journal_entries == 0)
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 100_000


@pytest.mark.parametrize(
    "action", ["publish", "publish_many", "headers", "get", "get_many", "ack", "ack_many", "drop"]
)
def test_a_full_journal_is_flushed(tmp_path: Path, action: str) -> None:
    """Whatever fills it: the dirty_count stays near ``max_journal_entries``."""
    most = 40
    with open_quietly(tmp_path, max_journal_entries=most, segment_entry_count=64) as engine:
        queue = engine.queue("q")
        if action == "publish":
            for _ in range(200):
                queue.publish(b"x")
                assert queue.stats().journal_entries <= most
        elif action == "headers":
            for _ in range(200):
                queue.publish(b"x", headers={"a": 1})
                assert queue.stats().journal_entries <= most
        elif action == "publish_many":
            for _ in range(20):
                queue.publish_many([b"x"] * 10)
                assert queue.stats().journal_entries <= most
        else:
            flushes = queue.stats().flushes
            ttl = 0.0 if action == "drop" else None
            queue.publish_many([b"x"] * 5000, ttl=ttl)
            if action != "drop":  # the timer drops them, perhaps at once
                queue.flush()
                flushes = queue.stats().flushes
            if action == "get":
                for _ in range(5000):
                    assert queue.get(0) is not None
            elif action == "get_many":
                for _ in range(50):
                    queue.get_many(100)
                    assert queue.stats().journal_entries <= most
            elif action == "ack":
                for _ in range(200):
                    delivery = queue.get(0)
                    assert delivery is not None
                    delivery.ack()
                    assert queue.stats().journal_entries <= most
            elif action == "ack_many":
                for _ in range(20):
                    queue.ack_many(queue.get_many(10))
                    assert queue.stats().journal_entries <= most
            else:
                until(lambda: len(queue) == 0 and queue.stats().journal_entries <= most)
            assert queue.stats().flushes > flushes


def test_a_full_journal_is_flushed_in_the_background(tmp_path: Path) -> None:
    with qindex.open(tmp_path, max_journal_entries=40, flush_idle=1e6) as engine:
        queue = engine.queue("q")
        for _ in range(41):
            queue.publish(b"x")
        until(lambda: queue.stats().flushes)


def test_publishers_wait_when_the_journal_grows_too_long(tmp_path: Path) -> None:
    """A flush that takes its time holds back those who fill the journal, and lets them go."""
    go_on, held = threading.Event(), threading.Event()

    def before(operation: str, what: object) -> None:
        if operation == "open" and str(what).endswith(".idx"):
            held.set()
            assert go_on.wait(WAIT)

    fs = GateFileSystem(before)
    with open_store(tmp_path, fs=fs, max_journal_entries=10, flush_idle=1e6) as engine:
        queue = engine.queue("q")
        for _ in range(11):
            queue.publish(b"x")
        assert held.wait(WAIT)
        publisher = threading.Thread(target=lambda: [queue.publish(b"y") for _ in range(500)])
        publisher.start()
        until(lambda: queue._parts.flusher.unflushed()[0] > 160)
        assert queue._parts.flusher.unflushed()[0] <= 162
        go_on.set()
        publisher.join(WAIT)
        assert not publisher.is_alive()
        assert len(queue) == 511


def test_the_memory_budget_flushes_the_queue_that_holds_most(tmp_path: Path) -> None:
    with qindex.open(tmp_path, memory_budget=1 << 16, flush_idle=0.2) as engine:
        small, large = engine.queue("small"), engine.queue("large")
        stop = threading.Event()

        def keep_busy() -> None:
            while not stop.is_set():
                small.publish(b"x")
                drain(small)
                large.publish(bytes(2000))
                stop.wait(0.001)

        worker = threading.Thread(target=keep_busy)
        worker.start()
        try:
            until(lambda: large.stats().flushes)
        finally:
            stop.set()
            worker.join(WAIT)


def test_a_busy_queue_does_not_keep_the_others_from_being_flushed(tmp_path: Path) -> None:
    with qindex.open(tmp_path, max_journal_entries=10, flush_idle=0.05) as engine:
        busy, idle = engine.queue("busy"), engine.queue("idle")
        idle.publish(b"x")
        stop = threading.Event()

        def keep_busy() -> None:
            while not stop.is_set():
                busy.publish(b"x")
                drain(busy)

        worker = threading.Thread(target=keep_busy)
        worker.start()
        try:
            until(lambda: idle.stats().flushes)
        finally:
            stop.set()
            worker.join(WAIT)
        assert busy.stats().flushes > 0


# -- what ---------------------------------------------------------------------------------------


def test_what_came_and_went_within_one_journal_reaches_no_segment(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 20)
        drain(queue)
        queue.flush()
        assert segment_files(tmp_path) == []
        assert queue.stats().flushed_bytes == 0
        queue.publish_many([b"keep", b"go", b"keep"])
        batch = queue.get_many(3)
        batch[1].ack()
        queue.flush()
        assert segment_files(tmp_path) == ["2.idx"]
        content = (queue_directory(tmp_path, "q") / "2.idx").read_bytes()
        assert (content.count(b"keep"), content.count(b"go")) == (2, 0)


def test_each_segment_that_is_all_acknowledged_is_deleted(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % at for at in range(32)])
        queue.flush()
        assert segment_files(tmp_path) == ["0.idx", "1.idx", "2.idx", "3.idx"]
        batch = queue.get_many(32)
        queue.ack_many(batch[:8] + batch[9:24])
        queue.flush()
        assert segment_files(tmp_path) == ["1.idx", "3.idx"]
        queue.ack_many([batch[8]])
        queue.flush()
        assert segment_files(tmp_path) == ["3.idx"]
        queue.ack_many(batch[24:])
        queue.flush()
        assert segment_files(tmp_path) == []
        assert [path.name for path in queue_directory(tmp_path, "q").glob("*.sum")] in (
            [],
            ["journal.jif.sum"],
        )


def test_the_names_of_new_and_of_deleted_segments_are_made_durable(tmp_path: Path) -> None:
    """Else a loss of power could bring acknowledged messages back with a deleted file."""
    fs = CountingFileSystem()
    with open_quietly(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 8)
        before = fs.calls["sync_dir"]
        queue._parts.flusher.flush_now()
        assert fs.calls["sync_dir"] == before + 1
        drain(queue)
        queue._parts.flusher.flush_now()
        assert segment_files(tmp_path) == []
        assert fs.calls["sync_dir"] == before + 2
        queue.publish_many([b"x"] * 8)
        queue.flush()
    with open_quietly(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        before = fs.calls["sync_dir"]
        assert queue.purge() == 8
        assert (queue.stats().dropped, queue.stats().journal_entries) == (8, 0)
        assert fs.calls["sync_dir"] > before


def test_nothing_to_flush(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.flush()
        engine.flush()
        assert queue.stats().flushes == 0


def test_what_is_published_during_a_flush_stays_in_the_journal(tmp_path: Path) -> None:
    during: list[Callable[[], object]] = []

    def before(operation: str, what: object) -> None:
        if operation == "open" and str(what).endswith(".idx") and during:
            during.pop()()

    fs = GateFileSystem(before)
    store = tmp_path / "store"
    engine = open_quietly(store, fs=fs)
    queue = engine.queue("q")
    queue.publish_many([b"%d" % at for at in range(6)])
    first = queue.get_many(2)

    def meanwhile() -> None:
        queue.ack_many(first)
        queue.publish(b"6")
        queue.get_many(1)
        queue.publish(b"7", key="k")

    during.append(meanwhile)
    queue.flush()
    assert queue.stats().journal_entries == 5
    with open_quietly(copy_live(store, tmp_path / "copy")) as copied:
        assert drain(copied.queue("q")) == [(at, b"%d" % at, at == 2) for at in range(2, 8)]
    assert [seq for seq, _, _ in drain(queue)] == [3, 4, 5, 6, 7]
    engine.close()


@pytest.mark.interpreted  # the journal's store is replaced
def test_a_record_that_is_being_completed_is_not_copied_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish stores its record's start last; a flush that copies the journal's tail meanwhile
    must not take the record without it."""
    flushing, storing, may_flush, may_store = (threading.Event() for _ in range(4))
    written, copying = threading.Event(), threading.Event()

    def before(operation: str, what: object) -> None:
        if operation == "open" and str(what).endswith(".idx"):
            flushing.set()
            assert may_flush.wait(WAIT)
        if operation == "sync_dir" and flushing.is_set():
            written.set()
        if operation == "open" and str(what).endswith("journal.jif.new"):
            copying.set()

    def slowly(data: bytes | memoryview) -> int:
        done = write(data)
        storing.set()
        assert may_store.wait(WAIT)
        return done

    store = tmp_path / "store"
    engine = open_quietly(store, fs=GateFileSystem(before))
    queue = engine.queue("q")
    queue.publish(b"before")
    flusher = threading.Thread(target=queue.flush)
    flusher.start()
    assert flushing.wait(WAIT)
    journal = queue._parts.state.index.journal
    write = journal.store
    monkeypatch.setattr(journal, "store", slowly)
    publisher = threading.Thread(target=queue.publish, args=(b"whole in the end",))
    publisher.start()
    assert storing.wait(WAIT)
    may_flush.set()
    assert written.wait(WAIT)
    if copying.wait(0.2):  # a flush that does not wait for the publish is copying by now
        threading.Event().wait(0.2)
    may_store.set()
    for thread in (flusher, publisher):
        thread.join(WAIT)
        assert not thread.is_alive()
    with open_quietly(copy_live(store, tmp_path / "copy")) as copied:
        assert [body for _, body, _ in drain(copied.queue("q"))] == [
            b"before",
            b"whole in the end",
        ]
    assert [body for _, body, _ in drain(queue)] == [b"before", b"whole in the end"]
    engine.close()


# -- when it fails ------------------------------------------------------------------------------


FLUSH_OPERATIONS = ["open", "write", "pwrite", "fdatasync", "unlink", "sync_dir", "fallocate"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("after", range(5))
@pytest.mark.parametrize("operation", FLUSH_OPERATIONS)
def test_a_flush_that_fails_loses_nothing(
    tmp_path: Path, operation: str, after: int, error: int
) -> None:
    """Full disk: tried again, it succeeds, and writing goes on; another error may refuse
    writes; reading goes on and a copy of the directory has everything, in both."""
    fs = FaultyFileSystem()
    store = tmp_path / "store"
    engine = open_quietly(store, fs=fs)
    queue = engine.queue("q")
    queue.publish_many([b"%d" % at for at in range(40)])
    queue.flush()
    taken = queue.get_many(30)
    queue.ack_many(taken[:9] + taken[12:25])
    queue.publish_many([b"%d" % at for at in range(40, 45)])
    expected = [seq for seq in range(45) if seq in (9, 10, 11) or seq >= 25]
    fs.fail(operation, error, after=after, short=3 if operation == "write" else None)
    failed = False
    try:
        queue.flush()
    except (qindex.StorageError, qindex.WritesRefusedError):
        failed = True
    fs.heal()
    with open_quietly(copy_live(store, tmp_path / "copy")) as copied:
        assert all(one.cause is qindex.Cause.CRASH for one in copied.findings)
        assert [seq for seq, _, _ in drain(copied.queue("q"))] == expected
    assert [one.body for one in queue.peek(99)] == [b"%d" % seq for seq in range(30, 45)]
    refused = engine.stats().writes_refused
    assert failed or refused is None
    if failed and error == errno.ENOSPC and operation in ("write", "open"):
        assert refused is None
    if refused is None:
        queue.flush()
        assert queue.publish(b"45") == 45
        assert [seq for seq, _, _ in drain(queue)] == list(range(30, 46))
        expected = [9, 10, 11, 25, 26, 27, 28, 29]
    engine.close()
    with open_quietly(store) as again:
        assert [seq for seq, _, _ in drain(again.queue("q"))] == expected


@pytest.mark.parametrize("operation", ["fallocate", "mmap"])
def test_no_room_for_the_emptied_journal(tmp_path: Path, operation: str) -> None:
    """The worst moment: the journal is empty by then. What is published must not be lost."""
    fs = FaultyFileSystem()
    engine = open_quietly(tmp_path, fs=fs)
    queue = engine.queue("q")
    queue.publish_many([b"0", b"1"])
    fs.fail(operation, errno.EIO, after=1)  # the first is for the checksums
    with pytest.raises(qindex.WritesRefusedError):
        queue.flush()
    with pytest.raises(qindex.WritesRefusedError):
        queue.publish(b"2")
    assert [one.body for one in queue.peek(5)] == [b"0", b"1"]
    engine.close()
    with open_quietly(tmp_path) as again:
        assert drain(again.queue("q")) == [(0, b"0", False), (1, b"1", False)]


def test_a_full_disk_when_the_journal_was_emptied(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    engine = open_quietly(tmp_path, fs=fs)
    queue = engine.queue("q")
    queue.publish_many([b"0", b"1"])
    fs.fail("fallocate", errno.ENOSPC, times=None)
    queue.flush()
    with pytest.raises(qindex.StorageError, match="can't grow"):
        queue.publish(b"2")
    with pytest.raises(qindex.StorageError, match="can't grow"):
        queue.get(0)
    fs.heal()
    assert queue.publish(b"2") == 2
    assert [body for _, body, _ in drain(queue)] == [b"0", b"1", b"2"]
    engine.close()
    with open_quietly(tmp_path) as again:
        assert drain(again.queue("q")) == []


def test_a_failing_flush_of_a_full_journal_is_tried_again(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_quietly(tmp_path, fs=fs, max_journal_entries=10) as engine:
        queue = engine.queue("q")
        fs.fail("write", errno.ENOSPC, times=3, path=".idx")
        for at in range(60):
            assert queue.publish(b"x") == at
        assert queue.stats().flushes >= 1
        assert fs.calls["truncate"] <= 10, "a flush that fails is not tried at each call"
        assert len(drain(queue)) == 60


def test_a_failing_flush_in_the_background_is_tried_again(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_store(tmp_path, fs=fs, flush_idle=0.02) as engine:
        queue = engine.queue("q")
        fs.fail("write", errno.ENOSPC, times=3, path=".idx")
        queue.publish(b"x")
        until(lambda: queue.stats().flushes)
        assert len(drain(queue)) == 1


def test_deliveries_that_wrote_nothing_are_flushed_too(tmp_path: Path) -> None:
    """They count as actions; counted for ever, they would have each call try a flush."""
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 5)
        queue.get_many(5)
        queue.flush()
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        assert all(one.redelivered for one in queue.get_many(5))
        assert (queue.stats().journal_entries, queue.stats().journal_bytes) == (5, 0)
        queue.flush()
        assert queue.stats().journal_entries == 0


def test_checksums_of_a_file_that_did_not_outlive_a_loss_of_power() -> None:
    """They stayed, the segment file did not; what is written in its place differs by one bit."""
    memory = MemoryFileSystem(boot=b"one boot")
    engine = open_store("/s", fs=memory, background=False)
    queue = engine.queue("q")
    queue.publish_many([b"a", b"b"])
    queue.sync()
    files, directories = memory.contents()
    queue.flush()
    flushed, _ = memory.contents()
    (path,) = (path for path in flushed if path.endswith("0.idx"))
    other = bytearray(flushed[path])
    other[20] ^= 1
    files[path + ".sum"] = extent(bytes(other), 0)
    left = MemoryFileSystem(files, directories, boot=b"another boot")
    again = open_store("/s", fs=left, background=False)
    again.queue("q").flush()
    left.forget_descriptors()
    with open_store("/s", fs=left, background=False) as last:
        assert [each.body for each in last.queue("q").get_many(10)] == [b"a", b"b"]
        assert last.findings == []
