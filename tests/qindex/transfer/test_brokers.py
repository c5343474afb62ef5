"""Push and pull against a real RabbitMQ node."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pika = pytest.importorskip("pika")

import qindex  # noqa: E402
from qindex.format.rabbitmq.bridge import RabbitProperties  # noqa: E402
from qindex.transfer.amqp import BrokerError  # noqa: E402
from qindex.transfer.brokers import pull, push  # noqa: E402
from tests.cli.support import run  # noqa: E402
from tests.cli.terminal import Terminal  # noqa: E402
from tests.qindex.support import WAIT  # noqa: E402
from tests.rabbitmq_server import RabbitServer, rabbitmq_or_skip  # noqa: E402

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    rabbitmq_or_skip()
    with RabbitServer(tmp_path_factory.mktemp("node")) as server:
        server.start()
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[qindex.Engine]:
    with qindex.open(tmp_path / "store") as opened:
        yield opened


def url(node: RabbitServer, vhost: str = "%2F", user: str = "guest:guest") -> str:
    return f"amqp://{user}@127.0.0.1:{node._amqp_port}/{vhost}"


def test_there_and_back(node: RabbitServer, engine: qindex.Engine) -> None:
    node.declare_queue("orders")
    queue = engine.queue("orders")
    large = b"\x00\xff" * 200_000
    for n in range(1200):
        queue.publish(b"%d" % n)
    queue.publish(large, key="o-17", headers={"n": 5, "deep": {"a": [1, None, 2.5]}})
    queue.publish(b"ttl", ttl=1000.0)
    stamps = [one.message.timestamp for one in queue.peek(2000)]
    heard: list[int] = []
    report = push(queue, url(node), told=heard.append)
    assert (report.messages, report.refused, len(queue)) == (1202, 0, 0)
    assert heard == [500, 1000, 1202]
    back = engine.queue("back")
    assert pull(url(node), "orders", back, timeout=0.3) == 1202
    got = list(back.get_many(2000))
    assert [one.body for one in got[:1200]] == [b"%d" % n for n in range(1200)]
    assert [one.message.timestamp for one in got] == stamps
    last, expiring = got[1200:]
    assert (last.body, last.key, last.headers) == (
        large,
        "o-17",
        {"n": 5, "deep": {"a": [1, None, 2.5]}},
    )
    assert expiring.expiry is not None
    assert not last.redelivered
    assert node.drain("orders") == []


def test_what_an_application_sent_comes_back_as_it_sent_it(
    node: RabbitServer, engine: qindex.Engine
) -> None:
    """Pulled out and pushed back, the properties are the same bytes."""
    node.declare_queue("apps")
    properties = pika.BasicProperties(
        content_type="text/plain",
        headers={
            "int": 5,
            "long": 1 << 40,
            "text": "x",
            "yes": True,
            "none": None,
            "t": {"a": [1]},
        },
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    node.publish_confirmed("apps", [b"one", b""], properties)
    node.publish_confirmed("apps", [b"transient"], pika.BasicProperties())
    queue = engine.queue("apps")
    assert pull(url(node), "apps", queue, timeout=0.3) == 3
    seen = queue.peek(3)
    assert isinstance(seen[0].properties, RabbitProperties)
    assert seen[0].headers["long"] == 1 << 40
    assert seen[0].expiry is not None
    assert seen[2].expiry is None
    raw = [
        one.properties.source.properties_raw
        for one in seen
        if isinstance(one.properties, RabbitProperties)
    ]
    assert push(queue, url(node)).messages == 3
    drained = node.drain("apps")
    assert [one.body for one in drained] == [b"one", b"", b"transient"]
    for one in drained[:2]:
        assert 59_000_000 < int(one.properties.expiration) <= 60_000_000
        one.properties.expiration = properties.expiration
        assert vars(one.properties) == vars(properties)
    assert drained[2].properties.delivery_mode is None
    assert raw[2] == b"\x00\x00"


def test_to_an_exchange_each_goes_with_its_key(node: RabbitServer, engine: qindex.Engine) -> None:
    with node.channel() as channel:
        channel.exchange_declare("things", "direct")
        for name in ("red", "blue"):
            channel.queue_declare(name)
            channel.queue_bind(name, "things", name)
    queue = engine.queue("mixed")
    for n in range(10):
        queue.publish(b"%d" % n, key="red" if n % 2 else "blue")
    assert push(queue, url(node), exchange="things", count=8).messages == 8
    assert len(queue) == 2
    assert [one.body for one in node.drain("red")] == [b"1", b"3", b"5", b"7"]
    queue.publish(b"lost", key="green")
    with pytest.raises(BrokerError, match="returned"):
        push(queue, url(node), exchange="things")
    assert b"lost" in [one.body for one in queue.peek(5)]


def test_a_full_queue_that_rejects(node: RabbitServer, engine: qindex.Engine) -> None:
    node.declare_queue("full", {"x-max-length": 5, "x-overflow": "reject-publish"})
    queue = engine.queue("full")
    queue.publish_many([b"%d" % n for n in range(20)])
    report = push(queue, url(node), batch=10)
    assert report.messages + len(queue) == 20
    assert report.refused > 0
    there = [one.body for one in node.drain("full")]
    here = [one.body for one in queue.peek(20)]
    assert sorted(there + here, key=int) == [b"%d" % n for n in range(20)]
    assert here == sorted(here, key=int)


def test_refusals_are_told_in_a_line_and_nothing_is_lost(
    node: RabbitServer, tmp_path: Path
) -> None:
    with qindex.open(tmp_path / "s") as engine:
        engine.queue("q").publish_many([b"a", b"b"])
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        refusals = {
            f"amqp://127.0.0.1:{nobody.getsockname()[1]}/": "refused",
            url(node, user="guest:wrong"): "user or password",
            url(node, vhost="none"): "host",
            url(node): "no queue 'q'",
            "http://127.0.0.1/": "amqp://",
            "amqp://127.0.0.1:port/": "--amqp",
            "amqp://": "amqp://",
        }
        for where, what in refusals.items():
            for command in (("push", tmp_path / "s", "q"), ("pull", "q", tmp_path / "s")):
                done = run(*command, "--amqp", where)
                assert done.code == 2, done
                assert len(done.complaints) == 1, done.err
                assert what.lower() in done.err.lower(), done.err
                assert "wrong" not in done.err
    alone = subprocess.run(
        [sys.executable, "-m", "qindex.cli", "push", tmp_path / "s", "q", "--amqp", url(node)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (alone.returncode, alone.stdout, alone.stderr.count("\n")) == (2, "", 1), alone.stderr
    done = run("pull", "none", tmp_path / "unmade", "--amqp", url(node))
    assert (done.code, (tmp_path / "unmade").exists()) == (2, False)
    with qindex.open(tmp_path / "s") as engine:
        assert [one.body for one in engine.queue("q").peek(3)] == [b"a", b"b"]


def test_on_the_command_line(node: RabbitServer, tmp_path: Path) -> None:
    node.declare_queue("there")
    with qindex.open(tmp_path / "s") as engine:
        engine.queue("here").publish_many([b"a", b"b", b"c"])
    pushed = run(
        "push", tmp_path / "s", "here", "--to", "there", "--count", 2, "--amqp", url(node), "--json"
    )
    assert pushed.rows == [{"queue": "here", "pushed": 2, "refused": 0}]
    pulled = run(
        "pull", "there", tmp_path / "t", "--to", "x", "--amqp", url(node), "--timeout", "0.3"
    )
    assert (pulled.code, pulled.text) == (0, "pulled 2 to x\n")
    with qindex.open(tmp_path / "t") as engine:
        assert [one.body for one in engine.queue("x").peek(9)] == [b"a", b"b"]


CHILD = """
import sys, qindex
from qindex.transfer.brokers import push, pull
with qindex.open(sys.argv[2]) as engine:
    queue = engine.queue('q')
    tell = lambda done: print(done, flush=True)
    if sys.argv[1] == 'push':
        push(queue, sys.argv[3], batch=20, told=tell)
    else:
        pull(sys.argv[3], 'q', queue, batch=20, timeout=0.3, told=tell)
"""


@pytest.mark.parametrize("direction", ["push", "pull"])
def test_killed_in_the_middle_nothing_is_lost(
    node: RabbitServer, tmp_path: Path, direction: str
) -> None:
    node.declare_queue("q")
    node.drain("q")
    bodies = [b"%d" % n for n in range(2000)]
    if direction == "push":
        with qindex.open(tmp_path) as engine:
            engine.queue("q").publish_many(bodies)
    else:
        node.publish_confirmed("q", bodies)
    for lines in (3, 17):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, direction, str(tmp_path), url(node)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert child.stdout is not None
        for _ in range(lines):
            assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        if direction == "push":
            push(queue, url(node))
            assert len(queue) == 0
            there = [int(one.body) for one in node.drain("q")]
        else:
            pull(url(node), "q", queue, timeout=0.5)
            there = [int(body) for body in queue.get_many(5000).bodies]
    assert sorted(set(there)) == list(range(2000))
    # A batch at each kill may be on both sides.
    assert len(there) <= 2000 + 2 * 20


def test_a_connection_that_is_cut_in_the_middle(node: RabbitServer, engine: qindex.Engine) -> None:
    """Through a relay that goes away after a while; what was not confirmed is still here."""
    node.declare_queue("cut")
    queue = engine.queue("cut")
    queue.publish_many([b"%06d" % n + b"x" * 2000 for n in range(1000)])
    with Relay(node._amqp_port, 600_000) as port, pytest.raises(BrokerError):
        push(queue, f"amqp://127.0.0.1:{port}/", batch=100)
    assert 0 < len(queue) < 1000
    assert queue.stats().unacked == 0
    left = len(queue)
    push(queue, url(node))
    there = [int(one.body[:6]) for one in node.drain("cut")]
    assert sorted(set(there)) == list(range(1000))
    assert 1000 <= len(there) <= 1000 + 100
    assert left < 1000
    node.publish_confirmed("cut", [b"%06d" % n + b"x" * 2000 for n in range(500)])
    with Relay(node._amqp_port, 500_000) as port, pytest.raises(BrokerError):
        pull(f"amqp://127.0.0.1:{port}/", "cut", queue, batch=50, timeout=0.5)
    assert len(queue) > 0
    pull(url(node), "cut", queue, timeout=0.5)
    assert {int(body[:6]) for body in queue.get_many(2000).bodies} == set(range(500))


def test_progress_on_a_terminal(node: RabbitServer, tmp_path: Path) -> None:
    """The screen is read while messages go over, and at the end."""
    node.declare_queue("bars")
    with qindex.open(tmp_path) as engine:
        engine.queue("bars").publish_many([b"%d" % n for n in range(3000)])
    for doing, arguments, said in (
        ("pushing", ("push", tmp_path, "bars"), "pushed 3000 of bars"),
        ("pulling", ("pull", "bars", tmp_path, "--to", "back"), "pulled 3000 to back"),
    ):
        terminal = Terminal(*arguments, "--amqp", url(node), errors_too=True)
        try:
            terminal.wait_for(doing)
            assert terminal.end() == 0
            terminal.read(0.2)
            bar, line = [one for one in terminal.lines if one][:2]
            assert bar.startswith(doing)
            assert " 3000/3000 " in bar
            assert line == said
        finally:
            terminal.close()


def test_a_push_that_fails_is_no_delivery(node: RabbitServer, engine: qindex.Engine) -> None:
    """A broker that goes away says nothing about a message: no limit is used up."""
    node.declare_queue("limited")
    queue = engine.queue("limited", delivery_limit=1, dead_letter="dead")
    bodies = [b"%04d" % n + b"x" * 2000 for n in range(300)]
    queue.publish_many(bodies)
    for _ in range(3):
        with Relay(node._amqp_port, 100_000) as port, pytest.raises(BrokerError):
            push(queue, f"amqp://127.0.0.1:{port}/", batch=100)
    assert queue.stats().given_up.total == 0
    assert "dead" not in engine.queue_names()
    push(queue, url(node))
    assert {one.body for one in node.drain("limited")} == set(bodies)


class Relay:
    """Passes bytes on to a port of this machine, and hangs up after so many."""

    def __init__(self, port: int, most: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._target = port
        self._left = most
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve)]

    def __enter__(self) -> int:
        self._threads[0].start()
        port: int = self._server.getsockname()[1]
        return port

    def __exit__(self, *_: Any) -> None:
        self._hang_up()
        self._server.close()
        for thread in self._threads:
            thread.join(WAIT)

    def _serve(self) -> None:
        try:
            one, _ = self._server.accept()
        except OSError:
            return
        other = socket.create_connection(("127.0.0.1", self._target))
        self._sockets = [one, other]
        for source, target in ((one, other), (other, one)):
            thread = threading.Thread(target=self._pass_on, args=(source, target))
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(4096):
                with self._lock:
                    self._left -= len(data)
                if self._left < 0:
                    break
                target.sendall(data)
        except OSError:
            return
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        for one in self._sockets:
            one.close() if one.fileno() < 0 else _shut(one)


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        one.close()
