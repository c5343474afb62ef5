"""The engine of a shared store for coroutines: :class:`qindex.client.engine.SharedEngine`,
awaitable.

All coroutines of a loop share one connection; each consumer has one of its own. A call is sent
before its first suspension, if there is a connection by then. A get that is cancelled takes
nothing: what was on its way goes back, and does not count as delivered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from time import monotonic, time_ns
from types import TracebackType
from typing import Any, cast, overload

import msgpack

from journal.arguments import listed
from journal.errors import (
    ClosedError,
    DisconnectedError,
    DuplicateError,
    LeaseExpiredError,
    StoreError,
    UsageError,
)
from journal.findings import Finding
from msgstore import CompactionReport
from qindex.aio.delivery import Batch, Delivery
from qindex.client.link import Home, Link, result, went_back
from qindex.client.queue import (
    LAPSED,
    batch_options,
    delivery_extra,
    extend_batch,
    message_parts,
    publish_options,
    seconds_to_wait,
    unique_options,
)
from qindex.format.message import Body, Message, as_bytes, message_of, refuse_parts
from qindex.format.settings import QueueSettings, checked_name
from qindex.format.unique import Until
from qindex.queue import delivery as plain
from qindex.queue.delivery import LOOKED_AT, BatchDelivery, Refusing, Settles, no_delivery
from qindex.queue.stats import EngineStats, QueueStats
from qindex.queue.wake_ups import deadline_after, has_time
from qindex.server import protocol as wire

_GONE = "the server of the store has gone"
_LOOK = 0.01
_TAKING = frozenset({wire.GET, wire.GET_MANY})


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
            tag, seqs = found[2], [found[3]] if verb == wire.GET else found[4]
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
        """Make a request; gives what its reply has."""
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


class _Owner:
    """What deliveries of one session name as theirs; ``ends``: when their lease does."""

    name = ""

    def __init__(self, queue: SharedQueue, generation: int, lease: float | None) -> None:
        self.queue = queue
        self.name = queue.name
        self.generation = generation
        self.ends = None if lease is None else monotonic() + lease
        self.settled: set[int] = set()

    def take_back_uncounted(self, deliveries: Iterable[plain.Delivery], /) -> None:
        """Take back those that are not settled, as if they had not been delivered."""
        link = self.queue._engine._wire
        pairs = []
        for one in deliveries:
            pairs.append((cast("BatchDelivery", one).taken, one.seq_id))
            self.settled.add(one.seq_id)
            one._queue = None
        if link is not None and link.generation == self.generation:
            link.tell(wire.TAKE_BACK, pairs)

    def _is_over(self) -> bool:
        link = self.queue._engine._wire
        has_ended = self.ends is not None and monotonic() >= self.ends
        return has_ended or link is None or link.generation != self.generation

    def is_out(self, seq_id: int, taken: int | None = None, /) -> bool:
        """Tell whether an entry is still with this consumer."""
        return seq_id not in self.settled and not self._is_over()

    def has_lapsed(self, seq_id: int, taken: int, /) -> bool:
        """Tell whether the message has gone back."""
        return seq_id not in self.settled and self._is_over()


class SharedQueue:
    """One durable queue of a shared store. Made by :meth:`SharedEngine.queue`.

    It has the methods of :class:`qindex.aio.queue.Queue`, and raises what
    :class:`qindex.client.queue.SharedQueue` raises.
    """

    def __init__(self, engine: SharedEngine, name: str, at: tuple[int, int]) -> None:
        self._engine = engine
        self.name: str = name
        self.at: tuple[int, int] = at

    async def _call(self, verb: int, *values: Any, generation: int | None = None) -> list[Any]:
        link = self._engine._wire
        if link is None or link.is_lost:
            link = await self._engine._connect()
        if generation is not None and generation != link.generation:
            raise went_back()
        if self.at[0] != link.generation:
            number = (await link.request(wire.OPEN, self.name, False, {}, []))[0]
            self.at = link.generation, number
        return await link.request(verb, self.at[1], *values)

    # -- publishing -----------------------------------------------------------------------------

    async def publish(
        self,
        body: Body | Message,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        timeout: float | None = None,
        delay: float | None = None,
        at: datetime | None = None,
        unique: str | None = None,
        window: float | None = None,
        until: Until = "acked",
        priority: int | None = None,
    ) -> int:
        """Append a message; see :meth:`qindex.aio.queue.Queue.publish`."""
        options = batch_options(
            ttl=ttl,
            persistent=persistent,
            confirm=confirm,
            timeout=timeout,
            delay=delay,
            at=at,
            priority=priority,
        )
        options |= unique_options(unique, window, until)
        if isinstance(body, Message):
            refuse_parts(key, headers, properties)
            if unique is not None:
                body, key, headers, properties, _ = message_parts(body)
        if isinstance(body, Message):
            found = await self._call(wire.PUBLISH_MANY, [message_parts(body)], options)
        else:
            body = as_bytes(body)
            options |= publish_options(key, headers, properties)
            if window is not None:
                return await self._publish_once(body, options)
            if options:
                found = await self._call(wire.PUBLISH_WITH, body, options)
            else:
                found = await self._call(wire.PUBLISH, body)
        seq: int = found[0]
        return seq

    async def _publish_once(self, body: bytes, options: dict[str, Any]) -> int:
        """Publish a message whose unique key has a window, which a second try can't double."""
        try:
            seq: int = (await self._call(wire.PUBLISH_WITH, body, options))[0]
        except DisconnectedError as error:
            if not error.maybe_done:
                raise
            try:
                seq = (await self._call(wire.PUBLISH_WITH, body, options))[0]
            except DuplicateError as first:
                seq = first.seq_id
        return seq

    async def publish_many(
        self,
        messages: Iterable[Body | Message],
        *,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        timeout: float | None = None,
        delay: float | None = None,
        at: datetime | None = None,
        priority: int | None = None,
    ) -> range:
        """Append a batch; see :meth:`qindex.aio.queue.Queue.publish_many`. In one frame."""
        batch: list[Any] = []
        for number, one in enumerate(messages):
            try:
                batch.append(message_parts(one) if isinstance(one, Message) else as_bytes(one))
            except UsageError as error:
                raise UsageError(f"message {number} of the batch: {error}") from error
        options = batch_options(
            ttl=ttl,
            persistent=persistent,
            confirm=confirm,
            timeout=timeout,
            delay=delay,
            at=at,
            priority=priority,
        )
        start, stop = await self._call(wire.PUBLISH_MANY, batch, options)
        return range(start, stop)

    async def reserve(self, count: int) -> int:
        """Reserve seq_ids; see :meth:`qindex.queue.queue.Queue.reserve`."""
        first: int = (await self._call(wire.RESERVE, count))[0]
        return first

    # -- delivering -----------------------------------------------------------------------------

    @overload
    async def get(
        self, timeout: None = None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery: ...
    @overload
    async def get(
        self, timeout: float | None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    async def get(
        self,
        timeout: float | None = None,
        *,
        lease: float | None = None,
        ack: Delivery | None = None,
    ) -> Delivery | None:
        """Take the next message; see :meth:`qindex.aio.queue.Queue.get`."""
        if ack is not None:
            await self.ack(ack)
        self._engine._check_delivery()
        values = await self._call(wire.GET, seconds_to_wait(timeout), lease)
        if not values:
            return None
        made = BatchDelivery()
        made._queue = cast("Settles", _Owner(self, self.at[0], lease))
        made.taken, made.seq_id, made.body, made.redelivered, made._count, extra = values
        made._extra = delivery_extra(made.body, extra)
        return Delivery(self, made)

    async def get_many(
        self, max_messages: int, timeout: float | None = 0, *, lease: float | None = None
    ) -> Batch:
        """Take up to ``max_messages`` at once; see :meth:`qindex.aio.queue.Queue.get_many`. Of
        large messages fewer."""
        if not isinstance(max_messages, int) or max_messages < 1:
            raise UsageError(f"max_messages must be at least 1, not {max_messages!r}")
        self._engine._check_delivery()
        values = await self._call(wire.GET_MANY, max_messages, seconds_to_wait(timeout), lease)
        owner = cast("Settles", _Owner(self, self.at[0], lease))
        batch = plain.Batch(owner, values[0] if values else 0)
        if values:
            extend_batch(batch, *values[2:])
        return Batch(self, batch)

    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> SharedConsumer:
        """Give messages as they come; see :meth:`qindex.aio.queue.Queue.consume`."""
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch must be at least 1, not {prefetch!r}")
        seconds_to_wait(timeout)
        return SharedConsumer(self, prefetch, timeout, lease)

    async def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them."""
        batch = plain.Batch(cast("Settles", LOOKED_AT), 0)
        extend_batch(batch, *await self._call(wire.PEEK, max_messages))
        return [Delivery(self, one) for one in batch]

    # -- settling -------------------------------------------------------------------------------

    def _owner_of(self, delivery: Delivery) -> _Owner:
        if not isinstance(delivery, Delivery):
            raise no_delivery(delivery)
        owner: Any = delivery._plain._queue
        if isinstance(owner, Refusing):
            raise owner.why(delivery.seq_id)
        if owner is None or (isinstance(owner, _Owner) and delivery.seq_id in owner.settled):
            raise UsageError(f"delivery of seq_id {delivery.seq_id} is settled already")
        if not isinstance(owner, _Owner) or owner.queue.name != self.name:
            raise UsageError(
                f"delivery of seq_id {delivery.seq_id} belongs to queue {owner.name!r}, "
                f"not to {self.name!r}"
            )
        return owner

    async def _settle(self, verb: int, delivery: Delivery, *values: Any) -> None:
        owner = self._owner_of(delivery)
        one = cast("BatchDelivery", delivery._plain)
        # As if it were done: it is sent before the first suspension.
        one._queue = None
        owner.settled.add(one.seq_id)
        try:
            await self._call(verb, one.taken, one.seq_id, *values, generation=owner.generation)
        except LeaseExpiredError:
            one._queue = LAPSED
            raise
        except (DisconnectedError, asyncio.CancelledError):
            raise
        except StoreError:
            one._queue = cast("Settles", owner)
            owner.settled.discard(one.seq_id)
            raise

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge."""
        await self._settle(wire.ACK, delivery)

    async def nack(
        self, delivery: Delivery, *, delay: float | None = None, count: bool = True
    ) -> None:
        """Give a message back; see :meth:`qindex.queue.queue.Queue.nack`."""
        more = () if delay is None and count else (delay, count)
        await self._settle(wire.NACK, delivery, *more)

    async def cancel(self, seq_id: int) -> bool:
        """Drop a message that was never delivered; see
        :meth:`qindex.queue.queue.Queue.cancel`."""
        dropped: bool = (await self._call(wire.CANCEL_MESSAGE, seq_id))[0]
        return dropped

    async def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a message for good."""
        await self._settle(wire.REJECT, delivery, *(() if reason is None else (reason,)))

    async def move(
        self,
        delivery: Delivery,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        """Put a message into another queue; see :meth:`qindex.queue.queue.Queue.move`."""
        if headers is not None:
            headers = wire.table(headers, "headers") or {}
        await self._settle(wire.MOVE, delivery, queue, headers, delay)

    async def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write. Raises as :meth:`ack`; then none is acknowledged."""
        all_of_them = list(deliveries)
        owners = [self._owner_of(one) for one in all_of_them]
        if not owners:
            return
        if any(one.generation != owners[0].generation for one in owners):
            raise went_back()
        tags = [cast("BatchDelivery", one._plain).taken for one in all_of_them]
        seqs = [one.seq_id for one in all_of_them]
        if len(set(tags)) == 1:
            tags = tags[:1]
        await self._call(wire.ACK_MANY, tags, seqs, generation=owners[0].generation)
        for owner, one in zip(owners, all_of_them, strict=True):
            owner.settled.add(one.seq_id)
            one._plain._queue = None

    async def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries with a seq_id up to this one; gives their
        number."""
        count: int = (await self._call(wire.ACK_UP_TO, seq_id))[0]
        return count

    async def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now."""
        owner = self._owner_of(delivery)
        tag = cast("BatchDelivery", delivery._plain).taken
        values = tag, delivery.seq_id, seconds
        await self._call(wire.EXTEND_LEASE, *values, generation=owner.generation)
        owner.ends = monotonic() + seconds

    # -- the rest -------------------------------------------------------------------------------

    async def purge(self) -> int:
        """Drop all ready messages; gives their number."""
        count: int = (await self._call(wire.PURGE))[0]
        return count

    async def flush(self) -> None:
        """Bring the journal into the segment files and empty it; durable on return."""
        await self._call(wire.QUEUE_FLUSH)

    async def sync(self) -> None:
        """Make all that returned before durable against power loss."""
        await self._call(wire.QUEUE_SYNC)

    async def settings(self) -> QueueSettings:
        """Give the queue's settings."""
        found: QueueSettings = wire.from_plain((await self._call(wire.SETTINGS))[0])
        return found

    async def stats(self) -> QueueStats:
        """Give the queue's figures at this moment."""
        found: QueueStats = wire.from_plain((await self._call(wire.QUEUE_STATS))[0])
        return found

    def __repr__(self) -> str:
        return f"<SharedQueue {self.name!r} of {self._engine.directory!r}>"


class SharedConsumer(AsyncIterator[Delivery]):
    """The iterator of :meth:`SharedQueue.consume`."""

    def __init__(
        self, queue: SharedQueue, prefetch: int, timeout: float | None, lease: float | None
    ) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._timeout = timeout
        self._lease = lease
        self._link: Wire | None = None
        self._ready: deque[BatchDelivery] = deque()
        self._given: list[BatchDelivery] = []
        self._last_tag = 0
        self.stopped: bool = False

    def stop(self) -> None:
        """Give no more messages: the loop over this iterator ends. On the loop's thread."""
        self.stopped = True
        if self._link is not None:
            self._link.has_come.set()

    async def __anext__(self) -> Delivery:
        engine = self._queue._engine
        deadline = deadline_after(self._timeout)
        while not self._ready and not self.stopped and not engine._is_draining:
            link = self._link
            if link is None or link.generation != engine._generation():
                link = await self._begin()
            if link.is_lost:
                self._link = None
                engine._lost()
                raise DisconnectedError(_GONE, maybe_done=False)
            link.has_come.clear()
            self._take_in(link)
            if self._ready:
                break
            self._given = [one for one in self._given if one.settled is False]
            is_full = len(self._given) >= self._prefetch
            if self._lease is not None or 2 * len(self._given) > self._prefetch:
                link.tell(wire.WANT, False, self._last_tag)
            left = None if deadline is None or is_full else deadline - monotonic()
            if left is None or left > 0:
                try:
                    await asyncio.wait_for(link.has_come.wait(), left)
                except TimeoutError:
                    left = 0
            if left is not None and left <= 0 and not link.pushed:
                # Those that came just now are before the reply.
                await link.request(wire.WANT, True, self._last_tag)
                if not link.pushed:
                    break
        if not self._ready or self.stopped or engine._is_draining:
            self._end()
            raise StopAsyncIteration
        one = self._ready.popleft()
        self._last_tag = one.taken
        self._given.append(one)
        return Delivery(self._queue, one)

    async def _begin(self) -> Wire:
        queue = self._queue
        self._ready.clear()
        self._given, self._last_tag = [], 0
        await queue._call(wire.READY)
        link = await queue._engine._join()
        self._link = link
        await link.request(wire.CONSUME, queue.at[1], self._prefetch, self._lease)
        return link

    def _take_in(self, link: Wire) -> None:
        while link.pushed:
            found = link.pushed.popleft()
            if found[1] == wire.ERROR:
                raise wire.error_of(*found[2:5])
            tag, seqs, bodies, states, extras, counts = found[2:]
            for seq, body, state, extra in zip(seqs, bodies, states, extras, strict=True):
                made = BatchDelivery()
                owner = _Owner(self._queue, link.generation, self._lease)
                made._queue = cast("Settles", owner)
                made.taken, made.seq_id, made.body = tag, seq, body
                made.redelivered = state == plain.DELIVERED
                made._extra = delivery_extra(body, extra)
                if seq in counts:
                    made._count = counts[seq]
                tag += 1
                self._ready.append(made)

    def _end(self) -> None:
        link, self._link = self._link, None
        self._ready.clear()
        if link is not None and not link.is_lost:
            link.tell(wire.CANCEL, self._last_tag)
            link.close()

    def __del__(self) -> None:
        if self._link is not None:
            try:
                self._end()
            except RuntimeError:
                return  # its loop is closed


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
        """Connect anew; all who ask for it meanwhile get the same connection."""
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

    async def queue(self, name: str, **settings: Any) -> SharedQueue:
        """Give the queue of this name; see :meth:`qindex.aio.engine.Engine.queue`."""
        checked_name(name)
        given = {key: value for key, value in settings.items() if value is not None}
        unset = [key for key, value in given.items() if isinstance(value, Enum)]
        values = {key: value for key, value in given.items() if key not in unset}
        number = (await self._call(wire.OPEN, name, True, values, unset))[0]
        at = self._generation(), number
        known = self._queues.get(name)
        if known is None or (known.at[0] == at[0] and known.at != at):
            known = self._queues[name] = SharedQueue(self, name, at)
        known.at = at
        return known

    async def queue_names(self) -> list[str]:
        """Give the names of all queues, sorted."""
        names: list[str] = (await self._call(wire.QUEUE_NAMES))[0]
        return names

    async def delete_queue(self, name: str) -> int:
        """Delete a queue; returns how many messages it held."""
        checked_name(name)
        count: int = (await self._call(wire.DELETE_QUEUE, name))[0]
        self._queues.pop(name, None)
        return count

    async def publish_to(
        self,
        queues: Sequence[str],
        body: Body | Message,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        timeout: float | None = None,
    ) -> list[int]:
        """Publish one message to several queues; gives its seq_id in each, in their order."""
        message = message_of(body, key, headers, properties, time_ns())
        options = batch_options(ttl=ttl, persistent=persistent, confirm=confirm, timeout=timeout)
        names = listed(queues, "queues")
        seqs: list[int] = (
            await self._call(wire.PUBLISH_TO, names, message_parts(message), options)
        )[0]
        return seqs

    async def findings(self) -> list[Finding]:
        """Give the findings of recovery, and damage that was met since."""
        found: list[Finding] = wire.from_plain((await self._call(wire.FINDINGS))[0])
        return found

    async def sync(self) -> None:
        """Make all that returned before, on all queues, durable against power loss."""
        await self._call(wire.SYNC)

    async def flush(self) -> None:
        """Bring the journals of all queues into their segment files."""
        await self._call(wire.FLUSH)

    async def stats(self) -> EngineStats:
        """Give the figures of the store and of the queues that the server has used."""
        found: EngineStats = wire.from_plain((await self._call(wire.STATS))[0])
        return found

    async def compact(self) -> CompactionReport | None:
        """Give the space of dead messages in the message store back now."""
        found: CompactionReport | None = wire.from_plain((await self._call(wire.COMPACT))[0])
        return found

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._home.is_closed

    async def close(self, drain: float = 0) -> None:
        """End this process's session; see :meth:`qindex.client.engine.SharedEngine.close`."""
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
