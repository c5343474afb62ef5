"""Single puts: what they store and refuse, and a put in which something raises."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rocketstore
from journal.compiled import INTERPRETED, build
from journal.errors import ClosedError, StorageError, UsageError, WritesRefusedError
from journal.locks.sync import GroupCommit
from rocketstore.dispatcher import PENDING_MAX, Dispatcher
from rocketstore.log.store_clock import StoreClock
from tests.leaks import left_behind
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.support import Clock, open_tiny
from tests.waiting import WAIT


class Ended(BaseException):
    """What a signal's handler raises."""


def memory_store(**options: Any) -> rocketstore.Store:
    fs = MemoryFileSystem(root="/s")
    return open_tiny(Path("/s"), **{"fs": fs, "clock": Clock(step=1), **options})


def is_free(store: rocketstore.Store) -> bool:
    return not store._state.lock._is_owned()


texts = st.sampled_from([None, "", "k", "one two", "\xe9", "a" * 300, "x\x02y", "x\0", "x\x01y"])
puts = st.lists(
    st.tuples(
        st.sampled_from(["T", "T", "other", "\u00fc", ""]),
        st.sampled_from([0, 1, 100, 900, 3000, 5000]),
        st.fixed_dictionaries(
            {},
            optional={
                "queue_id": st.sampled_from([0, 1, 7, -1, 1 << 31]),
                "keys": texts | st.just(["a", "b"]),
                "unique_key": texts,
                "tags": texts,
                "flag": st.just(1),
            },
        ),
        st.booleans(),
    ),
    max_size=25,
)


@given(puts)
def test_a_put_is_refused_or_read_back(
    puts: list[tuple[str, int, dict[str, Any], bool]],
) -> None:
    with memory_store(max_message_size=4000) as store:
        expected: dict[tuple[str, int], list[tuple[bytes, dict[str, Any]]]] = {}
        for number, (topic, size, fields, looked_at) in enumerate(puts):
            body = bytes((number,)) * size
            try:
                put = store.put(topic, body, **fields)
            except UsageError:
                assert is_free(store)
                continue
            assert is_free(store)
            queue = expected.setdefault((topic, fields.get("queue_id", 0)), [])
            assert put.queue_offset == len(queue)
            queue.append((body, fields))
            if looked_at:
                assert next(store.messages(topic, put.queue_id)).queue_offset == 0
        assert {(topic, queue_id) for topic, queue_id in store.queues()} == expected.keys()
        for (topic, queue_id), queue in expected.items():
            found = list(store.messages(topic, queue_id))
            assert [one.body for one in found] == [body for body, _ in queue]
            for message, (_, fields) in zip(found, queue, strict=True):
                message.check()
                keys = fields.get("keys") or []
                assert message.keys == (keys.split(" ") if isinstance(keys, str) else keys)
                assert (message.tags or None) == (fields.get("tags") or None)
                assert (message.unique_key or None) == (fields.get("unique_key") or None)
                assert message.flag == fields.get("flag", 0)


def test_a_result_is_one() -> None:
    with memory_store() as store:
        store.put("T", b"first")
        queue_id = int("1000")
        store.put("T", b"first there", queue_id=queue_id)
        put = store.put("T", b"second", queue_id=queue_id)
        assert type(put) is rocketstore.PutResult
        assert put.queue_id is queue_id
        assert put._replace(offset=5).offset == 5
        assert store.lookup(put.message_id) == store.lookup(put.offset)
        assert put.store_timestamp == store._state.clock.now


def test_arguments_that_are_none_of_its_own() -> None:
    with memory_store() as store:
        store.put("T", b"")
        wrong: list[Any] = [
            lambda: store.put(),  # type: ignore[call-arg]
            lambda: store.put("T"),  # type: ignore[call-arg]
            lambda: store.put("T", b"", 0),  # type: ignore[call-arg]
            lambda: store.put("T", b"", nothing=1),  # type: ignore[call-arg]
        ]
        for call in wrong:
            with pytest.raises(TypeError):
                call()
        refused: list[Any] = [
            lambda: store.put("T", "text"),  # type: ignore[arg-type]
            lambda: store.put("T", bytearray(b"x")),  # type: ignore[arg-type]
            lambda: store.put(5, b""),  # type: ignore[arg-type]
            lambda: store.put("T", b"", queue_id=-1),
            lambda: store.put("T", b"", queue_id=1 << 40),
            lambda: store.put("T", b"", keys="x" * 40_000),
            lambda: store.put("T", b"", keys="x" * 20_000, tags="y" * 20_000),
        ]
        for call in refused:
            with pytest.raises(UsageError):
                call()
        assert store.put(topic="T", body=b"by name").queue_offset == 1
        assert store.put("T", b"", queue_id=True, keys=None, tags=None).queue_offset == 0


def test_what_it_calls_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The put is not done; what follows is."""

    def ended(*_: object) -> None:
        raise Ended

    with memory_store() as store:
        store.put("T", b"0")
        stored = [b"0"]
        targets: list[tuple[type, str]] = [
            (Clock, "__call__"),
            (type(store._state.commitlog.view), "__setitem__"),
        ]
        if build() == INTERPRETED:
            targets.insert(1, (StoreClock, "advance"))
        for target, name in targets:
            with monkeypatch.context() as context:
                context.setattr(target, name, ended)
                with pytest.raises(Ended):
                    store.put("T", b"not")
            assert is_free(store)
            stored.append(name.encode())
            assert store.put("T", stored[-1]).queue_offset == len(stored) - 1
        assert store.get("T", 0, 0).bodies == stored


@pytest.mark.interpreted  # a method of the dispatcher is replaced
def test_a_dispatch_that_is_ended() -> None:
    """The message is stored, and the store goes on."""
    fs = MemoryFileSystem(root="/s")
    sizes = {"commitlog_file_size": 1 << 20, "consumequeue_file_size": 1 << 20}
    same: dict[str, Any] = {"fs": fs, **sizes}
    store = memory_store(**same)
    for _ in range(PENDING_MAX - 1):
        store.put("T", b"")
    assert len(store._state.pending.offsets) == PENDING_MAX - 1
    with patch.object(Dispatcher, "_columns", side_effect=Ended), pytest.raises(Ended):
        store.put("T", b"last")
    assert is_free(store)
    assert store.put("T", b"behind it").queue_offset == PENDING_MAX
    assert store.get("T", 0, PENDING_MAX - 1).bodies == [b"last", b"behind it"]
    store.close()
    with memory_store(**same) as again:
        assert again.get("T", 0, PENDING_MAX - 1).bodies == [b"last", b"behind it"]
        assert not again.findings


def test_it_dispatches_after_so_many() -> None:
    with memory_store(commitlog_file_size=1 << 20) as store:
        for number in range(PENDING_MAX + 3):
            store.put("T", b"", queue_id=number % 2)
        assert len(store._state.pending.offsets) == 3
        assert store.get("T", 1, 0).max_offset == PENDING_MAX // 2 + 1


def test_a_store_that_takes_no_writes(tmp_path: Path) -> None:
    store = open_tiny(tmp_path)
    store.put("T", b"a")
    store._state.refuse_full(True)
    with pytest.raises(StorageError, match="full_ratio"):
        store.put("T", b"b")
    store._state.refuse_full(False)
    store._state.poison.set(OSError(5, "EIO"))
    with pytest.raises(WritesRefusedError):
        store.put("T", b"b")
    assert is_free(store)
    store.close()
    with pytest.raises(ClosedError):
        store.put("T", b"b")
    with open_tiny(tmp_path, read_only=True) as store:
        with pytest.raises(UsageError, match="for reading only"):
            store.put("T", b"b")
        assert is_free(store)


def test_a_store_with_a_wide_host(tmp_path: Path) -> None:
    with open_tiny(tmp_path, store_host="[::1]:10911") as store:
        for number in range(3):
            assert len(store.put("T", b"%d" % number).store_host) == 20
        assert store.get("T", 0, 0).bodies == [b"0", b"1", b"2"]


def test_a_put_waits_for_the_lock_and_for_the_disk(tmp_path: Path) -> None:
    with open_tiny(tmp_path, durability="fsync") as store:
        store.put("T", b"a")
        syncs = patch.object(GroupCommit, "commit", side_effect=store._log_sync._group.commit)
        with syncs as commit:
            thread = threading.Thread(target=store.put, args=("T", b"b"))
            with store._state.lock:
                thread.start()
                thread.join(0.05)
                assert thread.is_alive()
                assert not commit.called
            thread.join(WAIT)
            assert commit.call_count == 1
        assert store.get("T", 0, 0).bodies == [b"a", b"b"]


def test_a_finalizer_that_puts() -> None:
    """The collector may run whenever an object is made, and so within a put: then it is refused."""
    done: list[bytes] = []
    refused: list[str] = []

    class Last:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                store.put("T", b"from a finalizer")
                done.append(b"from a finalizer")
            except UsageError as error:
                refused.append(str(error))

    before = gc.get_threshold()
    with memory_store(commitlog_file_size=1 << 20) as store:
        gc.set_threshold(1)
        try:
            for _ in range(300):
                Last()
                store.put("T", b"from the caller")
                done.append(b"from the caller")
        finally:
            gc.set_threshold(*before)
        # While another thread is in the middle of a collection, one that is asked for does nothing.
        deadline = monotonic() + WAIT
        while len(done) + len(refused) < 600 and monotonic() < deadline:
            gc.collect()
        found = [message.body for message in store.messages("T", 0)]
        assert len(done) + len(refused) == 600
        assert all("in the middle of another call" in text for text in refused)
        assert sorted(found) == sorted(done)


def test_no_object_is_left_behind() -> None:
    store = memory_store(
        commitlog_file_size=1 << 22, consumequeue_file_size=1 << 20, index_entries=5000
    )
    topic, body, key = "".join(("T", "T")), b"x" * 300, "k" * 300

    def work(count: int) -> None:
        for number in range(count):
            store.put(topic, body)
            store.put(topic, body, keys=key, tags=key, unique_key=key, queue_id=number & 1)
            with pytest.raises(UsageError):
                store.put(topic, body, keys="\x02")
            with patch.object(Clock, "__call__", side_effect=Ended), pytest.raises(Ended):
                store.put(topic, body)
        store.get(topic, 0, 0)
        gc.collect()

    with store:
        work(100)
        route = store._state.route(topic, 0)
        state = store._state
        of = [topic, body, key, route, store, state.commitlog, state.pending, state.lock, None]
        blocks, references = left_behind(lambda: work(125), of)
        assert blocks < 100
        assert references < 25
