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
    assert path.read_bytes() == b"%d\n" % os.getpid()


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
