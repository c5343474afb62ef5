"""Many files, lost files of a log that has expired, and housekeeping that fails."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from journal.errors import DamageError, StorageError, WritesRefusedError
from rocketstore import Retention, Store
from rocketstore.consumequeue_format import PRE_BLANK
from rocketstore.lifecycle import Keeper
from rocketstore.verify import verify
from tests.faulty_fs import FaultyFileSystem
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
        store._table["T", 0] = 5
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
    """Compatible: without a log all queues go. A log with a hole in it is damage."""
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
    with open_tiny(root, recovery="compatible") as store:
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
        if store._poison.reason is not None or store._full:
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


def test_full_disk_refuses_and_forces_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = Retention(hours=1e6, delete_when=())
    with open_tiny(tmp_path / "s", retention=rules, clock=Clock()) as store:
        for _ in range(20):
            store.put("T", b"x" * 900)
        assert store._keeper.clean(None, manual=False) == 0
        monkeypatch.setattr(Keeper, "disk_used", lambda keeper: 0.87)
        assert store._keeper.clean(None, manual=False) > 2
        store._full = True
        with pytest.raises(StorageError) as error:
            store.put("T", b"y")
        assert error.value.errno == errno.ENOSPC
        store._full = False
        store.put("T", b"y")
