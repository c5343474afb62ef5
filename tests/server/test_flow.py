"""When a server reads on: every order of requests, replies and reads of a client, without a socket.

A real loop gets a made-up socket, epoll and pool of threads. A request has a small reply, a large
one, or one that another thread makes. The client sends all it has at once, or one by one, and takes
what it is sent whenever the order says so. At the end of each order all requests are answered.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from qindex.server import flow
from qindex.server import protocol as wire
from qindex.server.loop import Connection, Loop, Reply
from tests.effort import by_tier, chance

pytestmark = pytest.mark.interpreted  # a compiled loop reads the descriptor itself

LONGEST = by_tier(quick=3, all=5, nightly=7)
RANDOM = by_tier(quick=300, all=5000, nightly=100_000)
ROOMS = (1 << 18, 1 << 30)
"""Bytes that the made-up socket takes before its client reads: less than one reply, or all."""


class Socket:
    """What the server sees of a client."""

    def __init__(self, room: int) -> None:
        self.to_read = b""
        self.sent = bytearray()
        self.most = self.room = room
        self.is_closed = False

    def fileno(self) -> int:
        return 1 << 20  # of no file

    def recv(self, size: int) -> bytes:
        data, self.to_read = self.to_read[:size], self.to_read[size:]
        if not data:
            raise BlockingIOError
        return data

    def send(self, data: bytes | memoryview) -> int:
        count = min(len(data), self.room)
        if not count:
            raise BlockingIOError
        self.sent += data[:count]
        self.room -= count
        return count

    def close(self) -> None:
        self.is_closed = True


class Epoll:
    """What is watched of one connection."""

    def __init__(self) -> None:
        self.watched = select.EPOLLIN

    def modify(self, _fd: int, wanted: int) -> None:
        self.watched = wanted

    def unregister(self, _fd: int) -> None: ...

    def close(self) -> None: ...


class Pool:
    """Calls of other threads, which end when the order says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Future[bytes], Callable[[], bytes]]] = []

    def submit(self, call: Callable[[], bytes]) -> Future[bytes]:
        future: Future[bytes] = Future()
        self.calls.append((future, call))
        return future


class World:
    """A loop, one connection, and what may happen next."""

    def __init__(self, room: int = ROOMS[0]) -> None:
        ours, self.theirs = socket.socketpair()
        self.loop = Loop(ours, linger=None, group=None, most=1 << 20)
        self.loop.epoll.close()
        self.epoll = self.loop.epoll = cast("Any", Epoll())
        self.pool = self.loop.pool = cast("Any", Pool())
        self.socket = Socket(room)
        self.conn = Connection(cast("socket.socket", self.socket))
        self.conn.session = cast("Any", object())
        self.conn.most = 1 << 20
        self.loop.connections[self.conn.fd] = self.conn
        self.loop.handlers = {wire.READY: self.small, wire.PURGE: self.large, wire.SYNC: self.aside}
        self.number = 0
        self.most_owed = 0

    def small(self, _conn: Connection, number: int, _request: list[Any]) -> Reply:
        return wire.frame(number, wire.DONE)

    def large(self, _conn: Connection, number: int, _request: list[Any]) -> Reply:
        return wire.frame(number, wire.DONE, bytes(700_000))

    def aside(self, conn: Connection, number: int, _request: list[Any]) -> Reply:
        return self.loop.aside(conn, number, lambda: wire.frame(number, wire.DONE))

    def ask(self, kind: str) -> None:
        self.number += 1
        verb = {"s": wire.READY, "l": wire.PURGE, "a": wire.SYNC}[kind]
        where = () if verb == wire.SYNC else (1,)
        self.socket.to_read += wire.frame(self.number, verb, *where)

    def step(self, what: str) -> None:
        """Let something happen, if it can."""
        watched = self.epoll.watched
        if what in "sla":
            self.ask(what)
        elif what == "r" and watched & select.EPOLLIN and self.socket.to_read:
            self.loop._read(self.conn)
        elif what == "t":  # the client takes what it was sent
            self.socket.room = self.socket.most
            if watched & select.EPOLLOUT:
                self.loop._flush(self.conn)
        elif what == "e" and self.pool.calls:  # a call of another thread ends
            future, call = self.pool.calls.pop()
            future.set_result(call())
            while self.loop.finished:
                self.loop._safely(*self.loop.finished.popleft())
        self.most_owed = max(self.most_owed, self.conn.flow.owed)

    def end(self) -> list[int]:
        """Let everything happen that can. Return the numbers of the replies."""
        before = None
        while before != (now := (len(self.socket.sent), len(self.socket.to_read))):
            before = now
            for what in "ret":
                self.step(what)
        assert not self.socket.is_closed
        found, at = [], 0
        while at < len(self.socket.sent):
            size = wire.HEAD.unpack_from(self.socket.sent, at)[0]
            at += wire.HEAD_SIZE
            found.append(wire.decode(bytes(self.socket.sent[at : at + size]))[0])
            at += size
        self.loop.refuse_new()
        self.theirs.close()
        os.close(self.loop.event)
        return found


def play(order: str) -> None:
    for room in ROOMS:
        world = World(room)
        for what in order:
            world.step(what)
        assert sorted(world.end()) == list(range(1, world.number + 1)), order
        assert world.conn.flow.owed == 0, order
        # Of large replies one at most is made beyond the bound.
        assert world.most_owed < flow.MAX_OWED + 800_000, order


def test_every_order() -> None:
    for length in range(1, LONGEST + 1):
        for order in itertools.product("slarte", repeat=length):
            play("".join(order))


def test_long_orders() -> None:
    rng = chance("flow")
    for _ in range(RANDOM):
        play("".join(rng.choices("slarte", weights=(4, 3, 4, 3, 1, 1), k=rng.randrange(40))))


def test_calls_under_way_are_bounded() -> None:
    world = World()
    for _ in range(30):
        world.ask("a")
    world.step("r")
    assert len(world.pool.calls) == flow.MAX_UNDER_WAY
    assert not world.epoll.watched & select.EPOLLIN
    assert sorted(world.end()) == list(range(1, 31))
