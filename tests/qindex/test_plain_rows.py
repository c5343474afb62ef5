"""Plain messages read many at once, and delivers and acks written many at once: each build is held
against one by one.

Where a run ends is a matter of the build; what is in it is not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import qindex
from journal.compiled import COMPILED, build
from journal.format import ACK, DELIVER, PAYLOAD_SIZE, PUBLISH_HEAD_SIZE, pack_action
from qindex.engine.opening import open_store
from qindex.format.plain_record import SHORTEST_RUN, read_plain
from qindex.index.queue_index import QueueIndex
from qindex.index.read_ahead import Window
from tests.memory_fs import MemoryFileSystem

SOME = random.Random(1)
ONE_SIZE = [100] * 150
MANY_SIZES = [0, 1, 255, 256, 2000, 2100, 65_535, 65_536, 9, 3] * 10


@pytest.fixture
def queue() -> Iterator[qindex.Queue]:
    fs = MemoryFileSystem(root="/")
    with open_store("/s", fs=fs, background=False, embed_below=1 << 20) as engine:
        yield engine.queue("q")


def index_of(queue: qindex.Queue) -> QueueIndex:
    return queue._parts.state.index


def publish(queue: qindex.Queue, sizes: list[int]) -> list[bytes]:
    bodies = [SOME.randbytes(size) for size in sizes]
    for body in bodies:
        queue.publish(body)
    return bodies


def run_of(queue: qindex.Queue, first: int) -> Window | None:
    """The run that is read from ``first`` on, where all that follow are ready."""
    index = index_of(queue)
    segment = index.segment_of(first)
    return index._read_run(segment, first - segment.base, index.next_seq - segment.base)


@pytest.mark.parametrize("sizes", [ONE_SIZE, MANY_SIZES])
def test_a_run_is_what_its_records_are(queue: qindex.Queue, sizes: list[int]) -> None:
    bodies = publish(queue, sizes)
    index = index_of(queue)
    expected = [
        read_plain(index.journal.map, at + PUBLISH_HEAD_SIZE - PAYLOAD_SIZE, seq, False)
        for seq, at in enumerate(index.positions)
    ]
    assert [found and found[0] for found in expected] == bodies
    for flushed in (False, True):
        if flushed:
            queue._parts.flusher.flush_now()
        run = run_of(queue, 0)
        if run is None:  # interpreted, a run has one size
            assert (sizes is MANY_SIZES, build() != COMPILED) == (True, True)
            return
        count = len(run)
        assert count >= SHORTEST_RUN
        assert list(zip(run.bodies, run.extras, strict=True)) == expected[:count]
        assert run.seqs.tolist() == list(range(count))
        assert count == len(sizes) or sum(sizes[: count + 1]) > 1 << 20


@pytest.mark.parametrize("at", [*range(41), *range(43, 52), 60, 62, 63, 64, 65, 164])
def test_a_run_ends_before_a_record_that_does_not_hold(queue: qindex.Queue, at: int) -> None:
    """Each byte of a record's head, two of its body; of the record behind a long run."""
    bodies = publish(queue, ONE_SIZE)
    index = index_of(queue)
    index.journal.map[index.positions[100] + at] ^= 0x04
    run = run_of(queue, 0)
    assert run is None or run.bodies == bodies[:100]
    assert (run is not None) == (build() == COMPILED)  # interpreted, all of it is read one by one
    found = []
    while len(queue):
        try:
            found += queue.get_many(150).bodies
        except qindex.DamageError:
            del bodies[100]
    # A flipped bit is put right where the length of the record holds.
    assert found == bodies
    assert len(found) == (149 if at in range(36, 40) else 150)


def test_records_that_are_cut_off_are_no_run(queue: qindex.Queue) -> None:
    publish(queue, ONE_SIZE)
    queue._parts.flusher.flush_now()
    index = index_of(queue)
    segment = index.segment_of(0)
    index.place(segment)
    index._turn_to(segment)
    whole = segment.verified
    record = len(whole) // len(ONE_SIZE)
    for size in (0, 1, 40, record - 1, 99 * record + 7, 100 * record - 1):
        segment.verified = whole[:size]
        run = run_of(queue, 0)
        assert run is None or len(run) == size // record
    segment.verified = whole
    assert len(index._read_run(segment, 0, 150) or ()) == 150


def test_delivers_and_acks_of_a_batch_are_those_of_each(queue: qindex.Queue) -> None:
    """A run of entries, and entries with gaps between them."""
    publish(queue, ONE_SIZE)
    journal = index_of(queue).journal
    start = journal.end
    batch = queue.get_many(150)
    queue.ack_many(batch[:100])
    queue.ack_many(batch[101::2])
    words = [pack_action(DELIVER, seq) for seq in range(150)]
    words += [pack_action(ACK, seq) for seq in (*range(100), *range(101, 150, 2))]
    assert journal.map[start : journal.end] == b"".join(words)
    assert batch.seq_ids == list(range(150))
    assert [one.seq_id for one in batch if not one.settled] == list(range(100, 150, 2))
