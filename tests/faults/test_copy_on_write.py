"""A full disk of a file system that copies on write: errors, where a store into a map kills."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qindex
from journal.errors import StorageError
from journal.fs import written_map
from journal.fs.files import REAL
from journal.fs.written_map import WrittenMap, copies_on_write, map_writable
from tests.qindex.support import copy_live, drain, open_quietly

ROOT = Path(__file__).parents[2]
_IMAGE_BYTES = 64 << 20


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """A small btrfs, mounted."""
    if os.geteuid() or shutil.which("mkfs.btrfs") is None:
        pytest.skip("needs root and mkfs.btrfs (btrfs-progs)")
    image, place = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    place.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", "-M", image], check=True, capture_output=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", image, place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a btrfs can't be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_btrfs_refuses_and_loses_nothing(btrfs: Path) -> None:
    """A publish killed the process: a page of the map that had been written out wanted a new
    block."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.copy_on_write_child", btrfs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    published, acked = map(int, done.stdout.split())
    assert published >= 2000
    (btrfs / "filler").unlink()
    os.sync()
    with open_quietly(btrfs / "store") as engine:
        bodies = [body for _, body, _ in drain(engine.queue("q"))]
    assert bodies == [b"%d" % number * 20 for number in range(acked, published)]
    assert qindex.verify(btrfs / "store").sound


def test_it_is_told_apart(btrfs: Path, tmp_path: Path) -> None:
    for place, copies in ((btrfs, True), (tmp_path, False)):
        with (place / "file").open("w+b") as file:
            file.write(bytes(4096))
            file.flush()
            assert copies_on_write(file.fileno()) is copies
            mapped = map_writable(REAL, file.fileno(), 4096)
            assert isinstance(mapped, WrittenMap) is copies
            mapped[5:7] = b"ab"
            assert (place / "file").read_bytes()[4:8] == b"\0ab\0"
            mapped.close()


def test_an_engine_whose_maps_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on btrfs, on any file system: what a call returned is in the file."""
    monkeypatch.setattr(written_map, "copies_on_write", lambda _fd: True)
    with open_quietly(tmp_path / "store", segment_entry_count=16) as engine:
        queue = engine.queue("q")
        expected = []
        for number in range(60):
            queue.publish(b"%d" % number * number)
            expected.append(b"%d" % number * number)
            assert isinstance(queue._parts.state.index.journal.map, WrittenMap)
            if number % 7 == 0:
                queue.publish_many([b"many"] * number * 30)
                expected += [b"many"] * number * 30
            if number % 9 == 0:
                queue.ack_many(queue.get_many(5))
                del expected[:5]
            if number % 20 == 0:
                queue.flush()
        engine.sync()
        copy = copy_live(tmp_path / "store", tmp_path / "copy")
        assert len(queue) == len(expected)
    for store in (copy, tmp_path / "store"):
        assert qindex.verify(store).sound
        with open_quietly(store) as engine:
            assert [body for _, body, _ in drain(engine.queue("q"))] == expected


def test_a_store_that_fails_changes_nothing(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(4096)
        mapped = WrittenMap(-1, 4096)
        mapped.keep(os.open(os.devnull, os.O_RDONLY))  # of which no byte can be written
        with pytest.raises(StorageError, match="appended"):
            mapped[0:2] = b"ab"
        assert mapped[0:2] == b"\0\0"
        mapped.close()
