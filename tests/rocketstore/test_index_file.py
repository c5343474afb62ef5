"""Keys put in columns give the bytes that keys put one by one give, and chains answer alike."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.fs.files import REAL
from rocketstore.format.index_format import IndexHeader, file_size, find_geometry
from rocketstore.format.javahash import (
    hash_code,
    hash_many,
    index_hash,
    index_hash_many,
    utf16_length,
)
from rocketstore.index.index_file import IndexFile
from rocketstore.layout import Paths, look
from rocketstore.options import Options
from tests.effort import examples

SLOTS, ENTRIES = 5, 40
PUTS = st.lists(
    st.tuples(st.integers(0, 2**31 - 1) | st.integers(0, 12), st.integers(0, 3_000_000)),
    max_size=60,
)


def java_hash(text: str) -> int:
    """The definition: h = 31 * h + unit over UTF-16 units, wrapping at 32 bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (value * 31 + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def java_slot_hash(text: str) -> int:
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


@settings(deadline=None)
@given(
    st.lists(st.text(max_size=40) | st.text(alphabet="ab", max_size=700), max_size=20), st.text()
)
def test_hash_of_many(texts: list[str], prefix: str) -> None:
    seed = java_hash(prefix)
    assert hash_code(prefix) == seed
    expected = [java_hash(prefix + text) for text in texts]
    assert [hash_code(text, seed) for text in texts] == expected
    assert hash_many(texts, seed).view(np.int32).tolist() == expected
    assert index_hash_many(texts).tolist() == [java_slot_hash(text) for text in texts]


def test_hash_without_absolute_value_is_0() -> None:
    # "polygenelubricants" hashes to Integer.MIN_VALUE.
    assert hash_code("polygenelubricants") == -(1 << 31)
    assert index_hash("polygenelubricants") == 0
    assert index_hash_many(["polygenelubricants", "a"]).tolist() == [0, 97]
    assert utf16_length("a😀") == 3


def put_one(file: IndexFile, key_hash: int, offset: int, store_timestamp: int) -> bool:
    columns = [np.array([number], np.int64) for number in (key_hash, offset, store_timestamp)]
    return file.put_many(*columns) == 1


def put_all(path: Path, previous: IndexHeader | None, puts: list[tuple[int, int]]) -> IndexFile:
    return IndexFile.create(REAL, str(path), SLOTS, ENTRIES, previous)


@settings(deadline=None, max_examples=examples(60))
@given(puts=PUTS, cuts=st.lists(st.integers(0, 60), max_size=3), seeded=st.booleans())
def test_columns_equal_single_puts(
    tmp_path_factory: pytest.TempPathFactory,
    puts: list[tuple[int, int]],
    cuts: list[int],
    seeded: bool,
) -> None:
    root = tmp_path_factory.mktemp("index")
    previous = IndexHeader(5_000, 1_000_000, 3, 4) if seeded else None
    times, now = [], 1_700_000_000_000 if not seeded else 1_000_500
    for _, step in puts:
        now += step
        times.append(now)
    single = put_all(root / "single", previous, puts)
    fitted = [
        put_one(single, key_hash, 100 * at, times[at]) for at, (key_hash, _) in enumerate(puts)
    ]
    columns = put_all(root / "columns", previous, puts)
    hashes = np.array([key_hash for key_hash, _ in puts], np.int32)
    offsets = np.arange(len(puts), dtype=np.int64) * 100
    bounds = sorted({0, len(puts), *(min(cut, len(puts)) for cut in cuts)})
    done = 0
    for low, high in itertools.pairwise(bounds):
        part = slice(low, high)
        done += columns.put_many(hashes[part], offsets[part], np.array(times, np.int64)[part])
    assert done == sum(fitted) == min(len(puts), ENTRIES - 1)
    assert columns.header == single.header
    single.close()
    columns.close()
    assert (root / "single").read_bytes() == (root / "columns").read_bytes()
    if done:
        assert _geometry((root / "single").read_bytes()) == (SLOTS, ENTRIES)


def _geometry(data: bytes) -> tuple[int, int] | None:
    return find_geometry(lambda at, length: data[at : at + length], len(data))


def test_cut_back_gives_the_file_as_it_was(tmp_path: Path) -> None:
    file = IndexFile.create(REAL, str(tmp_path / "f"), SLOTS, ENTRIES, None)
    for number in range(12):
        put_one(file, number * 7 % 5, number, 1_700_000_000_000 + number)
    header = IndexHeader(*file.header.fields())
    slots = file.slot_table().tolist()
    for number in range(12, 30):
        put_one(file, number, number, 1_700_000_000_000 + number)
    assert file.chains_are_sound()
    file.cut_back(header)
    assert file.header.count == 13
    assert file.slot_table().tolist() == slots
    assert file.chains_are_sound()
    file.close()


def test_a_chain_that_runs_in_a_circle_ends(tmp_path: Path) -> None:
    file = IndexFile.create(REAL, str(tmp_path / "f"), SLOTS, ENTRIES, None)
    for number in range(4):
        put_one(file, 10, number, 1_700_000_000_000)
    data = file.map()
    at = 40 + 4 * SLOTS + 20 * 1 + 16
    data[at : at + 4] = (4).to_bytes(4, "big")
    assert not file.chains_are_sound()
    assert file.candidates(10, 0, 2**62) == [3, 2, 1, 0]
    file.close()


@pytest.mark.parametrize("first", [-(2**63) + 1_700_000_000_000, 0, 1_000])
def test_a_time_too_far_from_the_first_is_found(tmp_path: Path, first: int) -> None:
    """A damaged first time: the seconds of the entries after it are all 0, or the most possible."""
    file = IndexFile.create(REAL, str(tmp_path / "f"), SLOTS, ENTRIES, None)
    now = 2**41 + 2**41
    for number, time in enumerate([first, now, now + 1]):
        put_one(file, 10, number, time)
    assert {1, 2} <= set(file.candidates(10, now, now + 1))
    file.close()


@pytest.mark.parametrize("count", [1, 2, 30])
def test_the_sizes_of_a_file_that_is_being_written(tmp_path: Path, count: int) -> None:
    """Slots and entries are stored before the header: a look in between finds them ahead of it."""
    file = IndexFile.create(REAL, str(tmp_path / "f"), 7, 100, None)
    for at in range(count):
        assert put_one(file, 1000 + 3 * at, 100 * at, 5000 + at)
    header = (tmp_path / "f").read_bytes()[:40]
    for at in range(40):
        assert put_one(file, 5 * at, 9000 + at, 9000)
    file.close()
    data = header + (tmp_path / "f").read_bytes()[40:]
    assert _geometry(data) == (7, 100)


def test_files_without_an_entry_are_no_strangers_to_a_reader(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "index").mkdir()
    name = tmp_path / "index" / "20260101000000000"
    for slots, entries in ((50, 200), (1000, 300), (7, 12)):
        IndexFile.create(REAL, str(name), slots, entries, None).close()
        layout = look(REAL, Paths(str(tmp_path)), Options(read_only=True))
        assert layout.strangers == []
        assert file_size(layout.index_slots, layout.index_entries) == name.stat().st_size
        assert layout.index == [name.name]
