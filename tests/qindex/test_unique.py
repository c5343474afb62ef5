"""Unique keys: one message of a queue at a time holds a key, whatever crashes."""

from __future__ import annotations

import asyncio
import pickle
import random
import shutil
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.queue import run_clock
from qindex.queue.notes.unique_keys import KeyTable
from qindex.tools.verify import verify
from tests.cli.support import run
from tests.effort import by_tier
from tests.qindex.support import copy_live


def refused(queue: qindex.Queue, key: str, **options: Any) -> int:
    """Publish in vain, and return the seq_id that holds the key."""
    before = queue.stats().next_seq_id
    with pytest.raises(qindex.DuplicateError) as raised:
        queue.publish(b"again", unique=key, **options)
    assert queue.stats().next_seq_id == before
    return raised.value.seq_id


def test_a_key_is_held_until_the_ack_over_retries_and_reopens(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"other")
        seq = queue.publish(b"x", unique="o-17", key="k", headers={"a": 1})
        assert refused(queue, "o-17") == seq
        queue.publish(b"y", unique="o-18")
        queue.get().ack()
        given = queue.get()
        assert (given.key, given.headers["a"]) == ("k", 1)
        assert refused(queue, "o-17") == seq
        given.nack(delay=0.01)
        assert refused(queue, "o-17") == seq
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        assert refused(queue, "o-17") == seq
        held = {one.seq_id: one for one in (queue.get(timeout=5), queue.get(timeout=5)) if one}
        held[seq].ack()
        again = queue.publish(b"z", unique="o-17")
        assert refused(queue, "o-17") == again
    assert not verify(tmp_path).damage


@pytest.mark.parametrize("size", [10, 50_000])
def test_every_way_out_of_the_queue_frees_the_key(tmp_path: Path, size: int) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead", delivery_limit=2)
        body = b"x" * size

        def publish() -> int:
            return queue.publish(body, unique="k", delay=None)

        publish()
        queue.get().reject()
        publish()
        queue.get().nack()
        queue.get().nack()
        publish()
        assert queue.purge() == 1
        queue.cancel(queue.publish(body, unique="k", delay=1000))
        queue.publish(body, unique="k", ttl=0)
        assert queue.get(timeout=0) is None
        publish()
        queue.get().ack()
        assert queue.stats().messages == 0
        assert engine.queue("dead").stats().messages == 3


def test_until_delivered_lets_one_run_and_one_wait(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"1", unique="k", until="delivered")
        refused(queue, "k")
        running = queue.get()
        queue.publish(b"2", unique="k", until="delivered")
        refused(queue, "k")
        running.nack()  # it meets no twin
        assert [one.body for one in queue.get_many(5)] == [b"1", b"2"]


def test_a_window_runs_from_the_publish_and_outlives_message_and_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = run_clock.time_ns()
    monkeypatch.setattr(run_clock, "time_ns", lambda: now)
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        seq = queue.publish(b"x", unique="k", window=60)
        queue.get().ack()
        assert refused(queue, "k") == seq
        queue.flush()
    for _ in range(2):
        with qindex.open(tmp_path) as engine:
            assert refused(engine.queue("q"), "k") == seq
    now += 61 * 10**9
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"y", unique="k")
        refused(queue, "k")


def test_a_window_of_a_clock_that_was_ahead_is_no_longer_than_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = right = run_clock.time_ns()
    monkeypatch.setattr(run_clock, "time_ns", lambda: now)
    now += 365 * 86_400 * 10**9
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        seq = queue.publish(b"x", unique="k", window=60)
        queue.get().ack()
    now = right
    for seconds in (0, 59):
        now = right + seconds * 10**9
        with qindex.open(tmp_path) as engine:
            assert refused(engine.queue("q"), "k") == seq
    now = right + 61 * 10**9
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish(b"y", unique="k")


@pytest.mark.parametrize("size", [1, 20_000])
def test_what_no_consumer_gets_any_more_holds_no_key(tmp_path: Path, size: int) -> None:
    """It was due to go when the process was killed: no get has come since."""
    (tmp_path / "one").mkdir()
    with qindex.open(tmp_path / "one", background=False) as engine:
        queue = engine.queue("q", dead_letter="dead", delivery_limit=2)
        queue.publish(bytes(size), unique="a")
        queue.publish(bytes(size), unique="b", ttl=0.05)
        first = queue.get()
        refused(queue, "a")
        first.nack()
        refused(queue, "a")
        second = queue.get()
        refused(queue, "a")  # its last delivery is under way
        queue._settler.nack(second)  # the move of the dead letter is owed
        copy_live(tmp_path / "one", tmp_path / "two")
    time.sleep(0.06)
    with qindex.open(tmp_path / "two", background=False) as engine:
        queue = engine.queue("q")
        assert queue.publish(b"new", unique="a") == 2
        assert queue.publish(b"new", unique="b") == 3
        assert [one.body for one in queue.get_many(10)] == [b"new"] * 2


@pytest.mark.parametrize("way", ["move", "reject"])
def test_a_message_from_another_queue_holds_no_key_after_a_crash(tmp_path: Path, way: str) -> None:
    with qindex.open(tmp_path / "store") as engine:
        here, there = engine.queue("here", dead_letter="there"), engine.queue("there")
        first = there.publish(b"first", unique="k")
        here.publish(b"second", unique="k", until="delivered", window=1000)
        given = here.get()
        given.move("there") if way == "move" else given.reject()
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with qindex.open(tmp_path / "killed") as engine:
        there = engine.queue("there")
        assert refused(there, "k") == first
        one, other = there.get_many(2)
        assert (one.body, other.body) == (b"first", b"second")
        other.ack()
        assert refused(there, "k") == first
        one.ack()
        there.publish(b"third", unique="k")


@pytest.mark.parametrize("at", range(5))
def test_a_damaged_record_frees_no_key(tmp_path: Path, at: int) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        held = {key: queue.publish(b"x", unique=key) for key in ("a", "b", "c")}
    path = next(tmp_path.rglob("qindex.keys"))
    data = bytearray(path.read_bytes())
    data[20 * at + 9 : 20 * at + 10] = b"\xee"  # 4: behind all records
    path.write_bytes(data)
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        assert {key: refused(queue, key) for key in held} == held
    with qindex.open(tmp_path) as engine:
        assert {key: refused(engine.queue("q"), key) for key in held} == held


def test_a_republished_message_holds_its_key_in_its_own_way(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x", unique="a", until="delivered")
        given = queue.get()
        seq = queue.publish(given.body, headers=given.headers, unique="b")
        given.ack()
        again = queue.get()
        assert again.seq_id == seq
        assert refused(queue, "b") == seq
        wrong: Any = 5
        with pytest.raises(qindex.UsageError, match="a mapping with str keys"):
            queue.publish(b"", headers=wrong, unique="c")


def test_values_that_can_not_be_right(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        for options, wrong in (
            ({"unique": ""}, "unique must be"),
            ({"unique": 7}, "unique must be"),
            ({"unique": "k", "window": 0}, "window must be"),
            ({"unique": "k", "window": True}, "window must be"),
            ({"unique": "k", "until": "never"}, "until must be"),
        ):
            with pytest.raises(qindex.UsageError, match=wrong):
                queue.publish(b"x", **options)
        assert queue.stats().next_seq_id == 0
    error = pickle.loads(pickle.dumps(qindex.DuplicateError(7, "a message holds it")))
    assert error.seq_id == 7
    assert "seq_id 7" in str(error)


WITHOUT_KEY: tuple[dict[str, Any], ...] = ({"until": "delivered"}, {"window": 5.0})
BODIES: tuple[Any, ...] = (b"x", qindex.Message(b"x"))


def refused_without_key() -> Any:
    return pytest.raises(qindex.UsageError, match=r"(until|window)= needs unique=")


@pytest.mark.parametrize("shared", [False, True])
def test_options_of_a_key_need_the_key(tmp_path: Path, shared: bool) -> None:
    given: dict[str, Any] = {"shared": True, "linger": 0} if shared else {}
    with qindex.open(tmp_path, **given) as engine:
        engine.queue("jobs", max_priority=3)
        for name, body, options in product(("q", "jobs"), BODIES, WITHOUT_KEY):
            queue = engine.queue(name)
            with refused_without_key():
                queue.publish(body, **options)
            with refused_without_key():
                queue.publish(body, confirm=True, priority=1 if name == "jobs" else None, **options)
            with engine.transaction() as tx:
                with refused_without_key():
                    tx.publish(name, body, **options)
                tx.publish(name, body, until="acked")
            assert queue.publish(body, until="acked") >= 0
            assert queue.purge() == 2


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_options_of_a_key_need_the_key_of_coroutines(
    tmp_path: Path, shared: bool, durability: Any
) -> None:
    async def main() -> None:
        given: dict[str, Any] = {"shared": True, "linger": 0} if shared else {}
        async with qindex.aio.open(tmp_path, durability=durability, **given) as engine:
            queue = await engine.queue("q")
            for body, options in product(BODIES, WITHOUT_KEY):
                with refused_without_key():
                    await queue.publish(body, **options)
                async with engine.transaction() as tx:
                    with refused_without_key():
                        await tx.publish("q", body, **options)
            assert await queue.publish(b"x", until="acked") >= 0
            assert await queue.purge() == 1

    asyncio.run(main())


def test_threads_race_for_one_key(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        won: list[int] = []

        def publish(number: int) -> None:
            for key in range(50):
                try:
                    queue.publish(b"%d" % number, unique=f"{key}")
                    won.append(key)
                except qindex.DuplicateError:
                    time.sleep(0)

        threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == list(range(50))
        assert len(queue) == 50


def test_coroutines_and_the_command_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with await qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"x", unique="k")
            with pytest.raises(qindex.DuplicateError):
                await queue.publish(qindex.Message(b"x"), unique="k")

    asyncio.run(main())
    assert run("publish", tmp_path, "q", "--unique", "other", stdin=b"one\n").code == 0
    result = run("publish", tmp_path, "q", "--unique", "k", stdin=b"one\n")
    assert result.code == 2
    assert "holds unique key 'k'" in result.err


def test_the_table_keeps_what_it_was_given() -> None:
    table, model = KeyTable(), {}
    chance = random.Random(5)
    for _ in range(5000):
        hashed, seq = chance.randrange(1, 3000), chance.randrange(10**9)
        if table.is_full():
            table.keep(*table.all())
        table.put(hashed, seq)
        model[hashed] = seq
    assert len(table) == len(model)
    assert all(table.get(hashed) == model.get(hashed) for hashed in range(1, 3001))


@pytest.mark.parametrize("seed", range(by_tier(quick=12, all=60, nightly=2000)))
def test_against_a_model(tmp_path: Path, seed: int) -> None:
    """A key is taken just as long as its message is there."""
    chance = random.Random(seed)
    options: dict[str, Any] = {
        "background": False,
        "embed_below": chance.choice((64, 4096)),
        "max_journal_entries": chance.choice((8, 1000)),
        "segment_entry_count": chance.choice((4, 64)),
    }
    directory = tmp_path / "store"
    engine = qindex.open(directory, **options)
    queue = engine.queue("q")
    holders: dict[str, int] = {}
    held: dict[int, qindex.Delivery] = {}

    def gone(seq: int) -> None:
        for key in [key for key, one in holders.items() if one == seq]:
            del holders[key]

    for step in range(60):
        match chance.choice("ppppggaancfrkxu"):
            case "p":
                key = chance.choice("abcd")
                delay = chance.choice((None, None, 1000))
                if key in holders:
                    assert refused(queue, key) == holders[key]
                else:
                    body = b"x" * chance.choice((1, 100))
                    holders[key] = queue.publish(body, unique=key, delay=delay)
            case "u":
                queue.publish_many([b"plain"] * 3)
            case "g":
                for one in queue.get_many(3):
                    held[one.seq_id] = one
            case "a" if held:
                seq = chance.choice(list(held))
                held.pop(seq).ack()
                gone(seq)
            case "n" if held:
                held.pop(chance.choice(list(held))).nack()
            case "c" if holders:
                seq = chance.choice(list(holders.values()))
                if queue.cancel(seq):
                    gone(seq)
            case "f":
                queue.flush()
            case "x":
                queue._parts.state.index.changing += 1
            case "r":
                engine.close()
                engine = qindex.open(directory, **options)
                queue, held = engine.queue("q"), {}
            case "k":
                copy = tmp_path / f"{step}"
                shutil.copytree(directory, copy)
                engine.close()
                directory = copy
                engine = qindex.open(directory, **options)
                queue, held = engine.queue("q"), {}
    for key in "abcd":
        if key in holders:
            assert refused(queue, key) == holders[key]
        else:
            queue.publish(b"free", unique=key)
    engine.close()
