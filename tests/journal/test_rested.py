"""A journal at rest: closed, and opened again by the first touch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from journal.errors import ClosedError, StorageError, WritesRefusedError
from journal.files import REAL
from journal.journal import Journal
from journal.poison import Poison
from journal.rested import RestedJournal, rest


class Owner:
    """What a queue index does about its journal."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.poison = Poison()
        self.woken = 0
        self.journal: Journal | RestedJournal = self.rested(used=False)

    def rested(self, *, used: bool) -> RestedJournal:
        return RestedJournal(REAL, self.path, self.poison, self.wake, used=used)

    def wake(self) -> Journal:
        if isinstance(self.journal, RestedJournal):
            self.woken += 1
            self.journal = Journal(REAL, self.path, self.poison, rested=self.journal.used)
        return self.journal

    def rest(self) -> Journal:
        journal = self.journal
        assert isinstance(journal, Journal)
        journal.rebase(journal.tell(), None)
        rest(journal)
        self.journal = self.rested(used=True)
        return journal


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path / "journal.jif")


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
    at_rest = owner.journal
    if touch == "action":
        at_rest.append(b"x" * 8, reserve=True)
    elif touch == "append":
        assert at_rest.append(b"x" * 8) == 0
    else:
        woken = at_rest.make_room(1 << 20)
        assert woken is owner.journal
        assert woken.limit >= 1 << 20
    assert owner.woken == 1
    assert isinstance(owner.journal, Journal)
    # Whoever still holds the one at rest gets to the same journal.
    before = owner.journal.tell()
    at_rest.append(b"y" * 8, reserve=True)
    assert owner.journal.tell() == before + 8
    assert owner.woken == 1
    owner.journal.close()


def test_it_keeps_its_room_until_it_is_closed(owner: Owner) -> None:
    owner.journal.append(b"x" * 100)
    owner.rest()
    size = os.stat(owner.path).st_size
    assert size >= 16 << 10
    assert not any(Path(owner.path).read_bytes())
    owner.journal.append(b"y" * 8)
    assert os.stat(owner.path).st_size == size
    owner.rest()
    owner.journal.close(cut=False)
    assert os.stat(owner.path).st_size == size
    owner.journal = owner.rested(used=True)
    owner.journal.close()
    assert os.stat(owner.path).st_size == 0


def test_a_file_that_was_never_used_in_this_run_is_cut(owner: Owner) -> None:
    """What a crash left behind the last record must not look like records."""
    Path(owner.path).write_bytes(b"z" * 5000)
    owner.journal.append(b"x" * 8)
    assert Path(owner.path).read_bytes().strip(b"\0") == b"x" * 8


def test_syncs_of_one_that_was_put_to_rest_are_done(owner: Owner) -> None:
    owner.journal.append(b"x" * 100)
    before = owner.rest()
    before.sync()
    with pytest.raises(ClosedError):
        before.append(b"y" * 8)


def test_it_refuses_writes_as_any(owner: Owner) -> None:
    owner.journal.append(b"x" * 100)
    owner.rest()
    owner.poison.set(StorageError(owner.path, "sync failed", OSError(5, "I/O error")))
    for call in (owner.journal.sync, lambda: owner.journal.append(b"x" * 8, reserve=True)):
        with pytest.raises(WritesRefusedError, match="sync failed"):
            call()
    assert owner.woken == 1


def test_a_failing_sync_leaves_it_awake(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.journal.append(b"x" * 100)
    journal = owner.journal
    assert isinstance(journal, Journal)
    journal.rebase(100, None)

    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(REAL), "fdatasync", staticmethod(fail))
    with pytest.raises(StorageError, match="sync failed"):
        rest(journal)
    assert owner.poison.reason is not None
    assert not journal.rested
    journal.close()
