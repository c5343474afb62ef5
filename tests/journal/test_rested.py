"""A journal at rest: its file is closed, and the first touch opens it again."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from journal.block_sums import SUFFIX, heal
from journal.errors import ClosedError, StorageError, WritesRefusedError
from journal.fs.files import REAL
from journal.journal import Journal
from journal.poison import Poison


class Owner:
    """What a queue index does about its journal."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.poison = Poison()
        self.woken = 0
        self.journal = Journal(REAL, self.path, self.poison, at_rest=True)
        self.journal.before_waking = self.wake

    def wake(self) -> None:
        self.woken += 1


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path / "journal.jif")


def open_files() -> int:
    gc.collect()  # what other tests have left must not be closed between two counts
    return len(os.listdir("/proc/self/fd"))


def test_what_needs_no_file_opens_none(owner: Owner) -> None:
    journal = owner.journal
    assert journal.tell() == 0
    journal.seal()
    journal.sync()
    journal.close()
    assert not os.path.exists(owner.path)
    with pytest.raises(ClosedError):
        journal.append(b"x" * 8)


@pytest.mark.parametrize("touch", ["action", "append", "make room"])
def test_the_first_touch_wakes_it_once(owner: Owner, touch: str) -> None:
    journal = owner.journal
    if touch == "action":
        journal.append(b"x" * 8, reserve=True)
    elif touch == "append":
        assert journal.append(b"x" * 8) == 0
    else:
        journal.make_room(1 << 20)
        assert journal.limit >= 1 << 20
    before = journal.tell()
    journal.append(b"y" * 8, reserve=True)
    assert journal.tell() == before + 8
    assert owner.woken == 1
    journal.close()


def test_it_keeps_its_records_and_its_room(owner: Owner) -> None:
    journal = owner.journal
    before = open_files()
    for count in range(1, 4):
        assert journal.append(b"x" * 100) == 100 * (count - 1)
        size = os.stat(owner.path).st_size
        journal.rest()
        journal.rest()
        assert journal.at_rest
        assert open_files() == before
        assert os.stat(owner.path).st_size == size >= 16 << 10
        assert Path(owner.path).read_bytes().rstrip(b"\0") == b"x" * 100 * count
    assert owner.woken == 3
    journal.close()
    assert Path(owner.path).read_bytes() == b"x" * 300


def test_what_rests_has_checksums(owner: Owner) -> None:
    journal = owner.journal
    for _ in range(3):
        journal.append(b"x" * 100)
        journal.rest()
    journal.close()
    sums = Path(owner.path + SUFFIX).read_bytes()
    assert heal(Path(owner.path).read_bytes(), sums).sound == 300


def test_one_that_was_emptied_stays_empty(owner: Owner) -> None:
    journal = owner.journal
    journal.append(b"x" * 100)
    journal.rebase(100, None)
    journal.rest()
    assert not any(Path(owner.path).read_bytes())
    journal.append(b"y" * 8)
    journal.rest()
    journal.close(cut=False)
    assert Path(owner.path).read_bytes().rstrip(b"\0") == b"y" * 8


def test_a_file_that_was_never_used_in_this_run_is_cut(owner: Owner) -> None:
    """What a crash left behind the last record must not look like records."""
    Path(owner.path).write_bytes(b"z" * 5000)
    owner.journal.append(b"x" * 8)
    assert Path(owner.path).read_bytes().strip(b"\0") == b"x" * 8


def test_a_sync_opens_the_file_for_itself(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fdatasync

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(type(REAL), "fdatasync", staticmethod(note))
    journal = owner.journal
    journal.append(b"x" * 100)
    journal.rest()
    before = open_files()
    assert not journal.is_durable()
    journal.sync()
    assert journal.is_durable()
    assert synced == [owner.path]
    journal.sync()
    assert synced == [owner.path]  # there is nothing more
    assert owner.woken == 1
    assert open_files() == before
    journal.append(b"x" * 100)
    journal.rest()
    journal.close()
    assert len(synced) == 2
    journal.sync()


def test_one_that_is_cut_meanwhile_is_not_used(owner: Owner) -> None:
    journal = owner.journal
    journal.append(b"x" * 100)
    journal.rest()
    before = open_files()
    os.truncate(owner.path, 50)
    for call in (journal.wake, lambda: journal.append(b"y" * 8)):
        with pytest.raises(StorageError, match="50 bytes of 100"):
            call()
    assert journal.at_rest
    assert open_files() == before


def test_it_refuses_writes_as_any_and_can_be_read(owner: Owner) -> None:
    journal = owner.journal
    journal.append(b"x" * 100)
    journal.rest()
    owner.poison.set(StorageError(owner.path, "sync failed", OSError(5, "I/O error")))
    for call in (journal.sync, lambda: journal.append(b"x" * 8, reserve=True)):
        with pytest.raises(WritesRefusedError, match="sync failed"):
            call()
    assert owner.woken == 1
    journal.wake()
    assert journal.map[:100] == b"x" * 100
    with pytest.raises(WritesRefusedError, match="sync failed"):
        journal.append(b"x" * 8)


def test_a_failing_sync_ends_all_writing(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = owner.journal
    journal.append(b"x" * 100)
    journal.rest()

    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(REAL), "fdatasync", staticmethod(fail))
    before = open_files()
    with pytest.raises(StorageError, match="sync failed"):
        journal.sync()
    assert owner.poison.reason is not None
    assert open_files() == before
    journal.close()
