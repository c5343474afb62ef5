"""Single messages by what is written in C: as by the methods in Python, whatever happens."""

from __future__ import annotations

import gc
import inspect
import sys
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qindex
import qindex.queue.producing
from journal.errors import StorageError
from journal.format import ACK_BITS, DELIVER_BITS
from qindex.format.message_record import NOTHING
from qindex.format.plain_record import CHECK_END, CHECK_START
from qindex.format.publish_records import framed_batch
from qindex.format.segment import STEP_SIZE
from qindex.queue.acknowledging import Acker
from qindex.queue.compiled import COMPILED
from qindex.queue.delivering import Consumer
from qindex.queue.delivery import Delivery
from qindex.queue.producing import Publisher
from qindex.queue.queue import Queue
from qindex.queue.queue_core import QueueCore
from tests.memory_fs import MemoryFileSystem
from tests.qindex.support import WAIT, drain, open_quietly
from tests.ways import WAYS, in_python, needs_compiled

pytestmark = needs_compiled

compiled: Any = COMPILED

METHODS: list[tuple[str, Callable[..., Any]]] = [
    ("publish", Publisher.publish),
    ("_publish_on_loop", Publisher._publish_on_loop),
    ("get", Consumer.get),
    ("ack", Acker.ack),
]


WORD = 8


class Ended(BaseException):
    """What a signal's handler raises."""


def memory_queue(**options: Any) -> tuple[qindex.Engine, qindex.Queue]:
    options = {"background": False, "embed_below": 1 << 20, **options}
    engine = qindex.open("/s", fs=MemoryFileSystem(root="/"), **options)
    return engine, engine.queue("q")


def taken(queue: qindex.Queue) -> qindex.Delivery:
    delivery = queue.get(timeout=0)
    assert delivery is not None
    return delivery


def test_it_is_in_use() -> None:
    for name, _ in METHODS:
        assert type(Queue.__dict__[name]).__name__ == "method_descriptor"


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_signature_and_docstring_are_those_of_the_method(
    name: str, method: Callable[..., Any]
) -> None:
    fast = getattr(Queue, name)
    mine, its = inspect.signature(fast), inspect.signature(method)
    # ``self`` comes by position only.
    assert [(one.name, one.kind, one.default) for one in mine.parameters.values()][1:] == [
        (one.name, one.kind, one.default) for one in its.parameters.values()
    ][1:]
    assert inspect.getdoc(fast) == inspect.getdoc(method)


@pytest.mark.parametrize("size", [0, 1, 99, 255, 256, 257, 65_535, 65_536, 300_000])
def test_each_record_is_as_the_format_has_it(size: int) -> None:
    engine, queue = memory_queue()
    with engine:
        queue.publish(b"before")
        body = bytes(at % 251 for at in range(size))
        seq = queue.publish(body)
        index = queue._index
        start, end = index.positions[seq], index.journal.tell()
        record = index.journal.map[start:end]
        stamp = taken(queue), taken(queue)._extra
        expected, _ = framed_batch(seq, queue._id_high, [body], [stamp[1]], [NOTHING])  # type: ignore[list-item]
        assert record == expected
        assert record[CHECK_START:CHECK_END] != bytes(8)
        queue.ack(stamp[0])
        words = index.journal.map[end : index.journal.tell()]
        assert words == b"".join(
            (bits | number).to_bytes(8, "big")
            for bits, number in ((DELIVER_BITS, 0), (DELIVER_BITS, seq), (ACK_BITS, 0))
        )


@pytest.mark.parametrize(
    ("given", "is_left"),
    [
        ({}, False),
        ({"key": "k"}, False),
        ({"key": "k", "headers": {"h": 1}}, False),
        ({"properties": {"p": b""}}, False),
        ({"persistent": False, "key": "k"}, False),
        ({"ttl": 600.0}, True),
        ({"key": "k", "ttl": 600.0}, True),
    ],
)
@pytest.mark.parametrize("size", [3, 5000])
def test_what_needs_nothing_to_be_seen_to_is_handed_out(
    given: dict[str, Any], is_left: bool, size: int
) -> None:
    engine, queue = memory_queue(embed_below=4096)
    with engine:
        for _ in range(3):
            queue.publish(bytes(size), **given)
        taken(queue).ack()
        called: list[object] = []
        sys.setprofile(
            lambda frame, event, _: called.append(frame.f_code) if event == "call" else 0
        )
        try:
            delivery = taken(queue)
        finally:
            sys.setprofile(None)
        assert (Consumer.get.__code__ in called) == (is_left or size == 5000)
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


steps = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "get", "ack", "nack", "flush", "reopen", "batch"]),
        st.sampled_from([0, 3, 100, 255, 256, 5000]),
        st.integers(1, 40),
    ),
    max_size=30,
)


@given(steps)
def test_both_ways_store_the_same_bytes(steps: list[tuple[str, int, int]]) -> None:
    """But for the times, and what is made of them."""

    def run(way: str) -> list[Any]:
        with in_python(way):
            fs = MemoryFileSystem(root="/")
            options: dict[str, Any] = {"segment_entry_count": 64, "embed_below": 4096, "fs": fs}
            engine = qindex.open("/s", background=False, **options)
            queue = engine.queue("q")
            seen: list[Any] = []
            held: list[Delivery] = []
            for what, size, count in steps:
                if what == "publish":
                    seen += [queue.publish(bytes((at,)) * size) for at in range(count)]
                elif what == "batch":
                    seen.append(queue.publish_many([bytes((at,)) * size for at in range(count)]))
                elif what == "get":
                    got = [one for _ in range(count) if (one := queue.get(timeout=0))]
                    seen += [(one.seq_id, one.body, one.redelivered) for one in got]
                    held += got
                elif what == "ack":
                    for one in held[:count]:
                        one.ack()
                    del held[:count]
                elif what == "nack":
                    for one in held[:count]:
                        one.nack()
                    del held[:count]
                elif what == "flush":
                    queue.flush()
                else:
                    held.clear()
                    engine.close()
                    engine = qindex.open("/s", background=False, **options)
                    queue = engine.queue("q")
                index = queue._index
                seen.append((index.journal.tell(), list(index.positions), index.taken, index.acks))
                seen.append((len(queue), index.out, bytes(index.tail.states), index.dirty))
            engine.close()
            return seen

    assert run("compiled") == run("python")


def test_arguments_that_are_none_of_its_own() -> None:
    engine, queue = memory_queue()
    with engine:
        for call in (
            lambda: queue.publish(),  # type: ignore[call-arg]
            lambda: queue.publish(b"", b""),  # type: ignore[arg-type, call-arg]
            lambda: queue.publish(b"", nothing=1),  # type: ignore[call-arg]
            lambda: queue.get(1, 2),  # type: ignore[call-arg]
            lambda: queue.get(None, timeout=0),  # type: ignore[misc]
            lambda: queue.ack(),  # type: ignore[call-arg]
            lambda: Queue.publish(None, b""),  # type: ignore[arg-type]
            lambda: Queue.get(object()),  # type: ignore[arg-type]
        ):
            with pytest.raises(TypeError):
                call()
        for body in ("text", bytearray(b"x"), None, 5):
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
        # The first one wakes the journal, which is for the method in Python.
        queue.publish(b"first")
        taken(queue)
        waiting = pool.submit(queue.get, WAIT)
        while not queue._waiting:
            sleep(0.001)
        queue.publish(b"x")
        delivery = waiting.result(WAIT / 2)
        assert delivery is not None


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        *((Ended, when) for when in ("before", "behind")),
        *((MemoryError, when) for when in ("before", "behind")),
        (ValueError, "before"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_write_that_raises(way: str, kind: type[BaseException], when: str) -> None:
    """Each of the three either happened or did not, and all goes on. ``ValueError``: the map is
    full, and the record goes into another one."""
    with in_python(way):
        engine, queue = memory_queue()
        for body in (b"a", b"b", b"c"):
            queue.publish(body)
        held = taken(queue)
        journal: Any = queue._index.journal

        def during(call: Callable[[], object]) -> None:
            real = journal.write

            def write(data: bytes) -> int:
                journal.write = real
                if when == "behind":
                    real(data)
                raise kind

            journal.write = write
            if kind is ValueError:
                call()
            else:
                with pytest.raises(kind):
                    call()
            assert not queue._real_lock.is_mine()

        end = journal.tell()
        during(lambda: queue.publish(b"new"))
        if kind is not ValueError:
            assert (journal.tell(), queue._index.next_seq) == (end, 3)
        during(lambda: queue.ack(held))
        during(lambda: queue.get(timeout=0))
        live = [body for _, body, _ in drain(queue)]
        assert live[:1] == ([b"c"] if kind is ValueError else [b"b"])
        assert queue.publish(b"more") == queue._index.next_seq - 1
        engine.close()
        assert not engine.findings


@pytest.mark.parametrize("way", WAYS)
def test_what_else_is_called_raises(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_python(way):
        engine, queue = memory_queue()

        def ended(*_: object) -> None:
            raise Ended

        queue.publish(b"first")
        queue._check_mask = 0
        for target, name in (
            (qindex.queue.producing, "time_ns"),
            (queue._index.journal, "tell"),
            (QueueCore, "_tick"),
        ):
            before = len(queue)
            with monkeypatch.context() as patch:
                patch.setattr(target, name, ended)
                with pytest.raises(Ended):
                    queue.publish(b"new")
            assert not queue._real_lock.is_mine()
            assert len(queue) == before + (name == "_tick")
        assert [body for _, body, _ in drain(queue)][-1] == b"new"
        engine.close()


def test_a_full_disk_and_a_poisoned_store() -> None:
    _engine, queue = memory_queue()
    queue.publish(b"a")
    queue.publish(b"b")
    held = taken(queue)
    error = StorageError("journal.jif", "append failed", OSError(5, "EIO"))
    queue._index.poison.set(error)
    for call in (
        lambda: queue.publish(b"c"),
        lambda: queue.ack(held),
        lambda: queue.get(timeout=0),
    ):
        with pytest.raises(qindex.WritesRefusedError):
            call()
        assert not queue._real_lock.is_mine()
    assert (queue.stats().acked, queue._index.out, len(queue)) == (0, 1, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [10, 300])
def test_a_finalizer_that_publishes(way: str, size: int) -> None:
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
    with in_python(way):
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


def test_no_object_is_left_behind() -> None:
    """After thousands of each, and of each that fails, there is no more of anything."""
    engine, queue = memory_queue(segment_entry_count=64, max_journal_entries=100)
    body = b"x" * 300

    def work(count: int) -> None:
        for _ in range(count):
            queue.publish(body)
            queue.publish(body)
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
        blocks = sys.getallocatedblocks()
        of = [body, queue, queue._index, queue._index.journal, queue._real_lock, True, False]
        counts = [sys.getrefcount(one) for one in of]
        work(300)
        assert sys.getallocatedblocks() - blocks < 1000
        for one, before in zip(of, counts, strict=True):
            assert abs(sys.getrefcount(one) - before) < 50


def test_what_it_is_given_is_looked_at() -> None:
    with pytest.raises(KeyError):
        compiled.install({"Queue": Queue})
    with pytest.raises(TypeError, match="not a type"):
        compiled.install({"Queue": 5})
    with pytest.raises(KeyError):
        compiled.use_layout({})


def test_a_run_of_what_is_not_there() -> None:
    data = bytes(1000)
    assert compiled.read_run(data, b"", 0, 0, 0, 1 << 20, True) == ([], [], [])
    for offset in (-1, 0, 990, 1000, 1 << 60, -(1 << 60)):
        place = offset.to_bytes(8, sys.byteorder, signed=True)
        for in_journal in (True, False):
            found = compiled.read_run(data, place, 0, 1, 0, 1 << 20, in_journal)
            assert found == ([], [], [])
    for start, count in ((0, 2), (-1, 1), (2, 1), (0, -1)):
        with pytest.raises(ValueError, match="offsets"):
            compiled.read_run(data, bytes(8), start, count, 0, 1 << 20, True)
    with pytest.raises(ValueError, match="offsets"):
        compiled.read_run(data, bytes(7), 0, 0, 0, 1 << 20, True)


def test_a_run_that_is_cut_or_of_other_places() -> None:
    engine, queue = memory_queue()
    with engine:
        for number in range(3):
            queue.publish(b"%d" % number * 50)
        index = queue._index
        data, offsets = index.journal.map[: index.journal.tell()], index.positions

        def bodies(data: bytes, first_seq: int, in_journal: bool) -> list[bytes]:
            # A segment has two bytes in place of a journal's first eight.
            shift = 0 if in_journal else WORD - STEP_SIZE
            places = array("q", [offset + shift for offset in offsets])
            found = compiled.read_run(data, places, 0, 3, first_seq, 1 << 20, in_journal)[0]
            assert isinstance(found, list)
            return found

        for in_journal in (True, False):
            assert bodies(data, 0, in_journal) == [b"0" * 50, b"1" * 50, b"2" * 50]
            for cut in (1, 50, 100):
                assert bodies(data[:-cut], 0, in_journal) == [b"0" * 50, b"1" * 50]
        assert bodies(data, 1, True) == []


@given(st.binary(max_size=300), st.integers(-10, 310), st.booleans())
def test_a_run_of_any_bytes(data: bytes, offset: int, in_journal: bool) -> None:
    place = offset.to_bytes(8, sys.byteorder, signed=True)
    assert compiled.read_run(data, place, 0, 1, 0, 1 << 20, in_journal) == ([], [], [])
