"""Readers wait for what may be half written only while somebody may be writing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import qindex
from journal.fs.files import REAL
from journal.locks.directory_lock import DirectoryLock, LockWatch
from qindex.recovery import point_in_time
from qindex.tools import queue_check
from qindex.view.reader import StoreReader

_QUEUES = 5


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    for module in (point_in_time, queue_check):
        monkeypatch.setattr(module, "sleep", made.append)
    return made


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """Return a store each of whose queues has a segment, a journal and .seq that are damaged."""
    store = tmp_path / "store"
    with qindex.open(store, background=False) as engine:
        for number in range(_QUEUES):
            queue = engine.queue(f"q{number}")
            queue.publish_many([b"x" * 100] * 10)
            queue.flush()
    for directory in (store / "queues").iterdir():
        for file in directory.iterdir():
            data = file.read_bytes()
            if file.suffix == ".idx":
                file.write_bytes(data[:-50])
            elif file.name == ".seq":
                file.write_bytes(b"\x55" * len(data))
        (directory / "journal.jif").write_bytes(b"\x33" * 100)
    return store


def look(store: Path) -> None:
    for reader in StoreReader(store).readers():
        reader.summary()
        list(reader.entries())
    assert qindex.verify(store).findings


def test_nobody_writes(torn: Path, pauses: list[float]) -> None:
    look(torn)
    assert sum(pauses) == 0


def test_somebody_may_write(torn: Path, pauses: list[float]) -> None:
    held = DirectoryLock(REAL, torn / "qindex.lock")
    look(torn)
    held.release()
    assert sum(pauses) > 0


def test_the_lock_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = LockWatch(REAL, tmp_path / "lock")
    assert not watch.may_be_held()  # no lock file
    DirectoryLock(REAL, tmp_path / "lock").release()
    opened: list[str] = []
    real = REAL.open

    def counted(path: str, flags: int, mode: int = 0o600) -> int:
        opened.append(os.fspath(path))
        return real(path, flags, mode)

    monkeypatch.setattr(REAL, "open", counted)
    for _ in range(3):
        assert not watch.may_be_held()
    assert len(opened) == 1
    os.utime(tmp_path / "lock", ns=(0, 0))
    held = DirectoryLock(REAL, tmp_path / "lock")
    for _ in range(2):
        assert watch.may_be_held()
    held.release()
    assert not watch.may_be_held()
