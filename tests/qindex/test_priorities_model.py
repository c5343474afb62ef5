"""Priority queues against a model: random calls, reopens, kills and calls that are cut short."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.format.priorities import SHIFT
from tests.effort import by_tier

HIGHEST = 5
STEPS = 60
RUNS = by_tier(quick=40, all=250, nightly=5000)


class Run:
    """One queue, what must be in it, and what may be done to both.

    ``waiting``: seq_ids of messages that are ready, with their bodies; ``held``: deliveries.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.options: dict[str, Any] = {
            "background": False,
            "durability": self.random.choice(("os", "os", "fsync")),
            "embed_below": self.random.choice((64, 4096)),
            "max_journal_entries": self.random.choice((8, 1000)),
            "segment_entry_count": self.random.choice((4, 64)),
        }
        self.limit = self.random.choice((None, None, 12))
        self.waiting: dict[int, bytes] = {}
        self.delivered: set[int] = set()
        self.held: dict[int, qindex.Delivery] = {}
        self.used: set[int] = set()
        self.open()

    def open(self) -> None:
        self.engine = qindex.open(self.directory, **self.options)
        self.queue = self.engine.queue(
            "q", max_priority=HIGHEST, max_length=self.limit, delivery_limit=50
        )

    def expected(self) -> list[int]:
        """Give the seq_ids of what is ready, in order of delivery."""
        return sorted(self.waiting, key=lambda seq: (-(seq >> SHIFT), seq))

    def body(self) -> bytes:
        return b"%d" % self.random.randrange(10**6) * self.random.choice((1, 5, 50))

    def _came(self, seq: int, priority: int, body: bytes) -> None:
        assert seq >> SHIFT == priority
        assert seq not in self.used, "a seq_id was given out twice"
        self.used.add(seq)
        self.waiting[seq] = body

    def publish(self) -> None:
        priority = self.random.choice((None, *range(HIGHEST + 1)))
        body = self.body()
        options: dict[str, Any] = self.random.choice(
            ({}, {"key": "k"}, {"headers": {"a": 1}}, {"properties": {"p": 1}})
        )
        try:
            seq = self.queue.publish(body, priority=priority, timeout=0, **options)
        except qindex.QueueFullError:
            assert self.limit is not None
            assert len(self.waiting) >= self.limit
        else:
            assert self.limit is None or len(self.waiting) < self.limit
            self._came(seq, priority or 0, body)

    def publish_many(self) -> None:
        priority = self.random.choice((None, *range(HIGHEST + 1)))
        bodies = [self.body() for _ in range(self.random.randrange(1, 6))]
        try:
            seqs = self.queue.publish_many(bodies, priority=priority, timeout=0)
        except qindex.QueueFullError:
            assert self.limit is not None
            assert len(self.waiting) + len(bodies) > self.limit
        else:
            for seq, body in zip(seqs, bodies, strict=True):
                self._came(seq, priority or 0, body)

    def get(self) -> None:
        delivery = self.queue.get(timeout=0)
        self._taken([] if delivery is None else [delivery], 1)

    def get_many(self) -> None:
        most = self.random.randrange(1, 12)
        batch = self.queue.get_many(most)
        assert batch.seq_ids == [one.seq_id for one in batch]
        self._taken(list(batch), most)

    def _taken(self, taken: list[qindex.Delivery], most: int) -> None:
        assert [one.seq_id for one in taken] == self.expected()[:most]
        for one in taken:
            assert one.body == self.waiting.pop(one.seq_id)
            assert one.redelivered == (one.seq_id in self.delivered)
            assert one.properties.get("priority", 0) == one.priority
            self.delivered.add(one.seq_id)
            self.held[one.seq_id] = one

    def ack(self) -> None:
        if self.held:
            self.held.pop(self.random.choice(list(self.held))).ack()

    def ack_many(self) -> None:
        count = self.random.randrange(1, 5)
        chosen = self.random.sample(list(self.held), min(count, len(self.held)))
        self.queue.ack_many([self.held.pop(seq) for seq in chosen])

    def ack_up_to(self) -> None:
        if self.held:
            last = self.random.choice(list(self.held))
            gone = [seq for seq in self.held if seq <= last and seq >> SHIFT == last >> SHIFT]
            assert self.queue.ack_up_to(last) == len(gone)
            for seq in gone:
                del self.held[seq]

    def nack(self) -> None:
        if self.held:
            seq = self.random.choice(list(self.held))
            delivery = self.held.pop(seq)
            self.waiting[seq] = delivery.body
            delivery.nack()

    def cancel(self) -> None:
        if self.used:
            seq = self.random.choice(list(self.used))
            expected = seq in self.waiting and seq not in self.delivered
            assert self.queue.cancel(seq) == expected
            if expected:
                del self.waiting[seq]

    def look(self) -> None:
        stats = self.queue.stats()
        assert (stats.ready, stats.unacked) == (len(self.waiting), len(self.held))
        assert len(self.queue) == len(self.waiting)
        counts = [0] * (HIGHEST + 1)
        for seq in self.waiting:
            counts[seq >> SHIFT] += 1
        assert stats.ready_by_priority == tuple(counts)
        assert [one.seq_id for one in self.queue.peek(5)] == self.expected()[:5]
        with qindex.open(self.directory, read_only=True) as reading:
            shown = [one.seq_id for one in reading.queue("q")]
        there = {*self.waiting, *self.held}
        assert shown == sorted(there, key=lambda seq: (-(seq >> SHIFT), seq))

    def flush(self) -> None:
        self.queue.flush()

    def rest(self) -> None:
        for level in self.queue._parts.levels:
            self.engine._roster.put_to_rest(level)

    def purge(self) -> None:
        if self.random.random() < 0.2:
            assert self.queue.purge() == len(self.waiting)
            self.waiting.clear()

    def reopen(self) -> None:
        self.engine.close()
        self.open()
        self._came_back()

    def kill(self) -> None:
        """Go on with a copy of the files, as after kill -9."""
        copy = self.directory.with_name(f"{self.directory.name}k")
        shutil.copytree(self.directory, copy)
        self.engine.close()
        shutil.rmtree(self.directory)
        self.directory = copy
        self.open()
        self._came_back()

    def cut_short(self) -> None:
        """Let the next call find that one before it was cut short, in one of the levels."""
        level = self.random.choice(list(self.queue._parts.levels))
        level.state.index.changing += 1

    def _came_back(self) -> None:
        self.waiting |= {seq: one.body for seq, one in self.held.items()}
        self.held.clear()

    def finish(self) -> None:
        """All that is left comes in order, and nothing else."""
        for delivery in self.held.values():
            delivery.nack()
        self._came_back()
        while self.waiting:
            self.get_many()
            self.ack_many()
        assert self.queue.get(timeout=0) is None
        self.engine.close()


OFTEN = ("publish", "publish", "get", "ack", "nack", "look", "publish_many", "get_many")
RARELY = (
    "ack_many",
    "ack_up_to",
    "cancel",
    "flush",
    "rest",
    "purge",
    "reopen",
    "kill",
    "cut_short",
)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("part", range(4))
def test_against_a_model(tmp_path: Path, part: int) -> None:
    for seed in range(part, RUNS, 4):
        run = Run(tmp_path / f"{seed}", seed)
        done: list[str] = []
        try:
            for _ in range(STEPS):
                name = run.random.choice(OFTEN if run.random.random() < 0.7 else RARELY)
                done.append(name)
                getattr(run, name)()
            done.append("finish")
            run.finish()
        except BaseException as error:
            error.add_note(f"seed {seed}, {run.options}, {run.limit}: {done}")
            raise
        shutil.rmtree(run.directory)
