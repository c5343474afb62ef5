"""Moves to a dead-letter queue that were cut short, in a store that is repaired: each message is in
one of the two queues of the copy, whatever the dead-letter queue has lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from journal.fs.files import REAL, FileSystem
from qindex.format.transactions import read_transactions
from qindex.tools.repair import repair, repair_store
from tests.cli.support import run
from tests.qindex.support import (
    OtherBootFileSystem,
    copy_live,
    open_quietly,
    queue_directory,
)

LARGE = b"large" * 5000
REJECTED = [b"0", b"1", b"2", LARGE]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store whose process died between the move of four messages and their acks."""
    with open_quietly(tmp_path / "store") as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"0", b"1", b"2"])
        queue.publish(LARGE)
        queue.publish_many([b"4", b"5"])
        for _ in REJECTED:
            delivery = queue.get(0)
            assert delivery is not None
            delivery.reject()
        assert engine._moves.pending == 4
        return copy_live(tmp_path / "store", tmp_path / "killed")


def bodies(store: Path, name: str) -> list[bytes]:
    with open_quietly(store) as engine:
        return [one.body for one in engine.queue(name).peek(100)]


def flip_in(path: Path, what: bytes, number: int = 0) -> None:
    """Damage a file where it has these bytes, beyond what a checksum puts right."""
    data = bytearray(path.read_bytes())
    at = -1
    for _ in range(number + 1):
        at = data.index(what, at + 1)
    data[at : at + 3] = bytes(byte ^ 0xFF for byte in data[at : at + 3])
    path.write_bytes(data)


@pytest.mark.parametrize("fs", [REAL, OtherBootFileSystem()], ids=["kill", "power"])
def test_a_message_that_arrived_is_in_the_dead_letter_queue_alone(
    killed: Path, tmp_path: Path, fs: FileSystem
) -> None:
    new = tmp_path / "new"
    report = repair_store(killed, new, fs=fs)
    assert report.complete
    saved = {one.name: one for one in report.queues}
    assert (saved["q"].messages, saved["q"].moved, saved["q"].bytes) == (2, 4, 2)
    assert (saved["dead"].messages, saved["dead"].moved) == (4, 0)
    assert not (new / "qindex.transactions").exists()
    assert qindex.verify(new).findings == []
    assert bodies(new, "q") == [b"4", b"5"]
    assert bodies(new, "dead") == REJECTED


@pytest.mark.parametrize("how", ["repair", "open"])
def test_what_the_dead_letter_queue_has_lost_is_still_in_the_source(
    killed: Path, tmp_path: Path, how: str
) -> None:
    """Its entry in the source is not acknowledged yet, and that of the target is damaged."""
    journal = queue_directory(killed, "dead") / "journal.jif"
    flip_in(journal, b"x-death", 1)
    if how == "repair":
        assert not repair(killed, tmp_path / "new").complete
        killed = tmp_path / "new"
    else:
        qindex.open(killed, repair=True, background=False).close()
    assert bodies(killed, "dead") == [b"0", b"2", LARGE]
    assert bodies(killed, "q") == [b"1", b"4", b"5"]


@pytest.mark.parametrize("harm", ["cut", "gone", "message"])
def test_a_dead_letter_queue_that_is_mostly_gone(killed: Path, tmp_path: Path, harm: str) -> None:
    directory = queue_directory(killed, "dead")
    if harm == "cut":
        journal = directory / "journal.jif"
        journal.write_bytes(b"\xff" * 500)
    elif harm == "gone":
        shutil.rmtree(directory)
    else:  # the second one of the two: that of the letter
        flip_in(killed / "msg_store_persistent" / "0.rdq", LARGE[:100], _copies(killed) - 1)
    new = tmp_path / "new"
    repair(killed, new)
    there = bodies(new, "q") + (bodies(new, "dead") if harm != "gone" else [])
    assert sorted(there) == sorted([*REJECTED, b"4", b"5"])


def _copies(store: Path) -> int:
    (file,) = (store / "msg_store_persistent").glob("*.rdq")
    data = file.read_bytes()
    starts = [
        at
        for at in range(len(data))
        if data.startswith(LARGE[:5], at) and data[at - 1 : at] != b"e"
    ]
    return len(starts)


def test_what_was_consumed_does_not_come_back(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "store") as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"0", b"1"])
        for take in (queue.get(0), engine.queue("dead")):
            if isinstance(take, qindex.Delivery):
                take.reject()
            else:
                letter = engine.queue("dead").get(0)
                assert letter is not None
                letter.ack()
        killed = copy_live(tmp_path / "store", tmp_path / "killed")
    repair(killed, tmp_path / "new")
    assert bodies(tmp_path / "new", "q") == [b"1"]
    assert bodies(tmp_path / "new", "dead") == []


def test_delivery_counts_are_kept(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "store") as engine:
        queue = engine.queue("q", delivery_limit=9)
        queue.publish_many([b"0", b"1"])
        for _ in range(4):
            delivery = queue.get(0)
            assert delivery is not None
            delivery.nack()
        killed = copy_live(tmp_path / "store", tmp_path / "killed")
    repair(killed, tmp_path / "new")
    with open_quietly(tmp_path / "new") as engine:
        found = engine.queue("q").get_many(2)
        assert [one.delivery_count for one in found] == [5, 1]


def test_a_move_names_queues_that_have_lost_their_names(killed: Path, tmp_path: Path) -> None:
    for name in ("q", "dead"):
        (queue_directory(killed, name) / ".queue_name").unlink()
    result = run("repair", killed, "--out", tmp_path / "new")
    assert "queue q: messages: 2, bytes: 2, moved: 4" in result.text
    assert bodies(tmp_path / "new", "dead") == REJECTED


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-20], lambda data: data[:30] + b"?" + data[31:]]
)
def test_a_damaged_file_of_moves_loses_nothing(
    killed: Path, tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    path = killed / "qindex.transactions"
    path.write_bytes(harm(path.read_bytes().rstrip(b"\0")))
    found = read_transactions(path.read_bytes())[0]
    assert sum(bool(one.published and one.acks) for one in found.values()) < 4
    repair(killed, tmp_path / "new")
    there = set(bodies(tmp_path / "new", "q")) | set(bodies(tmp_path / "new", "dead"))
    assert there == {*REJECTED, b"4", b"5"}
