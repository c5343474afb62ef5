"""Many files, lost files of a log that has expired, and housekeeping that fails."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from journal.errors import DamageError, LockedError, StorageError, WritesRefusedError
from journal.fs.files import PathLike
from rocketstore import Retention, Store
from rocketstore.format.consumequeue_format import PRE_BLANK
from rocketstore.verify import verify
from tests.faulty_fs import FaultyFileSystem
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.support import Clock, open_tiny


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_are_bounded(tmp_path: Path) -> None:
    """400 log files and 300 queues do not need as many open files."""
    before = descriptors()
    with open_tiny(tmp_path / "s", commitlog_file_size=1024) as store:
        for number in range(1200):
            store.put("T", b"%d" % number * 60, queue_id=number % 300)
        assert len(store._parts.commitlog.files.files) > 250
        store.checkpoint()
        for number in range(1200):
            message = store.at("T", number % 300, number // 300)
            assert message is not None
            assert message.body == b"%d" % number * 60
        assert descriptors() - before < 400
    assert descriptors() <= before
    with open_tiny(tmp_path / "s", commitlog_file_size=1024, read_only=True) as store:
        assert sum(1 for queue in range(300) for _ in store.messages("T", queue)) == 1200
    assert verify(tmp_path / "s") == []


@pytest.mark.parametrize("recovery", ["full", "compatible"])
def test_lost_queue_of_an_expired_log_begins_with_pre_blank_units(
    recovery: str, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    with open_tiny(root) as store:
        for number in range(57):
            store.put("T", b"x" * 500, keys=f"k{number}")
        while store.clean(now=4e9):
            continue
        first, last = store.queues()["T", 0]
        assert 0 < first < last == 57
        assert first % 10
    shutil.rmtree(root / "consumequeue")
    with open_tiny(root, recovery=recovery) as store:
        queue = store._parts.queues["T", 0]
        assert store.queues()["T", 0] == (first, 57)
        assert queue.starts[0] == first // 10 * 200
        data = Path(queue.path(queue.starts[0])).read_bytes()
        assert data.startswith(PRE_BLANK * (first % 10))
        found = [message.queue_offset for message in store.messages("T", 0)]
        assert found == list(range(first, 57))
        assert store.get("T", 0, first - 1).next_offset == first
        assert store.put("T", b"").queue_offset == 57


def test_queue_numbers_of_a_log_that_counts_anew(tmp_path: Path) -> None:
    """A broker that lost a queue counts from 0 again: lower ordinals are left out, as it does."""
    root = tmp_path / "s"
    with open_tiny(root) as store:
        for number in range(8):
            store.put("T", b"%d" % number)
        store.get("T", 0, 0)
        store._state.route("T", 0).ordinal = 5
        for number in range(5):
            store.put("T", b"again %d" % number)
        expected = [message.offset for message in store.messages("T", 0)]
        assert len(expected) == 10
    (root / "config" / "rocketstore.json").unlink()
    shutil.rmtree(root / "consumequeue")
    with open_tiny(root) as store:
        assert [message.offset for message in store.messages("T", 0)] == expected
    assert verify(root) == []


def test_log_gone_and_queues_left(tmp_path: Path) -> None:
    """A log with a hole in it is damage, and so is one that is gone: without it all queues go."""
    root = tmp_path / "s"
    with open_tiny(root) as store:
        for _ in range(20):
            store.put("T", b"x" * 800)
    middle = sorted((root / "commitlog").iterdir())[2]
    data = middle.read_bytes()
    middle.unlink()
    with pytest.raises(DamageError, match="this file of the commit log is missing"):
        open_tiny(root)
    middle.write_bytes(data)
    shutil.rmtree(root / "commitlog")
    with pytest.raises(DamageError, match="commitlog"):
        open_tiny(root, recovery="compatible")
    with open_tiny(root, recovery="compatible", repair=True) as store:
        assert store.queues() == {}
        assert store.put("T", b"x").queue_offset == 0


def test_ipv6_hosts(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_tiny(root, store_host="[::1]:10911") as store:
        put = store.put("T", b"body", keys="k", born_host=("10.0.0.1", 5))
        assert len(put.message_id) == 56
        assert [one.size for one in store.put_many("T", [b"x"] * 3, keys=["a", "b", "c"])] == [
            91 + 24 + 1 + 1 + 6
        ] * 3
        message = store.lookup(put.message_id)
        assert message is not None
        assert message.sys_flag == 32
        assert (message.born_host, message.store_host) == ("10.0.0.1:5", "[::1]:10911")
    (root / "config" / "rocketstore.json").unlink()
    with open_tiny(root) as store:
        assert [hit.body for hit in store.query("T", "b")] == [b"x"]
        for message in store.messages("T", 0):
            message.check()
    assert verify(root) == []


def wait_for_refusal(store: Store) -> None:
    for _ in range(500):
        if store._state.poison.reason is not None or store._state.full:
            return
        time.sleep(0.01)
    raise AssertionError("the background thread did not notice")


def test_background_failure_refuses_writes(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    options: dict[str, Any] = {"background": True, "flush_interval": 0.01}
    store = open_tiny(tmp_path / "s", fs=fs, **options)
    fs.fail("fdatasync", errno.EIO, times=None)
    put = store.put("T", b"x")
    wait_for_refusal(store)
    with pytest.raises(WritesRefusedError, match="earlier one failed"):
        store.put("T", b"y")
    found = store.lookup(put.offset)
    assert found is not None
    assert found.body == b"x"
    store.close()


class Disk(MemoryFileSystem):
    """A disk of which a given share is used, apart from 1,000 blocks kept for root."""

    used = 0.0

    def statvfs(self, path: PathLike, /) -> os.statvfs_result:
        free = round((1 - self.used) * 1000)
        return os.statvfs_result((4096, 4096, 2000, free + 1000, free, 0, 0, 0, 0, 255))


def test_deletion_by_age_and_by_disk_use() -> None:
    """Of files of zero age (as this file system has it: modified in 1970)."""
    disk = Disk(root="/")
    rules = Retention(hours=1, delete_when=(), most_at_once=2)
    with open_tiny(Path("/s"), fs=disk, retention=rules, clock=Clock()) as store:
        for _ in range(40):
            store.put("T", b"x" * 900)
        cleaner = store._housekeeping
        assert cleaner.clean(1e9, manual=False) == 0, "no hour of deletion, and room on the disk"
        disk.used = 0.8
        assert cleaner.clean(1800.0, manual=False) == 0, "none is an hour old"
        assert cleaner.clean(3600.0, manual=False) == 2, "no more than two at once"
        disk.used = 0.86
        assert cleaner.clean(0.0, manual=False) == 2, "whatever their age"
        assert store.min_offset == 4 * 4096
        while cleaner.clean(1e9, manual=True):
            assert store.get("T", 0, store.queues()["T", 0][0]).messages
        assert store.max_offset - store.min_offset <= 4096


def test_full_disk_refuses_puts_until_there_is_room() -> None:
    disk = Disk(root="/")
    disk.used = 0.95
    rules = Retention(hours=1e6, delete_when=())
    with open_tiny(Path("/s"), fs=disk, retention=rules) as store:
        store.put("T", b"x")
        store._housekeeping.look_at_disk()
        with pytest.raises(StorageError, match="full_ratio") as error:
            store.put("T", b"y")
        assert error.value.errno == errno.ENOSPC
        assert len(store.get("T", 0, 0).messages) == 1
        disk.used = 0.5
        store._housekeeping.look_at_disk()
        store.put("T", b"y")


def test_a_refused_second_open_lets_no_broker_in(tmp_path: Path) -> None:
    """A POSIX lock goes when its process closes any descriptor of the file: the second open in
    this process must not have opened it."""
    root = tmp_path / "s"
    broker = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
        "except OSError: sys.exit(7)\n"
    )
    locks = [sys.executable, "-c", broker, str(root / "lock")]
    with open_tiny(root):
        for path in (root, root / ".." / "s"):
            with pytest.raises(LockedError) as error:
                open_tiny(path)
            assert error.value.pid == os.getpid()
        assert subprocess.run(locks, check=False).returncode == 7
    assert subprocess.run(locks, check=False).returncode == 0


def test_a_refused_open_is_no_crash(tmp_path: Path) -> None:
    """Open refuses a damaged log, and goes on refusing: it must not leave ``abort`` behind, which
    would explain the damage and have the log cut."""
    root = tmp_path / "s"
    with open_tiny(root) as store:
        puts = [store.put("T", b"%d" % number * 50) for number in range(9)]
    log = root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[puts[3].offset + 4] ^= 1
    log.write_bytes(data)
    (root / "config" / "rocketstore.json").unlink()
    for _ in range(3):
        with pytest.raises(DamageError):
            open_tiny(root)
        assert not (root / "abort").exists()
    assert log.read_bytes() == data


def test_a_log_that_ends_before_it_was_synced_is_damage(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_tiny(root) as store:
        for _ in range(20):
            store.put("T", b"x" * 800)
        end = store.max_offset
    last = sorted((root / "commitlog").iterdir())[-1]
    last.unlink()
    with pytest.raises(DamageError, match=last.name):
        open_tiny(root)
    with open_tiny(root, repair=True) as store:
        assert any(f"was on disk up to {end}" in one.what for one in store.findings)
        assert len(list(store.messages("T", 0))) == store.queues()["T", 0][1] == 16
