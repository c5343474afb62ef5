"""Clients and servers are killed at any moment, and every message is accounted for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import qindex
from qindex.client.link import UnsentError
from qindex.client.shared_queue import SharedConsumer
from tests.effort import by_tier, chance
from tests.server.support import WAIT, end_in_order, end_server, log_of, server_pid

KILLS = by_tier(quick=6, all=20, nightly=200)
PAIRS = by_tier(quick=2, all=4, nightly=4)


class Clients:
    """Producers and consumers, each started again when it was killed."""

    def __init__(self, directory: Path, log: Path) -> None:
        self._arguments = [str(directory), str(log)]
        roles = ["publish", "get", "publish", "consume"] * (PAIRS // 2)
        self._started = 0
        self.running = {at: self._start(role) for at, role in enumerate(roles)}
        self._roles = dict(enumerate(roles))

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        self._started += 1
        child = Path(__file__).with_name("load_child.py")
        command = [sys.executable, "-P", os.fspath(child), role, str(self._started)]
        return subprocess.Popen([*command, *self._arguments])

    def kill(self, at: int) -> None:
        self.running[at].kill()
        self.running[at].wait(WAIT)
        self.running[at] = self._start(self._roles[at])

    def end(self, *roles: str) -> None:
        for at, process in self.running.items():
            if self._roles[at] in roles:
                end_in_order(process)


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    started = Clients(tmp_path / "data", tmp_path / "log")
    yield started
    for process in started.running.values():
        process.kill()
        process.wait(WAIT)


def test_every_message_is_accounted_for(tmp_path: Path, clients: Clients) -> None:
    directory, log = tmp_path / "data", tmp_path / "log"
    rng = chance("kills")
    while not log.exists() or log.stat().st_size < 2000:
        time.sleep(0.01)
    killed = Counter[str]()
    for number in range(KILLS):
        size = log.stat().st_size
        if number % 3 == 2:
            os.kill(server_pid(directory), signal.SIGKILL)
            killed["server"] += 1
        else:
            clients.kill(rng.choice(list(clients.running)))
            killed["client"] += 1
        deadline = time.monotonic() + WAIT
        while log.stat().st_size < size + rng.choice([200, 2000, 20_000]):
            time.sleep(0.005)
            assert time.monotonic() < deadline, log_of(directory)
    clients.end("publish")
    with qindex.open(directory, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        deadline = time.monotonic() + WAIT
        while len(queue):
            time.sleep(0.02)
            assert time.monotonic() < deadline
        clients.end("get", "consume")
        left = {one.body.decode() for one in queue.get_many(1 << 20)}
        assert queue.stats().unacked == len(left)
    lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
    published = {what for mark, what in lines if mark == "+"}
    perhaps = {what for mark, what in lines if mark == "?"}
    never = {what for mark, what in lines if mark == "!"}
    taken, done = set(), set()
    for mark, what in lines:
        if mark == "<":
            taken.add(what)
            assert what not in done, f"{what} came back after its ack"
        elif mark == "-":
            done.add(what)
    # A consumer notes a message before it acknowledges it.
    assert not published - taken - left
    assert not taken & never
    assert done <= taken
    assert len(published) > 50 + 5 * KILLS
    assert len(perhaps) <= killed["server"] * PAIRS


def test_a_client_that_dies_gives_back_at_once_and_one_that_closes_uncounted(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "data"
    with qindex.open(directory, shared=True, linger=0) as engine:
        queue = engine.queue("q", delivery_limit=2, dead_letter="letters")
        queue.publish_many([b"1", b"2", b"3"])
        script = (
            "import qindex, sys, time\n"
            "engine = qindex.open(sys.argv[1], shared=True)\n"
            "queue = engine.queue('q')\n"
            "held = [queue.get(), *queue.get_many(2)]\n"
            "if sys.argv[2] == 'close': engine.close()\n"
            "print('held', flush=True)\n"
            "time.sleep(1000)\n"
        )
        for round, way in enumerate(["close", "die", "close", "die"]):
            command = [sys.executable, "-P", "-c", script, str(directory), way]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"held\n"
                if way == "die":
                    assert queue.get(timeout=0) is None
                process.kill()
            if round == 3:
                break
            delivery = queue.get(timeout=WAIT)
            assert delivery is not None
            assert (delivery.seq_id, delivery.redelivered) == (0, True)
            assert delivery.delivery_count == {0: 1, 1: 2, 2: 2}[round]
            delivery._queue.take_back_uncounted([delivery])  # type: ignore[union-attr]
        letters = engine.queue("letters")
        assert [letters.get(timeout=WAIT).body for _ in range(3)] == [b"1", b"2", b"3"]  # type: ignore[union-attr]
        assert len(queue) == 0


def test_a_server_that_dies_is_told_of_and_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with qindex.open(directory, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish(b"kept")
        held = queue.get()
        consumer = queue.consume(timeout=WAIT)
        first = server_pid(directory)
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {first}"])
        with pytest.raises(qindex.DisconnectedError) as caught:
            queue.get(timeout=WAIT)
        assert caught.value.maybe_done
        assert killer.wait() == 0
        with pytest.raises(qindex.LeaseExpiredError, match="went back"):
            held.ack()
        again = next(consumer)
        assert (again.body, again.redelivered) == (b"kept", True)
        second = server_pid(directory)
        assert second != first
        os.kill(second, signal.SIGKILL)
        # It sleeps as the server dies, so the next call just goes on.
        while os.path.exists(f"/proc/{second}/fd/0"):
            time.sleep(0.01)
        assert queue.publish(b"next") == 1
        assert [one.body for one in queue.consume(timeout=0)] == [b"kept", b"next"]
    end_server(directory)


def test_sigterm_ends_a_server_in_order(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with qindex.open(directory, shared=True, linger=100) as engine:
        queue = engine.queue("q")
        queue.publish(b"kept")
        pid = server_pid(directory)
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill {pid}"])
        with pytest.raises(qindex.DisconnectedError) as caught:
            engine.queue("empty").get()
        assert not caught.value.maybe_done
        assert killer.wait() == 0
        end_server(directory)
        names = os.listdir(directory)
        assert "qindex.clean" in names
        assert "qindex.sock" not in names
    with qindex.open(directory) as own:
        assert own.queue("q").get(timeout=0).body == b"kept"  # type: ignore[union-attr]


def test_a_call_that_is_interrupted_takes_nothing(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with qindex.open(tmp_path, shared=True, linger=0) as engine:
            queue = engine.queue("q")
            rng = chance("interrupts")
            with qindex.open(tmp_path, shared=True) as other:
                kept = []
                for number in range(by_tier(quick=30, all=300, nightly=3000)):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.003), 5)
                        while True:
                            if rng.random() < 0.2:
                                other.queue("q").publish(b"%d" % number)
                            one = queue.get(timeout=0.001)
                            if one is not None:
                                kept.append(one)
                    except KeyboardInterrupt:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                for one in {one.seq_id: one for one in kept}.values():
                    one.ack()
                assert engine.queue("q").stats().unacked <= by_tier(quick=2, all=20, nightly=200)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_client_that_is_stopped_past_its_lease_is_told(tmp_path: Path) -> None:
    script = (
        "import qindex, sys\n"
        "queue = qindex.open(sys.argv[1], shared=True).queue('q')\n"
        "held = queue.get(lease=0.5)\n"
        "print('held', flush=True)\n"
        "sys.stdin.readline()\n"
        "try: held.ack()\n"
        "except qindex.LeaseExpiredError: print('expired', flush=True)\n"
    )
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        command = [sys.executable, "-P", "-c", script, str(tmp_path)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as client:  # type: ignore[call-overload]
            assert client.stdout.readline() == "held\n"
            client.send_signal(signal.SIGSTOP)
            again = queue.get(timeout=WAIT)
            assert again is not None
            client.send_signal(signal.SIGCONT)
            assert client.communicate("ack\n", WAIT)[0] == "expired\n"
        assert not again.settled
        again.ack()
        assert queue.stats().acked == 1


def test_a_publish_with_a_window_is_repeated_and_done_once(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        calls: list[int] = []

        def lose_odd_replies(request: Any, call: Any = queue._make) -> Any:
            calls.append(1)
            reply = call(request)
            if len(calls) % 2:
                raise qindex.DisconnectedError("lost", maybe_done=True)
            return reply

        with mock.patch.object(queue, "_make", lose_odd_replies):
            assert queue.publish(b"x", unique="k", window=60) == 0
            with pytest.raises(qindex.DisconnectedError):
                queue.publish(b"x", unique="other")
        assert len(calls) == 3
        assert queue.stats().messages == 2
    end_server(tmp_path)


def test_a_stopped_consumer_returns_what_could_not_be_sent_to_it(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish(b"0")
        consumer = queue.consume(prefetch=1)
        next(consumer).ack()
        assert consumer._link is not None
        consumer._link.sock.shutdown(socket.SHUT_RD)  # as by the stop of one that waits
        queue.publish(b"1")
        consumer.stop()
        again = queue.get(timeout=WAIT)
        assert again is not None
        assert (again.body, again.delivery_count) == (b"1", 1)
    end_server(tmp_path)


def test_a_consumer_goes_on_if_the_server_dies_as_it_begins(tmp_path: Path) -> None:
    class Unlucky(SharedConsumer):
        has_failed = False

        def _begin(self) -> None:
            if not self.has_failed:
                self.has_failed = True
                raise UnsentError
            super()._begin()

    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        assert [one.body for one in Unlucky(queue, 9, 0, None)] == [b"x"]
    end_server(tmp_path)
