"""Transactions, and messages by key, of a shared store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from tests.server.support import WAIT, end_server, server_pid

LARGE = b"large" * 20_000


class FailedError(Exception):
    """Ends a block."""


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_all_of_it_or_nothing(tmp_path: Path, durability: Any) -> None:
    with (
        qindex.open(tmp_path, shared=True, linger=0, durability=durability) as engine,
        qindex.open(tmp_path, shared=True) as other,
    ):
        queue, seen = engine.queue("q"), other.queue("out")
        queue.publish_many([b"1", b"2", b"3"])
        delivery, batch = queue.get(), queue.get_many(2)
        with engine.transaction() as tx:
            assert tx.publish("out", LARGE, key="k", headers={"n": 1}) == 0
            assert tx.publish("out", b"x", delay=1e6, unique="u") == 1
            tx.ack(delivery)
            assert delivery.settled
            with pytest.raises(qindex.UsageError, match="settled already"):
                tx.ack(delivery)
            tx.ack(batch[0])
            assert (seen.get(timeout=0), seen.stats().delayed, len(queue)) == (None, 0, 0)
            with pytest.raises(qindex.DuplicateError):
                other.queue("out").publish(b"y", unique="u")
        message = seen.get(timeout=0)
        assert message is not None
        assert (message.body, message.key, message.headers) == (LARGE, "k", {"n": 1})
        assert (seen.stats().delayed, queue.stats().unacked) == (1, 1)
        with pytest.raises(FailedError), engine.transaction() as tx:  # noqa: PT012
            tx.publish("out", b"never")
            tx.ack(batch[1])
            raise FailedError
        assert not batch[1].settled
        batch[1].nack()
        assert [one.body for one in queue.peek(3)] == [b"3"]
        with pytest.raises(qindex.UsageError, match="is over"):
            tx.publish("out", b"x")
        with pytest.raises(qindex.UsageError, match="in a with block"):
            engine.transaction().publish("out", b"x")
        assert seen.publish(b"next") == 3
    end_server(tmp_path)
    assert qindex.verify(tmp_path).findings == []


def test_a_client_that_dies_rolls_back(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish(b"1")
        script = (
            "import qindex, sys, time\n"
            "with qindex.open(sys.argv[1], shared=True) as engine:\n"
            "    with engine.transaction() as tx:\n"
            "        tx.publish('out', b'never')\n"
            "        tx.ack(engine.queue('q').get())\n"
            "        print('held', flush=True)\n"
            "        time.sleep(1000)\n"
        )
        command = [sys.executable, "-P", "-c", script, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            assert queue.get(timeout=0) is None
            process.kill()
        again = queue.get(timeout=WAIT)
        assert (again.body, again.redelivered, again.delivery_count) == (b"1", True, 2)  # type: ignore[union-attr]
        assert len(engine.queue("out")) == 0
        assert engine.queue("out").publish(b"x") == 1


def test_a_server_that_dies_rolls_back(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish(b"1")
        delivery = queue.get()
        with pytest.raises(qindex.DisconnectedError) as caught, engine.transaction() as tx:  # noqa: PT012
            tx.publish("out", b"never")
            tx.ack(delivery)
            os.kill(server_pid(tmp_path), signal.SIGKILL)
            while True:
                tx.publish("out", b"neither")
        assert isinstance(caught.value.maybe_done, bool)
        assert len(engine.queue("out")) == 0
        again = queue.get(timeout=WAIT)
        assert again.body == b"1"  # type: ignore[union-attr]
        with engine.transaction() as tx:
            tx.publish("out", b"now")
            tx.ack(again)  # type: ignore[arg-type]
        assert [one.body for one in engine.queue("out").peek(3)] == [b"now"]
    end_server(tmp_path)


def test_by_key_and_by_number(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", qindex.Message(b"1", "k"), qindex.Message(LARGE, "k")])
        queue.publish(b"3", key="k", delay=1e6)
        found = queue.find("k")
        assert [(one.seq_id, one.body) for one in found] == [(1, b"1"), (2, LARGE), (3, b"3")]
        taken = queue.get(seq_id=3, lease=1000)
        assert taken is not None
        taken.ack()
        assert queue.get(seq_id=3) is None
        assert [one.seq_id for one in queue.find("k", 5)] == [1, 2]
        with pytest.raises(qindex.UsageError, match="a key must be a str"):
            queue.find(5)  # type: ignore[arg-type]
        with pytest.raises(qindex.UsageError, match="a seq_id is an int"):
            queue.get(seq_id="x")  # type: ignore[call-overload]


def test_coroutines(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"0", key="k")
            await queue.publish(b"1", key="k")
            delivery = await queue.get()
            async with engine.transaction() as tx:
                assert await tx.publish("out", b"x") == 0
                assert await tx.publish(queue, LARGE) == 2
                await tx.ack(delivery)
                assert delivery.settled
            out = await engine.queue("out")
            assert [one.body for one in await out.peek(3)] == [b"x"]
            other = await queue.get(seq_id=2)
            assert other is not None
            assert other.body == LARGE
            with pytest.raises(FailedError):  # noqa: PT012
                async with engine.transaction() as tx:
                    await tx.publish("out", b"never")
                    await tx.ack(other)
                    raise FailedError
            await other.nack()
            assert [one.body for one in await out.peek(3)] == [b"x"]
            assert [one.seq_id for one in await queue.find("k")] == [1]

    asyncio.run(main())
