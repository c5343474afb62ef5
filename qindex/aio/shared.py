"""The engine of a shared store for coroutines: :class:`qindex.client.engine.SharedEngine`,
awaitable.

All coroutines of a loop share one connection; each consumer has one of its own. A call is sent
before its first suspension, if there is a connection by then. A get that is cancelled takes
nothing: a message on its way goes back, and does not count as delivered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

import msgpack

import qindex
from journal.arguments import listed
from journal.errors import ClosedError, DisconnectedError, LeaseExpiredError
from journal.findings import Finding
from msgstore import CompactionReport
from qindex.aio.delivery import Batch, Delivery
from qindex.aio.threads import asked_to_end, to_the_end
from qindex.client import calls
from qindex.client.calls import (
    Ahead,
    BatchOptions,
    FanOutOptions,
    InOptions,
    OpenTransaction,
    Owner,
    PublishOptions,
    QueueOptions,
    Steps,
    owner_of,
)
from qindex.client.link import ANY, Home, Link, Opens, result, went_back
from qindex.format.message import Body, Message, message_of
from qindex.format.settings import QueueSettings, changeable, checked_name
from qindex.format.values import Coder, Value, coded, encoded
from qindex.queue import delivery as plain
from qindex.queue.delivery import no_delivery
from qindex.queue.stats import EngineStats, QueueStats
from qindex.queue.wake_ups import deadline_after, has_time
from qindex.server import protocol as wire

if TYPE_CHECKING:
    from qindex.worker.outcomes import Figures, Handlers
    from qindex.worker.redriving import RedriveOptions, RedriveReport
    from qindex.worker.tasks import TaskOptions

T = TypeVar("T")

_GONE = "the server of the store has gone"
_LOOK = 0.01
_TAKING = frozenset({wire.GET, wire.GET_MANY, wire.GET_ONE, wire.GET_FIRST})


class Wire(asyncio.Protocol):
    """One connection, in a loop. ``pushed``: what came for a consumer, and ``has_come`` is set."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.is_lost: bool = False
        self.pushed: deque[list[Any]] = deque()
        self.has_come: asyncio.Event = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._number = 1  # that of the hello
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
        if verb in _TAKING and found[1] == wire.DONE and len(found) > 2:
            tag, seqs = found[2], found[4] if verb == wire.GET_MANY else [found[3]]
            self.tell(wire.TAKE_BACK, [(tag, seq) for seq in seqs])

    def connection_lost(self, _error: Exception | None) -> None:
        """asyncio calls it."""
        self.is_lost = True
        self.has_come.set()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(DisconnectedError(_GONE, maybe_done=True))
        self._waiting.clear()

    def tell(self, *values: Any) -> int:
        """Make a request whose reply is passed over. Return its number."""
        self._number = number = self._number + 1
        if not self.is_lost and self._transport is not None:
            self._transport.write(self._frame(number, *values))
        return number

    async def request(self, *values: Any) -> list[Any]:
        """Make a request; return what its reply has."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        number = self.tell(*values)
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

    def close(self) -> None:
        """Close it."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.close()


class _Owner(Owner):
    """An owner in an event loop, where nothing may wait for the server's word."""

    __slots__ = ()

    def take_back_uncounted(self, deliveries: Iterable[plain.Delivery], /) -> None:
        """Take back the unsettled deliveries, as if they had not been delivered."""
        pairs = self.marked_back(deliveries)
        link = cast("SharedQueue", self.queue)._engine._wire
        if pairs and link is not None:
            link.tell(wire.TAKE_BACK, pairs)


class SharedQueue(Opens):
    """One durable queue of a shared store. Made by :meth:`SharedEngine.queue`.

    It has the methods of :class:`qindex.aio.queue.Queue`, and raises what
    :class:`qindex.client.queue.SharedQueue` raises.
    """

    def __init__(self, engine: SharedEngine, name: str, at: tuple[int, int]) -> None:
        super().__init__(engine._home, name, at)
        self._engine = engine
        self.directory: str = engine.directory
        self._coder: Coder | None = None

    async def _link(self, generation: int = ANY) -> Wire:
        """Return the connection, on which the queue is open."""
        link = self._engine._wire
        if link is None or link.is_lost:
            link = await self._engine._connect()
        if generation not in (ANY, link.generation):
            raise went_back()
        if self.at[0] != link.generation:
            number = (await link.request(wire.OPEN, self.name, False, {}, []))[0]
            self.at: tuple[int, int] = link.generation, number
        return link

    async def _call(self, generation: int, verb: int, *values: Any) -> list[Any]:
        link = await self._link(generation)
        return await link.request(verb, self.at[1], *values)

    async def _run(self, steps: Steps[T]) -> T:
        """Make the requests of a call, and return its result."""
        try:
            request = next(steps)
            while True:
                try:
                    values = await self._call(*request)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(values)
        except StopIteration as end:
            return cast("T", end.value)
        finally:
            steps.close()

    # -- publishing -----------------------------------------------------------------------------

    async def publish(self, body: Body | Message | Value, **options: Unpack[PublishOptions]) -> int:
        """Append a message and return its seq_id.

        Args:
            body: Bytes, a Message, or any value if the queue has a serializer.
            options: The keyword arguments of :meth:`qindex.aio.Queue.publish`.

        Returns:
            The seq_id, unique in this queue and never reused.

        Raises:
            DisconnectedError: The server died. The message may be published; see ``maybe_done``.
        """
        given: Any = body
        if self._coder is not None:
            given = encoded(self._coder, body, options)
        return await self._run(calls.publish(given, options))

    async def publish_many(
        self, messages: Iterable[Body | Message | Value], **options: Unpack[BatchOptions]
    ) -> range:
        """Append a batch with one write and return the range of its seq_ids.

        Args:
            messages: Bodies, Messages, or values if the queue has a serializer.
            options: The keyword arguments of :meth:`qindex.aio.Queue.publish_many`.

        Returns:
            The seq_ids, in the order of the messages.
        """
        given_messages = coded(self._coder, messages)
        *parts, (_, verb, last, given) = calls.batch_requests(given_messages, options)
        link = await self._link()
        for part in parts:
            # Sent without a suspension, so that no other request comes between them.
            link.tell(*part[1:])
        return range(*await link.request(verb, self.at[1], last, given))

    async def reserve(self, count: int) -> int:
        """Reserve seq_ids for the next messages, durably on return.

        Args:
            count: The number of seq_ids.

        Returns:
            The first of them.
        """
        return int((await self._call(ANY, wire.RESERVE, count))[0])

    # -- delivering -----------------------------------------------------------------------------

    @overload
    async def get(
        self, timeout: None = None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery: ...
    @overload
    async def get(
        self, timeout: float | None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    @overload
    async def get(
        self, *, seq_id: int, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    async def get(
        self,
        timeout: float | None = None,
        *,
        lease: float | None = None,
        ack: Delivery | None = None,
        seq_id: int | None = None,
    ) -> Delivery | None:
        """Take the next message. It stays in the queue until it is acknowledged.

        Args:
            timeout: Seconds to wait for a message. None: forever.
            lease: Seconds in which to settle it. Then it returns to its place by itself.
            ack: A delivery of this queue to acknowledge first, in the same request.
            seq_id: Take this message, delayed or not, without waiting.

        Returns:
            The delivery. None if no message came in time, or message ``seq_id`` can't be taken.
        """
        self._engine._check_delivery()
        request: calls.Request = wire.GET, calls.seconds_to_wait(timeout), lease
        if seq_id is not None:
            if ack is not None:
                await self.ack(ack)
            values = await self._call(ANY, wire.GET_ONE, seq_id, lease)
        elif ack is None:
            values = await self._call(ANY, *request)
        elif cast("Owner", _plain(ack)._queue).ahead is None:
            values = await self._settle(ack, *request)
        else:
            await self.ack(ack)
            values = await self._call(ANY, *request)
        if not values:
            return None
        return Delivery(self, calls.received(_Owner(self, self.at[0], lease), values))

    async def get_many(
        self, max_messages: int, timeout: float | None = 0, *, lease: float | None = None
    ) -> Batch:
        """Take several messages at once, in order.

        Args:
            max_messages: The most messages to take.
            timeout: Seconds to wait for the first one. 0 does not wait. None: forever.
            lease: Seconds in which to settle it. Then it returns to its place by itself.

        Returns:
            The batch. It is empty if no message came in time.
        """
        self._engine._check_delivery()
        steps = calls.get_many(self, max_messages, timeout, lease, _Owner)
        return Batch(self, await self._run(steps))

    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> SharedConsumer:
        """Yield messages as they come, until none came for ``timeout`` seconds.

        The server sends messages ahead. Messages that the loop did not reach go back when it ends,
        and do not count as delivered.

        Args:
            prefetch: The most messages that are sent ahead, or unacknowledged.
            timeout: Seconds without a message after which the loop ends. None: never.
            lease: Seconds in which to settle it. Then it returns to its place by itself.

        Returns:
            An iterator with a ``stop()`` method.
        """
        return SharedConsumer(self, prefetch, timeout, lease)

    async def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them.

        Args:
            max_messages: The most messages to return.

        Returns:
            Up to ``max_messages`` deliveries, which can't be settled.
        """
        return [Delivery(self, one) for one in await self._run(calls.peek(max_messages))]

    async def find(self, key: str, max_messages: int = 100) -> list[Delivery]:
        """Look at the messages with a key, without taking them.

        Args:
            key: The key that the messages were published with.
            max_messages: The most messages to return.

        Returns:
            The messages that are ready or delayed, in the order of their seq_ids.
        """
        found = await self._run(calls.find(key, max_messages))
        return [Delivery(self, one) for one in found]

    # -- settling -------------------------------------------------------------------------------

    async def _settle(self, delivery: Delivery, verb: int, *values: Any) -> list[Any]:
        one = _plain(delivery)
        owner = owner_of(self, one)
        # A cancelled call stays settled: its request is on the way.
        request = calls.begin(owner, one, verb, values)
        try:
            return await self._call(*request)
        except Exception as error:
            calls.failed(owner, one, error)
            raise

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery: its message never comes back.

        Args:
            delivery: A delivery of this queue that is not settled.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        await self._settle(delivery, wire.ACK)

    async def nack(
        self, delivery: Delivery, *, delay: float | None = None, count: bool = True
    ) -> None:
        """Requeue a message at its place, to be delivered again.

        Args:
            delivery: A delivery of this queue that is not settled.
            delay: Seconds before which it is not delivered again. None: the queue's ``backoff``.
            count: Whether this delivery counts towards the ``delivery_limit``.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        await self._settle(delivery, wire.NACK, *calls.nack_values(delay, count))

    async def cancel(self, seq_id: int) -> bool:
        """Drop a message that was never delivered, delayed or not.

        Args:
            seq_id: The seq_id that publishing the message returned.

        Returns:
            True if no consumer has had the message and none will. False if nothing changed.
        """
        return bool((await self._call(ANY, wire.CANCEL_MESSAGE, seq_id))[0])

    async def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a message for good: it becomes a dead letter, or is dropped.

        Args:
            delivery: A delivery of this queue that is not settled.
            reason: A text for the reader of the dead letter.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        await self._settle(delivery, wire.REJECT, *(() if reason is None else (reason,)))

    async def move(
        self,
        delivery: Delivery,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        """Put a message into another queue of the store, all or nothing.

        Args:
            delivery: A delivery of this queue that is not settled.
            queue: The name of the other queue, which is made if there is none.
            headers: The message's new headers. None: its present ones.
            delay: Seconds before which it is not delivered there.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        await self._settle(delivery, wire.MOVE, *calls.move_values(queue, headers, delay))

    async def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write.

        Args:
            deliveries: Deliveries of this queue that are not settled.

        Raises:
            StoreError: As :meth:`ack`. None was acknowledged.
        """
        if type(deliveries) is Batch:
            await self._run(calls.ack_many(self, deliveries._plain))
            return
        listed = [one._plain if isinstance(one, Delivery) else one for one in deliveries]
        await self._run(calls.ack_many(self, listed))

    async def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries, of all processes, up to a seq_id.

        Args:
            seq_id: The highest seq_id.

        Returns:
            The number of acknowledged deliveries.
        """
        return int((await self._call(ANY, wire.ACK_UP_TO, seq_id))[0])

    async def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now.

        Args:
            delivery: A delivery with a lease.
            seconds: The new time that is left.

        Raises:
            LeaseExpiredError: The lease has ended.
            UsageError: The delivery has no lease, or the lease would get shorter.
        """
        one = _plain(delivery)
        owner = owner_of(self, one)
        await self._call(*calls.lease_request(owner, one, seconds))
        owner.ends = monotonic() + seconds

    # -- the rest -------------------------------------------------------------------------------

    async def configure(self, **settings: Any) -> None:
        """Change settings of the queue. They are kept with it.

        Args:
            settings: The settings to change, by name. ``qindex.UNSET`` takes one away.

        Raises:
            UsageError: There is no such setting, or its value is wrong.
        """
        values, unset = calls.settings_of(changeable(settings))
        await self._call(ANY, wire.READY)  # not a queue that was deleted
        await self._engine._call(wire.OPEN, self.name, True, values, unset)

    async def run(self, handler: Handlers, **options: Unpack[TaskOptions]) -> Figures:
        """Run a coroutine function for each message.

        Args:
            handler: A coroutine function of a delivery, or a mapping from message types to such.
            options: The keyword arguments of :meth:`qindex.aio.Queue.run`.

        Returns:
            The worker's figures.
        """
        from qindex.worker.tasks import TaskWorker

        return await TaskWorker(self, handler, **options).run()

    async def redrive(self, **options: Unpack[RedriveOptions]) -> RedriveReport:
        """Put dead letters back into the queues that they died in.

        It works in a thread with a session of its own.

        Args:
            options: The keyword arguments of :func:`qindex.worker.redriving.redrive`.

        Returns:
            The numbers of moved and left messages.
        """

        def call() -> RedriveReport:
            with qindex.open(self.directory, shared=True) as engine:
                return engine.queue(self.name).redrive(**options)

        return await asyncio.to_thread(call)

    async def purge(self) -> int:
        """Drop all ready messages. Those with consumers stay.

        Returns:
            The number of dropped messages.
        """
        return int((await self._call(ANY, wire.PURGE))[0])

    async def flush(self) -> None:
        """Bring the journal into the segment files and empty it; durable on return."""
        await self._call(ANY, wire.QUEUE_FLUSH)

    async def sync(self) -> None:
        """Make all that returned before durable against power loss."""
        await self._call(ANY, wire.QUEUE_SYNC)

    async def settings(self) -> QueueSettings:
        """Return the queue's settings."""
        found: QueueSettings = wire.from_plain((await self._call(ANY, wire.SETTINGS))[0])
        return found

    async def stats(self) -> QueueStats:
        """Return the queue's figures at this moment."""
        found: QueueStats = wire.from_plain((await self._call(ANY, wire.QUEUE_STATS))[0])
        return found

    def __repr__(self) -> str:
        return f"<SharedQueue {self.name!r} of {self._engine.directory!r}>"


def _plain(delivery: Delivery) -> plain.Delivery:
    if not isinstance(delivery, Delivery):
        raise no_delivery(delivery)
    return delivery._plain


class SharedConsumer(AsyncIterator[Delivery]):
    """The iterator of :meth:`SharedQueue.consume`."""

    _link: Wire | None = None

    def __init__(
        self, queue: SharedQueue, prefetch: int, timeout: float | None, lease: float | None
    ) -> None:
        self._queue = queue
        self._ahead = Ahead(queue, prefetch, lease)
        calls.seconds_to_wait(timeout)
        self._timeout = timeout
        self.stopped: bool = False

    def stop(self) -> None:
        """Deliver no more messages: the loop over this iterator ends. On the loop's thread."""
        self.stopped = True
        if self._link is not None:
            self._link.has_come.set()

    def _is_over(self) -> bool:
        return self.stopped or self._queue._engine._is_draining

    async def __anext__(self) -> Delivery:
        found = bool(self._ahead.ready) or await self._await_one(deadline_after(self._timeout))
        if not found or self._is_over():
            self._end()
            raise StopAsyncIteration
        return Delivery(self._queue, self._ahead.hand_out())

    async def _await_one(self, deadline: float | None) -> bool:
        """Wait for a message. False when the time is up, or it was stopped."""
        if self._is_over():
            return False
        link = self._link
        if link is None or link.generation != self._queue._engine._generation():
            link = await self._begin()
        steps: Generator[Any, Any, bool] = self._ahead.await_one(link, link.generation, deadline)
        try:
            request = next(steps)
            while not self._is_over():
                if link.is_lost:
                    self._link = None
                    self._queue._engine._lost()
                    raise DisconnectedError(_GONE, maybe_done=False)
                if len(request) > 1:
                    request = steps.send(await link.request(*request[1:]))
                    continue
                if not link.pushed:
                    link.has_come.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(link.has_come.wait(), request[0])
                if not link.is_lost:
                    request = steps.send(bool(link.pushed))
        except StopIteration as end:
            return bool(end.value)
        return False

    async def _begin(self) -> Wire:
        queue = self._queue
        self._ahead = Ahead(queue, self._ahead.prefetch, self._ahead.lease)
        self._ahead.owner = _Owner
        await queue._call(ANY, wire.READY)
        link = await queue._engine._join()
        self._link = link
        await link.request(wire.CONSUME, queue.at[1], self._ahead.prefetch, self._ahead.lease)
        return link

    def _end(self) -> None:
        link, self._link = self._link, None
        self._ahead.ready.clear()
        if link is not None and not link.is_lost:
            link.tell(wire.CANCEL, self._ahead.last_tag)
            link.close()

    def __del__(self) -> None:
        if self._link is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._end()


class SharedTransaction:
    """As :class:`qindex.client.transaction.SharedTransaction`, in an ``async with`` block. Made by
    :meth:`SharedEngine.transaction`. Cancelled, it ends as :class:`qindex.aio.Transaction`."""

    def __init__(self, engine: SharedEngine) -> None:
        self._engine = engine
        self._calls = OpenTransaction(engine._home)

    async def __aenter__(self) -> SharedTransaction:
        number = (await self._engine._call(*self._calls.begin()[1:]))[0]
        self._calls.begun(self._engine._generation(), number)
        return self

    async def publish(
        self,
        queue: str | SharedQueue,
        body: Body | Message | Value,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[InOptions],
    ) -> int:
        """Publish a message when the transaction is committed.

        Args:
            queue: The queue, or its name.
            body: Bytes, a Message, or any value if the queue has a serializer.
            key: A key for ``find`` and for consumers.
            headers: Headers, kept with their types.
            properties: RabbitMQ's properties.
            options: The other keyword arguments of :meth:`qindex.Transaction.publish`.

        Returns:
            The seq_id that the message gets.
        """
        target = queue if isinstance(queue, SharedQueue) else await self._engine.queue(queue)
        given: Any = body
        if target._coder is not None:
            given, properties = target._coder.encode(body, properties)
        request = self._calls.publish(given, key, headers, properties, options)
        seq: int = (await self._make(target._call(*request)))[0]
        return seq

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery when the transaction is committed.

        Args:
            delivery: A delivery of this store that is not settled.
        """
        one = _plain(delivery)
        queue, request = self._calls.ack(one)
        await self._make(queue._call(*request))
        self._calls.acked(one)

    async def _make(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except LeaseExpiredError as error:
            self._calls.check(error)
            raise

    async def _end(self, *, commit: bool) -> None:
        await self._engine._call(*self._calls.end(commit=commit)[1:])

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        cancelled = None if error is not None else await asked_to_end()
        commit = error is None and cancelled is None
        ended = asyncio.ensure_future(self._end(commit=commit))
        try:
            await to_the_end(ended)
        except DisconnectedError:
            if commit:
                raise
        finally:
            if not commit or (not ended.cancelled() and ended.exception() is not None):
                self._calls.rolled_back()
        if cancelled is not None:
            raise cancelled


class SharedEngine:
    """A store that this process shares with others, for the coroutines of one loop. Made by
    ``qindex.aio.open(..., shared=True)``; an async context manager."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.directory: str = home.directory
        self._wire: Wire | None = None
        self._connecting: asyncio.Task[Wire] | None = None
        self._queues: dict[str, SharedQueue] = {}
        self._is_draining = False

    def _generation(self) -> int:
        return -1 if self._wire is None or self._wire.is_lost else self._wire.generation

    def _check_delivery(self) -> None:
        if self._is_draining:
            raise ClosedError(f"{self.directory}: the engine is closing")

    def _lost(self) -> None:
        if self._wire is not None:
            self._wire.close()

    async def _connect(self) -> Wire:
        """Connect anew. All callers meanwhile get the same connection."""
        if self._home.is_closed:
            raise ClosedError(f"{self.directory}: the engine is closed")
        if self._wire is not None and not self._wire.is_lost:
            return self._wire
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.ensure_future(self._connect_anew())
        return await asyncio.shield(self._connecting)

    async def _connect_anew(self) -> Wire:
        home = self._home

        def connect() -> Link:
            if self._wire is not None:
                with home._lock:
                    home._forget()
            return home.take()

        self._wire = await self._adopt(await asyncio.to_thread(connect))
        return self._wire

    async def _adopt(self, link: Link) -> Wire:
        loop = asyncio.get_running_loop()
        link.sock.setblocking(False)
        made = Wire(link.generation)
        await loop.create_unix_connection(lambda: made, sock=link.sock)
        return made

    async def _join(self) -> Wire:
        """Make another connection of this session."""
        made = await self._adopt(await asyncio.to_thread(self._home.take))
        if made.generation != self._generation():
            made.close()
            raise DisconnectedError(_GONE, maybe_done=False)
        return made

    async def _call(self, verb: int, *values: Any) -> list[Any]:
        link = self._wire
        if link is None or link.is_lost:
            link = await self._connect()
        return await link.request(verb, *values)

    def transaction(self) -> SharedTransaction:
        """Return a transaction, for an ``async with`` block whose end commits it.

        Returns:
            A transaction, which is rolled back if the client or the server dies.
        """
        return SharedTransaction(self)

    async def queue(self, name: str, **options: Unpack[QueueOptions]) -> SharedQueue:
        """Return the queue of this name, and make it if there is none.

        Args:
            name: The queue's name, up to 255 bytes.
            options: The keyword arguments of :meth:`qindex.Engine.queue`.

        Returns:
            The queue.

        Raises:
            UsageError: The name or a setting is wrong.
        """
        coder, values, unset = calls.opening(name, options)
        number = (await self._call(wire.OPEN, name, True, values, unset))[0]
        at = self._generation(), number
        known = self._queues.get(name)
        if known is None or (known.at[0] == at[0] and known.at != at):
            known = self._queues[name] = SharedQueue(self, name, at)
        known.at = at
        if coder is not None:
            known._coder = coder
        return known

    async def queue_names(self) -> list[str]:
        """Return the names of all queues, sorted."""
        names: list[str] = (await self._call(wire.QUEUE_NAMES))[0]
        return names

    async def delete_queue(self, name: str) -> int:
        """Delete a queue and its messages.

        Args:
            name: The name of the queue.

        Returns:
            The number of messages it held, which are lost.

        Raises:
            UsageError: There is no such queue.
        """
        checked_name(name)
        count: int = (await self._call(wire.DELETE_QUEUE, name))[0]
        self._queues.pop(name, None)
        return count

    async def get(
        self,
        queues: Sequence[SharedQueue | str],
        timeout: float | None = None,
        *,
        lease: float | None = None,
    ) -> Delivery | None:
        """Take the next message of the first of several queues that has one.

        Args:
            queues: Queues of this engine, or their names. A name costs one more round trip.
            timeout: Seconds to wait for a message. None: forever.
            lease: Seconds in which to settle it. Then it returns to its place by itself.

        Returns:
            The delivery, whose ``queue_name`` says where it is from. None if none came in time.
        """
        given = [
            one if isinstance(one, SharedQueue) else await self.queue(one)
            for one in listed(queues, "queues")
        ]
        sources = calls.sources_of(self._home, given)
        self._check_delivery()
        seconds = calls.seconds_to_wait(timeout)
        link = await sources[0]._link()
        for one in sources:
            if await one._link() is not link:
                raise DisconnectedError(_GONE, maybe_done=False)
        values = await link.request(wire.GET_FIRST, [one.at[1] for one in sources], seconds, lease)
        if not values:
            return None
        queue = sources[values.pop()]
        return Delivery(queue, calls.received(_Owner(queue, link.generation, lease), values))

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

        Args:
            queues: The names of the queues, each once.
            body: Bytes, or a Message with its own key, headers and properties.
            key: A key for ``find`` and for consumers.
            headers: Headers, kept with their types.
            properties: RabbitMQ's properties.
            options: The keyword arguments of :meth:`qindex.Engine.publish_to`.

        Returns:
            Its seq_id in each queue, in their order.

        Raises:
            QueueFullError: One of the queues is full; none has the message.
            DisconnectedError: The server died. The message may be published; see ``maybe_done``.
        """
        message = message_of(body, key, headers, properties, time_ns())
        given = calls.options_of(options, FanOutOptions)
        names, parts = listed(queues, "queues"), calls.message_parts(message)
        seqs: list[int] = (await self._call(wire.PUBLISH_TO, names, parts, given))[0]
        return seqs

    async def findings(self) -> list[Finding]:
        """Return the findings of recovery, and damage that was met since."""
        found: list[Finding] = wire.from_plain((await self._call(wire.FINDINGS))[0])
        return found

    async def sync(self) -> None:
        """Make all that returned before, on all queues, durable against power loss."""
        await self._call(wire.SYNC)

    async def flush(self) -> None:
        """Bring the journals of all queues into their segment files."""
        await self._call(wire.FLUSH)

    async def stats(self) -> EngineStats:
        """Return the figures of the store and of the queues that the server has used."""
        found: EngineStats = wire.from_plain((await self._call(wire.STATS))[0])
        return found

    async def compact(self) -> CompactionReport | None:
        """Reclaim the space of dead messages in the message store now.

        Returns:
            A report of the reclaimed space. None if there is no message store.
        """
        found: CompactionReport | None = wire.from_plain((await self._call(wire.COMPACT))[0])
        return found

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._home.is_closed

    async def close(self, drain: float = 0) -> None:
        """End this process's session. Its unsettled deliveries go back, uncounted.

        Args:
            drain: Seconds to wait first until this process has settled its deliveries. Meanwhile
                ``get`` raises :class:`~journal.errors.ClosedError`, and ``consume`` ends.
        """
        home = self._home
        if home.is_closed:
            return
        try:
            if has_time(drain):
                self._is_draining = True
                deadline = monotonic() + drain
                while monotonic() < deadline and (await self._call(wire.HELD))[0]:
                    await asyncio.sleep(_LOOK)
        except DisconnectedError:
            pass
        finally:
            await asyncio.to_thread(home.close)
            if self._wire is not None:
                self._wire.close()

    async def __aenter__(self) -> SharedEngine:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<SharedEngine {self.directory!r}>"
