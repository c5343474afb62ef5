"""A message is found by its key or its seq_id, and can be settled, without reading the queue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from tests.effort import by_tier, chance
from tests.qindex.support import copy_live, open_quietly

LARGE = b"large" * 5000


def found(queue: qindex.Queue, key: str) -> list[tuple[int, bytes]]:
    return [(one.seq_id, one.body) for one in queue.find(key)]


def test_ready_and_delayed_messages_are_found(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "store") as engine:
        queue = engine.queue("q")
        queue.publish(b"0", key="k")
        queue.publish_many([b"1", qindex.Message(b"2", "k"), qindex.Message(LARGE, "l")])
        queue.publish(b"4", key="k", delay=1e6)
        assert found(queue, "k") == [(0, b"0"), (2, b"2"), (4, b"4")]
        assert found(queue, "l") == [(3, LARGE)]
        assert found(queue, "1") == []
        assert [one.body for one in queue.find("k", 1)] == [b"0"]
        first = queue.get()
        assert found(queue, "k") == [(2, b"2"), (4, b"4")]
        first.nack()
        queue.flush()
        queue.publish(b"5", key="k", headers={"n": 1})
        assert found(queue, "k") == [(0, b"0"), (2, b"2"), (4, b"4"), (5, b"5")]
        assert (queue.find("k")[0].redelivered, queue.find("k")[3].headers) == (True, {"n": 1})
        queue.cancel(5)
        killed = copy_live(tmp_path / "store", tmp_path / "killed")
    for directory in (killed, tmp_path / "store"):
        with open_quietly(directory) as engine:
            assert found(engine.queue("q"), "k") == [(0, b"0"), (2, b"2"), (4, b"4")]
            with qindex.open(directory, read_only=True) as reader:
                there = [one.body for one in reader.queue("q").find("k")]
                assert there == [b"0", b"2", b"4"]
            engine.queue("q").purge()
            assert found(engine.queue("q"), "k") == []


def test_a_message_is_taken_by_its_seq_id(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2"])
        queue.publish(b"3", delay=1e6)
        third = queue.get(seq_id=2, lease=1000)
        assert third is not None
        assert (third.body, third.redelivered) == (b"2", False)
        assert queue.get(seq_id=2) is None
        later = queue.get(seq_id=3)
        assert later is not None
        assert (queue.stats().delayed, len(queue), queue.stats().unacked) == (0, 2, 2)
        third.nack()
        later.nack()
        assert queue.get(seq_id=7) is None
        assert [one.body for one in queue.consume(timeout=0)] == [b"0", b"1", b"2", b"3"]
        queue.ack_up_to(3)
        assert queue.get(seq_id=1) is None
        wrong: Any
        for wrong in ("1", True, 1.0):
            with pytest.raises(qindex.UsageError, match="a seq_id is an int"):
                queue.get(seq_id=wrong)
        for wrong in (None, 1):
            with pytest.raises(qindex.UsageError, match="a key must be a str"):
                queue.find(wrong)
        with pytest.raises(qindex.UsageError, match="at least 0"):
            queue.find("k", -1)


def test_priorities(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", max_priority=5)
        low = queue.publish(b"low", key="k")
        high = queue.publish(b"high", key="k", priority=5)
        assert found(queue, "k") == [(high, b"high"), (low, b"low")]
        taken = queue.get(seq_id=low)
        assert taken is not None
        taken.ack()
        assert found(queue, "k") == [(high, b"high")]
        assert queue.get(seq_id=3 << 55) is None


def test_coroutines(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"0", key="k")
            await queue.publish(b"1", key="k")
            assert [one.seq_id for one in await queue.find("k")] == [0, 1]
            delivery = await queue.get(seq_id=1)
            assert delivery is not None
            await delivery.ack()
            assert [one.seq_id for one in await queue.find("k")] == [0]

    asyncio.run(main())


def test_it_agrees_with_a_model(tmp_path: Path) -> None:
    rng = chance("find")
    options: dict[str, Any] = {"segment_entry_count": 16, "background": False}
    there: dict[int, str] = {}
    engine = open_quietly(tmp_path / "0", **options)
    queue = engine.queue("q")
    for step in range(by_tier(quick=1000, all=5000, nightly=200_000)):
        what = rng.choice(["publish"] * 4 + ["take"] * 3 + ["find"] * 3 + ["flush", "reopen"])
        key = f"k{rng.randrange(5)}"
        if what == "publish":
            delay = rng.choice([None, None, 1e6])
            there[queue.publish(b"%d" % step, key=key, delay=delay)] = key
        elif what == "take" and there:
            seq = rng.choice(list(there))
            delivery = queue.get(seq_id=seq)
            assert delivery is not None
            assert delivery.key == there[seq]
            if rng.random() < 0.7:
                delivery.ack()
                del there[seq]
            else:
                delivery.nack(delay=rng.choice([None, 1e6]))
        elif what == "find":
            wanted = sorted(seq for seq, its in there.items() if its == key)
            assert [one.seq_id for one in queue.find(key, 1 << 20)] == wanted
        elif what == "flush":
            queue.flush()
        elif what == "reopen" and rng.random() < 0.2:
            if rng.random() < 0.5:
                engine.close()
                engine = open_quietly(engine.directory, **options)
            else:
                killed = copy_live(engine.directory, tmp_path / f"{step + 1}")
                engine.close()
                engine = open_quietly(killed, **options)
            queue = engine.queue("q")
    engine.close()
