"""A child that publishes and consumes is killed with SIGKILL, again and again, over one directory.

What its calls returned it tells through a pipe, and that is what is checked after each kill:
nothing that was published is lost, nothing whose ack returned comes back, the order holds,
seq_ids do not repeat, what had been delivered says so when it comes again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import qindex
from tests import effort
from tests.qindex.kill_child import QUEUES
from tests.qindex.support import drain
from tests.waiting import WAIT

KILLS = effort.by_tier(quick=12, all=100, nightly=1000)


@dataclass
class Books:
    """What one queue's driver knows."""

    published: dict[int, int] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    intended: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)

    def take(self, words: list[str]) -> None:
        kind, seq = words[0], int(words[2])
        if kind == "P":
            number = int(words[3])
            assert self.published.get(seq, number) == number, f"seq_id {seq} was given twice"
            self.published[seq] = number
        elif kind == "D":
            number, again = int(words[3]), words[4] == "1"
            assert self.published.setdefault(seq, number) == number, f"seq_id {seq}: another body"
            assert seq not in self.acked, f"seq_id {seq} was acknowledged, and came back"
            assert again or seq not in self.delivered, f"seq_id {seq}: delivered before"
            self.delivered.add(seq)
        elif kind == "I":
            assert seq in self.delivered
            self.intended.add(seq)
        else:
            self.acked.add(seq)


def _ready(directory: Path, first: int, flush_idle: float) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.qindex.kill_child",
            str(directory),
            str(first),
            str(flush_idle),
        ],
        stdout=subprocess.PIPE,
        cwd=root,
    )


def _lines(child: subprocess.Popen[bytes], until: int) -> Iterator[list[str]]:
    """What the child tells; it is killed after ``until`` lines."""
    assert child.stdout is not None
    for told, line in enumerate(child.stdout, 1):
        if told == until:
            child.send_signal(signal.SIGKILL)
        if line.endswith(b"\n") and line != b"READY\n":
            yield line.decode().split()


def _check(books: Books, queue: qindex.Queue, name: str) -> int:
    """What the directory holds now, against the books; gives the number of messages."""
    found = [(one.seq_id, int(one.body.split()[0].rstrip(b"\0"))) for one in queue.peek(10**6)]
    seqs = [seq for seq, _ in found]
    assert seqs == sorted(set(seqs)), f"{name}: out of order"
    held = dict(found)
    lost = [seq for seq in books.published if seq not in held and seq not in books.acked]
    # An ack may have been made whose return the child could not tell any more.
    assert set(lost) <= books.intended, f"{name}: lost {sorted(set(lost) - books.intended)[:5]}"
    books.acked.update(lost)
    back = books.acked & held.keys()
    assert not back, f"{name}: came back: {sorted(back)[:5]}"
    numbers = [number for _, number in found]
    assert numbers == sorted(numbers), f"{name}: out of order"
    for seq, number in found:
        # A publish may have been made whose return could not be told.
        assert books.published.setdefault(seq, number) == number, f"{name}: seq_id {seq} changed"
    flagged = {one.seq_id for one in queue.peek(10**6) if one.redelivered}
    assert {seq for seq in held if seq in books.delivered} <= flagged
    books.delivered |= flagged
    return len(found)


@pytest.mark.timeout(600)
@pytest.mark.rotates(2)
def test_killed_again_and_again(tmp_path: Path) -> None:
    chance = effort.chance("kills")
    store = tmp_path / "store"
    books = {name: Books() for name in QUEUES}
    first = 0
    published = []
    child = _ready(store, first, 0.01)
    for kill in range(KILLS):
        for words in _lines(child, chance.choice((2, 30, 200, 900, 2000))):
            books[words[1]].take(words)
        assert child.wait(WAIT) == -signal.SIGKILL
        highest = {name: max(one.published, default=-1) for name, one in books.items()}
        first += 1_000_000
        if kill % 5 == 4:
            with qindex.open(store, background=False) as engine:
                assert all(one.cause is qindex.Cause.CRASH for one in engine.findings)
                for name in QUEUES:
                    _check(books[name], engine.queue(name), name)
                    if kill % 20 == 19:
                        seq = engine.queue(name).publish(b"%d " % (first - 1))
                        assert seq > highest[name]
                        books[name].published[seq] = first - 1
        published.append(sum(len(one.published) for one in books.values()))
        child = _ready(store, first, chance.choice((0.002, 0.02, 5.0)))
    child.kill()
    for words in _lines(child, -1):
        books[words[1]].take(words)
    child.wait(WAIT)
    with qindex.open(store) as engine:
        for name, one in books.items():
            queue = engine.queue(name)
            _check(one, queue, name)
            seqs = [seq for seq, _, _ in drain(queue)]
            assert set(seqs) == one.published.keys() - one.acked
            assert queue.publish(b"last") > max(one.published)
    total = sum(len(one.published) for one in books.values())
    acked = sum(len(one.acked) for one in books.values())
    print(f"\n{KILLS} kills: {total} messages published, {acked} acknowledged, none lost")
    assert total > 10 * KILLS
