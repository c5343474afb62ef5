"""The primitives that store into a map: each build is held against the interpreter's."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from journal.fs.files import REAL
from journal.journal import Journal
from journal.memory import words
from journal.poison import Poison

SIZES = [*range(1, 70), 255, 4095, 4096, 4097, 70_000]


class RecordedMap(mmap.mmap):
    """A map whose stores are seen: the primitives have to use its methods."""

    stores: list[tuple[int, int]]

    def __setitem__(self, key: Any, value: Any, /) -> None:
        self.stores.append((key.start, key.stop))
        super().__setitem__(key, value)


def some_bytes(size: int) -> bytes:
    return bytes((7 * at + size) % 251 + 1 for at in range(size))


@pytest.mark.parametrize("as_view", [False, True])
def test_records_of_all_sizes_are_stored_as_they_are(tmp_path: Path, as_view: bool) -> None:
    journal = Journal(REAL, tmp_path / "journal.jif", Poison())
    expected = mmap.mmap(-1, 1 << 20)
    for size in SIZES:
        record = some_bytes(size)
        journal.make_room(size + 8)
        at = journal.store(memoryview(record) if as_view else record)
        words.store_record(expected, at, record)
        word = (3 << 62) + size
        journal.store_word(word)
        words.store_word(expected, at + size, word)
        assert journal.map[: journal.end] == expected[: journal.end]
    journal.close()


def test_the_start_of_a_record_is_stored_last(tmp_path: Path) -> None:
    journal = Journal(REAL, tmp_path / "journal.jif", Poison())
    journal.map = recorded = RecordedMap(-1, mmap.PAGESIZE)
    recorded.stores = []
    journal.store(some_bytes(100))
    journal.store_word(3 << 62)
    assert recorded.stores == [(16, 100), (0, 16), (100, 108)]
    assert recorded[:108] == some_bytes(100) + (3 << 62).to_bytes(8, "big")


@pytest.mark.parametrize("at", [mmap.PAGESIZE - 7, mmap.PAGESIZE, 1 << 40])
def test_nothing_is_stored_behind_the_map(tmp_path: Path, at: int) -> None:
    journal = Journal(REAL, tmp_path / "journal.jif", Poison())
    for record in (bytes(range(1, 9)), some_bytes(100)):
        journal.map = room = mmap.mmap(-1, mmap.PAGESIZE)
        journal.end = at
        with pytest.raises(IndexError):
            journal.store(record)
        journal.end = at
        with pytest.raises(IndexError):
            journal.store_word(1)
        assert room[:] == bytes(mmap.PAGESIZE)
