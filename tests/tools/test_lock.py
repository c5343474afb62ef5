"""Who has a directory open, asked without getting in anybody's way."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

import qindex
from journal.fs.files import REAL, PathLike, RealFileSystem
from journal.locks.directory_lock import DirectoryLock, hold_if_there, is_held
from tests.faulty_fs import FaultyFileSystem
from tests.hostile.second_user import as_root, run_as, shared
from tests.waiting import WAIT


def test_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(REAL, path)
    held = DirectoryLock(REAL, path)
    assert is_held(REAL, path)
    held.release()
    assert not is_held(REAL, path)
    assert path.read_bytes() == f"{os.getpid()} {os.uname().nodename}\n".encode()


def test_the_lock_of_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pid alone misleads: in each container there is a process 1."""
    path = tmp_path / "lock"
    held = DirectoryLock(REAL, path)
    with pytest.raises(qindex.LockedError, match="by this process already") as caught:
        DirectoryLock(REAL, path)
    assert (caught.value.pid, caught.value.host) == (os.getpid(), None)
    path.write_bytes(b"1 far-away\n")
    with pytest.raises(
        qindex.LockedError, match=r"process 1 of another host .*'far-away'"
    ) as caught:
        DirectoryLock(REAL, path)
    assert (caught.value.pid, caught.value.host) == (None, "far-away")
    for nonsense in (b"", b"x", b"1 2 3", b"9" * 4000, b"\xff\0 \xff"):
        path.write_bytes(nonsense)
        with pytest.raises(qindex.LockedError, match="by another process"):
            DirectoryLock(REAL, path)
    held.release()


def test_a_process_that_no_longer_runs(tmp_path: Path) -> None:
    """Whoever can read the lock file can lock it; its pid is of the last writer then."""
    with qindex.open(tmp_path) as engine:
        engine.queue("jobs").publish(b"body")
    path = tmp_path / "qindex.lock"
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitpid(ended, 0)
    path.write_bytes(b"%d %s\n" % (ended, os.uname().nodename.encode()))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        names = rf"names process {ended}, which no longer runs.*; lock_timeout= .* read_only=True"
        with pytest.raises(qindex.LockedError, match=names) as caught:
            qindex.open(tmp_path)
        assert caught.value.pid is None
        path.write_bytes(b"1 %s\n" % os.uname().nodename.encode())
        with pytest.raises(qindex.LockedError, match=r"by process 1; lock_timeout= ") as caught:
            qindex.open(tmp_path)
        assert caught.value.pid == 1
        with pytest.raises(qindex.LockedError, match=r"by process 1$"):
            DirectoryLock(REAL, path)  # of something else than a store
        with qindex.open(tmp_path, read_only=True) as reader:
            assert reader.queue("jobs").stats().messages == 1
    qindex.open(tmp_path).close()


@as_root
def test_no_other_user_can_lock_it(tmp_path: Path) -> None:
    store = shared(tmp_path) / "store"
    qindex.open(store).close()

    def lock() -> None:
        with (store / "qindex.lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    assert run_as(lock).startswith("PermissionError")


def test_where_the_system_does_not_tell_somebody_may_have_it(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    fs.fail("lock_shared", errno.ENOLCK)
    (tmp_path / "lock").write_bytes(b"")
    assert is_held(fs, tmp_path / "lock")


def test_a_file_of_the_same_number_on_another_disk(tmp_path: Path) -> None:
    """Each disk numbers its files from the beginning."""
    held = DirectoryLock(REAL, tmp_path / "lock")
    (tmp_path / "other").write_bytes(b"")

    class Same(RealFileSystem):
        def stat(self, _path: PathLike, /) -> os.stat_result:  # type: ignore[override]
            return os.stat(tmp_path / "lock")

    assert not is_held(Same(), tmp_path / "other")
    held.release()


class _Crossed(RealFileSystem):
    """A file system where others come in before a shared lock is released."""

    def __init__(self, others: Callable[[], None]) -> None:
        self._others = others

    def unlock(self, fd: int, /) -> None:  # type: ignore[override]
        self._others()
        super().unlock(fd)


class _Tried(RealFileSystem):
    """A file system that notes the first try for the lock."""

    def __init__(self) -> None:
        self.tried = Event()

    def lock(self, fd: int, /) -> bool:  # type: ignore[override]
        taken = super().lock(fd)
        self.tried.set()
        return taken


def test_readers_that_ask_are_in_nobodys_way(tmp_path: Path) -> None:
    """Another reader does not see the store open, and a writer opens it."""
    path = tmp_path / "lock"
    path.write_bytes(b"")
    writing, made = _Tried(), list[DirectoryLock]()
    writer = Thread(target=lambda: made.append(DirectoryLock(writing, path)))

    def others() -> None:
        assert not is_held(REAL, path)
        writer.start()
        assert writing.tried.wait(WAIT)
        assert not made

    assert not is_held(_Crossed(others), path)
    writer.join(WAIT)
    assert is_held(REAL, path)
    made[0].release()


def test_hold_if_there(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert hold_if_there(REAL, path) is None
    assert not path.exists()
    path.write_bytes(b"4711\n")
    held = hold_if_there(REAL, path)
    assert held is not None
    with pytest.raises(qindex.LockedError, match="process 4711"):
        hold_if_there(REAL, path)
    held.release()
    assert path.read_bytes() == b"4711\n"
    DirectoryLock(REAL, path).release()
