"""Queues against plain lists, with clean and crashed reopening at any time."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import qindex
from journal.files import RealFileSystem

NAMES = ("a", "b", "c")
NAME = st.sampled_from(NAMES)
KEY = st.none() | st.text(max_size=4)
HEADERS = st.none() | st.dictionaries(
    st.text(max_size=3), st.integers(-5, 5) | st.binary(max_size=4) | st.none(), max_size=2
)
SIZE = st.sampled_from([0, 1, 7, 40, 255, 256, 3000])


class Unsynced(RealFileSystem):
    """The real file system, but for the waiting."""

    fdatasync = staticmethod(lambda _fd: None)  # type: ignore[assignment]
    sync_dir = staticmethod(lambda _path: None)


@dataclass
class Sent:
    """One message as the model knows it."""

    body: bytes
    key: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    transient: bool = False
    delivered: bool = False


@dataclass
class Model:
    """One queue: what is ready and what is out, by seq_id."""

    ready: dict[int, Sent] = field(default_factory=dict)
    out: dict[int, tuple[Sent, qindex.Delivery]] = field(default_factory=dict)
    next_seq: int = 0

    def restart(self) -> None:
        """Transient messages end; what was out is ready again."""
        for seq, (sent, _) in self.out.items():
            self.ready[seq] = sent
        self.out.clear()
        self.ready = {seq: one for seq, one in sorted(self.ready.items()) if not one.transient}


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="qindex-model-"))
        self.numbers = itertools.count()
        self.directory = self.base / "0"
        self.models: dict[str, Model] = {}
        self.abandoned: list[qindex.Engine] = []
        self.options: dict[str, Any] = {}

    @initialize(
        count=st.sampled_from([1, 8]),
        dirty=st.sampled_from([1, 3, 20, 1000]),
        record_format=st.sampled_from(["qindex", "qindex", "rabbitmq"]),
    )
    def start(self, count: int, dirty: int, record_format: str) -> None:
        self.options = {"max_journal_entries": dirty, "record_format": record_format}
        self.rabbit = record_format == "rabbitmq"
        self.engine = self._open(segment_entry_count=count)

    def _open(self, **more: Any) -> qindex.Engine:
        options = {"background": False, "fs": Unsynced(), **self.options, **more}
        engine: qindex.Engine = qindex.open(self.directory, **options)
        return engine

    def teardown(self) -> None:
        for engine in self.abandoned:
            engine.close()
        if hasattr(self, "engine"):
            self.engine.close()
        shutil.rmtree(self.base)

    def _queue(self, name: str) -> tuple[qindex.Queue, Model]:
        return self.engine.queue(name), self.models.setdefault(name, Model())

    def _body(self, size: int) -> bytes:
        return (b"%d." % next(self.numbers) * (size + 1))[:size]

    def _sent(self, model: Model, seq: int, sent: Sent) -> None:
        assert seq == model.next_seq
        model.ready[seq] = sent
        model.next_seq += 1

    @rule(name=NAME, size=SIZE)
    def publish(self, name: str, size: int) -> None:
        queue, model = self._queue(name)
        body = self._body(size)
        self._sent(model, queue.publish(body), Sent(body))

    @rule(name=NAME, size=SIZE, key=KEY, headers=HEADERS, persistent=st.booleans())
    def publish_rich(
        self,
        name: str,
        size: int,
        key: str | None,
        headers: dict[str, Any] | None,
        persistent: bool,
    ) -> None:
        queue, model = self._queue(name)
        if self.rabbit:
            headers = None
        body = self._body(size)
        seq = queue.publish(body, key=key, headers=headers, ttl=1e6, persistent=persistent)
        self._sent(model, seq, Sent(body, key, headers or {}, not persistent))

    @precondition(lambda self: any(not model.ready for model in self.models.values()))
    @rule(data=st.data())
    def publish_expired(self, data: st.DataObject) -> None:
        """It never gets to a consumer."""
        name = data.draw(st.sampled_from(sorted(n for n, m in self.models.items() if not m.ready)))
        queue, model = self._queue(name)
        assert queue.publish(b"late", ttl=0) == model.next_seq
        model.next_seq += 1
        assert queue.peek(5) == []
        assert queue.get(0) is None
        assert len(queue.get_many(5)) == 0

    @rule(name=NAME, sizes=st.lists(SIZE, max_size=20), persistent=st.booleans())
    def publish_many(self, name: str, sizes: list[int], persistent: bool) -> None:
        queue, model = self._queue(name)
        bodies = [self._body(size) for size in sizes]
        for seq, body in zip(
            queue.publish_many(bodies, persistent=persistent), bodies, strict=True
        ):
            self._sent(model, seq, Sent(body, transient=not persistent))

    @rule(name=NAME, sizes=st.integers(5, 20))
    def publish_equal(self, name: str, sizes: int) -> None:
        queue, model = self._queue(name)
        bodies = [b"%9d" % next(self.numbers) for _ in range(sizes)]
        for seq, body in zip(queue.publish_many(bodies), bodies, strict=True):
            self._sent(model, seq, Sent(body))

    def _took(self, model: Model, delivery: qindex.Delivery) -> None:
        seq = min(model.ready)
        sent = model.ready.pop(seq)
        self._same(delivery, seq, sent)
        sent.delivered = True
        model.out[seq] = sent, delivery

    def _same(self, delivery: qindex.Delivery, seq: int, sent: Sent) -> None:
        assert delivery.seq_id == seq
        assert delivery.body == sent.body
        assert delivery.redelivered == sent.delivered
        if not self.rabbit:
            assert delivery.key == sent.key
            assert dict(delivery.headers) == sent.headers

    @rule(name=NAME)
    def get(self, name: str) -> None:
        queue, model = self._queue(name)
        delivery = queue.get(0)
        if delivery is None:
            assert not model.ready
        else:
            self._took(model, delivery)

    @rule(name=NAME, most=st.integers(1, 30))
    def get_many(self, name: str, most: int) -> None:
        queue, model = self._queue(name)
        batch = queue.get_many(most)
        assert len(batch) == min(most, len(model.ready))
        for delivery in batch:
            self._took(model, delivery)

    @precondition(lambda self: any(model.out for model in self.models.values()))
    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "drop", "ack_many", "up_to"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, m in self.models.items() if m.out)))
        queue, model = self._queue(name)
        seqs = data.draw(
            st.lists(st.sampled_from(sorted(model.out)), min_size=1, max_size=8, unique=True)
        )
        if how == "ack_many":
            queue.ack_many([model.out.pop(seq)[1] for seq in seqs])
            return
        if how == "up_to":
            gone = [seq for seq in model.out if seq <= seqs[0]]
            assert queue.ack_up_to(seqs[0]) == len(gone)
            for seq in gone:
                assert model.out.pop(seq)[1].settled
            return
        for seq in seqs:
            sent, delivery = model.out.pop(seq)
            if how == "ack":
                delivery.ack()
            else:
                delivery.nack(requeue=how == "nack")
            if how == "nack":
                model.ready[seq] = sent
            assert delivery.settled

    @rule(name=NAME, most=st.integers(0, 40))
    def peek(self, name: str, most: int) -> None:
        queue, model = self._queue(name)
        seen = queue.peek(most)
        expected = sorted(model.ready.items())[:most]
        assert len(seen) == len(expected)
        for delivery, (seq, sent) in zip(seen, expected, strict=True):
            self._same(delivery, seq, sent)

    @rule(name=NAME)
    def purge(self, name: str) -> None:
        queue, model = self._queue(name)
        assert queue.purge() == len(model.ready)
        model.ready.clear()

    @rule(name=NAME)
    def flush(self, name: str) -> None:
        queue, _ = self._queue(name)
        queue.flush()
        assert queue.stats().journal_entries == 0

    @rule()
    def sync(self) -> None:
        self.engine.sync()

    @rule(name=NAME)
    def delete(self, name: str) -> None:
        if name in self.models:
            self.engine.delete_queue(name)
            del self.models[name]

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.engine = self._open()
        assert self.engine.findings == []
        for model in self.models.values():
            model.restart()

    @rule()
    def crash(self) -> None:
        """The directory as it is now, opened anew; the old engine is left where it stands."""
        self.abandoned.append(self.engine)
        after = self.base / str(len(self.abandoned))
        shutil.copytree(self.directory, after)
        self.directory = after
        self.engine = self._open()
        assert all(one.cause is qindex.Cause.CRASH for one in self.engine.findings)
        for model in self.models.values():
            model.restart()

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        assert self.engine.queue_names() == sorted(self.models)
        for name, model in self.models.items():
            queue = self.engine.queue(name)
            stats = queue.stats()
            assert (len(queue), stats.unacked) == (len(model.ready), len(model.out))
            assert stats.next_seq_id == model.next_seq
            # Every segment in use has entries that are not acknowledged, or actions pending.
            files = list(Path(queue._index.directory).glob("*.idx"))
            assert sum(path.stat().st_size for path in files) == stats.segment_bytes


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(stateful_step_count=40)
