"""More IndexFiles than a process may have open: all of them are written, queried and checked."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from journal.fs.files import PathLike, RealFileSystem
from rocketstore.verify import verify

SIZES: dict[str, Any] = {
    "commitlog_file_size": 1 << 20,
    "consumequeue_file_size": 2000,
    "index_slots": 2,
    "index_entries": 3,
}
FILES = 1100
HANDLES = 100


@contextmanager
def few_handles() -> Iterator[None]:
    """Room for :data:`HANDLES` descriptors besides those that are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + HANDLES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def make_store(path: Path) -> Path:
    """One with 1,100 index files, put while few descriptors were to be had."""
    with few_handles(), rocketstore.open(path, background=False, **SIZES) as made:
        for number in range(2 * FILES):
            made.put("t", b"message %d" % number, keys=f"k{number}")
    assert len(os.listdir(path / "index")) == FILES
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("many") / "store")


@pytest.mark.parametrize("read_only", [True, False])
def test_every_file_is_queried(store: Path, read_only: bool) -> None:
    with few_handles(), rocketstore.open(store, read_only=read_only, background=False) as opened:
        for number in (0, 1, FILES, 2 * FILES - 1):
            (found,) = opened.query("t", f"k{number}")
            assert found.body == b"message %d" % number
        assert opened.query("t", "nobody's") == []


class Opens(RealFileSystem):
    """Counts the opened index files."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:  # type: ignore[override]
        self.count += os.path.basename(os.path.dirname(path)) == "index"
        return RealFileSystem.open(path, flags, mode)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_query_finds_files_open(store: Path, read_only: bool) -> None:
    """Those that fit: only the rest is opened again by the next query of all files."""
    fs = Opens()
    with (
        few_handles(),
        rocketstore.open(store, read_only=read_only, background=False, fs=fs) as opened,
    ):
        for again in (FILES, FILES - 31, FILES - 31):
            fs.count = 0
            assert opened.query("t", "nobody's") == []
            assert fs.count == again


def test_a_range_of_times_skips_index_files(tmp_path: Path) -> None:
    """A query for the second that a file holds opens that one, and one without a range all."""
    now = [1_700_000_000_000]
    with rocketstore.open(
        tmp_path, background=False, clock=lambda: now[0], index_slots=25, index_entries=101
    ) as made:
        for number in range(1000):
            made.put("t", b"", keys=f"k{number}")
            now[0] += 10
    for key, begin, end, files in (
        ("k0", 0, now[0], 10),
        ("k530", now[0] - 5_000, now[0] - 4_500, 1),
    ):
        fs = Opens()
        with rocketstore.open(tmp_path, read_only=True, background=False, fs=fs) as opened:
            fs.count = 0
            assert len(opened.query("t", key, 32, begin, end)) == 1
            assert fs.count == files


def test_all_are_compared_with_the_log(store: Path) -> None:
    with few_handles():
        assert verify(store) == []


def test_all_are_built_anew(store: Path, tmp_path: Path) -> None:
    with few_handles(), rocketstore.open(store, background=False) as opened:
        opened.put("t", b"one more", keys="more")
        opened.rebuild_index()
        (found,) = opened.query("t", "k0")
        (more,) = opened.query("t", "more")
    assert (found.body, more.body) == (b"message 0", b"one more")
