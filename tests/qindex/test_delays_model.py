"""Delays against a model: random calls on a queue, by a clock that the test moves."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import qindex
from journal.memory import words
from qindex.queue import producing, run_clock
from qindex.queue.notes.delays import SEQ
from tests.effort import by_tier

pytestmark = pytest.mark.interpreted  # the compiled code reads its clocks in C

START = 1_800_000_000 * 10**9
STEPS = 60
RUNS = by_tier(quick=60, all=300, nightly=5000)


class Clock:
    """The time of day, in nanoseconds, which passes by a millisecond with each look."""

    def __init__(self) -> None:
        self.now = self.stamped = START

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now

    def stamp(self) -> int:
        """Tell the time of a publish."""
        self.stamped = self()
        return self.stamped


class Model:
    """What a queue must do: messages with the time at which each is ready."""

    def __init__(self) -> None:
        self.ready_at: dict[int, int] = {}
        self.delivered: set[int] = set()
        self.out: set[int] = set()

    def next(self, now: int) -> int | None:
        waiting = [seq for seq, due in self.ready_at.items() if seq not in self.out and due <= now]
        return min(waiting, key=lambda seq: (self.ready_at[seq], seq), default=None)

    def delayed(self, now: int) -> int:
        return sum(due > now and seq not in self.out for seq, due in self.ready_at.items())


class Run:
    """One queue, its model, and what may be done to both."""

    def __init__(self, directory: Path, clock: Clock, seed: int) -> None:
        self.directory = directory
        self.clock = clock
        self.random = random.Random(seed)
        self.options: dict[str, Any] = {
            "background": False,
            "embed_below": self.random.choice((64, 4096)),
            "max_journal_entries": self.random.choice((8, 1000)),
            "segment_entry_count": self.random.choice((4, 64)),
        }
        self.model = Model()
        self.held: dict[int, qindex.Delivery] = {}
        self.open()

    def open(self) -> None:
        self.engine = qindex.open(self.directory, **self.options)
        self.queue = self.engine.queue("q")

    def body(self) -> bytes:
        return b"x" * self.random.choice((1, 30, 300))

    def publish(self) -> None:
        seq = self.queue.publish(self.body(), key=self.random.choice((None, "k")))
        self.model.ready_at[seq] = self.clock.stamped // 1000

    def publish_delayed(self) -> None:
        delay = self.random.choice((0.01, 0.05, 0.5, 1000.0))
        headers = self.random.choice((None, {"a": 1}))
        seq = self.queue.publish(self.body(), delay=delay, headers=headers)
        self.model.ready_at[seq] = self._due(seq)

    def publish_many(self) -> None:
        if self.random.random() < 0.5:
            for seq in self.queue.publish_many([self.body() for _ in range(5)]):
                self.model.ready_at[seq] = self.clock.stamped // 1000
        else:
            for seq in self.queue.publish_many([self.body() for _ in range(3)], delay=0.03):
                self.model.ready_at[seq] = self._due(seq)

    def _due(self, seq: int) -> int:
        """Tell the time that the queue has noted: the clock has moved during the call."""
        later = self.queue._parts.state.later
        assert later is not None
        due: int = next(key >> 64 for key in later._waiting + later._due if key & SEQ == seq)
        return due

    def wait(self) -> None:
        self.clock.now += self.random.choice((10**6, 10**7, 10**8, 10**9))

    def get(self) -> None:
        before = self.clock.now // 1000
        delivery = self.queue.get(timeout=0)
        self._check([] if delivery is None else [delivery], before, 1)

    def get_many(self) -> None:
        most = self.random.randrange(1, 8)
        before = self.clock.now // 1000
        self._check(list(self.queue.get_many(most)), before, most)

    def _check(self, taken: list[qindex.Delivery], before: int, most: int) -> None:
        model, now = self.model, self.clock.now // 1000
        for delivery in taken:
            # A message may become due in the middle of the call, at either of two moments.
            seq = delivery.seq_id
            assert seq in (model.next(before), model.next(now)), (seq, model.ready_at, before)
            assert delivery.redelivered == (seq in model.delivered)
            model.out.add(seq)
            model.delivered.add(seq)
            self.held[seq] = delivery
        if len(taken) < most:
            assert model.next(before) is None

    def ack(self) -> None:
        if self.held:
            seq = self.random.choice(list(self.held))
            self.held.pop(seq).ack()
            self.model.out.remove(seq)
            del self.model.ready_at[seq]

    def nack(self) -> None:
        if self.held:
            seq = self.random.choice(list(self.held))
            self.held.pop(seq).nack()
            self.model.out.remove(seq)

    def nack_later(self) -> None:
        if self.held:
            seq = self.random.choice(list(self.held))
            delay = self.random.choice((0.02, 0.3))
            self.held.pop(seq).nack(delay=delay, count=self.random.random() < 0.5)
            self.model.out.remove(seq)
            self.model.ready_at[seq] = self._due(seq)

    def cancel(self) -> None:
        if self.model.ready_at:
            seq = self.random.choice(list(self.model.ready_at))
            expected = seq not in self.model.delivered
            assert self.queue.cancel(seq) == expected
            if expected:
                del self.model.ready_at[seq]

    def look(self) -> None:
        before = self.clock.now // 1000
        stats = self.queue.stats()
        # The queue counts a message as delayed until it is looked for.
        assert stats.ready + stats.delayed == len(self.model.ready_at) - len(self.model.out)
        assert stats.delayed >= self.model.delayed(self.clock.now // 1000)
        shown = [one.seq_id for one in self.queue.peek(4)]
        expected = sorted(
            (due, seq)
            for seq, due in self.model.ready_at.items()
            if seq not in self.model.out and due <= before
        )[:4]
        now_ready = [seq for _, seq in expected]
        assert shown[: len(now_ready)] == now_ready or self.model.delayed(before) != (
            self.model.delayed(self.clock.now // 1000)
        )

    def flush(self) -> None:
        self.queue.flush()

    def rest(self) -> None:
        self.engine._roster.put_to_rest(self.queue._parts)

    def purge(self) -> None:
        if self.random.random() < 0.1:
            self.queue.purge()
            self.model.ready_at = {seq: self.model.ready_at[seq] for seq in self.model.out}

    def reopen(self) -> None:
        self.engine.close()
        self.open()
        self._came_back()

    def kill(self) -> None:
        """Go on with a copy of the files, as after kill -9."""
        copy = self.directory.with_name(f"{self.directory.name}k")
        shutil.copytree(self.directory, copy)
        self.engine.close()
        self.directory = copy
        self.open()
        self._came_back()

    def cut_short(self) -> None:
        """Let the next call find that one before it was cut short."""
        self.queue._parts.state.index.changing += 1

    def _came_back(self) -> None:
        self.model.out.clear()
        self.held.clear()

    def finish(self) -> None:
        """All that is left comes in order, and nothing else."""
        for delivery in list(self.held.values()):
            delivery.nack()
        self.model.out.clear()
        self.held.clear()
        self.clock.now += 2000 * 10**9
        while self.model.ready_at:
            self.get()
            self.ack()
        assert self.queue.get(timeout=0) is None
        assert len(self.queue) == 0
        self.engine.close()


OFTEN = ("publish", "publish_delayed", "get", "ack", "wait", "nack_later", "nack", "look")
RARELY = (
    "publish_many",
    "get_many",
    "cancel",
    "flush",
    "rest",
    "purge",
    "reopen",
    "kill",
    "cut_short",
)


@pytest.mark.parametrize("part", range(4))
def test_against_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    clock = Clock()
    monkeypatch.setattr(run_clock, "time_ns", clock)
    monkeypatch.setattr(producing, "time_ns", clock.stamp)
    monkeypatch.setattr(words, "now_ns", clock.stamp)
    for seed in range(part, RUNS, 4):
        run = Run(tmp_path / f"{seed}", clock, seed)
        done: list[str] = []
        try:
            for _ in range(STEPS):
                name = run.random.choice(OFTEN if run.random.random() < 0.8 else RARELY)
                done.append(name)
                getattr(run, name)()
            done.append("finish")
            run.finish()
        except BaseException as error:
            error.add_note(f"seed {seed}, {run.options}: {done}")
            raise
        shutil.rmtree(run.directory)
