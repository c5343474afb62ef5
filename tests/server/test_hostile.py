"""Bytes that no client of ours sends: the server refuses them, and serves the others."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

import qindex
from qindex.format import layout
from qindex.server import place
from qindex.server import protocol as wire
from tests.effort import by_tier, chance
from tests.server.support import WAIT, end_server, log_of, server_pid

INPUTS = by_tier(quick=1500, all=50_000, nightly=1_000_000)
IDLE = by_tier(quick=100, all=1000, nightly=1000)


def memory(pid: int) -> int:
    """Give the bytes of memory that a process has to itself."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"Private_\w+: +(\d+) kB", text)) << 10


class Raw:
    """A connection that sends what it likes."""

    def __init__(self, directory: Path, *, hello: bool = True) -> None:
        self.sock = place.connect(str(directory))
        self.sock.settimeout(WAIT)
        if hello:
            self.send(wire.frame(1, wire.HELLO, "qindex", wire.VERSION, None))
            assert self.read()[1] == wire.DONE

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read(self) -> Any:
        size = struct.unpack(">I", self._exactly(4))[0]
        return msgpack.unpackb(self._exactly(size), strict_map_key=False)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def is_closed(self) -> bool:
        """Wait for the server to close it; whatever comes before is passed over."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        self.sock.close()
        return True


def deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_frames_that_claim_too_much_cost_nothing(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        pid = server_pid(tmp_path)
        queue.publish(b"x")
        before = memory(pid)
        for data in (
            b"\xff\xff\xff\xff",  # 4 GiB
            framed(deep(100_000)),
            framed(b"\x93\x01\x03\xdd\xff\xff\xff\xff"),  # an array of 2^32
            framed(b"\x93\x01\x03\xdf\xff\xff\xff\xff"),
            framed(b"\x93\x01\x03" + 500 * b"\xdd\x00\x0f\xff\xff"),
            framed(b"\xc1"),
            framed(b"\x80"),
            framed(b""),
            framed(msgpack.packb(["number", 3])),
        ):
            raw = Raw(tmp_path)
            raw.send(data)
            assert raw.is_closed(), data[:10]
        for data in (b"GET / HTTP/1.1\r\n\r\n", framed(b"\x90" * 70_000), b"\x00\x01\x00\x00"):
            raw = Raw(tmp_path, hello=False)
            raw.send(data)
            if data[:1] == b"\x00" and len(data) == 4:
                raw.sock.close()
            else:
                assert raw.is_closed(), data[:10]
        assert memory(pid) - before < 20 << 20
        assert queue.get().body == b"x"
    assert "Traceback" not in log_of(tmp_path)


def test_no_request_before_the_hello_and_no_other_version(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=100) as engine:
        raw = Raw(tmp_path, hello=False)
        raw.send(wire.frame(1, wire.PUBLISH, 1, b"x"))
        assert raw.read()[1:4] == [wire.ERROR, "UsageError", "the first request is not a hello"]
        raw.send(wire.frame(2, wire.HELLO, "qindex", wire.VERSION + 1, None))
        assert "it ends when its last client has gone" in raw.read()[3]
        engine.queue("q").publish(b"x")
        raw.sock.close()
    # It does not linger: the next client starts one of its own version.
    end_server(tmp_path)


def test_random_requests_have_replies_and_change_no_one_else(tmp_path: Path) -> None:
    rng = chance("protocol")
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("calm")
        for name in ("a", "b"):
            engine.queue(name).publish_many([b"%d" % at for at in range(50)])
        pid = server_pid(tmp_path)

        def value(depth: int = 0) -> Any:
            kind = rng.randrange(10 if depth < 3 else 7)
            if kind < 3:
                return rng.choice([0, 1, 2, 3, -1, 7, 1 << 40, -(1 << 40)])
            simple = {3: None, 4: rng.random() < 0.5, 5: rng.randbytes(rng.randrange(20)), 6: "a"}
            if kind in simple:
                return simple[kind]
            if kind == 7:
                return {value(9): value(depth + 1) for _ in range(rng.randrange(3))}
            return [value(depth + 1) for _ in range(rng.randrange(4))]

        raw = Raw(tmp_path)
        silent = {wire.WANT, wire.DROP, wire.CONSUME, wire.FORGET}
        known = [wire.frame(3, verb, 2, b"abc", {}) for verb in range(40)]
        for number in range(2, INPUTS):
            if number % 50 == 0:
                queue.publish(b"x")
                one = queue.get(timeout=0)
                if one is not None:  # a changed bit may make it this queue's
                    one.ack()
            if rng.random() < 0.3:
                data = bytearray(rng.choice(known))
                for _ in range(rng.randrange(1, 4)):
                    data[rng.randrange(4, len(data))] = rng.randrange(256)
                other = Raw(tmp_path)
                other.send(bytes(data))
                other.sock.close()
                continue
            verb = rng.choice([one for one in range(-1, 40) if one != wire.BYE])
            try:
                data = bytearray(
                    wire.frame(number, verb, *[value() for _ in range(rng.randrange(7))])
                )
            except (TypeError, qindex.UsageError):
                continue  # no key of a map
            if verb == wire.GET or verb == wire.GET_MANY:
                data = bytearray(
                    wire.frame(number, verb, rng.randrange(3), 0, rng.choice([0, None]))
                )
            raw.send(bytes(data))
            if verb not in silent:
                while raw.read()[0] != number:
                    pass
        raw.sock.close()
        assert server_pid(tmp_path) == pid
        assert memory(pid) < 200 << 20
    end_server(tmp_path)
    assert "Traceback" not in log_of(tmp_path)


def test_a_slow_client_and_one_that_does_not_read_hold_up_nobody(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish_many([bytes(100_000)] * 200)
        queue.sync()
        pid = server_pid(tmp_path)
        before = memory(pid)
        # It takes nothing out of its socket: it is sent no more than its credit.
        deaf = Raw(tmp_path)
        deaf.send(wire.frame(2, wire.OPEN, "q", True, {}, []))
        number = deaf.read()[2]
        deaf.send(wire.frame(3, wire.CONSUME, number, 150, None))
        flood = Raw(tmp_path)
        flood.sock.setblocking(False)
        one = wire.frame(4, wire.PEEK, number, 20)
        sent = 0
        stop = time.monotonic() + 1
        while time.monotonic() < stop:
            try:
                sent += flood.sock.send(one)
            except BlockingIOError:
                time.sleep(0.01)
        slow = Raw(tmp_path)
        ended = threading.Event()
        rounds = 0

        def drip() -> None:
            """Send a byte at a time; meanwhile the others go on."""
            data = wire.frame(2, wire.HELD)
            deadline = time.monotonic() + WAIT
            for at in range(len(data)):
                slow.send(data[at : at + 1])
                goal = rounds + 3
                while rounds < goal:
                    assert time.monotonic() < deadline
                    time.sleep(by_tier(quick=0.005, all=0.005, nightly=1.0))
            assert slow.read()[0] == 2
            ended.set()

        dripping = threading.Thread(target=drip)
        dripping.start()
        calm = engine.queue("calm")
        while dripping.is_alive():
            calm.publish(b"x")
            calm.get().ack()
            rounds += 1
        dripping.join()
        assert ended.is_set()
        out = queue.stats().unacked
        assert 0 < out < 150
        assert memory(pid) - before < 100 << 20
        deaf.sock.close()
        flood.sock.close()
        deadline = time.monotonic() + WAIT
        while queue.stats().unacked:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(queue) == 200


def test_idle_connections_cost_little_and_an_idle_server_sleeps(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        engine.queue("q").publish(b"x")
        pid = server_pid(tmp_path)
        before = memory(pid)
        idle = [Raw(tmp_path) for _ in range(IDLE)]
        assert memory(pid) - before < 50 << 20
        for raw in idle:
            raw.sock.close()
        assert engine.queue("q").get().body == b"x"

        def woken() -> int:
            status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
            return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.M)[1])  # type: ignore[index]

        time.sleep(0.3)
        first = woken()
        time.sleep(0.5)
        assert woken() == first


def test_who_may_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qindex.server.server import Server

    with qindex.open(tmp_path) as engine:
        ours, theirs = socket.socketpair()
        server = Server(engine, ours, linger=None)
        assert server._may_come(theirs)
        monkeypatch.setattr(server, "_uid", os.getuid() + 1)
        assert not server._may_come(theirs)
        monkeypatch.setattr(server, "_group", os.getgid())
        assert server._may_come(theirs)
        monkeypatch.setattr(server, "_group", 54321)
        assert not server._may_come(theirs)
        theirs.close()
        server.close()


def test_the_directory_is_removed_under_the_server(tmp_path: Path) -> None:
    import shutil

    data = tmp_path / "data"
    with qindex.open(data, shared=True, linger=0) as engine:
        engine.queue("q").publish(b"x")
        pid = server_pid(data)
        shutil.rmtree(data)
        with pytest.raises(qindex.StoreError):
            engine.queue("other")
        engine.queue("q").publish(b"still open")
    deadline = time.monotonic() + WAIT
    while os.path.exists(f"/proc/{pid}/fd/0"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not data.exists() or layout.SERVER_SOCKET not in os.listdir(data)
