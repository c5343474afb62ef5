"""Runs of plain messages are read at once: as one by one, and only where all of them are plain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qindex
from journal.format import PUBLISH_HEAD_SIZE
from qindex.engine.opening import open_store
from qindex.format import plain_rows
from qindex.format.entries import Entry
from qindex.format.message_record import PLAIN_HEAD_SIZE, plain_body_head, plain_body_size
from qindex.index import index_reader
from qindex.index.queue_index import QueueIndex
from tests.faulty_fs import FaultyFileSystem
from tests.memory_fs import MemoryFileSystem

pytestmark = pytest.mark.interpreted  # the reader's ways are replaced

OPTIONS: dict[str, dict[str, Any]] = {
    "run": {},
    "keyed": {"key": "k"},
    "nameless": {"key": ""},
    "ttl": {"ttl": 1e9},
    "transient": {"persistent": False},
}
SIZES = (1, 100, 255, 256, 5000)

step = st.tuples(
    st.sampled_from([*OPTIONS, "take", "ack", "empty"]),
    st.sampled_from(SIZES),
    st.integers(1, 150),
)


def everything(index: QueueIndex, most: int) -> Iterator[tuple[Any, ...]]:
    """Each entry that is read ahead, with what a consumer gets of it."""
    at = 0
    while True:
        window, at = index.fetch(at, most)
        if window is None:
            return
        rows = zip(window.seqs, window.bodies, window.extras, window.states, strict=True)
        assert window.plain == (Entry not in set(map(type, window.extras)))
        yield from rows


def without_runs(index: QueueIndex, most: int) -> list[tuple[Any, ...]]:
    with patch.object(index_reader.IndexReader, "_read_run", lambda *_: None):
        return list(everything(index, most))


def perform(queue: qindex.Queue, what: str, size: int, count: int) -> None:
    if what == "take":
        queue.get_many(count)
    elif what == "ack":
        queue.ack_many(queue.get_many(count))
    elif what == "empty":
        queue.publish(b"")
    else:
        for number in range(count):
            queue.publish(bytes((number,)) * size, **OPTIONS[what])


@given(st.lists(step, min_size=1, max_size=6), st.sampled_from([70, 480, 2048]))
def test_runs_are_read_as_one_by_one(steps: list[tuple[str, int, int]], most: int) -> None:
    with open_store("/s", fs=MemoryFileSystem(root="/"), embed_below=1 << 20) as engine:
        queue = engine.queue("q")
        for each in steps:
            perform(queue, *each)
        index = queue._parts.state.index
        assert list(everything(index, most)) == without_runs(index, most)
        queue._parts.flusher.flush_now()
        perform(queue, "run", 100, 80)
        assert list(everything(index, most)) == without_runs(index, most)
        queue._parts.flusher.flush_now()
        assert list(everything(index, most)) == without_runs(index, most)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(
    ("other", "size"), [("ttl", 100), ("nameless", 100), ("keyed", 99), ("transient", 100)]
)
@pytest.mark.parametrize("first", [True, False])
def test_others_of_the_same_length_between_them(
    other: str, size: int, first: bool, flushed: bool
) -> None:
    """Nothing tells them from a run but what is in them."""
    with open_store("/s", fs=MemoryFileSystem(root="/")) as engine:
        queue = engine.queue("q")
        if first:
            perform(queue, other, size, 100)
        perform(queue, "run", 100, 100)
        perform(queue, other, size, 100)
        perform(queue, "run", 100, 100)
        if flushed:
            queue._parts.flusher.flush_now()
        index = queue._parts.state.index
        found = list(everything(index, 1000))
        assert found == without_runs(index, 1000)
        assert len(found) == len(queue)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flushed", [False, True])
def test_a_run_is_read_at_once(size: int, flushed: bool) -> None:
    with (
        open_store("/s", fs=MemoryFileSystem(root="/"), embed_below=1 << 20) as engine,
        patch.object(plain_rows, "read_run", side_effect=plain_rows.read_run) as seen,
    ):
        queue = engine.queue("q")
        perform(queue, "run", size, 100)
        if flushed:
            queue._parts.flusher.flush_now()
        with patch.object(index_reader.IndexReader, "read", side_effect=AssertionError):
            found = list(everything(queue._parts.state.index, 1000))
        assert [body for _, body, _, _ in found] == [bytes((n,)) * size for n in range(100)]
        assert seen.call_count == 1


def test_a_segment_too_large_to_be_kept_is_read_once_for_each_window() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(root="/"))
    with open_store("/s", fs=fs) as engine, patch.object(index_reader, "_KEPT_BYTES", 1000):
        queue = engine.queue("q")
        perform(queue, "run", 100, 200)
        queue._parts.flusher.flush_now()
        index = queue._parts.state.index
        index.place(index.segments[0])
        before = fs.calls["pread"]
        found = list(everything(index, 50))
        assert fs.calls["pread"] - before == 4
        assert [body for _, body, _, _ in found] == [bytes((n,)) * 100 for n in range(200)]


@pytest.mark.parametrize("at", [0, 5, 8, 20, 27, 34, 38, 44, 47, 55, 60, 63, 64, 65, 164])
def test_a_flipped_bit_in_a_run_costs_what_it_hit(at: int) -> None:
    """Each byte of a record but its neighbours': the same findings as without runs."""
    with open_store("/s", fs=MemoryFileSystem(root="/")) as engine:
        queue = engine.queue("q")
        perform(queue, "run", 100, 100)
        index = queue._parts.state.index
        data = index.journal.map
        where = index.positions[50] + min(at, PUBLISH_HEAD_SIZE + PLAIN_HEAD_SIZE + 101)
        data[where] ^= 0x10
        found = list(everything(index, 1000))
        assert found == without_runs(index, 1000)
        bodies = [body for seq, body, _, _ in found if seq != 50]
        assert bodies == [bytes((n,)) * 100 for n in range(100) if n != 50]
        data[where] ^= 0x10


def test_the_size_of_a_body_from_the_length_of_its_record() -> None:
    for size in (*range(600), *range(65_500, 65_600)):
        length = PLAIN_HEAD_SIZE + len(plain_body_head(size)) + size
        assert plain_body_size(length) == size
    assert plain_body_size(0) < 0
