"""The engine for coroutines: :class:`qindex.engine.engine.Engine` with awaitable methods."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import qindex
from journal.errors import UsageError
from journal.files import REAL, FileSystem, PathLike
from journal.findings import Finding
from msgstore import CompactionReport
from qindex.aio.port import Port
from qindex.aio.queue import Queue
from qindex.aio.room import with_room
from qindex.aio.threads import Helper, Syncer, unsynced
from qindex.engine import engine as plain
from qindex.queue import queue as plain_queue
from qindex.queue.delivery import Delivery
from qindex.queue.guards import RefusingLock
from qindex.queue.queue_core import QueueCore
from qindex.queue.stats import EngineStats

__all__ = ["Engine", "open"]

T = TypeVar("T")


class Engine:
    """An open store. Made by :func:`qindex.aio.open`; an async context manager.

    ``findings``, ``directory``: as in :class:`qindex.engine.engine.Engine`. May be used from
    several loops, each in a thread of its own. An engine that is open already gets this face by
    ``Engine(engine)``: threads use the one, coroutines the other.
    """

    def __init__(self, engine: plain.Engine) -> None:
        self._engine = engine
        self.directory = engine.directory
        self.helper = Helper()
        self._syncer = Syncer()
        self._queues: dict[str, Queue] = {}
        self._ports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Port] = (
            weakref.WeakKeyDictionary()
        )
        self._last: Port | None = None
        self._noting: set[Port] = set()
        """Those that have messages which are yet to be appended."""

    @property
    def findings(self) -> list[Finding]:
        """What recovery met when the store was opened, and what damage was met since."""
        return self._engine.findings

    def durable(self, queue: QueueCore) -> asyncio.Future[None]:
        """Give a future of the running loop, resolved when all that was done to ``queue`` so far
        is on disk."""
        loop = asyncio.get_running_loop()
        port = self._last
        if port is None or port.loop() is not loop:
            port = self._port(loop)
        return port.durable(queue, loop)

    def _publish(self, queue: plain_queue.Queue, body: bytes) -> asyncio.Future[int]:
        """Give a future of the running loop, of the seq_id of a plain message: it is appended in
        this turn of the loop, and the future is resolved when it is on disk."""
        loop = asyncio.get_running_loop()
        port = self._last
        if port is None or port.loop() is not loop:
            port = self._port(loop)
        return port.publish(queue, body, loop)

    def _append(self, queue: plain_queue.Queue) -> None:
        """Append what coroutines of the running loop have published to ``queue`` in this turn:
        something is about to come behind it."""
        self._port(asyncio.get_running_loop()).append(queue)

    def _nack(
        self, queue: plain_queue.Queue, delivery: Delivery, requeue: bool
    ) -> asyncio.Future[None]:
        """Give a future of the running loop, resolved when a delivery of a queue with
        a dead-letter queue was given back, durably."""
        loop = asyncio.get_running_loop()
        return self._port(loop).nack(queue, delivery, requeue, loop)

    def _port(self, loop: asyncio.AbstractEventLoop) -> Port:
        port = self._ports.get(loop)
        if port is None:
            port = self._ports[loop] = Port(loop, self._syncer, self.helper, self._noting)
        self._last = port
        return port

    async def queue(self, name: str, **settings: Any) -> Queue:
        """Give the queue of this name; makes it when there is none.

        ``settings`` as :meth:`qindex.engine.engine.Engine.queue` takes them. Raises as it does.
        """
        known = self._queues.get(name) if isinstance(name, str) else None
        if known is not None and not settings and not _is_over(known._queue):
            return known
        opened = await self._aside(partial(self._engine.queue, name, **settings))
        known = self._queues.get(name)
        if known is None or known._queue is not opened:
            known = self._queues[name] = Queue(self, opened)
        return known

    async def queue_names(self) -> list[str]:
        """Give the names of all queues, sorted."""
        return await self._aside(self._engine.queue_names)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue and its messages; see :meth:`qindex.engine.engine.Engine.delete_queue`."""
        await self._aside(partial(self._engine.delete_queue, name))
        self._queues.pop(name, None)

    async def publish_to(
        self,
        queues: Sequence[str],
        body: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        timeout: float | None = None,
    ) -> list[int]:
        """Publish one message to several queues; gives its seq_id in each, in their order.

        Cancelled, it is published all the same. See :meth:`qindex.engine.engine.Engine.publish_to`.
        """
        names = list(queues)
        targets = [await self.queue(name) for name in names]
        publish = partial(
            self._engine.publish_to,
            names,
            body,
            key=key,
            headers=headers,
            properties=properties,
            ttl=ttl,
            persistent=persistent,
        )
        self._check_open()
        if self._noting:
            for target in targets:
                self._append(target._queue)
        seqs = await with_room(partial(self.helper.finish, unsynced, publish), timeout)
        if confirm or self._engine.options.durability == "fsync":
            await asyncio.gather(*(self.durable(target._queue) for target in targets))
        return seqs

    async def sync(self) -> None:
        """Make all that returned before, on all queues, durable against power loss."""
        await self._aside(self._engine.sync)

    async def flush(self) -> None:
        """Bring the journals of all queues into their segment files."""
        await self._aside(self._engine.flush)

    async def stats(self) -> EngineStats:
        """Give the figures of the store and of the queues that were used since it was opened."""
        return await self._aside(self._engine.stats)

    async def compact(self) -> CompactionReport | None:
        """Give the space of dead messages in the message store back now."""
        return await self._aside(self._engine.compact)

    async def close(self) -> None:
        """Confirm what waits for it, flush, and close the engine; raises as
        :meth:`qindex.engine.engine.Engine.close`. Those who wait for messages get
        :class:`~journal.errors.ClosedError`. A cancellation is raised when all is closed."""
        if isinstance(self._engine._lock, RefusingLock):
            self._engine.close()
            return
        # What this turn of the loop still hands over comes first.
        await asyncio.sleep(0)
        try:
            await self.helper.finish(self._close)
        finally:
            self.helper.stop()

    def _close(self) -> None:
        self._syncer.stop()
        self._engine.close()

    def _check_open(self) -> None:
        lock = self._engine._lock
        if isinstance(lock, RefusingLock):
            lock.__enter__()

    async def _aside(self, call: Callable[[], T]) -> T:
        self._check_open()
        return await self.helper.run(call)

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._engine)


class _Opening:
    """What :func:`open` gives: to be awaited, or entered with ``async with``."""

    def __init__(self, call: Callable[[], plain.Engine]) -> None:
        self._call = call
        self._engine: Engine | None = None

    def __await__(self) -> Generator[Any, None, Engine]:
        return self._open().__await__()

    async def _open(self) -> Engine:
        opened: list[plain.Engine] = []
        helper = Helper()
        try:
            await helper.finish(lambda: opened.append(self._call()))
        except asyncio.CancelledError:
            if opened:
                await helper.finish(opened[0].close)
            raise
        finally:
            helper.stop()
        return Engine(opened[0])

    async def __aenter__(self) -> Engine:
        self._engine = await self._open()
        return self._engine

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._engine is not None
        await self._engine.close()


def open(directory: PathLike, *, fs: FileSystem = REAL, **options: Any) -> _Opening:
    """Open the store in ``directory``: ``async with open(...) as engine``, or await it.

    Options and errors are those of :func:`qindex.open`, but for ``read_only``: a reader waits for
    nobody, and the plain one does. Opened in a thread of its own; a cancellation closes again.
    """
    if options.get("read_only"):
        raise UsageError("qindex.aio has no read-only engine: use qindex.open(..., read_only=True)")
    options.pop("read_only", None)
    return _Opening(partial(_open_engine, directory, fs, options))


def _open_engine(directory: PathLike, fs: FileSystem, options: dict[str, Any]) -> plain.Engine:
    engine: plain.Engine = qindex.open(directory, fs=fs, **options)
    return engine


def _is_over(queue: QueueCore) -> bool:
    """Tell whether a queue was closed or deleted."""
    return isinstance(queue._lock, RefusingLock)
