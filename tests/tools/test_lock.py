"""Who has a directory open, asked without getting in anybody's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import qindex
from journal import lock as lock_module
from journal.files import REAL
from journal.lock import UNKNOWN_PID, DirectoryLock, hold_if_there, holder


def test_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder(REAL, path) is None
    held = DirectoryLock(REAL, path)
    assert holder(REAL, path) == os.getpid()
    held.release()
    assert holder(REAL, path) is None
    assert path.read_bytes() == f"{os.getpid()} {os.uname().nodename}\n".encode()


def test_the_lock_of_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pid alone misleads: in each container there is a process 1."""
    path = tmp_path / "lock"
    held = DirectoryLock(REAL, path)
    with pytest.raises(qindex.LockedError, match=f"by process {os.getpid()}$") as caught:
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


def test_where_the_system_does_not_tell_somebody_may_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "_LOCK_TABLE", tmp_path / "nowhere")
    (tmp_path / "lock").write_bytes(b"")
    assert holder(REAL, tmp_path / "lock") == UNKNOWN_PID
    with qindex.open(tmp_path / "s", background=False) as engine:
        engine.queue("q").publish(b"x")
    assert qindex.verify(tmp_path / "s").findings == []


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
