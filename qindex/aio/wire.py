"""Connections to the server of a store, for coroutines: :class:`qindex.client.link.Link` in a loop.

All coroutines of a loop share one connection; each consumer has one of its own. A call is sent
before its first suspension, if there is a connection by then. A call that is cancelled takes
nothing: a message on its way goes back, and does not count as delivered.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import msgpack

from journal.errors import ClosedError, DisconnectedError, UsageError
from qindex.aio.threads import running_loop
from qindex.client.calls import Reply, Request
from qindex.client.link import (
    ANY,
    Asked,
    Home,
    Link,
    Opens,
    UnsentError,
    closed,
    in_session,
    result,
    too_large,
)
from qindex.server import protocol as wire

_TRIES = 5
GONE = "the server of the store has gone"
_TAKING = frozenset({wire.GET, wire.GET_MANY, wire.GET_ONE, wire.GET_FIRST})


class Wire(asyncio.Protocol):
    """One connection, in a loop. ``pushed``: what came for a consumer, and ``has_come`` is set."""

    def __init__(self, home: Home, link: Link) -> None:
        self.generation: int = link.generation
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.is_lost: bool = False
        self.pushed: deque[list[Any]] = deque()
        self.has_come: asyncio.Event = asyncio.Event()
        self._home = home
        self._sock = link.sock
        self._most = link.most
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._number = 1  # that of the hello
        # Each request has one reply, and leaves these when it comes.
        self._waiting: dict[int, tuple[asyncio.Future[list[Any]], int]] = {}
        self._dropped: dict[int, int] = {}
        self._frame = wire.Framer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio calls it."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio calls it."""
        unread = self._unread
        unread += data
        at, end = 0, len(unread)
        while end - at >= 4:
            size = int.from_bytes(unread[at : at + 4], "big")
            if end - at - 4 < size:
                break
            with memoryview(unread) as view:
                found = msgpack.unpackb(view[at + 4 : at + 4 + size], strict_map_key=False)
            at += 4 + size
            self._take(found)
        del unread[:at]

    def _take(self, found: list[Any]) -> None:
        number = found[0]
        if number == 0:
            self.pushed.append(found)
            self.has_come.set()
            return
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(found)
            return
        verb = self._dropped.pop(number, None) if waiting is None else waiting[1]
        if verb is not None and found[1] == wire.DONE and len(found) > 2:
            self._undo(verb, found[2:])

    def _undo(self, verb: int, values: list[Any]) -> None:
        """Return what a call got that was cancelled."""
        if verb in _TAKING:
            tag, seqs = values[0], values[2] if verb == wire.GET_MANY else [values[1]]
            self.tell(wire.TAKE_BACK, [(tag, seq) for seq in seqs])
        elif verb == wire.BEGIN:
            self.tell(wire.END, values[0], False)

    def connection_lost(self, _error: Exception | None) -> None:
        """asyncio calls it."""
        if not self.is_lost:
            # The session ends with its server.
            self._home.ended = max(self._home.ended, self.generation)
        self.is_lost = True
        self.has_come.set()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(DisconnectedError(GONE, maybe_done=True))
        self._waiting.clear()
        self._dropped.clear()

    def tell(self, *values: Any) -> int:
        """Make a request whose reply is passed over. Return its number."""
        return self._send(values)

    def _send(self, values: tuple[Any, ...]) -> int:
        self._number = number = self._number + 1
        if not self.is_lost and self._transport is not None:
            data = self._frame(number, *values)
            if len(data) > self._most:
                raise too_large(data, self._most)
            self._transport.write(data)
        return number

    async def request(self, *values: Any) -> list[Any]:
        """Make a request. Return the values of its reply.

        Raises :class:`UnsentError`, :class:`DisconnectedError`, and what the server has raised.
        """
        if self.is_lost:
            raise UnsentError
        future: asyncio.Future[list[Any]] = self.loop.create_future()
        number = self._send(values)
        self._waiting[number] = future, values[0]
        try:
            return result(await future)
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is not None:
                self._dropped[number] = values[0]
                self.tell(wire.FORGET, number)
            elif future.done() and not future.cancelled() and future.exception() is None:
                self._dropped[number] = values[0]
                self._take(future.result())
            raise

    async def make_all(self, steps: Asked) -> list[Any]:
        """Make the requests of :func:`qindex.client.link.in_session`; see :meth:`request`."""
        try:
            request, number = next(steps)
            while True:
                where = () if number is None else (number,)
                given = request[1], *where, *request[2:]
                if request[1] == wire.PART_OF_BATCH:
                    # Sent without a suspension, so that no other request comes between them. Where
                    # one is refused, so is the end of the batch.
                    self._send(given)
                    values: list[Any] = []
                else:
                    values = await self.request(*given)
                request, number = steps.send(values)
        except StopIteration as end:
            return cast("list[Any]", end.value)

    def close(self, *values: Any) -> None:
        """Close it, from any thread. ``values``: a last request."""
        if asyncio._get_running_loop() is self.loop:
            self._close(values)
            return
        try:
            self.loop.call_soon_threadsafe(self._close, values)
        except RuntimeError:
            # Its loop is closed.
            self.is_lost = True
            self._sock.close()

    def _close(self, values: tuple[Any, ...]) -> None:
        if values and not self.is_lost:
            self.tell(*values)
        self.is_lost = True
        self.has_come.set()
        if self._transport is not None:
            self._transport.close()
        else:
            self._sock.close()

    def abandon(self) -> None:
        """Close it as its loop has ended."""
        self.is_lost = True
        self._home.ended = max(self._home.ended, self.generation)
        with suppress(RuntimeError):
            if self._transport is not None:
                self._transport.abort()
        self._sock.close()


class Caller:
    """Make calls of the coroutines of one loop. ``_wire``: the connection that they share."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.directory: str = home.directory
        self._wire: Wire | None = None
        self._wires: weakref.WeakSet[Wire] = weakref.WeakSet()
        self._connecting: asyncio.Task[Wire] | None = None
        self._is_draining = False

    def _check_delivery(self) -> None:
        if self._is_draining:
            raise ClosedError(f"{self.directory}: the engine is closing")

    def _is_usable(self, link: Wire) -> bool:
        """Return whether a connection is one of this loop, to a server that is there."""
        return (
            not link.is_lost
            and self._home.lives(link.generation)
            and link.loop is asyncio.get_running_loop()
        )

    async def _connect(self) -> Wire:
        """Return the connection. All callers that have to wait for it get the same one."""
        link = self._wire
        if link is not None and self._is_usable(link):
            return link
        if self._home.is_closed:
            raise closed(self._home)
        loop = running_loop()
        if link is not None and link.loop is not loop and not link.is_lost:
            if link.loop.is_running():
                raise UsageError(
                    f"{self.directory}: another event loop uses this engine: open one for each"
                )
            link.abandon()
        for one in list(self._wires):
            # A session lasts as long as any of its connections is open.
            if not one.is_lost and not self._home.lives(one.generation):
                one.close() if one.loop is loop else one.abandon()
        connecting = self._connecting
        if connecting is None or connecting.done() or connecting.get_loop() is not loop:
            self._connecting = connecting = asyncio.ensure_future(self._connect_anew())
        return await asyncio.shield(connecting)

    async def _connect_anew(self) -> Wire:
        self._wire = made = await self._join()
        return made

    async def _join(self) -> Wire:
        """Make another connection of the session."""
        taking = asyncio.ensure_future(asyncio.to_thread(self._home.take))
        try:
            link = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_close_taken)
            raise
        link.sock.setblocking(False)
        made = Wire(self._home, link)
        self._wires.add(made)
        try:
            await made.loop.create_unix_connection(lambda: made, sock=link.sock)
        except BaseException:
            made.close()  # it is not the session that ends
            raise
        return made

    async def _call_together(self, queue: Opens | None, requests: Sequence[Request]) -> Reply:
        """Make requests on one connection, with no other between them, and again where no server
        got them. Return the session that they were made in, and the values of the last reply."""
        for _ in range(_TRIES):
            link = await self._connect()
            try:
                steps = in_session(queue, requests, link.generation)
                return link.generation, await link.make_all(steps)
            except UnsentError:
                continue
        raise DisconnectedError(f"{self.directory}: servers end as soon as they begin")

    async def _call(self, *request: Any) -> list[Any]:
        return (await self._call_together(None, ((ANY, *request),)))[1]


def _close_taken(taking: asyncio.Future[Link]) -> None:
    """Close a connection that nobody waits for any more."""
    if not taking.cancelled() and taking.exception() is None:
        taking.result().close()
