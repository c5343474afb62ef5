"""Bodies of each kind, batches of bodies and messages, and errors that say which of a batch."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.format.message import Body
from tests.qindex.support import drain, open_quietly

SIZES = {"embedded": 5, "in the message store": 20_000, "on the helper's thread": 70_000}
OPTIONS: list[dict[str, Any]] = [{}, {"persistent": False}, {"ttl": 1000.0}, {"key": "k"}]


def kinds(body: bytes) -> list[Body]:
    """The same bytes as each kind of body; a strided view is one, too."""
    return [body, bytearray(body), memoryview(body), memoryview(body[::-1])[::-1]]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_bodies_of_each_kind(tmp_path: Path, size: int) -> None:
    body = bytes(range(1, 251)) * (size // 250 + 1)
    body = body[:size]
    with open_quietly(tmp_path) as engine:
        plain, limited = engine.queue("plain"), engine.queue("limited", max_length=1000)
        for queue in (plain, limited):
            for options in OPTIONS:
                for one in kinds(body):
                    queue.publish(one, **options)
            queue.publish_many(kinds(body))
            queue.publish_many([*kinds(body), qindex.Message(body, "k")])
            messages = [qindex.Message(one, "k") for one in kinds(body)]  # type: ignore[arg-type]
            queue.publish_many(messages)
        for one in kinds(body):
            engine.publish_to(["plain", "limited"], one)

        async def with_coroutines() -> None:
            face = qindex.aio.Engine(engine)
            queue = await face.queue("plain")
            for one in kinds(body):
                await queue.publish(one)
                await queue.publish(one, confirm=True)
                await face.publish_to(["plain", "limited"], one)
            await queue.publish_many([*kinds(body), qindex.Message(body)])

        asyncio.run(with_coroutines())
        for queue, more in ((plain, 4 + 8 + 4 + 5), (limited, 4 + 4)):
            taken = [(type(found), found == body) for _, found, _ in drain(queue)]
            assert taken == [(bytes, True)] * (16 + 4 + 5 + 4 + more)


def test_what_changes_later_was_copied(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        body = bytearray(b"as it was")
        queue.publish(body)
        queue.publish_many([body, qindex.Message(body, "k")])  # type: ignore[arg-type]
        body[:] = b"otherwise"
        assert [found for _, found, _ in drain(queue)] == [b"as it was"] * 3


MESSAGE = qindex.Message(b"m", "k")
WRONG: list[tuple[list[Any], str]] = [
    ([b"a", "text"], "message 1 of the batch: a body must be bytes, a bytearray or a memoryview"),
    ([b"a", b"b", 7], "message 2 of the batch: .* not int"),
    (["text"], "^message 0 of the batch: a body must be bytes"),
    ([MESSAGE, b"a", None], "message 2 of the batch: .* not NoneType"),
    ([b"a", qindex.Message("text")], "message 1 of the batch: .* not str"),  # type: ignore[arg-type]
    ([MESSAGE, qindex.Message(b"", key=5)], "message 1 of the batch: a key must be"),  # type: ignore[arg-type]
    ([MESSAGE, qindex.Message(b"", headers={"a": object()})], "message 1 of the batch: key, head"),
    ([b"", b"", bytes(101)], "message 2 of the batch: .*max_message_bytes"),
    ([b"", qindex.Message(bytes(101))], "message 1 of the batch: .*max_message_bytes"),
]


@pytest.mark.parametrize(("batch", "text"), WRONG)
def test_an_error_in_a_batch_says_which(tmp_path: Path, batch: list[Any], text: str) -> None:
    with open_quietly(tmp_path, max_message_bytes=100) as engine:
        for queue in (engine.queue("plain"), engine.queue("limited", max_length=9)):
            with pytest.raises(qindex.UsageError, match=text):
                queue.publish_many(batch)
            with pytest.raises(qindex.UsageError, match=text):
                asyncio.run(_publish(engine, queue.name, batch))
            assert len(queue) == 0


async def _publish(engine: qindex.Engine, name: str, batch: list[Any]) -> None:
    await (await qindex.aio.Engine(engine).queue(name)).publish_many(batch)


def test_an_error_of_acks_says_which(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"a", b"b", b"c"])
        given = list(queue.get_many(3))
        batches: list[tuple[list[Any], str]] = [
            ([given[0], 7], "item 1 of the batch is not a delivery: int"),
            ([7], "^not a delivery"),
            ([given[0], given[2], given[2]], "seq_id 2 stands twice"),
        ]
        for batch, text in batches:
            with pytest.raises(qindex.UsageError, match=text):
                queue.ack_many(batch)
        assert queue.stats().unacked == 3


def test_dir_shows_the_interface(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q")  # imports rooms of the package
    assert [name for name in dir(qindex) if not name.startswith("__")] == sorted(qindex.__all__)


def test_a_large_body_is_not_kept_behind_its_delivery(tmp_path: Path) -> None:
    with qindex.open(tmp_path, embed_below=1 << 20) as engine:
        for name, size in (("embedded", 10_000), ("stored", 2 << 20)):
            queue = engine.queue(name)
            queue.publish_many([bytes([at]) * size for at in range(4)])
            for at in range(3):
                delivery = queue.get()
                body = delivery.body
                assert body == bytes([at]) * size
                delivery.ack()
                del delivery
                assert sys.getrefcount(body) == 2  # this name's, and the call's
