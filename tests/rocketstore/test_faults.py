"""Full disks, I/O errors, failing syncs: clear errors, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from journal.errors import StorageError, StoreError, WritesRefusedError
from rocketstore import Store
from tests.faulty_fs import FaultyFileSystem
from tests.rocketstore.support import open_tiny


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
    fs.fail(operation, errno.ENOSPC, times=None, path=f"s/{path}")
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


def test_a_put_that_dispatches_and_fails_there_was_stored(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    store = open_tiny(tmp_path / "s", fs=fs, commitlog_file_size=1 << 20)
    fs.fail("pwrite", errno.EIO, times=None, path="consumequeue")
    done, error = put_until_it_fails(store, 5000)
    assert isinstance(error, WritesRefusedError)
    assert len(done) == 4096
    store.close()
    check_kept(tmp_path / "s", done, commitlog_file_size=1 << 20)


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


def test_every_operation_failing_once(tmp_path: Path) -> None:
    """Whatever fails, whenever: what was acknowledged is there after the next open."""
    names = ["open", "write", "pwrite", "truncate", "fallocate", "fdatasync"]
    names += ["mmap", "rename", "mkdir", "sync_dir"]
    tried = 0
    for operation in names:
        for after in range(0, 40, 6):
            root = tmp_path / f"{operation}{after}"
            fs = FaultyFileSystem()
            fs.fail(operation, errno.EIO, after=after)
            done: list[int] = []
            try:
                with open_tiny(root, fs=fs, durability="fsync") as store:
                    done, error = put_until_it_fails(store, 60)
                    if error is None:
                        store.checkpoint()
            except StoreError:
                tried += 1
            if root.exists() and (root / "commitlog").exists():
                check_kept(root, done, exactly=False)
    assert tried > 15


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
