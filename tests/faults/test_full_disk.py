"""A full disk can't be an error of a store into a map: that would be a SIGBUS, the end of the
process. So room is reserved before a file is mapped, and that is what fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qindex
from tests.faults.workload import Run
from tests.qindex.support import drain, open_quietly, queue_directory

ROOT = Path(__file__).parents[2]
CHILD = [sys.executable, "-m", "tests.faults.full_disk_child"]
MOUNT = 'mount -t tmpfs -o size=256k tmpfs "$1" && exec "$2" -m "$3" "$1/store" 0'


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
    probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(probe, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    arguments = [str(tmp_path), CHILD[0], CHILD[2]]
    found = run(["unshare", "-Urm", "sh", "-c", MOUNT, "sh", *arguments])
    check(found)
    assert all("No space left on device" in error for error in found["errors"])
