"""Journal against segment: every combination of what the two say of one entry has its outcome.

The table of the format's section 2.6, made total: files written by hand, opened by the engine.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from journal.findings import Cause
from journal.fs.files import REAL
from journal.journal import Journal
from journal.poison import Poison
from qindex.index.segment_scan import places, scan_segment
from qindex.recovery.store_recovery import load_queue
from tests.qindex.support import (
    OtherBootFileSystem,
    drain,
    journal_bytes,
    open_quietly,
    publish_record,
    queue_directory,
    segment_bytes,
)

COUNT = 8
BODY = b"the message"

ABSENT, READY, AGAIN, GONE = "absent", "ready", "redelivered", "gone"

JOURNALS = ["", "p", "pd", "pda", "d", "a", "da", "pa"]
SEGMENTS = ["", "p", "pd", "pda"]

OUTCOMES = {
    # segment:  absent   pub    pub+del  pub+del+ack
    "": [ABSENT, READY, AGAIN, GONE],
    "p": [READY, READY, AGAIN, GONE],
    "pd": [AGAIN, AGAIN, AGAIN, GONE],
    "pda": [GONE, GONE, GONE, GONE],
    "d": [ABSENT, AGAIN, AGAIN, GONE],
    "da": [ABSENT, GONE, GONE, GONE],
    # An ack of what nobody was given, with nothing behind it: rather one too many.
    "a": [ABSENT, READY, GONE, GONE],
    "pa": [READY, READY, GONE, GONE],
}
DOUBTED = {("a", "p"), ("pa", ""), ("pa", "p")}
"""Combinations that no crash leaves: reported, and open asks for ``repair=True``."""


def make_store(directory: Path, journal: bytes, segment: bytes) -> Path:
    """A store with one queue that holds these bytes (seq_ids 0 to 7 may be given out)."""
    with open_quietly(directory, segment_entry_count=COUNT) as engine:
        engine.queue("q").publish(b"x")
        engine.flush()
    queue = queue_directory(directory, "q")
    (directory / "qindex.clean").unlink()
    for path in queue.glob("*.idx*"):
        path.unlink()
    (queue / "journal.jif").write_bytes(journal)
    if segment:
        (queue / "0.idx").write_bytes(segment)
    return queue


@pytest.mark.parametrize("segment", SEGMENTS)
@pytest.mark.parametrize("journal", JOURNALS)
@pytest.mark.parametrize("tail", [b"", bytes(4096)], ids=["cut", "zeros behind"])
def test_every_combination(tmp_path: Path, journal: str, segment: str, tail: bytes) -> None:
    seq = 3
    make_store(
        tmp_path,
        journal_bytes(seq, BODY, journal) + tail,
        segment_bytes(seq, BODY, segment, COUNT),
    )
    doubted = (journal, segment) in DOUBTED
    outcome = OUTCOMES[journal][SEGMENTS.index(segment)]
    expected = [(seq, BODY, outcome == AGAIN)] if outcome in (READY, AGAIN) else []
    # A deliver or ack of what was never published is left by a loss of power alone.
    fs = REAL if "p" in journal + segment else OtherBootFileSystem()
    for _ in range(2):  # what recovery made of it is what the next open finds
        with open_quietly(tmp_path, fs=fs) as engine:
            assert any("never delivered" in one.what for one in engine.findings) == doubted
            doubted = False
            queue = engine.queue("q")
            assert len(queue) == len(expected)
            assert [(one.seq_id, one.body, one.redelivered) for one in queue.peek(5)] == expected
            assert queue.publish(b"next") > seq * bool(journal or segment)
            assert drain(queue)[: len(expected)] == expected
            expected = []


@pytest.mark.parametrize("segment", SEGMENTS)
@pytest.mark.parametrize("journal", JOURNALS)
def test_the_outcome_is_the_greater_of_the_states(
    tmp_path: Path, journal: str, segment: str
) -> None:
    """The same table through the loader, beside entries that are in order."""
    neighbours = [
        segment_bytes(1, b"one", "pd", COUNT),
        segment_bytes(2, b"two", "p", COUNT),
        segment_bytes(5, b"five", "p", COUNT),
    ]
    queue = make_store(
        tmp_path,
        journal_bytes(3, BODY, journal) + journal_bytes(2, b"", "d") + journal_bytes(5, b"", "da"),
        b"".join(neighbours) + segment_bytes(3, BODY, segment, COUNT),
    )
    loaded = load_queue(REAL, str(queue), COUNT, os.listdir(queue))
    states = loaded.segments[0].states if 0 in loaded.segments else bytearray(COUNT)
    order = {ABSENT: 0, READY: 1, AGAIN: 2, GONE: 3}
    outcome = OUTCOMES[journal][SEGMENTS.index(segment)]
    if (journal, segment) in DOUBTED:
        # Later entries were delivered: then it is the deliver record that is missing.
        outcome = GONE
    assert states[3] == order[outcome]
    assert bytes(states[1:3]) + states[5:6] == bytes((2, 2, 3))
    assert loaded.unacked == 2 + (outcome in (READY, AGAIN))
    assert loaded.seen == 6


@pytest.mark.parametrize(
    ("steps", "state"), [("", 1), ("d", 2), ("da", 3), ("daa", 3), ("daaa", 3)]
)
def test_steps_of_a_segment_are_counted(steps: str, state: int) -> None:
    data = segment_bytes(0, BODY, "p" + steps, COUNT)
    scan = scan_segment("0.idx", data, 0, COUNT)
    assert scan.filed[0] == state
    extra = max(len(steps) - 2, 0)
    assert [one.what for one in scan.findings] == ["more than one ack of seq_id 0"] * extra
    assert scan.sound_bytes() == segment_bytes(0, BODY, "p" + steps[:2], COUNT)


def test_a_step_before_its_publish_is_dropped() -> None:
    data = segment_bytes(1, BODY, "d", COUNT) + segment_bytes(0, BODY, "p", COUNT)
    scan = scan_segment("0.idx", data + segment_bytes(1, BODY, "p", COUNT), 0, COUNT)
    assert bytes(scan.filed[:2]) == bytes((1, 1))
    assert [(one.offset, one.cause) for one in scan.findings] == [(0, Cause.DAMAGE)]
    clean = segment_bytes(0, BODY, "p", COUNT) + segment_bytes(1, BODY, "p", COUNT)
    assert scan.sound_bytes() == clean


def test_publishes_out_of_order_and_twice_in_a_segment() -> None:
    data = b"".join(
        segment_bytes(seq, body, "p", COUNT) for seq, body in [(5, b"5"), (2, b"2"), (5, b"five")]
    )
    scan = scan_segment("0.idx", data, 0, COUNT)
    assert [rel for rel in range(COUNT) if scan.filed[rel]] == [2, 5]
    offsets, lengths = scan.located()
    assert [rel for rel in range(COUNT) if offsets[rel] >= 0] == [2, 5]
    assert data[int(offsets[5]) :][: int(lengths[5])] == segment_bytes(5, b"five", "p", COUNT)


@pytest.mark.parametrize("seqs", [[], [8], [15], [8, 9, 10], [9, 11], list(range(8, 16))])
def test_places_of_seq_ids_in_a_map(seqs: list[int]) -> None:
    found = places(np.array(seqs, np.int64), 8)
    assert np.arange(8)[found].tolist() == [seq - 8 for seq in seqs]
    assert isinstance(found, slice) == (seqs not in ([], [9, 11]))


def test_the_last_of_several_publishes_of_one_seq_id_counts(tmp_path: Path) -> None:
    make_store(tmp_path, publish_record(0, b"overtaken") + publish_record(0, b"good"), b"")
    with open_quietly(tmp_path) as engine:
        assert [body for _, body, _ in drain(engine.queue("q"))] == [b"good"]


@pytest.mark.parametrize("zeros", [1, 2, 40, 5000])
def test_a_segment_of_zeros_counts_as_empty(tmp_path: Path, zeros: int) -> None:
    queue = make_store(tmp_path, journal_bytes(3, BODY, "da"), bytes(zeros))
    with open_quietly(tmp_path, fs=OtherBootFileSystem()) as engine:
        assert len(engine.queue("q")) == 0
        assert not (queue / "0.idx").exists()
        assert all(one.cause is Cause.CRASH for one in engine.findings)


def test_a_segment_that_is_all_acknowledged_is_deleted(tmp_path: Path) -> None:
    queue = make_store(tmp_path, journal_bytes(3, BODY, "a"), segment_bytes(3, BODY, "pd", COUNT))
    with open_quietly(tmp_path) as engine:
        assert len(engine.queue("q")) == 0
        assert not (queue / "0.idx").exists()
        assert engine.queue("q").publish(b"new") == 4


def test_an_empty_segment_file_and_a_missing_journal(tmp_path: Path) -> None:
    queue = make_store(tmp_path, b"", b"")
    (queue / "0.idx").write_bytes(b"")
    (queue / "journal.jif").unlink()
    (queue / "1.idx").write_bytes(segment_bytes(COUNT + 1, BODY, "p", COUNT))
    with open_quietly(tmp_path) as engine:
        assert drain(engine.queue("q")) == [(COUNT + 1, BODY, False)]


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_a_torn_record_at_the_end_of_a_segment_costs_itself(tmp_path: Path, cut: int) -> None:
    first = segment_bytes(0, b"first", "pd", COUNT)
    torn = segment_bytes(1, b"torn", "p", COUNT)[: cut or None]
    journal = journal_bytes(1, b"torn", "p")
    make_store(tmp_path, journal, first + torn)
    with open_quietly(tmp_path) as engine:
        assert all(one.cause is Cause.CRASH for one in engine.findings)
        expected = [(0, b"first", True), (1, b"torn", False)]
        assert drain(engine.queue("q")) == expected


def test_names_that_are_no_segments_are_let_be(tmp_path: Path) -> None:
    queue = make_store(tmp_path, journal_bytes(0, BODY, "p"), b"")
    for name in ("x.idx", "1.idx.bak", "٣.idx", ".idx", "-1.idx"):
        (queue / name).write_bytes(b"not ours")
    with open_quietly(tmp_path) as engine:
        assert drain(engine.queue("q")) == [(0, BODY, False)]
    assert (queue / "x.idx").read_bytes() == b"not ours"


def test_a_journal_that_is_opened_by_hand_is_whole(tmp_path: Path) -> None:
    """The journal class and the recovery agree on what was appended."""
    queue = make_store(tmp_path, b"", b"")
    (queue / "journal.jif").unlink()
    journal = Journal(REAL, queue / "journal.jif", Poison())
    journal.append(publish_record(0, b"a") + publish_record(1, b"b"))
    journal.append(journal_bytes(0, b"", "da"))
    journal.close(cut=False)
    with open_quietly(tmp_path) as engine:
        assert drain(engine.queue("q")) == [(1, b"b", False)]
