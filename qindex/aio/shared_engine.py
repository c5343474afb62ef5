"""The engine of a shared store for coroutines: :class:`qindex.client.engine.SharedEngine`,
awaitable."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic, time_ns
from types import TracebackType
from typing import Any, Unpack

from journal.arguments import listed
from journal.errors import DisconnectedError, LeaseExpiredError
from journal.findings import Finding
from msgstore import CompactionReport
from qindex.aio.delivery import Delivery
from qindex.aio.shared import LoopOwner, SharedQueue
from qindex.aio.threads import asked_to_end, to_the_end
from qindex.aio.wire import Caller
from qindex.client import calls
from qindex.client.calls import FanOutOptions, InOptions, OpenTransaction, QueueOptions
from qindex.client.link import ANY, Home
from qindex.format.message import Body, Message, message_of
from qindex.format.settings import checked_name
from qindex.format.values import Value
from qindex.queue.delivery import no_delivery
from qindex.queue.stats import EngineStats
from qindex.queue.wake_ups import has_time
from qindex.server import protocol as wire

_LOOK = 0.01


class SharedEngine(Caller):
    """A store that this process shares with others, for the coroutines of one loop. Made by
    ``qindex.aio.open(..., shared=True)``; an async context manager."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self._queues: dict[str, SharedQueue] = {}

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
        opening = (ANY, wire.OPEN, name, True, values, unset)
        generation, found = await self._call_together(None, (opening,))
        known = self._queues.get(name)
        at = generation, found[0]
        if known is None or (known.at[0] == generation and known.at != at):
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
        request = ANY, wire.GET_FIRST, seconds, lease
        several = calls.Several(self._home, sources)
        generation, values = await self._call_together(several, (request,))
        if not values:
            return None
        queue = sources[values.pop()]
        return Delivery(queue, calls.received(LoopOwner(queue, generation, lease), values))

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
            for link in list(self._wires):
                if not link.is_lost:
                    link.close()

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


class SharedTransaction:
    """As :class:`qindex.client.transaction.SharedTransaction`, in an ``async with`` block. Made by
    :meth:`SharedEngine.transaction`. Cancelled, it ends as :class:`qindex.aio.Transaction`."""

    def __init__(self, engine: SharedEngine) -> None:
        self._engine = engine
        self._calls = OpenTransaction(engine._home)

    async def __aenter__(self) -> SharedTransaction:
        generation, found = await self._engine._call_together(None, (self._calls.begin(),))
        self._calls.begun(generation, found[0])
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
        seq: int = (await self._make(target, request))[0]
        return seq

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery when the transaction is committed.

        Args:
            delivery: A delivery of this store that is not settled.
        """
        if not isinstance(delivery, Delivery):
            raise no_delivery(delivery)
        one = delivery._plain
        await self._make(*self._calls.ack(one))
        self._calls.acked(one)

    async def _make(self, queue: SharedQueue | None, request: calls.Request) -> list[Any]:
        try:
            return (await self._engine._call_together(queue, (request,)))[1]
        except LeaseExpiredError as error:
            self._calls.check(error)
            raise

    async def _end(self, *, commit: bool) -> None:
        await self._make(None, self._calls.end(commit=commit))

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
