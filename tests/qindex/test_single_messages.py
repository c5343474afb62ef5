"""Single messages: their records, and a publish, get or ack in which something raises."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import pytest

import qindex
from journal.errors import StorageError
from journal.format import ACK_BITS, DELIVER_BITS
from journal.memory import words
from qindex.engine.opening import open_store
from qindex.format.message_record import NOTHING
from qindex.format.plain_record import CHECK_END, CHECK_START
from qindex.format.publish_records import framed_batch
from qindex.queue.delivery import Delivery
from qindex.queue.flushing import Flusher
from tests.effort import by_tier
from tests.leaks import left_behind
from tests.memory_fs import MemoryFileSystem
from tests.qindex.support import WAIT, drain, open_quietly


class Ended(BaseException):
    """What a signal's handler raises."""


def memory_queue(**options: Any) -> tuple[qindex.Engine, qindex.Queue]:
    options = {"background": False, "embed_below": 1 << 20, **options}
    engine = open_store("/s", fs=MemoryFileSystem(root="/"), **options)
    return engine, engine.queue("q")


def taken(queue: qindex.Queue) -> qindex.Delivery:
    delivery = queue.get(timeout=0)
    assert delivery is not None
    return delivery


@pytest.mark.parametrize("size", [0, 1, 99, 255, 256, 257, 65_535, 65_536, 300_000])
def test_each_record_is_as_the_format_has_it(size: int) -> None:
    engine, queue = memory_queue()
    with engine:
        queue.publish(b"before")
        body = bytes(at % 251 for at in range(size))
        seq = queue.publish(body)
        index = queue._parts.state.index
        start, end = index.positions[seq], index.journal.tell()
        record = index.journal.map[start:end]
        stamp = taken(queue), taken(queue)._extra
        expected, _ = framed_batch(seq, queue._parts.state.id_high, [body], [stamp[1]], [NOTHING])  # type: ignore[list-item]
        assert record == expected
        assert record[CHECK_START:CHECK_END] != bytes(8)
        queue.ack(stamp[0])
        words = index.journal.map[end : index.journal.tell()]
        assert words == b"".join(
            (bits | number).to_bytes(8, "big")
            for bits, number in ((DELIVER_BITS, 0), (DELIVER_BITS, seq), (ACK_BITS, 0))
        )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"key": "k"},
        {"key": "k", "headers": {"h": 1}},
        {"properties": {"p": b""}},
        {"persistent": False, "key": "k"},
        {"ttl": 600.0},
        {"key": "k", "ttl": 600.0},
    ],
)
@pytest.mark.parametrize("size", [3, 20_000])
def test_each_kind_of_message_is_handed_out_as_it_was_published(
    given: dict[str, Any], size: int
) -> None:
    engine, queue = memory_queue(embed_below=4096)
    with engine:
        for _ in range(3):
            queue.publish(bytes(size), **given)
        taken(queue).ack()
        delivery = taken(queue)
        assert (delivery.seq_id, delivery.body, delivery.redelivered) == (1, bytes(size), False)
        shown = {
            "key": delivery.key,
            "headers": delivery.headers,
            "properties": delivery.properties,
        }
        expected = {"key": None, "headers": {}, "properties": {}, **given}
        assert shown == {name: expected[name] for name in shown}
        delivery.nack()
        again = taken(queue)
        assert (again.seq_id, again.key, again.redelivered) == (1, delivery.key, True)
        queue.ack_many([again, taken(queue)])
        assert not len(queue)


def test_arguments_that_are_none_of_its_own() -> None:
    engine, queue = memory_queue()
    with engine:
        for call in (
            lambda: queue.publish(),  # type: ignore[call-arg]
            lambda: queue.publish(b"", b""),  # type: ignore[arg-type, call-arg]
            lambda: queue.publish(b"", nothing=1),  # type: ignore[call-arg]
            lambda: queue.get(1, 2),  # type: ignore[call-overload]
            lambda: queue.get(None, timeout=0),  # type: ignore[call-overload]
            lambda: queue.ack(),  # type: ignore[call-arg]
        ):
            with pytest.raises(TypeError):
                call()
        for body in ("text", [b"x"], None, 5):
            with pytest.raises(qindex.UsageError):
                queue.publish(body)  # type: ignore[arg-type]
        for what in (None, "x", object()):
            with pytest.raises(qindex.UsageError, match="not a delivery"):
                queue.ack(what)  # type: ignore[arg-type]
        with pytest.raises(qindex.UsageError):
            queue.ack(Delivery())
        everything = queue.publish(
            b"x", key=None, headers=None, properties=None, ttl=None, persistent=True, confirm=False
        )
        assert everything == 0
        assert taken(queue).body == b"x"
        assert queue.get(0, lease=None) is None


def test_a_delivery_of_another_queue_and_one_that_was_settled() -> None:
    engine, queue = memory_queue()
    with engine:
        other = engine.queue("other")
        for each in (queue, other):
            each.publish_many([b"x", b"y"])
            each.ack(taken(each))
        # Of the same place in both, and with a consumer in both.
        one, its = taken(queue), taken(other)
        assert one.seq_id == its.seq_id
        with pytest.raises(qindex.UsageError, match="belongs to queue 'q'"):
            other.ack(one)
        assert not its.settled
        queue.ack(one)
        with pytest.raises(qindex.UsageError, match="settled already"):
            queue.ack(one)
        assert (queue.stats().acked, other.stats().acked) == (2, 1)


def test_deliveries_that_are_looked_at() -> None:
    """Of a queue with a limit: what is delivered makes room."""
    engine, _ = memory_queue()
    with engine:
        queue = engine.queue("narrow", max_bytes=10, overflow="reject")
        for number in range(5):
            queue.publish(bytes((number,)) * 10)
            assert taken(queue).body == bytes((number,)) * 10
        with pytest.raises(qindex.QueueFullError):
            queue.publish_many([b"x" * 6] * 2)


def test_who_waits_is_woken() -> None:
    engine, queue = memory_queue()
    with engine, ThreadPoolExecutor(1) as pool:
        queue.publish(b"first")
        taken(queue)
        waiting = pool.submit(queue.get, WAIT)
        while not queue._parts.state.arrived.waiting:
            sleep(0.001)
        queue.publish(b"x")
        delivery = waiting.result(WAIT / 2)
        assert delivery is not None


@pytest.mark.interpreted  # the journal's stores are replaced
@pytest.mark.parametrize("kind", [Ended, MemoryError])
@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_store_that_is_cut_short(kind: type[BaseException], when: str) -> None:
    """Each of the three either happened or did not, and all goes on."""
    engine, queue = memory_queue()
    for body in (b"a", b"b", b"c"):
        queue.publish(body)
    held = taken(queue)
    journal: Any = queue._parts.state.index.journal

    def during(name: str, call: Callable[[], object]) -> None:
        real = getattr(journal, name)

        def store(data: Any) -> int:
            delattr(journal, name)
            if when == "behind":
                real(data)
            raise kind

        setattr(journal, name, store)
        with pytest.raises(kind):
            call()
        assert not queue._parts.state.lock.is_mine()

    during("store", lambda: queue.publish(b"new"))
    assert queue.stats().next_seq_id == (4 if when == "behind" else 3)
    during("store_word", lambda: queue.ack(held))
    assert queue.stats().unacked == (0 if when == "behind" else 1)
    during("store_word", lambda: queue.get(timeout=0))
    assert [body for _, body, _ in drain(queue)][:2] == [b"b", b"c"]
    assert queue.publish(b"more") == queue._parts.state.index.next_seq - 1
    engine.close()
    assert not engine.findings


@pytest.mark.interpreted  # the journal's store and the clock are replaced
def test_what_else_is_called_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, queue = memory_queue()

    def ended(*_: object) -> None:
        raise Ended

    queue.publish(b"first")
    queue._parts.state.check_mask = 0
    for target, name in (
        (words, "now_ns"),
        (queue._parts.state.index.journal, "store"),
        (Flusher, "tick"),
    ):
        before = len(queue)
        with monkeypatch.context() as patch:
            patch.setattr(target, name, ended)
            with pytest.raises(Ended):
                queue.publish(b"new")
        assert not queue._parts.state.lock.is_mine()
        assert len(queue) == before + (name == "tick")
    assert [body for _, body, _ in drain(queue)][-1] == b"new"
    engine.close()


def test_a_full_disk_and_a_poisoned_store() -> None:
    _engine, queue = memory_queue()
    queue.publish(b"a")
    queue.publish(b"b")
    held = taken(queue)
    error = StorageError("journal.jif", "append failed", OSError(5, "EIO"))
    queue._parts.state.index.poison.set(error)
    for call in (
        lambda: queue.publish(b"c"),
        lambda: queue.ack(held),
        lambda: queue.get(timeout=0),
    ):
        with pytest.raises(qindex.WritesRefusedError):
            call()
        assert not queue._parts.state.lock.is_mine()
    assert (queue.stats().acked, queue._parts.state.index.out, len(queue)) == (0, 1, 1)


@pytest.mark.parametrize("size", [10, 300])
def test_a_finalizer_that_publishes(size: int) -> None:
    """The collector may run whenever an object is made, and so in the middle of a call."""
    done: list[int] = []
    refused: list[str] = []

    class Last:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                done.append(queue.publish(b"f" * size))
            except qindex.UsageError as error:
                refused.append(str(error))

    before = gc.get_threshold()
    engine, queue = memory_queue()
    gc.set_threshold(1)
    try:
        for number in range(300):
            Last()
            done.append(queue.publish(b"c" * size))
            if number % 3 == 0:
                taken(queue).nack()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert all("in the middle of another call" in text for text in refused)
    assert len(refused) > 0
    assert len(done) + len(refused) == 600
    assert sorted(done) == list(range(len(done))) == [seq for seq, *_ in drain(queue)]
    engine.close()
    assert not engine.findings


def test_after_a_close(tmp_path: Path) -> None:
    engine = open_quietly(tmp_path)
    queue = engine.queue("q")
    queue.publish(b"x")
    held = taken(queue)
    engine.close()
    for call in (lambda: queue.publish(b"x"), lambda: queue.get(), lambda: queue.ack(held)):
        with pytest.raises(qindex.ClosedError):
            call()


@pytest.mark.timeout(by_tier(quick=300, all=300, nightly=3600))
@pytest.mark.rotates(2)
def test_no_object_is_left_behind() -> None:
    """After thousands of each, and of each that fails, there is no more of anything; nightly it is
    ten millions."""
    engine, queue = memory_queue(segment_entry_count=64, max_journal_entries=100)
    body = b"x" * 300

    def work(count: int) -> None:
        for _ in range(count):
            queue.publish(body)
            queue.publish(body, key="k", headers={"kind": "new"})
            for _ in range(2):
                delivery = taken(queue)
                queue.ack(delivery)
            with pytest.raises(qindex.UsageError):
                queue.ack(delivery)
            assert queue.get(0) is None
            queue.publish_many([body] * 70)
            for _ in range(70):
                queue.ack(taken(queue))
        queue.flush()
        gc.collect()

    with engine:
        work(100)
        of = [
            body,
            queue,
            queue._parts.state.index,
            queue._parts.state.index.journal,
            queue._parts.state.lock,
            True,
            False,
        ]
        count = by_tier(quick=80, all=80, nightly=11_600)
        blocks, references = left_behind(lambda: work(count), of)
        assert blocks < 70
        assert references < 20
