"""Full disks, I/O errors, failing syncs: clear errors, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from unittest.mock import patch

import pytest

from journal.errors import StorageError, StoreError, WritesRefusedError
from rocketstore import Store
from rocketstore.verify import verify
from tests.effort import by_tier, part
from tests.faulty_fs import FaultyFileSystem
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.support import Clock, open_tiny
from tests.waiting import WAIT


def put_until_it_fails(store: Store, most: int = 400) -> tuple[list[int], StoreError | None]:
    """Offsets of the puts that returned, and what stopped them."""
    done: list[int] = []
    for number in range(most):
        try:
            done.append(store.put("T", b"x" * 100, keys=f"k{number}").offset)
        except StoreError as error:
            return done, error
    return done, None


def check_kept(root: Path, offsets: list[int], *, exactly: bool = True, **options: Any) -> None:
    with open_tiny(root, **options) as store:
        bodies = [message.body for message in store.messages("T", 0)]
        assert bodies == [b"x" * 100] * len(bodies)
        if exactly:
            assert len(bodies) == len(offsets)
        for number, offset in enumerate(offsets):
            assert [hit.offset for hit in store.query("T", f"k{number}")] == [offset]


def test_disk_full_at_a_new_log_file(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    store = open_tiny(tmp_path / "s", fs=fs)
    fs.fail("fallocate", errno.ENOSPC, after=1, times=2, path="commitlog")
    done, error = put_until_it_fails(store)
    assert isinstance(error, StorageError)
    assert error.errno == errno.ENOSPC
    assert len(store.get("T", 0, 0).messages) > 0
    with pytest.raises(StorageError):
        store.put("T", b"y")
    # There is room again: the store goes on as if nothing had happened.
    number = len(done)
    done.append(store.put("T", b"x" * 100, keys=f"k{number}").offset)
    store.close()
    check_kept(tmp_path / "s", done)


@pytest.mark.parametrize(
    ("operation", "path"),
    [("pwrite", "consumequeue"), ("open", "consumequeue"), ("truncate", "index"),
     ("fallocate", "index"), ("mkdir", "consumequeue")],
)  # fmt: skip
def test_queues_or_index_can_not_be_written(operation: str, path: str, tmp_path: Path) -> None:
    """The log has the messages: nothing is lost, but writing stops, and open repairs."""
    fs = FaultyFileSystem()
    store = open_tiny(tmp_path / "s", fs=fs)
    fs.fail(operation, errno.EIO, times=None, path=f"s/{path}")
    first = store.put("T", b"x" * 100, keys="k0")
    with pytest.raises(StorageError, match=path):
        store.get("T", 0, 0)
    with pytest.raises(WritesRefusedError):
        store.put("T", b"y")
    with pytest.raises(StorageError, match=path):
        store.query("T", "k0")
    found = store.lookup(first.offset)
    assert found is not None
    store.close()
    assert (tmp_path / "s" / "abort").exists()
    check_kept(tmp_path / "s", [first.offset])


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize(
    ("operation", "path", "after"),
    [("pwrite", "consumequeue", 0), ("pwrite", "consumequeue", 2), ("truncate", "consumequeue", 0),
     ("truncate", "index", 0), ("fallocate", "index", 0), ("fallocate", "index", 1)],
)  # fmt: skip
def test_no_room_for_queues_or_index(
    operation: str, path: str, after: int, batches: bool, tmp_path: Path
) -> None:
    """The put that met it fails, what the queues have is read, and all go on when there is room."""
    fs = FaultyFileSystem()
    # A dispatch meets several files of queue and index.
    sizes: dict[str, Any] = {"consumequeue_file_size": 80, "index_entries": 7, "index_slots": 5}
    store = open_tiny(tmp_path / "s", fs=fs, **sizes)
    done = [store.put("T", b"x" * 100, keys="k0").offset]
    assert len(store.get("T", 0, 0).messages) == 1

    def put(count: int) -> None:
        keys = [f"k{len(done) + number}" for number in range(count)]
        if batches:
            done.extend(store.put_many("T", [b"x" * 100] * count, keys=keys).offsets)
        else:
            done.extend(store.put("T", b"x" * 100, keys=key).offset for key in keys)

    fs.fail(operation, errno.ENOSPC, after=after, times=None, path=f"s/{path}")
    put(19)
    for _ in range(2):
        assert len(store.get("T", 0, 0).messages) >= 1
        asks: list[Callable[[], object]] = [
            lambda: store.query("T", "k19"), store.queues, store.checkpoint,
            lambda: store.put("T", b"y"), lambda: store.put_many("T", [b"y"]),
        ]  # fmt: skip
        if path == "consumequeue":
            asks += [lambda: store.get("T", 0, 19), lambda: store.at("T", 0, 19)]
            asks.append(lambda: list(store.messages("T", 0)))
        for ask in asks:
            with pytest.raises(StorageError) as caught:
                ask()
            assert caught.value.errno == errno.ENOSPC
    fs.heal()
    put(3)
    assert [message.offset for message in store.messages("T", 0)] == done
    assert [store.query("T", f"k{number}")[0].offset for number in range(23)] == done
    store.close()
    assert verify(tmp_path / "s") == []
    check_kept(tmp_path / "s", done, **sizes)


def test_background_work_waits_for_room(tmp_path: Path) -> None:
    """A delayed message that is due, a checkpoint and a table, when the disk is full."""
    fs, clock = FaultyFileSystem(), Clock()
    store = open_tiny(
        tmp_path / "s", fs=fs, clock=clock, background=True,
        flush_interval=0.001, checkpoint_interval=0.002,
    )  # fmt: skip
    for count, (operation, path) in enumerate(
        [("pwrite", "consumequeue"), ("write", "checkpoint"), ("write", "Offset")], start=1
    ):
        store.put("T", b"late", delay=1)
        before = fs.calls[operation]
        fs.fail(operation, errno.ENOSPC, times=None, path=path)
        clock.now += 2000
        until = monotonic() + WAIT
        while fs.calls[operation] < before + 9 and monotonic() < until:
            sleep(0.001)
        fs.heal()
        while len(list(store.messages("T", 0))) < count and monotonic() < until:
            sleep(0.001)
        assert len(list(store.messages("T", 0))) == count
    store.close()
    assert not (tmp_path / "s" / "abort").exists()


def test_a_put_that_dispatches_and_fails_there_was_stored(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    sizes: dict[str, Any] = {
        "commitlog_file_size": 1 << 20,
        "index_slots": 1000,
        "index_entries": 5000,
    }
    store = open_tiny(tmp_path / "s", fs=fs, **sizes)
    fs.fail("pwrite", errno.EIO, times=None, path="consumequeue")
    done, error = put_until_it_fails(store, 5000)
    assert isinstance(error, WritesRefusedError)
    assert len(done) == 4096
    store.close()
    check_kept(tmp_path / "s", done, **sizes)


def test_failed_sync_refuses_writes(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    store = open_tiny(tmp_path / "s", fs=fs, durability="fsync")
    done = [store.put("T", b"x" * 100, keys="k0").offset]
    fs.fail("fdatasync", errno.EIO)
    with pytest.raises(WritesRefusedError):
        store.put("T", b"x" * 100, keys="k1")
    for again in (lambda: store.put("T", b""), store.sync, store.checkpoint):
        with pytest.raises(WritesRefusedError):
            again()
    assert store.get("T", 0, 0).messages[0].body == b"x" * 100
    store.close()
    check_kept(tmp_path / "s", done, exactly=False)


@pytest.mark.parametrize("cut", [None, 0, 1000, 5000])
def test_a_batch_that_can_not_be_written(tmp_path: Path, cut: int | None) -> None:
    """A part of it may stand in the log then: writing stops, reading goes on, and the next open
    keeps whole messages only."""
    fs = FaultyFileSystem()
    with patch("rocketstore.log.commitlog.MAX_COPIED", 1000):
        store = open_tiny(tmp_path / "s", fs=fs, commitlog_file_size=65536)
        done = store.put_many("T", [b"x" * 100] * 9, keys=[f"k{n}" for n in range(9)]).offsets
        fs.fail("pwrite", errno.EIO, path="commitlog", short=cut)
        with pytest.raises(StorageError, match="can't be written"):
            store.put_many("T", [b"x" * 100] * 40, keys=[f"k{n}" for n in range(9, 49)])
        with pytest.raises(WritesRefusedError):
            store.put("T", b"y")
        assert store.lookup(done[8]) is not None
        assert store.max_offset == done[8] + store.lookup(done[8]).size  # type: ignore[union-attr]
        store.close()
    with open_tiny(tmp_path / "s", commitlog_file_size=65536) as store:
        found = list(store.messages("T", 0))
        assert [message.body for message in found] == [b"x" * 100] * len(found)
        assert [message.offset for message in found[:9]] == done
        assert len(found) == 9 + (cut or 0) // found[0].size
        for number, message in enumerate(found):
            assert [hit.offset for hit in store.query("T", f"k{number}")] == [message.offset]


def test_errors_at_open_leave_no_lock(tmp_path: Path) -> None:
    open_tiny(tmp_path / "s").close()
    for operation, path in (
        ("open", "abort"),
        ("sync_dir", "s"),
        ("listdir", "commitlog"),
        ("fdatasync", "rocketstore"),
        ("rename", "checkpoint"),
        ("open", "lock"),
    ):
        fs = FaultyFileSystem()
        fs.fail(operation, errno.EIO, path=path)
        with pytest.raises(StoreError):
            open_tiny(tmp_path / "s", fs=fs)
        open_tiny(tmp_path / "s").close()


OPERATIONS = [
    *("open", "close", "read", "pread", "write", "pwrite", "truncate", "lseek", "fallocate"),
    *("fdatasync", "mmap", "rename", "unlink", "mkdir", "listdir", "stat", "fstat", "sync_dir"),
    *("lock", "lock_byte"),
]
ERRORS = [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.EINTR, errno.EROFS]
ROOT = Path("/s")
PUTS = 23
MOST = by_tier(quick=6, all=24, nightly=1_000_000)
"""Calls of one operation that fail, about."""
EVERY_ERROR = by_tier(quick=6, all=5, nightly=1)
"""One of so many calls fails with each error, the others with one."""


def work(store: Store, done: list[int]) -> None:
    """Every kind of call on an open store; ``done`` gets the offsets of the puts that returned."""

    def put(**options: Any) -> None:
        done.append(store.put("T", b"x" * 300, keys="all", **options).offset)

    for _ in range(9):
        put()
    done += store.put_many("T", [b"x" * 300] * 9, keys="all").offsets
    done += store.put_batch("T", [(0, b"x" * 300, {"KEYS": "all"})] * 3).offsets
    store.query("T", "all")
    put(delay=1)
    store.commit_offset("g", "T", 0, 5)
    store.checkpoint()
    store.deliver_due(1 << 50)
    store.clean(now=4e9)
    store.rebuild_index()
    put()
    store.sync()


def run_with(fs: FaultyFileSystem) -> tuple[list[int], bool]:
    """Offsets of the puts that returned, and whether anything was refused."""
    done: list[int] = []
    options: dict[str, Any] = {"clock": Clock(), "name_clock": Clock()}
    try:
        # Batches of work are long ones: written, not copied into the map.
        with (
            patch("rocketstore.log.commitlog.MAX_COPIED", 1000),
            open_tiny(ROOT, fs=fs, durability="fsync", **options) as store,
        ):
            work(store, done)
    except StoreError:
        return done, True
    return done, False


def check_after_fault(memory: MemoryFileSystem, done: list[int], where: object) -> None:
    """What the process left, opened again: all is there that was promised and has not expired."""
    memory.forget_descriptors()
    with open_tiny(ROOT, fs=memory) as store:
        hits: dict[str, list[int]] = {}
        for offset in done:
            if offset < store.min_offset:
                continue
            message = store.lookup(offset)
            assert message is not None, where
            assert message.body == b"x" * 300, where
            if message.topic not in hits:
                several = store.query(message.topic, "all", 1000)
                hits[message.topic] = [hit.offset for hit in several]
            assert hits[message.topic].count(offset) == 1, where
        assert store.put("T", b"y").offset >= 0


@pytest.mark.parametrize("operation", ["open", "pread"])
def test_offsets_that_can_not_be_read_back(operation: str) -> None:
    """A save reads the old file first: an error of that is one of ours, and not the system's."""
    fs = FaultyFileSystem(MemoryFileSystem(root="/"))
    with open_tiny(ROOT, fs=fs) as store:
        store.commit_offset("g", "T", 0, 7)
        store.checkpoint()
        store.commit_offset("g", "T", 0, 8)
        fs.fail(operation, errno.EIO, path="consumerOffset.json")
        with pytest.raises(StorageError, match=r"consumerOffset\.json"):
            store.checkpoint()
    fs.heal()
    with open_tiny(ROOT, fs=fs) as store:
        assert store.fetch_offset("g", "T", 0) == 7


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call_failing_once(operation: str) -> None:
    """Each call of each operation fails with each error: a typed error, nothing promised is lost,
    and the next open is as good as any. If they are many, a part of them, which rotates; nightly
    all of them."""
    healthy = FaultyFileSystem(MemoryFileSystem(root="/"))
    assert not run_with(healthy)[1]
    calls = healthy.calls[operation]
    refused = 0
    for count, number in enumerate(part(range(calls), max(1, calls // MOST), operation)):
        for error in ERRORS if count % EVERY_ERROR == 0 else part(ERRORS, len(ERRORS), str(count)):
            memory = MemoryFileSystem(root="/")
            fs = FaultyFileSystem(memory)
            fs.fail(operation, error, after=number)
            done, was_refused = run_with(fs)
            refused += was_refused
            fs.heal()
            check_after_fault(memory, done, (operation, error, number))
    assert refused or not calls


@pytest.mark.parametrize("operation", ["write", "pwrite", "fallocate", "truncate", "fdatasync"])
def test_a_full_disk_that_stays_full(operation: str) -> None:
    healthy = FaultyFileSystem(MemoryFileSystem(root="/"))
    run_with(healthy)
    calls = healthy.calls[operation]
    for number in range(0, calls, max(1, calls // 12)):
        memory = MemoryFileSystem(root="/")
        fs = FaultyFileSystem(memory)
        fs.fail(operation, errno.ENOSPC, after=number, times=None, short=3)
        done, refused = run_with(fs)
        assert refused
        fs.heal()
        check_after_fault(memory, done, (operation, number))


@pytest.mark.parametrize("length", [1, 7, 100])
def test_short_reads_and_writes(length: int) -> None:
    memory = MemoryFileSystem(root="/")
    fs = FaultyFileSystem(memory)
    for operation in ("read", "pread", "write", "pwrite"):
        fs.shorten(operation, length)
    done, refused = run_with(fs)
    assert (len(done), refused) == (PUTS, False)
    check_after_fault(memory, done, length)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_without_permission(tmp_path: Path) -> None:
    open_tiny(tmp_path / "s").close()
    (tmp_path / "s").chmod(0o500)
    try:
        with pytest.raises(StorageError):
            open_tiny(tmp_path / "s")
        open_tiny(tmp_path / "s", read_only=True).close()
    finally:
        (tmp_path / "s").chmod(0o700)
