"""A consumer moves a delivery to another queue, and says why it rejects one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_message_is_in_the_other_queue_as_it_was(
    tmp_path: Path, durability: Any, shared: bool
) -> None:
    options: dict[str, Any] = {"shared": True, "linger": 0} if shared else {}
    with qindex.open(tmp_path, durability=durability, **options) as engine:
        source, target = engine.queue("a"), engine.queue("b", max_length=2)
        source.publish(b"x" * 30_000, key="k", headers={"n": 1}, properties={"p": "q"})
        source.publish_many([b"later", b"too many"])
        source.get().move("b")
        source.get().move("b", headers={"why": "size"}, delay=1e6)
        full = source.get()
        with pytest.raises(qindex.QueueFullError):
            full.move("b")
        with pytest.raises(qindex.UsageError, match="where the message is"):
            full.move("a")
        wrong: Any
        for wrong in (5, "text", [("a", 1)], {1: 2}):
            with pytest.raises(qindex.UsageError, match="a mapping with str keys"):
                full.move("c", headers=wrong)
        full.ack()
        stats = source.stats()
        assert (stats.messages, stats.acked, stats.dead_letters.total) == (0, 3, 0)
        moved = target.get(timeout=0)
        assert moved is not None
        assert (len(moved.body), moved.key, moved.headers, moved.properties) == (
            30_000,
            "k",
            {"n": 1},
            {"p": "q"},
        )
        assert target.stats().delayed == 1
        assert target.get(timeout=0) is None


@pytest.mark.parametrize("shared", [False, True])
def test_the_cause_of_a_rejection_is_in_the_dead_letter(tmp_path: Path, shared: bool) -> None:
    options: dict[str, Any] = {"shared": True, "linger": 0} if shared else {}
    with qindex.open(tmp_path, **options) as engine:
        queue = engine.queue("a", dead_letter="d")
        queue.publish(b"x")
        queue.get().reject("no such customer")
        death = engine.queue("d").get(timeout=5).headers["x-death"][0]
        assert (death["reason"], death["cause"]) == ("rejected", "no such customer")
        queue.publish(b"y")
        with pytest.raises(qindex.UsageError, match="a reason is a str"):
            queue.get().reject(7)


@pytest.mark.parametrize("shared", [False, True])
def test_coroutines_move_and_reject(tmp_path: Path, shared: bool) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"shared": True, "linger": 0} if shared else {}
        async with await qindex.aio.open(tmp_path, **options) as engine:
            queue = await engine.queue("a", dead_letter="d")
            await queue.publish_many([b"1", b"2"])
            await (await queue.get()).move("b", headers={"x": 1})
            await (await queue.get()).reject("why not")
            await queue.publish_many([b"3", b"4"])
            fourth = await queue.get(ack=await queue.get())
            assert fourth.body == b"4"
            assert await queue.get(0, ack=fourth) is None
            moved = await (await engine.queue("b")).get(timeout=5)
            letter = await (await engine.queue("d")).get(timeout=5)
            assert moved is not None
            assert letter is not None
            assert (moved.body, moved.headers) == (b"1", {"x": 1})
            assert letter.headers["x-death"][0]["cause"] == "why not"

    asyncio.run(main())
