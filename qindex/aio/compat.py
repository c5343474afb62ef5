"""``asyncio.Queue`` and ``asyncio.LifoQueue`` whose items outlive the process.

>>> import asyncio, tempfile
>>> from qindex.aio.compat import PersistentQueue
>>> async def main():
...     async with PersistentQueue(tempfile.mkdtemp()) as jobs:
...         jobs.put_nowait({"n": 1})
...         print(await jobs.get())
...         jobs.task_done()
...         await jobs.join()
>>> asyncio.run(main())
{'n': 1}

The standard's own class does the waiting; the items are in the engine. So it is for the coroutines
of one loop, as :class:`asyncio.Queue` is. Where threads, or several loops, use one queue, take
:mod:`qindex.aio` itself.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from journal.errors import ClosedError
from qindex.aio import queue as aio_queue
from qindex.aio.ports import Ports
from qindex.aio.threads import running_loop, to_the_end
from qindex.compat import shared
from qindex.compat.queue import Codec, Held, Items, Taken, codec_of
from qindex.queue.delivery import Delivery

__all__ = ["PersistentLifoQueue", "PersistentQueue"]

_TURN = 63
"""One put in this many + 1 lets the loop's other tasks have their turn, and a flush catch up."""


def _this_task() -> asyncio.Task[Any] | None:
    """Return the task that runs; none where no loop runs, or in one of its callbacks."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


@contextmanager
def _cancelled_first() -> Iterator[None]:
    """Raise a cancellation as itself, though the queue was closed before its task ran.

    asyncio.Queue looks at the queue once more on the way out of a cancelled wait, which raises
    :class:`ClosedError` after a close.
    """
    try:
        yield
    except ClosedError as error:
        if isinstance(error.__context__, asyncio.CancelledError):
            raise error.__context__ from None
        raise


class _Alone(shared.Shared):
    """One object uses the queue, as nothing else could tell its loop of an item."""


class PersistentQueue(Items, asyncio.Queue[Any]):
    """A drop-in for :class:`asyncio.Queue` that persists; ``QueueEmpty`` and ``QueueFull`` are the
    standard's.

    ``directory``, ``name``, ``serializer``, ``dead_letter``: as in
    :class:`qindex.compat.PersistentQueue`. It is opened here, on the calling thread, in some
    milliseconds; ``await PersistentQueue.open(...)`` does it in another one. One object may use a
    queue at a time (else :class:`UsageError`).

    ``put`` and ``put_nowait`` are in the operating system on return: the death of the process loses
    nothing. An item that was got is done with when ``task_done`` is called, by the task that got
    it or, if that one holds none, by any: oldest first; :meth:`take` gives an item that settles
    itself. Items got and not done with come again, first, when the queue is opened the next
    time; at open, ``join`` waits for all that is there. After :meth:`close` all raise
    :class:`~journal.errors.ClosedError`, also calls that were waiting.
    """

    _order = "first in, first out"
    _empty = asyncio.QueueEmpty

    # asyncio.Queue's own, of which its stubs do not tell.
    _getters: deque[asyncio.Future[Any]]
    _putters: deque[asyncio.Future[Any]]
    _finished: asyncio.Event

    def __init__(
        self,
        directory: str | os.PathLike[str],
        maxsize: int = 0,
        *,
        name: str = "queue",
        serializer: Codec = "pickle",
        dead_letter: str | None = None,
    ) -> None:
        self._codec = codec_of(serializer)
        self._name = name
        self._dead_letter = f"{name}.unreadable" if dead_letter is None else dead_letter
        self._held = Held()
        self._puts = 0
        self._closed = False
        self._engine = shared.acquire(directory)
        try:
            self._core = self._engine.queue(name)
            # Of its own kind each, so that a second object is refused.
            kind = f"an asyncio queue, {self._order}, object {id(self):#x}"
            self._shared = shared.join(self._engine, name, lambda: _Alone(kind))
        except BaseException:
            shared.release(self._engine)
            raise
        self._ports = Ports()
        self._aio = aio_queue.Queue(self._ports, self._core)
        super().__init__(maxsize)
        self._unfinished_tasks = len(self._core)
        if self._unfinished_tasks:
            self._finished.clear()

    @classmethod
    async def open(
        cls,
        directory: str | os.PathLike[str],
        maxsize: int = 0,
        *,
        name: str = "queue",
        serializer: Codec = "pickle",
        dead_letter: str | None = None,
    ) -> Self:
        """Open the queue in a thread. A cancelled open closes it again.

        Args:
            directory: The store.
            maxsize: The most items; 0 for no limit.
            name: The queue in the store.
            serializer: ``"pickle"``, ``"bytes"``, or an object with ``dumps`` and ``loads``.
            dead_letter: The queue for items that can't be read. None: the name and ``.unreadable``.

        Returns:
            The queue.
        """
        make = partial(
            cls, directory, maxsize, name=name, serializer=serializer, dead_letter=dead_letter
        )
        opening = running_loop().run_in_executor(None, make)
        try:
            return await to_the_end(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                await opening.result().close()
            raise

    # The hooks that asyncio.Queue calls.

    def _put(self, item: Any) -> None:
        self._check_open()
        self._core._producer.publish(self._codec.dumps(item))
        self._aio._hand_over()
        self._puts += 1

    def _get(self) -> Any:
        item, delivery = self._next()
        self._held.got.append((_this_task(), delivery))
        return item

    def _take(self) -> Delivery | None:
        given = self._core._deliverer.get()
        self._aio._hand_over()
        return given

    def _one_less(self) -> None:
        super().task_done()
        self._wake(self._putters)

    @staticmethod
    def _wake(waiting: deque[asyncio.Future[Any]]) -> None:
        """Wake the first waiter, as asyncio.Queue does."""
        while waiting:
            first = waiting.popleft()
            if not first.done():
                first.set_result(None)
                return

    # What its users call.

    def qsize(self) -> int:
        """Return the number of waiting items."""
        self._check_open()
        return len(self._core)

    def empty(self) -> bool:
        """Return whether no item is waiting."""
        return not self.qsize()

    def full(self) -> bool:
        """Return whether ``maxsize`` items are waiting."""
        self._check_open()
        return 0 < self.maxsize <= len(self._core)

    async def put(self, item: Any) -> None:
        """Put an item, and wait for room.

        Args:
            item: The item.
        """
        with _cancelled_first():
            await super().put(item)
        if not self._puts & _TURN:
            await self._aio._rest()

    async def get(self) -> Any:
        """Get an item, and wait for one.

        Returns:
            The item.
        """
        with _cancelled_first():
            return await super().get()

    async def take(self) -> Taken:
        """Get an item that settles itself: ``with await jobs.take() as job``.

        It is done at the end of the block, without ``task_done``. If the block raises or is
        cancelled, it comes again, first.

        Returns:
            The item, for a ``with`` block.
        """
        item = await self.get()
        _, delivery = self._held.got.pop()  # the get has ended just now
        self._held.taken[delivery.seq_id] = delivery
        return Taken(self, item, delivery)

    def _settle(self, delivery: Delivery, *, again: bool) -> None:
        self._check_open()
        if again:
            self._core._settler.nack(delivery)
            self._aio._hand_over()
            self._wake(self._getters)
        else:
            self._ack(delivery)
            super().task_done()
        self._held.taken.pop(delivery.seq_id, None)

    def _ack(self, delivery: Delivery) -> None:
        self._core._settler.ack(delivery)
        self._aio._hand_over()

    def task_done(self) -> None:
        """Mark an item as done: it does not come again.

        Raises:
            ValueError: It was called more often than there were items.
        """
        self._check_open()
        self._held.finish(_this_task(), self._ack)
        super().task_done()

    async def join(self) -> None:
        """Wait until all items are done."""
        self._check_open()
        await super().join()
        self._check_open()

    async def sync(self) -> None:
        """Make all that was put and settled so far durable against power loss."""
        self._check_open()
        await self._aio.sync()

    async def close(self) -> None:
        """Close, and wake all waiters. Items that were got and not done with come again at the next
        open. A cancellation is raised when all is closed. In a forked child it changes nothing."""
        if self._closed or shared.is_inherited(self._engine):
            return
        shared.leave(self._engine, self._name, self._shared)
        self._closed = True
        self._held.give_all_back()
        for waiting in (self._getters, self._putters):
            while waiting:
                self._wake(waiting)
        self._finished.set()
        loop = running_loop()
        await to_the_end(loop.run_in_executor(None, self._give_back))

    def _give_back(self) -> None:
        try:
            self._ports.syncer.stop()
            self._ports.helper.stop()
        finally:
            shared.release(self._engine)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_ended: object) -> None:
        await self.close()


class PersistentLifoQueue(PersistentQueue):
    """The same for :class:`asyncio.LifoQueue`: last in, first out."""

    _order = "last in, first out"

    def _take(self) -> Delivery | None:
        given = self._core._deliverer.take_last()
        self._aio._hand_over()
        return given
