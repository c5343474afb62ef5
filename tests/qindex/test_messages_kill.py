"""A process with large messages is killed with SIGKILL again and again, compaction in the middle.

Checked after each kill: no message is lost whose publish returned and whose ack had not begun,
none comes back whose ack returned, all bodies are what was published, and the message store counts
what the index says.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import qindex
from tests import effort
from tests.qindex.messages_support import assert_counts
from tests.qindex.stored_kill_child import QUEUES, body_of, open_engine
from tests.waiting import WAIT

KILLS = effort.by_tier(quick=5, all=24, nightly=240)


class Books:
    """What the killed processes had told."""

    def __init__(self) -> None:
        self.published: defaultdict[str, set[int]] = defaultdict(set)
        self.intended: defaultdict[str, set[int]] = defaultdict(set)
        self.acked: defaultdict[str, set[int]] = defaultdict(set)

    def take(self, line: bytes) -> None:
        kind, first, second = line.decode().split()
        if kind == "p":
            for name in second.split(","):
                self.published[name].add(int(first))
        else:
            (self.intended if kind == "i" else self.acked)[first].add(int(second))

    def check(self, engine: qindex.Engine) -> int:
        """Hold the queues against the books; gives how many messages there are."""
        total = 0
        for name in QUEUES:
            bodies = [one.body for one in engine.queue(name).peek(10**6)]
            numbers = [int(body.split(b" ", 1)[0]) for body in bodies]
            assert bodies == [body_of(number) for number in numbers]
            there = set(numbers)
            assert len(there) == len(numbers)
            for thread in range(2):  # each publisher's are in order
                own = [number for number in numbers if number % 2 == thread]
                assert own == sorted(own)
            lost = self.published[name] - self.intended[name] - there
            assert not lost, f"{name}: lost {sorted(lost)[:5]}"
            back = self.acked[name] & there
            assert not back, f"{name}: came back {sorted(back)[:5]}"
            # An ack whose return could not be told was made, or it was not: from now on it counts.
            self.acked[name] |= self.intended[name] - there
            self.published[name] |= there
            total += len(numbers)
        return total


@pytest.mark.timeout(1200)
@pytest.mark.rotates(2)
def test_killed_again_and_again_with_large_messages(tmp_path: Path) -> None:
    chance = effort.chance("kills of large messages")
    store = tmp_path / "store"
    books = Books()
    compacted = 0
    for kill in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.qindex.stored_kill_child", str(store), str(kill * 10**6)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdout is not None
        until = chance.choice((1, 60, 400, 900, 1500))
        with child.stdout as told:
            for count, line in enumerate(told, start=1):
                if count == until:
                    child.kill()
                if line.endswith(b"\n"):
                    books.take(line)
        assert child.wait(WAIT) == -9
        compacted += any((store / "msg_store_persistent").glob("*.tmp"))
        if kill % 3 == 2:  # else the next child recovers
            with open_engine(str(store)) as engine:
                assert not [one for one in engine.findings if one.cause is qindex.Cause.DAMAGE]
                assert not [one for one in engine.findings if "message store" in one.what]
                books.check(engine)
                assert_counts(engine)
            # and is now opened by its snapshot
    with open_engine(str(store)) as engine:
        left = books.check(engine)
        assert_counts(engine)
        for name in QUEUES:
            engine.queue(name).purge()
        assert assert_counts(engine) == 0
        engine.compact()
    assert list((store / "msg_store_persistent").glob("*.rdq")) == []
    published = sum(len(one) for one in books.published.values())
    print(f"\n{KILLS} kills, {compacted} in a copy: {published} published, {left} left, none lost")
    # A consumer may have told of a message before its publisher did.
    assert sum(len(books.published[name] - books.acked[name]) for name in QUEUES) == left
    assert published > 20 * KILLS
