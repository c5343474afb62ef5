"""The first of several queues that has a message, in a shared store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import qindex
import qindex.aio
from qindex.server import protocol as wire
from tests.server.support import WAIT, end_server, log_of, server_pid
from tests.waiting import wait_until


class Taker(threading.Thread):
    """A thread that takes one message of several queues."""

    def __init__(self, engine: qindex.AnyEngine, *queues: qindex.AnyQueue | str) -> None:
        super().__init__()
        self._engine, self._queues = engine, queues
        self.found: qindex.Delivery | None = None
        self.error: qindex.StoreError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self._engine.get(self._queues)
        except qindex.StoreError as error:
            self.error = error


def test_a_queue_earlier_in_the_list_comes_first(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        urgent, mail = engine.queue("urgent"), engine.queue("mail")
        assert engine.get([urgent, mail], timeout=0) is None
        assert engine.get([urgent, "new"], timeout=0.01) is None
        assert "new" in engine.queue_names()
        mail.publish(b"mail", headers={"h": 1})
        urgent.publish(b"urgent")
        first = engine.get([urgent, mail, urgent], timeout=0, lease=60)
        second = engine.get(["urgent", "mail"])
        assert first is not None
        assert (first.body, first.queue_name, first.headers) == (b"urgent", "urgent", {})
        assert (second.body, second.queue_name, second.headers) == (b"mail", "mail", {"h": 1})
        second.nack()
        assert engine.get([urgent, mail]).delivery_count == 2
        first.extend_lease(100)
        first.ack()
        with qindex.open(tmp_path, shared=True) as other:
            foreign = other.queue("mail")
            with pytest.raises(qindex.UsageError, match="'mail' is of another engine"):
                engine.get([urgent, foreign], timeout=0)
        engine.delete_queue("urgent")
        with pytest.raises(qindex.ClosedError, match="'urgent' was deleted"):
            engine.get([mail, urgent], timeout=0)
        assert engine.get([mail, "urgent"], timeout=0) is None


def test_a_publish_of_another_client_wakes_it(tmp_path: Path) -> None:
    with (
        qindex.open(tmp_path, shared=True, linger=0) as engine,
        qindex.open(tmp_path, shared=True) as other,
    ):
        takers = [Taker(engine, *names) for names in (("a", "b"), ("b", "a")) * 2]
        sent = [("b", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"4")]
        for name, body in sent:
            other.queue(name).publish(body)
        # A ring that came to a taker of another message has gone on: nobody sleeps at a message.
        for taker in takers:
            taker.join(WAIT)
        found = [taker.found for taker in takers if taker.found is not None]
        assert sorted((one.queue_name, one.body) for one in found) == sorted(sent)
        for delivery in found:
            delivery.ack()


def test_rings_at_two_queues_wake_two(tmp_path: Path) -> None:
    with (
        qindex.open(tmp_path, shared=True, linger=0) as engine,
        qindex.open(tmp_path, shared=True) as other,
    ):
        a, b = other.queue("a"), other.queue("b")
        for _ in range(20):
            takers = [Taker(engine, "a", "b"), Taker(engine, "a"), Taker(engine, "b")]
            other.publish_to(["a", "b"], b"x")
            other.publish_to(["a", "b"], b"y")
            for taker in takers:
                taker.join(WAIT)
                assert taker.found is not None
                taker.found.ack()
            left = engine.get([a.name, b.name], timeout=0)
            assert left is not None
            left.ack()


def test_the_end_of_a_queue_or_of_the_engine_ends_the_wait(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as other:
        engine = qindex.open(tmp_path, shared=True)
        a, b = engine.queue("a"), engine.queue("b")
        taker = Taker(engine, a, b)
        other.delete_queue("b")
        taker.join(WAIT)
        assert isinstance(taker.error, qindex.ClosedError)
        b = engine.queue("b")
        taker = Taker(engine, a, b)
        time.sleep(0.1)
        engine.close()
        taker.join(WAIT)
        assert isinstance(taker.error, qindex.ClosedError)
        with pytest.raises(qindex.ClosedError):
            engine.get([a, b], timeout=0)
        # Whoever waited has left no listener behind.
        other.queue("a").publish(b"kept")
        assert other.get(["b", "a"], timeout=WAIT).body == b"kept"  # type: ignore[union-attr]


WAITING_CHILD = """
import qindex, sys
with qindex.open(sys.argv[1], shared=True) as engine:
    queues = [engine.queue("a"), engine.queue("b")]
    print("waiting", flush=True)
    engine.get(queues)
    print("got", flush=True)
    sys.stdin.read()
"""


def test_a_client_that_dies_loses_nothing(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        engine.queue("a")
        b = engine.queue("b")
        command = [sys.executable, "-P", "-c", WAITING_CHILD, str(tmp_path)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        server_files = Path(f"/proc/{server_pid(tmp_path)}/fd")
        for dies_with in (b"waiting\n", b"got\n"):
            before = len(os.listdir(server_files))
            with subprocess.Popen(command, **pipes) as child:  # type: ignore[call-overload]
                assert child.stdout.readline() == b"waiting\n"
                if dies_with == b"got\n":
                    b.publish(b"x")
                    assert child.stdout.readline() == dies_with
                child.kill()
            if dies_with == b"waiting\n":
                # Until it hears of the death, the server may send the message to the dead one.
                wait_until(lambda: len(os.listdir(server_files)) == before)  # noqa: B023
                b.publish(b"x")
            found = engine.get(["a", b], timeout=WAIT)
            assert found is not None
            assert (found.body, found.redelivered) == (b"x", dies_with == b"got\n")
            found.ack()
    end_server(tmp_path)
    assert not log_of(tmp_path)


def test_a_server_that_dies(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        a, b = engine.queue("a"), engine.queue("b")
        b.publish(b"kept")
        engine.get([a, b])
        taker = Taker(engine, a, b)
        time.sleep(0.1)
        os.kill(server_pid(tmp_path), signal.SIGKILL)
        taker.join(WAIT)
        assert isinstance(taker.error, qindex.DisconnectedError)
        # The next call opens both queues in the session of a new server.
        again = engine.get([a, b], timeout=WAIT)
        assert again is not None
        assert (again.body, again.redelivered, again.queue_name) == (b"kept", True, "b")
        again.ack()


def test_an_interrupt_takes_nothing(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with qindex.open(tmp_path, shared=True, linger=0) as engine:
            a, b = engine.queue("a"), engine.queue("b")
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come at once
                signal.setitimer(signal.ITIMER_REAL, 0.1, 5)
                engine.get([a, b])
            signal.setitimer(signal.ITIMER_REAL, 0)
            b.publish(b"x")
            found = engine.get([a, b], timeout=WAIT)
            assert found is not None
            assert (found.body, found.redelivered) == (b"x", False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_coroutines(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            a, b = await engine.queue("a"), await engine.queue("b")
            assert await engine.get([a, "b"], timeout=0) is None
            assert await engine.get(["a", b], timeout=0.01) is None
            with pytest.raises(qindex.UsageError):
                await engine.get([], timeout=0)
            with pytest.raises(qindex.UsageError):
                await engine.get("a", timeout=0)
            waiting = [asyncio.ensure_future(engine.get([a, b])) for _ in range(3)]
            await asyncio.sleep(0.05)
            waiting.pop(1).cancel()
            await b.publish(b"1")
            await a.publish(b"2")
            async with asyncio.timeout(WAIT):
                found = await asyncio.gather(*waiting)
            taken = [one for one in found if one is not None]
            assert sorted(one.body for one in taken) == [b"1", b"2"]
            assert sorted(one.queue_name for one in taken) == ["a", "b"]
            for one in taken:
                await one.ack()
            dying = asyncio.ensure_future(engine.get([a, b]))
            await asyncio.sleep(0.05)
            os.kill(server_pid(tmp_path), signal.SIGKILL)
            with pytest.raises(qindex.DisconnectedError):
                await dying
            await b.publish(b"3")
            async with asyncio.timeout(WAIT):
                last = await engine.get([a, b])
            assert last is not None
            assert last.body == b"3"
            await last.ack()

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["several", "one"])
def test_a_get_that_is_cancelled_with_its_message_on_the_way(tmp_path: Path, verb: str) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path, shared=True, linger=0) as engine:
            queue = await engine.queue("q")
            seq = await queue.publish(b"x")
            taking = engine.get(["none", queue]) if verb == "several" else queue.get(seq_id=seq)
            task = asyncio.ensure_future(taking)
            while not task.done():
                await asyncio.sleep(0)
                if engine._wire is not None and engine._wire._waiting:
                    numbers = engine._wire._waiting.values()
                    if any(kind in (wire.GET_FIRST, wire.GET_ONE) for _, kind in numbers):
                        break
            time.sleep(0.1)  # it is answered meanwhile, and the loop has not read that
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(WAIT):
                again = await queue.get()
            assert (again.body, again.delivery_count) == (b"x", 1)

    asyncio.run(main())
