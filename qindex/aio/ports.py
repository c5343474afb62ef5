"""The threads of an engine's asyncio face, and the way of each loop to them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator

from qindex.aio.port import Port
from qindex.aio.threads import Helper, Syncer
from qindex.queue.delivery import Delivery
from qindex.queue.queue import Queue

__all__ = ["Ports"]


class Ports:
    """One :class:`~qindex.aio.port.Port` for each loop, over one syncer and one helper.

    ``helper``: the thread for calls that may block; ``syncer``: the one for syncs; ``guard``: what
    closes the engine at the end of its loop (:mod:`qindex.aio.ending`). Methods are called on the
    thread of a running loop, but for :meth:`stop_syncing`. ``noting``: the loops that have messages
    which they are yet to append.
    """

    def __init__(self) -> None:
        self.helper: Helper = Helper()
        self.syncer: Syncer = Syncer()
        self.guard: AsyncGenerator[None] | None = None
        self._ports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Port] = (
            weakref.WeakKeyDictionary()
        )
        self._last: Port | None = None
        self.noting: set[Port] = set()

    def is_used_beside(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether another loop, which is not closed, has used it."""
        return any(one is not loop and not one.is_closed() for one in list(self._ports))

    async def let_go(self) -> None:
        """The engine was closed: the end of its loop is nothing to it any more."""
        guard, self.guard = self.guard, None
        if guard is not None:
            await guard.aclose()

    def durable(self, queue: Queue) -> asyncio.Future[None]:
        """Give a future of the running loop, resolved when all that was done to ``queue`` so far
        is on disk."""
        loop = asyncio.get_running_loop()
        return self._port(loop).durable(queue, loop)

    def publish(self, queue: Queue, body: bytes) -> asyncio.Future[int]:
        """Give a future of the running loop, of the seq_id of a plain message: it is appended in
        this turn of the loop, and the future is resolved when it is on disk."""
        loop = asyncio.get_running_loop()
        return self._port(loop).publish(queue, body, loop)

    def append(self, queue: Queue) -> None:
        """Append what coroutines of the running loop have published to ``queue`` in this turn:
        something is about to come behind it."""
        self._port(asyncio.get_running_loop()).append(queue)

    def give_back(self, queue: Queue, delivery: Delivery, requeue: bool) -> asyncio.Future[None]:
        """Give a future of the running loop, resolved when a delivery of a queue with
        a dead-letter queue was requeued or rejected, durably."""
        loop = asyncio.get_running_loop()
        return self._port(loop).give_back(queue, delivery, requeue, loop)

    def stop_syncing(self) -> None:
        """End the syncer's thread; it does first what it was asked for."""
        self.syncer.stop()

    def _port(self, loop: asyncio.AbstractEventLoop) -> Port:
        last = self._last
        if last is not None and last.loop() is loop:
            return last
        port = self._ports.get(loop)
        if port is None:
            port = self._ports[loop] = Port(loop, self.syncer, self.helper, self.noting)
        self._last = port
        return port
