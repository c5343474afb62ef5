"""A queue with limits, a dead-letter queue, a delivery limit and leases against plain lists, with
clean and crashed reopening at any time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import qindex
from qindex.engine.opening import open_store
from tests.effort import examples
from tests.memory_fs import MemoryFileSystem

LIMIT = 3
SIZE = st.sampled_from([1, 5, 40, 300])
EMBED_BELOW = 250


@dataclass
class Sent:
    body: bytes
    delivered: int = 0


@dataclass
class Model:
    """``dead``: body and reason of each dead letter, in order."""

    ready: dict[int, Sent] = field(default_factory=dict)
    out: dict[int, tuple[Sent, qindex.Delivery]] = field(default_factory=dict)
    dead: list[tuple[bytes, str]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(len(one.body) for one in self.ready.values())


class LimitsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.number = 0
        self.fs = MemoryFileSystem()
        self.no_alarm = mock.patch("qindex.queue.timer.Alarm.set")
        self.no_alarm.start()

    @initialize(
        overflow=st.sampled_from(["reject", "drop-head"]),
        max_length=st.sampled_from([None, 1, 6]),
        max_bytes=st.sampled_from([None, 310, 1000]),
        durability=st.sampled_from(["os", "fsync"]),
    )
    def start(
        self, overflow: Any, max_length: int | None, max_bytes: int | None, durability: str
    ) -> None:
        if max_length is max_bytes is None:
            overflow = "reject"  # another one is refused without a limit
        self.overflow, self.max_length, self.max_bytes = overflow, max_length, max_bytes
        self.options: dict[str, Any] = {"durability": durability}
        self._open()
        self.engine.queue(
            "q",
            overflow=overflow,
            max_length=max_length,
            max_bytes=max_bytes,
            delivery_limit=LIMIT,
            dead_letter="dead",
        )
        self.engine.queue("dead")

    def _open(self) -> None:
        self.engine: qindex.Engine = open_store(
            "/store",
            fs=self.fs,
            background=False,
            segment_entry_count=8,
            embed_below=EMBED_BELOW,
            max_journal_entries=30,
            **self.options,
        )

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
        self.no_alarm.stop()

    @property
    def queue(self) -> qindex.Queue:
        return self.engine.queue("q")

    def _is_over(self, length: int, size: int) -> bool:
        return (self.max_length is not None and length > self.max_length) or (
            self.max_bytes is not None and size > self.max_bytes
        )

    @rule(sizes=st.lists(SIZE, min_size=1, max_size=9), many=st.booleans())
    def publish(self, sizes: list[int], many: bool) -> None:
        model = self.model
        for some in [sizes] if many else [[size] for size in sizes]:
            bodies = []
            for size in some:
                self.number += 1
                bodies.append((b"%d." % self.number * size)[:size])
            full = self.overflow == "reject" and self._is_over(
                len(model.ready) + len(some), model.bytes + sum(some)
            )
            try:
                seqs = self.queue.publish_many(bodies) if many else [self.queue.publish(bodies[0])]
            except qindex.QueueFullError:
                assert full
                continue
            assert not full
            model.ready.update(zip(seqs, map(Sent, bodies), strict=True))
            while self.overflow == "drop-head" and self._is_over(len(model.ready), model.bytes):
                oldest = min(model.ready)
                model.dead.append((model.ready.pop(oldest).body, "overflow"))

    def _took(self, delivery: qindex.Delivery) -> None:
        model = self.model
        seq = min(model.ready)
        sent = model.ready.pop(seq)
        sent.delivered += 1
        assert (delivery.seq_id, delivery.body) == (seq, sent.body)
        assert delivery.delivery_count == sent.delivered
        model.out[seq] = sent, delivery

    def _worn_out(self, most: int) -> None:
        """Those that were delivered too often before a restart go as a get comes by them."""
        found = 0
        for seq in sorted(self.model.ready):
            if self.model.ready[seq].delivered >= LIMIT:
                self.model.dead.append((self.model.ready.pop(seq).body, "limit"))
            else:
                found += 1
                if found == most:
                    return

    @rule(lease=st.sampled_from([None, 1e6]))
    def get(self, lease: float | None) -> None:
        self._worn_out(1)
        delivery = self.queue.get(0, lease=lease)
        assert (delivery is None) == (not self.model.ready)
        if delivery is not None:
            self._took(delivery)

    @precondition(lambda self: all(one.delivered < LIMIT for one in self.model.ready.values()))
    @rule(most=st.integers(1, 5), lease=st.sampled_from([None, 1e6]))
    def get_many(self, most: int, lease: float | None) -> None:
        batch = self.queue.get_many(most, lease=lease)
        assert len(batch) == min(most, len(self.model.ready))
        for delivery in batch:
            self._took(delivery)

    def _back(self, seq: int, sent: Sent) -> None:
        if sent.delivered >= LIMIT:
            self.model.dead.append((sent.body, "limit"))
        else:
            self.model.ready[seq] = sent

    @precondition(lambda self: self.model.out)
    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "nack", "reject"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        seq = data.draw(st.sampled_from(sorted(self.model.out)))
        sent, delivery = self.model.out.pop(seq)
        if how == "ack":
            delivery.ack()
        elif how == "nack":
            delivery.nack()
            self._back(seq, sent)
        else:
            delivery.reject()
            self.model.dead.append((sent.body, "rejected"))
        assert delivery.settled

    @rule()
    def leases_end(self) -> None:
        queue = self.queue
        leases = sorted(queue._parts.state.leases.due(1e12), key=lambda one: one.seq_id)
        for lease in leases:
            lease.ends = 0.0
            queue._parts.state.leases.add(lease)
        queue._settler.on_alarm()
        for lease in leases:
            sent, delivery = self.model.out.pop(lease.seq_id)
            assert delivery.settled
            self._back(lease.seq_id, sent)

    @rule(most=st.integers(1, 9))
    def consume_dead(self, most: int) -> None:
        dead = self.engine.queue("dead")
        batch = dead.get_many(most)
        for delivery in batch:
            reason = delivery.headers["x-death"][0]["reason"]
            assert (delivery.body, reason) == self.model.dead.pop(0)
        dead.ack_many(batch)

    @rule(how=st.sampled_from(["flush", "sync", "purge", "compact"]))
    def maintain(self, how: str) -> None:
        if how == "purge":
            assert self.queue.purge() == len(self.model.ready)
            self.model.ready.clear()
        else:
            getattr(self.engine, how)()

    @rule(how=st.sampled_from(["reopen", "kill"]))
    def end(self, how: str) -> None:
        if how == "reopen":
            self.engine.close()
            for sent, _ in self.model.out.values():
                sent.delivered -= 1  # nobody failed at it
        else:
            self.fs.forget_descriptors()
        self._open()
        for seq, (sent, _) in self.model.out.items():
            self.model.ready[seq] = sent
        self.model.out.clear()

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        model, queue = self.model, self.queue
        assert (len(queue), queue.stats().unacked) == (len(model.ready), len(model.out))
        assert len(self.engine.queue("dead")) == len(model.dead)
        bodies = [one.body for one in queue.peek(1000)]
        assert bodies == [model.ready[seq].body for seq in sorted(model.ready)]
        if self.max_bytes is not None:
            assert queue._parts.state.limits is not None
            assert (
                queue._parts.state.limits.bytes
                == model.bytes
                == queue._parts.state.index.ready_bytes()
            )
            assert not queue._parts.state.limits._taken_bytes

    @invariant()
    def the_message_store_has_what_is_alive(self) -> None:
        if not hasattr(self, "engine") or self.engine._moves.pending:
            return
        stats = self.engine.stats().message_store
        model = self.model
        bodies = [one.body for one in model.ready.values()] + [body for body, _ in model.dead]
        bodies += [one.body for one, _ in model.out.values()]
        large = [body for body in bodies if len(body) > EMBED_BELOW]
        assert (0 if stats is None else stats.messages) == len(large)


TestLimitsMachine = LimitsMachine.TestCase
TestLimitsMachine.settings = settings(
    max_examples=examples(60, nightly=1500), stateful_step_count=40, deadline=None
)
