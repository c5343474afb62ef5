"""The engine for coroutines: :class:`qindex.engine.engine.Engine` with awaitable methods."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import signature
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

import qindex
from journal.arguments import listed
from journal.errors import UsageError
from journal.findings import Finding
from journal.fs.files import FileSystem, PathLike, checked_path
from msgstore import CompactionReport
from qindex.aio.delivery import Delivery
from qindex.aio.ending import close_at_the_end
from qindex.aio.ports import Ports
from qindex.aio.queue import Queue
from qindex.aio.shared_engine import SharedEngine
from qindex.aio.threads import Helper
from qindex.aio.transaction import Transaction
from qindex.aio.waiting import Waiter, first_ring, with_room
from qindex.client.calls import FanOutOptions, QueueOptions
from qindex.client.link import Home
from qindex.engine import engine as plain
from qindex.engine import opening
from qindex.format.message import Body, Message, message_of
from qindex.options import OpenOptions
from qindex.queue import delivery as plain_delivery
from qindex.queue import plain_queue
from qindex.queue.stats import EngineStats
from qindex.queue.wake_ups import deadline_after, has_time, time_left

if TYPE_CHECKING:
    from qindex.worker.schedules import Schedule, ScheduleOptions

T = TypeVar("T")
E = TypeVar("E", bound="Engine | SharedEngine")

_SIGNATURE = signature(qindex.open)


class Engine:
    """An open store. Made by :func:`qindex.aio.open`; an async context manager.

    ``findings``, ``directory``: as in :class:`qindex.engine.engine.Engine`. May be used from
    several loops, each in a thread of its own. An engine that is open already gets this face by
    ``Engine(engine)``: threads use the one, coroutines the other.
    """

    def __init__(self, engine: plain.Engine) -> None:
        self._engine = engine
        self.directory: str = engine.directory
        self._ports = Ports()
        self._queues: dict[str, Queue] = {}

    @property
    def findings(self) -> list[Finding]:
        """Findings of recovery when the store was opened, and damage that was met since."""
        return self._engine.findings

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is just being closed, or was opened before a fork."""
        return self._engine.closed

    async def queue(self, name: str, **options: Unpack[QueueOptions]) -> Queue:
        """Return the queue of this name, and make it if there is none.

        Args:
            name: The name of the queue.
            options: The keyword arguments of :meth:`qindex.Engine.queue`.

        Returns:
            The queue.

        Raises:
            UsageError: The name or a setting is wrong.
        """
        known = self._queues.get(name) if isinstance(name, str) else None
        if known is not None and not options and not _is_over(known._queue):
            return known
        opened = await self._aside(partial(self._engine.queue, name, **options))
        known = self._queues.get(name)
        if known is None or known._queue is not opened:
            known = self._queues[name] = Queue(self._ports, opened)
        return known

    async def queue_names(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return await self._aside(self._engine.queue_names)

    async def delete_queue(self, name: str) -> int:
        """Delete a queue and its messages.

        Args:
            name: The name of the queue.

        Returns:
            The number of messages it held.

        Raises:
            UsageError: There is no such queue.
        """
        count = await self._aside(partial(self._engine.delete_queue, name))
        self._queues.pop(name, None)
        return count

    async def get(
        self,
        queues: Sequence[Queue | str],
        timeout: float | None = None,
        *,
        lease: float | None = None,
    ) -> Delivery | None:
        """Take the next message of the first of several queues that has one.

        The message is taken after the last suspension, so a cancelled call has taken nothing.

        Args:
            queues: Queues of this engine, or their names.
            timeout: Seconds to wait for a message. None: forever.
            lease: Seconds in which to settle it. Then it returns to its place by itself.

        Returns:
            The delivery, whose ``queue_name`` says where it is from. None if none came in time.
        """
        given = [
            await self.queue(one) if isinstance(one, str) else one
            for one in listed(queues, "queues")
        ]
        sources = list(dict.fromkeys(given))
        self._engine._sources([one._queue for one in sources])
        await asyncio.sleep(0)
        deadline = deadline_after(timeout)
        while True:
            with ExitStack() as stack:
                waiters = [
                    stack.enter_context(Waiter(one._state, one._state.arrived)) for one in sources
                ]
                taken = _first_of(sources, lease)
                left = time_left(deadline)
                is_over = left is not None and left <= 0
                if taken is None and not is_over:
                    await first_ring(waiters, left)
                    taken = _first_of(sources, lease)
                for one, waiter in zip(sources, waiters, strict=True):
                    # Pass a ring on unless it came from the message's own queue.
                    waiter.content = is_over if taken is None else taken[0] is not one
            if taken is not None:
                return Delivery(*taken)
            if is_over:
                return None

    async def publish_to(
        self,
        queues: Sequence[str],
        body: Body | Message,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[FanOutOptions],
    ) -> list[int]:
        """Publish one message to several queues.

        A cancelled call publishes it all the same.

        Args:
            queues: The names of the queues, each once.
            body: Bytes, or a Message with its own key, headers and properties.
            key: A key for ``find`` and for consumers.
            headers: Headers, kept with their types.
            properties: RabbitMQ's properties.
            options: The other keyword arguments of :meth:`qindex.Engine.publish_to`.

        Returns:
            Its seq_id in each queue, in their order.

        Raises:
            QueueFullError: One of the queues is full; none has the message.
            StorageError: The system refused; none has the message.
        """
        names = listed(queues, "queues")
        targets = [await self.queue(name) for name in names]
        message = message_of(body, key, headers, properties, 0)
        how: Any = options
        confirm, timeout = how.pop("confirm", False), how.pop("timeout", None)
        publish = partial(self._engine._publish_to, names, message, **how)
        self._check_open()
        if self._ports.noting:
            for target in targets:
                self._ports.here().append(target._queue)
        seqs = await with_room(
            partial(self._ports.helper.finish, publish), timeout, self._ports.helper
        )
        if confirm:
            await asyncio.gather(*(target.sync() for target in targets))
        return seqs

    def transaction(self) -> Transaction:
        """Return a transaction, for an ``async with`` block whose end commits it.

        Returns:
            A transaction with ``publish`` and ``ack``.
        """
        return Transaction(self._engine.transaction(), self._ports.helper)

    async def schedule(
        self, name: str, cron: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Publish a message at set times, durably.

        The methods of the schedule block: call ``await asyncio.to_thread(schedule.pause)``.

        Args:
            name: The name of the schedule, unique in the store.
            cron: A cron expression. None if ``every`` is given.
            options: The keyword arguments of :meth:`qindex.Engine.schedule`.

        Returns:
            The schedule.
        """
        return await self._aside(partial(self._engine.schedule, name, cron, **options))

    async def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of the store by name.

        Returns:
            The schedules as they are at this moment.
        """
        return await self._aside(self._engine.schedules)

    async def sync(self) -> None:
        """Make all that returned before, on all queues, durable against power loss."""
        await self._aside(self._engine.sync)

    async def flush(self) -> None:
        """Bring the journals of all queues into their segment files."""
        await self._aside(self._engine.flush)

    async def stats(self) -> EngineStats:
        """Return the figures of the store and of the queues that were used since it was opened."""
        return await self._aside(self._engine.stats)

    async def compact(self) -> CompactionReport | None:
        """Reclaim the space of dead messages in the message store now.

        Returns:
            A report of the reclaimed space. None if there is no message store.
        """
        return await self._aside(self._engine.compact)

    async def close(self, drain: float = 0) -> None:
        """Sync, flush and close the engine.

        Calls that wait for messages raise :class:`~journal.errors.ClosedError`. A cancellation ends
        the wait for acks (``drain``), and is raised when all is closed.

        Args:
            drain: Seconds to wait first until all outstanding messages are settled.

        Raises:
            StoreError: As :meth:`qindex.Engine.close`. The engine is closed all the same.
        """
        if self.closed:
            return
        try:
            try:
                # Calls of this turn of the loop come first.
                await asyncio.sleep(0)
                if has_time(drain):
                    deadline = monotonic() + drain
                    while not self._engine._is_drained() and monotonic() < deadline:
                        await asyncio.sleep(plain.LOOK)
            finally:
                await self._ports.helper.finish(self._close)
        finally:
            self._ports.helper.stop()
            await self._ports.let_go()

    def _close(self) -> None:
        self._ports.syncer.stop()
        self._engine.close()

    def _check_open(self) -> None:
        self._engine._lock.check()

    async def _aside(self, call: Callable[[], T]) -> T:
        self._check_open()
        return await self._ports.helper.run(call)

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with plain.unmasked(error):
            await self.close()

    def __repr__(self) -> str:
        return repr(self._engine)


class _Opening(Generic[E]):
    """The result of :func:`open`, to be awaited, or entered with ``async with``."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, E]]) -> None:
        self._call = call
        self._engine: E | None = None

    def __await__(self) -> Generator[Any, None, E]:
        return self._call().__await__()

    async def __aenter__(self) -> E:
        self._engine = await self._call()
        return self._engine

    async def __aexit__(self, *ended: Any) -> None:
        assert self._engine is not None
        await self._engine.__aexit__(*ended)


async def _open(call: Callable[[], plain.Engine]) -> Engine:
    opened: list[plain.Engine] = []
    helper = Helper()
    try:
        await helper.finish(lambda: opened.append(call()))
    except asyncio.CancelledError:
        if opened:
            await helper.finish(opened[0].close)
        raise
    finally:
        helper.stop()
    engine = Engine(opened[0])
    await close_at_the_end(engine._engine, engine._ports)
    return engine


async def _open_shared(
    directory: PathLike, *, linger: float = 10.0, **options: Any
) -> SharedEngine:
    path = os.path.abspath(checked_path(directory))
    engine = SharedEngine(Home(path, options, linger))
    await engine._connect()
    return engine


@overload
def open(
    directory: PathLike,
    *,
    shared: Literal[True],
    linger: float = 10.0,
    **options: Unpack[OpenOptions],
) -> _Opening[SharedEngine]: ...
@overload
def open(
    directory: PathLike, *, shared: Literal[False] = False, **options: Unpack[OpenOptions]
) -> _Opening[Engine]: ...
@overload
def open(
    directory: PathLike, *, shared: bool, linger: float = 10.0, **options: Unpack[OpenOptions]
) -> _Opening[Engine | SharedEngine]: ...
def open(directory: PathLike, *, shared: bool = False, **options: Any) -> _Opening[Any]:
    """Open the store in ``directory``: ``async with open(...) as engine``, or await it.

    It is opened in a thread. A cancelled open closes it again.

    An engine that is still open when its last loop ends, or when nothing refers to it or its
    queues, is closed then, with a :class:`ResourceWarning`.

    Args:
        directory: The store's directory, made if there is none.
        shared: Let other processes have it open as well, each with ``shared=True``.
        options: The keyword arguments of :func:`qindex.open`, except ``read_only``: a reader never
            waits, so use the plain one.

    Returns:
        The engine, once awaited or entered.

    Raises:
        StoreError: As :func:`qindex.open`.
    """
    _SIGNATURE.bind(directory, shared=shared, **options)  # a misspelt option is told of here
    if options.pop("read_only", False):
        raise UsageError("qindex.aio has no read-only engine: use qindex.open(..., read_only=True)")
    if not isinstance(shared, bool):
        raise UsageError(f"shared must be True or False, not {shared!r}")
    if shared:
        return _Opening(partial(_open_shared, directory, **options))
    return _Opening(partial(_open, partial(qindex.open, directory, **options)))


def open_store(directory: PathLike, *, fs: FileSystem, **options: Any) -> _Opening[Engine]:
    """Open a store as :func:`open` does, with ``fs`` below it; for tests."""
    return _Opening(partial(_open, partial(opening.open_store, directory, fs=fs, **options)))


def _first_of(
    queues: Sequence[Queue], lease: float | None
) -> tuple[Queue, plain_delivery.Delivery] | None:
    """Take the next message of the first of these queues that has one."""
    for one in queues:
        found = one._deliverer.get(lease)
        if one._owed:
            one._hand_over()  # a bell rings where it has ended early
        if found is not None:
            return one, found
    return None


def _is_over(queue: plain_queue.Queue) -> bool:
    """Return whether a queue was closed or deleted."""
    return queue._parts.state.lock.is_over()
