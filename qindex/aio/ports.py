"""Requests of the coroutines of one loop, collected for a turn of it and handed over at once.

::

    turn n      publish, publish, reject, publish, ...   -> noted: one future for each waiter
    turn n + 1  first of all                           -> appended with one write; the syncer, and
                                                          the helper, get the rest

A call costs the loop a task, a future, and a place in a list: what thousands of them do together is
done once for all.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from journal.errors import ClosedError, StoreError
from qindex.aio.threads import Helper, Syncer, Waiting
from qindex.queue.delivery import Delivery
from qindex.queue.plain_queue import Queue

_GivenBack = list[tuple[Delivery, bool]]

_MAX_NOTED = 1024
"""Messages that are noted before they are appended."""


class Port:
    """One loop's way to the threads of an engine's asyncio face; used on that loop's thread alone.

    ``loop``: a weak reference to the loop. ``noting``: all ports of the engine that have messages
    which are yet to be appended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        syncer: Syncer,
        helper: Helper,
        noting: set[Port],
    ) -> None:
        self.loop: weakref.ref[asyncio.AbstractEventLoop] = weakref.ref(loop)
        self._syncer = syncer
        self._helper = helper
        self._asked: dict[Queue, Waiting] = {}
        self._is_called = False
        self._noting = noting
        self._noted: dict[Queue, tuple[list[bytes], list[asyncio.Future[int]]]] = {}
        self._given_back: dict[Queue, tuple[_GivenBack, Waiting]] = {}

    def publish(self, queue: Queue, body: bytes) -> asyncio.Future[int]:
        """Note a plain message; return a future of its seq_id, resolved when it is on disk.

        It is appended before the next turn of the loop, whatever becomes of the future. Other
        appends of this loop call :meth:`append` first, so that this message precedes theirs.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        noted = self._noted.get(queue)
        if noted is None:
            self._call(loop)
            self._noted[queue] = [body], [future]
            self._noting.add(self)
        else:
            noted[0].append(body)
            noted[1].append(future)
            if len(noted[0]) >= _MAX_NOTED:
                self.append(queue)
        return future

    def append(self, queue: Queue) -> None:
        """Append the messages noted for a queue; their callers wait for the disk from now on."""
        noted = self._noted.pop(queue, None)
        if noted is None:
            return
        if not self._noted:
            self._noting.discard(self)
        seqs: Sequence[int]
        producer = queue._producer
        try:
            bodies = noted[0]
            # One alone is quicker by itself.
            if len(bodies) == 1:
                seqs = [producer.publish(bodies[0])]
            else:
                seqs = producer.publish_many(bodies)
        except Exception as error:
            refused = Waiting()
            refused.futures += noted[1]
            refused.results += [None] * len(noted[1])
            refused.resolve(error)
            return
        asked = self._asked.setdefault(queue, Waiting())
        asked.futures += noted[1]
        asked.results += seqs

    def durable(self, queue: Queue) -> asyncio.Future[None]:
        """Return a future that is resolved when all that was done to ``queue`` so far is on
        disk."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = self._asked.get(queue)
        if waiting is None:
            self._call(loop)
            waiting = self._asked[queue] = Waiting()
        waiting.futures.append(future)
        waiting.results.append(None)
        return future

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_called:
            self._is_called = True
            loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_called = False
        for queue in list(self._noted):
            self.append(queue)
        asked, self._asked = self._asked, {}
        if not asked:
            return
        try:
            self._syncer.ask(asyncio.get_running_loop(), asked)
        except ClosedError as error:
            for waiting in asked.values():
                waiting.resolve(error)

    def give_back(self, queue: Queue, delivery: Delivery, requeue: bool) -> asyncio.Future[None]:
        """Return a future that is resolved when a delivery of a queue with a dead-letter queue was
        requeued or rejected, durably: many of them share their syncs."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        given = self._given_back.get(queue)
        if given is None:
            if not self._given_back:
                loop.call_soon(self._take_back)
            given = self._given_back[queue] = [], Waiting()
        given[0].append((delivery, requeue))
        given[1].futures.append(future)
        given[1].results.append(None)
        return future

    def _take_back(self) -> None:
        given_back, self._given_back = self._given_back, {}
        for queue, (asked, waiting) in given_back.items():
            try:
                done = self._helper.submit(partial(_give_back, queue, asked))
            except ClosedError as error:
                waiting.resolve(error)
            else:
                done.add_done_callback(partial(_tell, waiting))


def _give_back(queue: Queue, asked: _GivenBack) -> list[StoreError | None]:
    """Requeue or reject, in the helper's thread, which also pays: dead letters are in their queue
    when the callers go on."""
    found = queue._settler.give_back_together(asked)
    queue._settler.catch_up()
    return found


def _tell(waiting: Waiting, done: asyncio.Future[list[StoreError | None]]) -> None:
    """Tell each waiter how its part of the work ended."""
    failure = done.exception()
    if failure is not None:
        waiting.resolve(failure)
        return
    for future, error in zip(waiting.futures, done.result(), strict=True):
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class Ports:
    """One :class:`Port` for each loop, over one syncer and one helper.

    ``helper``: the thread for calls that may block; ``syncer``: the one for syncs; ``guard``: what
    closes the engine at the end of its loop (:mod:`qindex.aio.ending`). Methods are called on the
    thread of a running loop. ``noting``: the loops that have messages which they are yet to append.
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
        """Return whether another loop, which is not closed, has used it."""
        return any(one is not loop and not one.is_closed() for one in list(self._ports))

    async def let_go(self) -> None:
        """The engine was closed: the end of its loop is nothing to it any more."""
        guard, self.guard = self.guard, None
        if guard is not None:
            await guard.aclose()

    def here(self) -> Port:
        """Return that of the running loop."""
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last.loop() is loop:
            return last
        port = self._ports.get(loop)
        if port is None:
            port = self._ports[loop] = Port(loop, self.syncer, self.helper, self.noting)
        self._last = port
        return port
