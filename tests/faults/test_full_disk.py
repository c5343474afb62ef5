"""A full disk can't be an error of a store into a map: that would be a SIGBUS, the end of the
process. So room is reserved before a file is mapped, and that is what fails."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import qindex
from journal.errors import StorageError
from tests.faults.workload import Run
from tests.faulty_fs import FaultyFileSystem
from tests.memory_fs import MemoryFileSystem
from tests.qindex.support import copy_live, drain, open_quietly, queue_directory

ROOT = Path(__file__).parents[2]
CHILD = [sys.executable, "-m", "tests.faults.full_disk_child"]
MOUNT = 'mount -t tmpfs -o size="$4" tmpfs "$1" && exec "$2" -m "$3" "$1/store" "$5"'


def run(command: list[str]) -> dict[str, Any]:
    child = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert child.returncode == 0, f"ended by {child.returncode}: {child.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def check(found: dict[str, Any]) -> None:
    assert len(found["errors"]) == 20
    assert found["held"] == found["published"]
    assert len(found["published"]) > 200


def test_each_map_stands_on_reserved_room() -> None:
    """No writable map is made of a file but behind a reservation of all that it maps."""
    run_ = Run()
    reserved: dict[str, int] = {}
    maps: list[tuple[str, int]] = []
    fs = run_.fs
    fallocate, mmap, truncate = fs.fallocate, fs.mmap, fs.truncate

    def note_fallocate(fd: int, offset: int, length: int, /) -> None:
        fallocate(fd, offset, length)
        assert offset == 0
        reserved[fs._paths[fd]] = length

    def note_truncate(fd: int, length: int, /) -> None:
        truncate(fd, length)
        path = fs._paths[fd]
        reserved[path] = min(reserved.get(path, 0), length)

    def note_mmap(fd: int, length: int, writable: bool, /) -> Any:
        if writable:
            maps.append((fs._paths[fd], length))
            assert reserved.get(fs._paths[fd], 0) >= length
        return mmap(fd, length, writable)

    fs.fallocate = note_fallocate  # type: ignore[method-assign]
    fs.truncate = note_truncate  # type: ignore[method-assign]
    fs.mmap = note_mmap  # type: ignore[method-assign]
    run_.whole()
    assert run_.errors == []
    assert len(maps) > 10


@pytest.mark.parametrize("count", [10, 1000])
def test_the_blocks_are_there(tmp_path: Path, count: int) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        journal = queue_directory(tmp_path, "q") / "journal.jif"
        for _ in range(2):
            queue.publish_many([bytes(100)] * count)
            status = journal.stat()
            assert status.st_blocks * 512 >= status.st_size
            queue.flush()
            status = journal.stat()
            assert status.st_blocks * 512 >= status.st_size > 0


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    found = run([*CHILD, str(tmp_path / "store"), str(100 << 10)])
    check(found)
    assert all("journal can't grow" in error for error in found["errors"])
    assert found["refused"] is None
    with open_quietly(tmp_path / "store") as engine:
        assert all(one.cause is qindex.Cause.CRASH for one in engine.findings)
        bodies = [int(body[:6]) for _, body, _ in drain(engine.queue("q"))]
        assert bodies == found["published"]


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A file system of 256 KiB, in a name space of its own."""
    found = run_on_a_disk(tmp_path, "256k", CHILD[2], "0")
    check(found)
    assert all("No space left on device" in error for error in found["errors"])


def run_on_a_disk(path: Path, size: str, program: str, argument: str) -> dict[str, Any]:
    """Run a program on a file system of its own, of this size."""
    probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    try:
        subprocess.run(probe, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    arguments = [str(path), CHILD[0], program, size, argument]
    return run(["unshare", "-Urm", "sh", "-c", MOUNT, "sh", *arguments])


_SMALL = {"queues": ["q"], "sizes": [0, 40, 100], "batch": 1}


@pytest.mark.rotates(5)
@pytest.mark.parametrize(
    "options",
    [
        {**_SMALL, "background": False},
        {**_SMALL, "flush_idle": 0.1, "batch": 100},
        {**_SMALL, "flush_idle": 0.1, "durability": "fsync", "batch": 10},
        {**_SMALL, "flush_idle": 0.1, "queues": ["a", "b", "c"], "segment_entry_count": 64},
        {
            **_SMALL,
            "flush_idle": 0.1,
            "queues": ["a", "b"],
            "sizes": [100, 8000],
            "store_file_bytes": 300_000,
        },
    ],
    ids=["one by one", "batches", "fsync", "small segments", "large messages"],
)
def test_a_full_disk_is_drained_by_consuming(tmp_path: Path, options: dict[str, Any]) -> None:
    """Filled and drained three times: all comes back in order, and as much fits again."""
    found = run_on_a_disk(tmp_path, "4m", "tests.faults.drain_child", json.dumps(options))
    assert all("No space left on device" in error for error in found["refused"])
    assert found["same"] == [True] * 3
    assert found["writes_refused"] is None
    assert found["published"][0] > 300
    assert min(found["published"]) > found["published"][0] * 0.6


@pytest.mark.parametrize("entries", [64, 1000])
def test_a_segment_can_be_consumed_without_any_room(entries: int) -> None:
    """The disk has not a byte: what is in the segments can be taken and acknowledged, a whole
    segment of it; publishes get none of the room that is kept for that."""
    fs = FaultyFileSystem(MemoryFileSystem())
    options: dict[str, Any] = {"background": False, "segment_entry_count": entries}
    engine = open_quietly(Path("/store"), fs=fs, **options)
    queue = engine.queue("q")
    queue.publish_many([b"%d" % number for number in range(5 * entries // 2)])
    queue.flush()
    # What is overwritten in place (qindex.seq) has its block.
    for operation, path in (("write", ""), ("fallocate", ""), ("pwrite", "journal.jif")):
        fs.fail(operation, errno.ENOSPC, times=None, path=path)
    with suppress(StorageError):
        while True:
            queue.publish(b"more")
    held = len(queue)
    taken = []
    with suppress(StorageError):
        while one := queue.get(0):
            taken.append(one.seq_id)
            queue.ack(one)
            with pytest.raises(StorageError, match="can't grow"):
                queue.publish(bytes(1000))
    assert taken[:entries] == list(range(entries))
    assert engine.stats().writes_refused is None
    fs.heal()
    queue.publish(b"last")
    rest = [seq for seq, _, _ in drain(queue)]
    left = [one for one in range(held + 1) if one not in taken]
    assert rest == left
    engine.close()
    with open_quietly(Path("/store"), fs=fs, **options) as again:
        assert again.findings == []
        assert len(again.queue("q")) == 0


@pytest.mark.parametrize(("end", "size"), [("kill", 100), ("close", 2000)])
def test_a_store_opens_on_a_disk_without_a_free_block(tmp_path: Path, end: str, size: int) -> None:
    """Killed or closed there, three times over: all is drained, in order, and nothing comes back
    but what was out."""
    options = {"end": end, "size": size, "segment_entry_count": 512}
    found = run_on_a_disk(tmp_path, "2m", "tests.faults.reopen_child", json.dumps(options))
    assert min(found["sent"].values()) > 100
    assert found["same"] == {"a": True, "b": True}
    assert found["again"] == [{"a": 10, "b": 10}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]
    assert found["findings"] == []
    assert found["ready"] == [0, 0]


def test_moves_are_finished_and_few_messages_read_without_room(tmp_path: Path) -> None:
    """A killed process has moved dead letters, and its journals can't be moved to the segments:
    the store opens, a consumer that keeps up reads the newest messages, and publishes go on."""
    with open_quietly(tmp_path / "one") as engine:
        queue = engine.queue("q", dead_letter="dead")
        engine.queue("dead").publish(b"first")
        queue.publish_many([b"%d" % number for number in range(20)])
        for _ in range(3):
            queue.get().reject()
        killed = copy_live(tmp_path / "one", tmp_path / "two")
    fs = FaultyFileSystem()
    fs.fail("write", errno.ENOSPC, times=None, path=".idx")
    with suppress(StorageError), open_quietly(killed, fs=fs) as engine:
        queue, dead = engine.queue("q"), engine.queue("dead")
        for number in range(3, 20):
            one = queue.get(0)
            assert one is not None
            assert (one.seq_id, one.body) == (number, b"%d" % number)
            queue.ack(one)
        assert queue.get(0) is None
        assert queue.publish(b"more") == 20
        assert queue.get().body == b"more"
        assert [one.body for one in dead.peek(9)] == [b"first", b"0", b"1", b"2"]
        again = copy_live(killed, tmp_path / "three")
    with open_quietly(again) as engine:
        assert engine.findings == []
        assert [body for _, body, _ in drain(engine.queue("q"))] == [b"more"]
        assert [body for _, body, _ in drain(engine.queue("dead"))] == [b"first", b"0", b"1", b"2"]
