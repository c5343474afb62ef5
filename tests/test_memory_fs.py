"""The file system in memory does what the real one does: any operations, done on both."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qindex
from journal.fs.files import REAL, FileSystem
from qindex.engine.opening import open_store
from tests.memory_fs import MemoryFileSystem

_NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/e", "d/e/a", "missing/a"])
_FLAGS = st.sampled_from(
    [
        os.O_RDONLY,
        os.O_RDWR | os.O_CREAT,
        os.O_RDWR,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        os.O_RDWR | os.O_CREAT | os.O_EXCL,
    ]
)
_FILE = st.integers(0, 3)
_BYTES = st.binary(max_size=20)
_PLACE = st.integers(0, 30)

_OPERATION = st.one_of(
    st.tuples(st.just("open"), _NAMES, _FLAGS),
    st.tuples(st.just("close"), _FILE),
    st.tuples(st.just("read"), _FILE, _PLACE),
    st.tuples(st.just("pread"), _FILE, _PLACE, _PLACE),
    st.tuples(st.just("write"), _FILE, _BYTES),
    st.tuples(st.just("pwrite"), _FILE, _BYTES, _PLACE),
    st.tuples(st.just("truncate"), _FILE, _PLACE),
    st.tuples(st.just("fallocate"), _FILE, _PLACE, st.integers(1, 30)),
    st.tuples(st.just("fdatasync"), _FILE),
    st.tuples(st.just("fstat"), _FILE),
    st.tuples(st.just("lock"), _FILE),
    st.tuples(st.just("map"), _FILE),
    st.tuples(st.just("store"), _FILE, _BYTES, _PLACE),
    st.tuples(st.just("rename"), _NAMES, _NAMES),
    st.tuples(st.just("unlink"), _NAMES),
    st.tuples(st.just("mkdir"), _NAMES),
    st.tuples(st.just("rmdir"), _NAMES),
    st.tuples(st.just("listdir"), _NAMES),
    st.tuples(st.just("stat"), _NAMES),
    st.tuples(st.just("sync_dir"), _NAMES),
)


class _User:
    """Does operations on one file system; files are numbered as they are opened."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._fds: dict[int, int] = {}
        self._maps: dict[int, Any] = {}
        self._opened = 0

    def do(self, operation: tuple[Any, ...]) -> object:
        """Give the result, or the number of the error."""
        name, *arguments = operation
        method: Callable[..., object] = getattr(self, f"_{name}", None) or self._plain(name)
        try:
            return method(*arguments)
        except OSError as error:
            return error.errno
        except KeyError:
            return "no such file is open"
        except ValueError:
            return "the map does not fit"

    def _plain(self, name: str) -> Callable[..., object]:
        call: Callable[..., Any] = getattr(self._fs, name)

        def on_file(number: int, *more: Any) -> object:
            return call(self._fds[number], *more)

        def on_paths(*paths: str) -> object:
            return call(*(f"{self._root}/{path}" for path in paths))

        names = ("rename", "unlink", "mkdir", "rmdir", "sync_dir")
        return on_paths if name in names else on_file

    def _open(self, path: str, flags: int) -> None:
        fd = self._fs.open(f"{self._root}/{path}", flags)
        self._fds[self._opened] = fd
        self._opened += 1

    def _close(self, number: int) -> None:
        self._fs.close(self._fds.pop(number))

    def _fstat(self, number: int) -> int:
        return _size(self._fs.fstat(self._fds[number]))

    def _stat(self, path: str) -> tuple[int, int]:
        status = self._fs.stat(f"{self._root}/{path}")
        return _size(status), status.st_mode & 0o170000

    def _listdir(self, path: str) -> list[str]:
        return sorted(self._fs.listdir(f"{self._root}/{path}"))

    def _map(self, number: int) -> None:
        """Map the whole of a file; its size then stays, as that of a store's mapped files does."""
        fd = self._fds[number]
        size = self._fs.fstat(fd).st_size
        if not size:
            raise ValueError("nothing to map")
        self._maps[number] = self._fs.mmap(fd, size, True)

    def _store(self, number: int, data: bytes, offset: int) -> None:
        mapped = self._maps[number]
        if self._fs.fstat(self._fds[number]).st_size < len(mapped):
            raise ValueError("the file was cut under its map")
        if offset + len(data) > len(mapped):
            raise ValueError("behind the map's end")
        mapped[offset : offset + len(data)] = data

    def end(self) -> dict[str, bytes]:
        """Close all; gives all files' bytes."""
        for fd in self._fds.values():
            self._fs.close(fd)
        found: dict[str, bytes] = {}
        self._gather("", found)
        return found

    def _gather(self, below: str, found: dict[str, bytes]) -> None:
        for name in self._fs.listdir(f"{self._root}/{below}"):
            path = f"{below}{name}"
            try:
                fd = self._fs.open(f"{self._root}/{path}", os.O_RDWR)
            except IsADirectoryError:
                found[path] = b"(a directory)"
                self._gather(f"{path}/", found)
                continue
            found[path] = self._fs.pread(fd, 1 << 20, 0)
            self._fs.close(fd)


def _size(status: os.stat_result) -> int:
    return status.st_size if status.st_mode & 0o100000 else 0


@given(st.lists(_OPERATION, max_size=40))
def test_any_operations_do_what_they_do_on_the_real_one(operations: list[tuple[Any, ...]]) -> None:
    directory = tempfile.mkdtemp()
    try:
        memory = MemoryFileSystem(directories={"root"})
        both = _User(REAL, directory), _User(memory, "/root")
        for operation in _usable(operations):
            results = [user.do(operation) for user in both]
            assert results[0] == results[1], operation
        assert both[0].end() == both[1].end()
    finally:
        shutil.rmtree(directory)


def _usable(operations: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Leave out what no store does: a second map of a file, and size changes of a mapped one."""
    mapped = any(operation[0] == "map" for operation in operations)
    seen = False
    kept = []
    for operation in operations:
        if operation[0] == "map" and seen:
            continue
        seen |= operation[0] == "map"
        if mapped and seen and operation[0] in ("truncate", "fallocate", "write", "open"):
            continue
        kept.append(operation)
    return kept


def test_a_map_and_its_file_are_the_same_bytes() -> None:
    fs = MemoryFileSystem()
    fd = fs.open("/f", os.O_RDWR | os.O_CREAT)
    fs.fallocate(fd, 0, 100)
    mapped = fs.mmap(fd, 100, True)
    mapped[3:6] = b"abc"
    fs.pwrite(fd, b"d", 6)
    assert fs.pread(fd, 5, 2) == b"\0abcd"
    assert mapped[2:7] == b"\0abcd"
    fs.truncate(fd, 5)
    fs.fallocate(fd, 0, 8)
    assert fs.pread(fd, 100, 0) == b"\0\0\0ab\0\0\0"


def test_a_lock_dies_with_its_process() -> None:
    fs = MemoryFileSystem()
    first = open_store("/store", fs=fs, background=False)
    with pytest.raises(qindex.LockedError):
        open_store("/store", fs=fs, background=False)
    fs.forget_descriptors()
    open_store("/store", fs=fs, background=False).close()
    first._directory_lock.release()  # a close that comes too late harms nobody


def test_a_store_is_the_same_on_either(tmp_path: Path) -> None:
    fs = MemoryFileSystem()
    for where, system in (("/store", fs), (str(tmp_path / "store"), REAL)):
        with open_store(where, fs=system, background=False) as engine:
            queue = engine.queue("q")
            queue.publish_many([b"%d" % number for number in range(100)])
            queue.ack_many(queue.get_many(40))
            engine.publish_to(["q", "r"], b"x" * 10_000)
    real = {
        str(path.relative_to(tmp_path)): path.stat().st_size
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    memory = {path: node.size for path, node in fs.tree() if node.entries is None}
    assert memory == real


@pytest.mark.parametrize("missing", ["/d/f", "/f/g"])
def test_errors_name_the_path(missing: str) -> None:
    fs = MemoryFileSystem({"f": b""})
    with pytest.raises(OSError, match=missing) as caught:
        fs.open(missing, os.O_RDONLY)
    assert caught.value.filename == missing
