"""Queues against plain lists: everything that an engine does, in any order, with clean and crashed
reopening at any time.

Small and large messages, one or several queues at once, expiry by a clock that the test sets,
flushes by hand and by each trigger (the latter from the background thread), compaction. The
process dies in two ways: the directory is copied as it stands, or the engine is abandoned and its
descriptors closed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import qindex
from journal.fs.files import FileSystem, RealFileSystem
from qindex.engine.opening import open_store
from qindex.queue.timer import Alarm
from tests.effort import examples
from tests.memory_fs import MemoryFileSystem
from tests.qindex.model import Clock, Model, Sent

NAME = st.sampled_from(["a", "a", "b", "c", "c"])
KEY = st.none() | st.text(max_size=4)
HEADERS = st.none() | st.dictionaries(
    st.text(max_size=3), st.integers(-5, 5) | st.binary(max_size=4) | st.none(), max_size=2
)
SIZE = st.sampled_from([0, 1, 7, 40, 255, 256, 1500, 3000])
TTL = st.none() | st.sampled_from([0.0, 5.0, 60.0, 1e6])
EMBED_BELOW = 250
QUEUE_TTL = {"c": 30.0}
"""Seconds, of the queue by this name; the others have none."""


class Unsynced(RealFileSystem):
    """The real file system, but for the waiting."""

    fdatasync = staticmethod(lambda _fd: None)  # type: ignore[assignment]
    sync_dir = staticmethod(lambda _path: None)


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="qindex-model-"))
        self.clock = Clock()
        self.numbers = itertools.count()
        self.directory = self.base / "0"
        self.models: dict[str, Model] = {}
        self.abandoned: list[qindex.Engine] = []
        self.options: dict[str, Any] = {}
        self.fs: FileSystem = Unsynced()

    @initialize(
        count=st.sampled_from([1, 8]),
        dirty=st.sampled_from([1, 3, 20, 1000]),
        record_format=st.sampled_from(["qindex", "qindex", "rabbitmq"]),
        background=st.sampled_from([False] * 5 + [True]),
    )
    def start(self, count: int, dirty: int, record_format: str, background: bool) -> None:
        """In the background flushes come when a queue is idle, full, or takes too much memory."""
        self.options = {
            "max_journal_entries": dirty,
            "record_format": record_format,
            "embed_below": EMBED_BELOW,
            "store_file_bytes": 4096,
            "background": background,
            "flush_idle": 0.001,
            "rest_idle": 0.001,
            "memory_budget": 1 << 16,
        }
        self.background = background
        if not background:
            self.fs = MemoryFileSystem()
        self.rabbit = record_format == "rabbitmq"
        self.engine = self._open(segment_entry_count=count)

    def _open(self, **more: Any) -> qindex.Engine:
        # What expires leaves by a get, as in the model; a queue with a ttl wakes at the open.
        with patch.object(Alarm, "set"):
            engine: qindex.Engine = open_store(self.directory, fs=self.fs, **self.options, **more)
        engine._alarm.stop()
        return engine

    def teardown(self) -> None:
        for engine in self.abandoned:
            engine.close()
        if hasattr(self, "engine"):
            self.engine.close()
        self.clock.close()
        shutil.rmtree(self.base)

    def _queue(self, name: str) -> tuple[qindex.Queue, Model]:
        queue = self.engine.queue(name, message_ttl=QUEUE_TTL.get(name))
        return queue, self.models.setdefault(name, Model())

    def _sent(
        self,
        name: str,
        body: bytes,
        key: str | None = None,
        headers: dict[str, Any] | None = None,
        ttl: float | None = None,
        *,
        transient: bool = False,
    ) -> Sent:
        """The message, as it will be in the queue of this name."""
        ttls = [one for one in (ttl, QUEUE_TTL.get(name)) if one is not None]
        expiry = self.clock.microseconds() + int(min(ttls) * 1e6) if ttls else 0
        return Sent(body, key, headers or {}, transient, expiry=expiry)

    def _body(self, size: int) -> bytes:
        return (b"%d." % next(self.numbers) * (size + 1))[:size]

    @rule(name=NAME, sizes=st.lists(SIZE, min_size=1, max_size=4))
    def publish(self, name: str, sizes: list[int]) -> None:
        queue, model = self._queue(name)
        for size in sizes:
            body = self._body(size)
            model.published(queue.publish(body), self._sent(name, body))

    @rule(name=NAME, size=SIZE, key=KEY, headers=HEADERS, ttl=TTL, persistent=st.booleans())
    def publish_rich(
        self,
        name: str,
        size: int,
        key: str | None,
        headers: dict[str, Any] | None,
        ttl: float | None,
        persistent: bool,
    ) -> None:
        queue, model = self._queue(name)
        if self.rabbit:
            headers = None
        body = self._body(size)
        sent = self._sent(name, body, key, headers, ttl, transient=not persistent)
        seq = queue.publish(body, key=key, headers=headers, ttl=ttl, persistent=persistent)
        model.published(seq, sent)

    @rule(
        names=st.lists(NAME, min_size=1, unique=True),
        size=SIZE,
        key=KEY,
        ttl=TTL,
        persistent=st.booleans(),
    )
    def publish_to(
        self, names: list[str], size: int, key: str | None, ttl: float | None, persistent: bool
    ) -> None:
        models = [self._queue(name)[1] for name in names]
        body = self._body(size)
        sent = [self._sent(name, body, key, None, ttl, transient=not persistent) for name in names]
        seqs = self.engine.publish_to(names, body, key=key, ttl=ttl, persistent=persistent)
        for model, seq, one in zip(models, seqs, sent, strict=True):
            model.published(seq, one)

    @rule(name=NAME, sizes=st.lists(SIZE, max_size=20), persistent=st.booleans())
    def publish_many(self, name: str, sizes: list[int], persistent: bool) -> None:
        queue, model = self._queue(name)
        bodies = [self._body(size) for size in sizes]
        seqs = queue.publish_many(bodies, persistent=persistent)
        for seq, body in zip(seqs, bodies, strict=True):
            model.published(seq, self._sent(name, body, transient=not persistent))

    @rule(name=NAME, sizes=st.integers(5, 20))
    def publish_equal(self, name: str, sizes: int) -> None:
        queue, model = self._queue(name)
        bodies = [b"%9d" % next(self.numbers) for _ in range(sizes)]
        for seq, body in zip(queue.publish_many(bodies), bodies, strict=True):
            model.published(seq, self._sent(name, body))

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.pass_by(seconds)

    def _took(self, model: Model, delivery: qindex.Delivery) -> None:
        now = self.clock.microseconds()
        seq, sent = next(model.alive_at(now))
        model.drop_expired(now, seq)
        del model.ready[seq]
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
            model.drop_expired(self.clock.microseconds())
            assert not model.ready
        else:
            self._took(model, delivery)

    @rule(name=NAME, most=st.integers(1, 30))
    def get_many(self, name: str, most: int) -> None:
        queue, model = self._queue(name)
        now = self.clock.microseconds()
        batch = queue.get_many(most)
        assert len(batch) == min(most, len(list(model.alive_at(now))))
        for delivery in batch:
            self._took(model, delivery)
        if len(batch) < most:
            model.drop_expired(now)

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
                (delivery.nack if how == "nack" else delivery.reject)()
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

    @rule(name=NAME, how=st.sampled_from(["flush", "flush all", "compact", "sync", "rest"]))
    def maintain(self, name: str, how: str) -> None:
        if how == "flush":
            queue, _ = self._queue(name)
            queue.flush()
            assert queue.stats().journal_entries == 0
        elif how == "flush all":
            self.engine.flush()
        elif how == "compact":
            self.engine.compact()
        elif how == "rest":
            queue, _ = self._queue(name)
            rested = self.engine._roster.put_to_rest(queue._parts)
            assert rested or self.background  # the background thread may be using it
        else:
            self.engine.sync()

    @rule(name=NAME, how=st.sampled_from(["purge", "delete", "reopen", "kill", "copy"]))
    def end(self, name: str, how: str) -> None:
        """A queue loses what it has, or the engine ends and another one opens the directory."""
        if how == "purge":
            queue, model = self._queue(name)
            assert queue.purge() == len(model.ready)
            model.ready.clear()
        elif how == "delete":
            if self.models.pop(name, None) is not None:
                self.engine.delete_queue(name)
        else:
            self._reopen(how)
            for model in self.models.values():
                model.restart()

    def _reopen(self, how: str) -> None:
        if how == "reopen":
            self.engine.close()
            self.engine = self._open()
            assert self.engine.findings == []
            return
        if not isinstance(self.fs, MemoryFileSystem):
            # The old engine's threads live on: they are left alone with the old directory.
            self.abandoned.append(self.engine)
            after = self.base / str(len(self.abandoned))
            self._copy_live(after)
            self.directory = after
        elif how == "kill":
            self.fs.forget_descriptors()
        else:
            self.fs = MemoryFileSystem(*self.fs.contents())
        self.engine = self._open()
        assert all(one.cause is qindex.Cause.CRASH for one in self.engine.findings)

    def _copy_live(self, target: Path) -> None:
        """Copy the directory while its threads change nothing: copying takes its time."""
        self.engine._messages.rest()
        queues = [self.engine.queue(name) for name in self.models]
        for queue in queues:
            queue.flush()
        for queue in queues:
            queue._parts.state.lock.acquire()
        try:
            shutil.copytree(self.directory, target)
        finally:
            for queue in queues:
                queue._parts.state.lock.release()

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
            if not self.background:
                names = [
                    name
                    for name in self.fs.listdir(queue._parts.state.index.directory)
                    if name.endswith(".idx")
                ]
                sizes = [
                    self.fs.stat(os.path.join(queue._parts.state.index.directory, name)).st_size
                    for name in names
                ]
                assert sum(sizes) == stats.segment_bytes

    @invariant()
    def the_message_store_has_what_is_alive(self) -> None:
        if not hasattr(self, "engine") or self.rabbit:
            return
        alive = {
            sent.body
            for model in self.models.values()
            for sent in model.everything()
            if sent.is_stored(EMBED_BELOW)
        }
        stats = self.engine.stats().message_store
        assert (0 if stats is None else stats.messages) == len(alive)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=examples(110, nightly=3000), stateful_step_count=60, deadline=None
)
