"""The file seam's helpers: whole writes and reads, files replaced at once, directories, locks."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import qindex
import rocketstore
from journal.errors import LockedError, StorageError, UnsafeFileError, WritesRefusedError
from journal.findings import Cause, Finding
from journal.fs.files import (
    REAL,
    PathLike,
    RealFileSystem,
    is_zeros,
    make_dirs,
    map_optional,
    pread_all,
    pwrite_all,
    read_file,
    read_optional,
    replace_file,
    write_all,
)
from journal.locks.directory_lock import DirectoryLock
from journal.poison import Poison
from tests.faulty_fs import FaultyFileSystem
from tests.recording_fs import RecordingFileSystem, crash_states


@pytest.mark.parametrize("short", [1, 3, 1000])
def test_short_writes_and_reads_are_continued(tmp_path: Path, short: int) -> None:
    fs = FaultyFileSystem()
    for operation in ("write", "pwrite", "pread"):
        fs.shorten(operation, short)
    fd = fs.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    write_all(fs, fd, b"0123456789")
    pwrite_all(fs, fd, memoryview(b"abcdef"), 10)
    assert pread_all(fs, fd, 16, 0) == b"0123456789abcdef"
    assert pread_all(fs, fd, 100, 12) == b"cdef"
    assert pread_all(fs, fd, 5, 100) == b""
    fs.close(fd)
    assert read_file(fs, tmp_path / "f") == b"0123456789abcdef"


def test_read_optional(tmp_path: Path) -> None:
    assert read_optional(REAL, tmp_path / "none") is None
    (tmp_path / "some").write_bytes(b"x")
    assert read_optional(REAL, tmp_path / "some") == b"x"
    with pytest.raises(IsADirectoryError):
        read_optional(REAL, tmp_path)


def test_a_replaced_file_is_old_or_new_after_any_crash(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "f").write_bytes(b"old")
    recording = RecordingFileSystem(store)
    replace_file(recording, store / "f", b"a new content")
    recording.note("returned")
    found = set()
    for number, state in enumerate(crash_states(recording)):
        content = (state.build(tmp_path / f"state{number}") / "f").read_bytes()
        found.add(content)
        assert "returned" not in state.notes or content == b"a new content"
    assert found == {b"old", b"a new content"}


@pytest.mark.parametrize("operation", ["open", "write", "fdatasync", "rename", "sync_dir"])
def test_replacing_that_fails(tmp_path: Path, operation: str) -> None:
    (tmp_path / "f").write_bytes(b"old")
    fs = FaultyFileSystem()
    fs.fail(operation, errno.ENOSPC)
    with pytest.raises(StorageError) as caught:
        replace_file(fs, tmp_path / "f", b"new")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.path == str(tmp_path / "f")
    expected = b"new" if operation == "sync_dir" else b"old"
    assert (tmp_path / "f").read_bytes() == expected


def test_directories_are_made_with_their_parents(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    make_dirs(fs, tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert fs.calls["sync_dir"] == 3
    make_dirs(fs, tmp_path / "a" / "b" / "c")
    assert fs.calls["sync_dir"] == 3


class TwoAtOnce(RealFileSystem):
    """Another process makes each directory just before this one does."""

    def mkdir(self, path: PathLike, mode: int = 0o777) -> None:  # type: ignore[override]
        with suppress(OSError):
            os.mkdir(path, mode)
        os.mkdir(path, mode)


def test_directories_that_another_process_makes_meanwhile(tmp_path: Path) -> None:
    make_dirs(TwoAtOnce(), tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_allocation_where_the_file_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_fd: int, _offset: int, _length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    fd = REAL.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    REAL.pwrite(fd, b"kept", 0)
    REAL.fallocate(fd, 0, 200_000)
    assert REAL.fstat(fd).st_size == 200_000
    assert REAL.pread(fd, 8, 0) == b"kept\0\0\0\0"

    def full(_fd: int, _offset: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="full"):
        REAL.fallocate(fd, 0, 300_000)
    REAL.close(fd)


def test_boot_id() -> None:
    assert RealFileSystem.boot_id() == RealFileSystem.boot_id()


def test_the_lock_names_its_owner(tmp_path: Path) -> None:
    lock = DirectoryLock(REAL, tmp_path / "lock")
    with pytest.raises(LockedError) as caught:
        DirectoryLock(REAL, tmp_path / "lock")
    assert caught.value.pid == os.getpid()
    assert "this process" in str(caught.value)
    lock.release()
    lock.release()
    DirectoryLock(REAL, tmp_path / "lock").release()


def test_a_lock_file_that_names_nobody(tmp_path: Path) -> None:
    lock = DirectoryLock(REAL, tmp_path / "lock")
    (tmp_path / "lock").write_bytes(b"")
    with pytest.raises(LockedError, match="another process") as caught:
        DirectoryLock(REAL, tmp_path / "lock")
    assert caught.value.pid is None
    lock.release()


def test_poison_keeps_the_first_reason_and_tells_the_writers() -> None:
    told = []

    class Writer:
        def refuse(self) -> None:
            told.append(self)

    poison = Poison()
    writer = Writer()
    poison.watch(writer)
    poison.check()
    poison.set(OSError("first"))
    poison.set(OSError("second"))
    with pytest.raises(WritesRefusedError, match="first"):
        poison.check()
    assert told == [writer, writer]


def test_a_finding_reads_as_a_sentence() -> None:
    finding = Finding("j", 8, 40, Cause.DAMAGE, "no record", "what stood there is lost")
    assert str(finding) == "j: at offset 8, 40 bytes: no record; what stood there is lost"
    assert str(Finding("j", 8, 0, Cause.CRASH, "torn")) == "j: at offset 8, 0 bytes: torn"


class MapsNothing(RealFileSystem):
    def mmap(self, fd: int, length: int, writable: bool, /) -> mmap.mmap:  # type: ignore[override]
        raise OSError(errno.ENODEV, "no maps here")


def test_a_large_file_is_mapped_to_be_read(tmp_path: Path) -> None:
    large = os.urandom(1 << 16) * 65
    (tmp_path / "large").write_bytes(large)
    (tmp_path / "small").write_bytes(b"abc")
    found = map_optional(REAL, tmp_path / "large")
    assert isinstance(found, mmap.mmap)
    assert found[:] == large
    assert map_optional(MapsNothing(), tmp_path / "large") == large
    assert map_optional(REAL, tmp_path / "small") == b"abc"
    assert map_optional(REAL, tmp_path / "none") is None


def test_a_place_that_the_disk_cannot_read_is_an_error_of_the_reading(tmp_path: Path) -> None:
    """The map can't be filled, and the read tells why."""

    class Unreadable(mmap.mmap):
        def madvise(self, *_advice: int) -> None:
            raise OSError(errno.EFAULT, "Bad address")

    class BadDisk(RealFileSystem):
        def mmap(self, fd: int, length: int, writable: bool, /) -> mmap.mmap:  # type: ignore[override]
            return Unreadable(fd, length, access=mmap.ACCESS_READ)

        def pread(self, fd: int, length: int, offset: int, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "large").write_bytes(bytes(5 << 20))
    with pytest.raises(OSError, match="Input/output error"):
        map_optional(BadDisk(), tmp_path / "large")


def test_a_hole_is_not_mapped(tmp_path: Path) -> None:
    with open(tmp_path / "hole", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UnsafeFileError):
        map_optional(REAL, tmp_path / "hole")


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_zeros(size: int) -> None:
    assert is_zeros(bytes(size))
    for at in {0, size // 2, size - 1} - {-1} if size else ():
        data = bytearray(size)
        data[at] = 1
        assert not is_zeros(data)
        assert not is_zeros(data, at)
        assert is_zeros(data, at + 1)


_CLOSED_STREAMS = """
import os, signal, sys
import qindex, rocketstore
from journal.fs.beneath import beneath
from journal.fs.files import REAL

directory = sys.argv[1]
os.closerange(0, 3)
fds = [fs.open(directory, os.O_RDONLY) for fs in (REAL, beneath(REAL, directory))]
assert min(fds) > 2, fds
REAL.sync_dir(directory)
for fd in fds:
    os.close(fd)
queue = qindex.open(directory + "/ours").queue("q")
store = rocketstore.open(directory + "/rocket")
for number in range(3):
    queue.publish(bytes(20_000))  # in the message store
    queue.publish(b"small")
    store.put("t", b"small")
for number in range(3):
    try:
        # Where maps keep no handles there may be none.
        assert os.readlink(f"/proc/self/fd/{number}") == os.devnull
        os.close(number)
        os.write(number, b"a line of a log, longer than the head of a journal's block")
    except OSError:
        pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_daemon_without_standard_streams(tmp_path: Path) -> None:
    """A line of a log must not go into a file of the store."""
    done = subprocess.run(
        [sys.executable, "-c", _CLOSED_STREAMS, tmp_path], check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL
    with qindex.open(tmp_path / "ours") as engine:
        assert [len(one.body) for one in engine.queue("q").peek(9)] == [20_000, 5] * 3
    with rocketstore.open(tmp_path / "rocket") as store:
        assert len(store.get("t", 0, 0).bodies) == 3


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_what_may_block_is_not_opened(tmp_path: Path, flags: int) -> None:
    before = len(os.listdir("/dev/fd"))
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(UnsafeFileError, match="not a file"):
            REAL.open(path, flags)
    assert len(os.listdir("/dev/fd")) == before
    fd = REAL.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    os.close(fd)
