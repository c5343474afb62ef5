"""A queue for coroutines: :class:`qindex.Queue` with awaitable methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from journal.errors import ClosedError, UsageError
from qindex.aio.delivery import Batch, Delivery
from qindex.aio.ports import Ports
from qindex.aio.threads import to_the_end
from qindex.aio.waiting import Waiter, with_room
from qindex.client.calls import BatchOptions
from qindex.format.headers import Until, refuse_without_key
from qindex.format.message import Body, Message, as_bytes, refuse_parts
from qindex.format.settings import QueueSettings
from qindex.format.values import Value, coded
from qindex.queue import delivery as plain_delivery
from qindex.queue import plain_queue as plain
from qindex.queue.delivering import Deliverer
from qindex.queue.delivery import no_delivery
from qindex.queue.flushing import Flusher
from qindex.queue.producing import Producer, batch_bytes
from qindex.queue.room import WouldWaitError
from qindex.queue.settling import Settler
from qindex.queue.state import QueueState
from qindex.queue.stats import QueueStats
from qindex.queue.waiting import LONG_HELD, warn_of_full_prefetch
from qindex.queue.wake_ups import deadline_after, has_time, time_left

if TYPE_CHECKING:
    from qindex.worker.outcomes import Figures, Handlers
    from qindex.worker.redriving import RedriveOptions, RedriveReport
    from qindex.worker.tasks import TaskOptions

T = TypeVar("T")


def _never() -> bool:
    return False


_LOOK = 63
"""One call in this many + 1 looks whether a flush is due."""
_TURN = 255
"""One call in this many + 1 lets the loop's other tasks have their turn."""
_ON_LOOP = 64 << 10
"""Messages with bodies up to this many bytes are published on the loop's thread."""
_BATCH_ON_LOOP = 1 << 20
"""The same for batches: their bytes."""


class Queue:
    """One durable queue. Made by :meth:`qindex.aio.engine.Engine.queue`.

    All methods raise as those of :class:`qindex.Queue` do. May be used from several
    loops and threads at a time. Calls that find what they need do not suspend, but one in 256.
    """

    def __init__(self, ports: Ports, queue: plain.Queue) -> None:
        self.name: str = queue.name
        self.directory: str = queue.directory
        self._ports = ports
        self._noting = ports.noting
        self._queue = queue
        parts = queue._parts
        self._state: QueueState = parts.state
        self._flusher: Flusher = parts.flusher
        self._producer: Producer = parts.producer
        self._publish = parts.producer.publish
        self._deliverer: Deliverer = parts.deliverer
        self._settler: Settler = parts.settler
        self._owed = parts.state.owed
        self._sync_each = parts.state.sync_each
        self._turn = 0

    # -- publishing -----------------------------------------------------------------------------

    async def publish(
        self,
        body: Body | Message | Value,
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
        """Append a message and return its seq_id.

        The message is appended before the first suspension, or, if it is to be confirmed, in the
        same turn of the loop and in the order of the calls. A cancelled call stops waiting, and the
        message stays in the queue. Concurrent confirms share one sync.

        If the call waits for room (``overflow="block"``), the message is appended after the wait.
        Cancelled before, it is not appended.

        Args:
            body: Bytes, a Message, or any value if the queue has a serializer.
            key: A key for ``find`` and for consumers.
            headers: Headers, kept with their types.
            properties: RabbitMQ's properties.
            ttl: Seconds after which the message is dropped once it is at the head.
            persistent: Keep the message beyond the engine's run.
            confirm: Wait until the message is on disk.
            timeout: Seconds to wait for room with ``overflow="block"``. None: forever.
            delay: Seconds before which it is not delivered.
            at: A datetime with a time zone before which it is not delivered.
            unique: A key that at most one message of the queue holds at a time.
            window: Seconds for which the unique key stays taken at least.
            until: What frees the unique key: ``"acked"`` or ``"delivered"``.
            priority: 0 to the queue's ``max_priority``, higher first.

        Returns:
            The seq_id, unique in this queue and never reused.

        Raises:
            DuplicateError: Another message holds the unique key; nothing was published.
            UsageError: A value can't be stored; nothing was published.
            QueueFullError: The queue is full; nothing was published.
        """
        # Nothing here is captured by a function made on the way, such as a lambda: each name would
        # be an object more for each of thousands of calls that wait, for the collector to look at.
        coder = self._queue._coder
        given: Any = body
        if coder is not None:
            given, properties = coder.encode(body, properties)
        durable = confirm or self._sync_each
        if (
            durable
            and key is None
            and headers is None
            and properties is None
            and ttl is None
            and delay is None
            and at is None
            and unique is None
            and window is None
            and until == "acked"
            and priority is None
            and persistent is True
            and given.__class__ is bytes
            and len(given) <= self._state.most_plain
            and len(given) <= _ON_LOOP
        ):
            # Such a message waits for no room. Messages of one turn of the loop are appended
            # together.
            seq = await self._ports.here().publish(self._queue, given)
            if self._owed or (not seq & _LOOK and self._flusher.is_due()):
                await self._rest()
            return seq
        if self._noting:
            self._ports.here().append(self._queue)
        if isinstance(given, Message) and unique is None:
            refuse_parts(key, headers, properties)
            refuse_without_key(unique, window, until)
            seqs = await self.publish_many(
                [given],
                ttl=ttl,
                persistent=persistent,
                confirm=confirm,
                timeout=timeout,
                delay=delay,
                at=at,
                priority=priority,
            )
            return seqs.start
        if given.__class__ is not bytes and not isinstance(given, Message):
            given = as_bytes(given)
        publish = partial(
            self._publish,
            given,
            key,
            headers,
            properties,
            ttl,
            persistent,
            delay=delay,
            at=at,
            unique=unique,
            window=window,
            until=until,
            priority=priority,
        )
        large = len(given.body if isinstance(given, Message) else given) > _ON_LOOP
        seq = -1
        if not large:
            try:
                seq = publish()
            except WouldWaitError:
                seq = -1
        if seq < 0:
            seq = await self._publish_with_room(publish, large=large, timeout=timeout)
        if durable:
            # That is also a turn for the others.
            await self._ports.here().durable(self._queue)
            if self._owed or (not seq & _LOOK and self._flusher.is_due()):
                await self._rest()
        elif self._owed or (not seq & _LOOK and (not seq & _TURN or self._flusher.is_due())):
            await self._rest()
        return seq

    async def publish_many(
        self, messages: Iterable[Body | Message | Value], **options: Unpack[BatchOptions]
    ) -> range:
        """Append a batch with one write and return the range of its seq_ids.

        All of it is appended before the first suspension.

        Args:
            messages: Bodies, Messages, or values if the queue has a serializer.
            options: The keyword arguments of :meth:`qindex.Queue.publish_many`.

        Returns:
            The seq_ids, in the order of the messages.

        Raises:
            StoreError: As :meth:`publish`. The text names the wrong message; none was published.
        """
        how: Any = options
        confirm, timeout = how.pop("confirm", False), how.pop("timeout", None)
        coded_ones: Any = coded(self._queue._coder, messages)
        batch = coded_ones if isinstance(coded_ones, list | tuple) else list(coded_ones)
        publish = partial(self._producer.publish_many, batch, **how)
        if self._ports.noting:
            self._ports.here().append(self._queue)
        large = batch_bytes(batch) > _BATCH_ON_LOOP
        seqs = await self._publish_with_room(publish, large=large, timeout=timeout)
        await self._rest()
        if (confirm or self._sync_each) and seqs:
            await self._ports.here().durable(self._queue)
        return seqs

    async def _publish_with_room(
        self, publish: Callable[[], T], *, large: bool, timeout: float | None
    ) -> T:
        """Publish, on the loop's thread or (``large``) in the helper's, when there is room."""

        async def attempt() -> T:
            return await self._aside(publish) if large else publish()

        return await with_room(attempt, timeout, self._ports.helper)

    async def reserve(self, count: int) -> int:
        """Reserve seq_ids for the next messages, durably on return.

        Args:
            count: The number of seq_ids.

        Returns:
            The first of them.
        """
        return await self._aside_run(lambda: self._queue.reserve(count))

    async def _aside(self, publish: Callable[[], T]) -> T:
        """Publish large messages in the helper's thread. A cancellation is raised when the publish
        is done. The sync comes after that, on the loop, where callers share it."""
        self._state.check_open()
        return await self._ports.helper.finish(publish)

    async def _rest(self) -> None:
        """Let others have their turn, and a flush catch up: publishers wait for it."""
        await asyncio.sleep(0)
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Await what the calls of this queue owe. No call of the core waits, nor does the loop."""
        debts = self._state.take_owed()
        try:
            while debts:
                debt = debts[-1]
                if not debt.is_asked_for():
                    await self._ports.helper.run(partial(self._state.pay, debt))
                else:
                    while (state := debt.pressing()) is not None:
                        with Waiter(state, state.flushed) as waiter:
                            rung = await waiter.wait(1.0)
                        if not rung and not state.flushing:
                            break
                debts.pop()
        finally:
            if debts:  # cancelled: the caller goes, and what it owes stays
                self._owed += debts
                self._hand_over()

    def _hand_over(self) -> None:
        """Let the helper do what is owed, where nobody else does; the caller does not wait."""
        for debt in self._state.hand_over():
            with suppress(ClosedError):
                self._ports.helper.submit(partial(self._state.pay, debt))

    async def _ask_again(self, take: Callable[[], T]) -> T:
        """Call ``take``, and again each time that it has ended early, once its debts are paid."""
        taken = take()
        while not taken and self._deliverer.is_crowded():
            await self._ports.helper.run(self._state.catch_up)
            taken = take()
        if self._owed:
            self._hand_over()
        return taken

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

        The message is taken after the last suspension, so a cancelled call has taken nothing.

        Args:
            timeout: Seconds to wait for a message. None: forever.
            lease: Seconds in which to settle it. Then it returns to its place by itself.
            ack: A delivery of this queue to acknowledge first.
            seq_id: Take this message, delayed or not, without waiting.

        Returns:
            The delivery. None if no message came in time, or message ``seq_id`` can't be taken.

        Raises:
            DamageError: The next message is damaged. The next call goes on after it.
        """
        if ack is not None:
            await self.ack(ack)
        if seq_id is not None:
            given = self._deliverer.take_at(seq_id, lease=lease)
            if self._owed:
                self._hand_over()
            return None if given is None else Delivery(self, given)
        return await self.get_unless(timeout, lease, _never)

    async def get_unless(
        self, timeout: float | None, lease: float | None, stopped: Callable[[], bool]
    ) -> Delivery | None:
        """Take the next message, unless it is asked to stop.

        Args:
            timeout: Seconds to wait. None: forever.
            lease: As in :meth:`get`.
            stopped: The wait ends when it returns true.

        Returns:
            The delivery. None if no message came in time, or it was stopped.
        """
        deliverer = self._deliverer
        self._turn += 1
        if not self._turn & _TURN:
            await asyncio.sleep(0)
        delivery = deliverer.get(lease)
        if self._owed:
            if delivery is None:
                delivery = await self._ask_again(lambda: deliverer.get(lease))
            self._hand_over()
        if delivery is None and has_time(timeout):
            delivery = await self._wait_for(lambda: deliverer.get(lease), timeout, stopped)
        return None if delivery is None else Delivery(self, delivery)

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

        Raises:
            DamageError: The first message is damaged. The next call goes on after it.
        """
        await asyncio.sleep(0)

        def take() -> plain_delivery.Batch:
            return self._deliverer.get_many(max_messages, lease=lease)

        batch = await self._ask_again(take)
        if not batch and has_time(timeout):
            batch = await self._wait_for(take, timeout) or batch
        return Batch(self, batch)

    async def _wait_for(
        self, take: Callable[[], T], timeout: float | None, stopped: Callable[[], bool] = _never
    ) -> T | None:
        """Wait until ``take``, called on the loop's thread, gives something; ``None`` when the
        time is up, or ``stopped()``. It is called for the last time after the last suspension."""
        state = self._state
        deadline = deadline_after(timeout)
        while not stopped():
            with Waiter(state, state.arrived) as waiter:
                taken = take()
                if self._owed:
                    self._hand_over()
                if not taken and not stopped():
                    await waiter.wait(time_left(deadline))
                waiter.content = bool(taken) or stopped()
            if not taken and not stopped():
                taken = take()
            if self._owed:
                self._hand_over()
            if taken:
                return taken
            if deadline is not None and monotonic() >= deadline:
                return None
        return None

    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> Consumer:
        """Yield messages as they come: ``async for delivery in queue.consume()``.

        ``stop()`` of the returned iterator ends the loop, and so does ``Engine.close(drain=...)``.
        Yielded messages can still be settled. The iterator holds nothing back, so leaving the loop
        loses nothing.

        Args:
            prefetch: The most yielded messages that may be unacknowledged. Then it waits for an ack
                by another task, however long; a long wait is logged.
            timeout: Seconds without a message after which the loop ends. None: never.
            lease: Seconds in which to settle it. Then it returns to its place by itself.

        Returns:
            An async iterator with ``stop()`` and ``aclose()``; also an async context manager.
        """
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch must be at least 1, not {prefetch!r}")
        return Consumer(self, prefetch, timeout, lease)

    async def await_settled(
        self, given: list[Delivery], timeout: float | None, stopped: Callable[[], bool]
    ) -> list[Delivery]:
        """Wait until one of some deliveries is settled.

        Args:
            given: The deliveries.
            timeout: Seconds to wait. None: forever.
            stopped: The wait also ends when it returns true.

        Returns:
            The deliveries that are not settled.
        """
        state = self._state
        deadline = deadline_after(timeout)
        while True:
            with Waiter(state, state.settled) as waiter:
                held = [delivery for delivery in given if not delivery.settled]
                left = time_left(deadline)
                if len(held) < len(given) or (left is not None and left <= 0) or stopped():
                    return held
                await waiter.wait(left)

    # -- settling -------------------------------------------------------------------------------

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery: its message never comes back.

        It is done before the first suspension. With ``durability="fsync"`` it is on disk on return.

        Args:
            delivery: A delivery of this queue that is not settled.

        Raises:
            UsageError: The delivery is of another queue, or was settled.
            LeaseExpiredError: Its lease has ended.
        """
        try:
            plain_one = delivery._plain
        except AttributeError:
            raise no_delivery(delivery) from None
        self._settler.ack(plain_one)
        if self._owed:
            self._hand_over()
        if self._sync_each:
            await self._ports.here().durable(self._queue)

    async def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write.

        Args:
            deliveries: Deliveries of this queue that are not settled.

        Raises:
            StoreError: As :meth:`ack`. None was acknowledged.
        """
        queue = self._queue
        if isinstance(deliveries, Batch):
            self._settler.ack_many(deliveries._plain)
        else:
            listed = list(deliveries)
            for at, one in enumerate(listed):
                if not isinstance(one, Delivery):
                    raise no_delivery(one, at, len(listed))
            self._settler.ack_many([one._plain for one in listed])
        if self._owed:
            self._hand_over()
        if self._sync_each:
            await self._ports.here().durable(queue)

    async def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries up to a seq_id.

        Args:
            seq_id: The highest seq_id.

        Returns:
            The number of acknowledged deliveries.
        """
        count = self._settler.ack_up_to(seq_id)
        if self._owed:
            self._hand_over()
        if self._sync_each and count:
            await self._ports.here().durable(self._queue)
        return count

    async def nack(
        self, delivery: Delivery, *, delay: float | None = None, count: bool = True
    ) -> None:
        """Requeue a message at its place, to be delivered again.

        A cancellation is raised when the call is done.

        Args:
            delivery: A delivery of this queue that is not settled.
            delay: Seconds before which it is not delivered again. None: the queue's ``backoff``.
            count: Whether this delivery counts towards the ``delivery_limit``.

        Raises:
            StoreError: As :meth:`ack`. The delivery is as it was.
        """
        if (delay is None and count) or not isinstance(delivery, Delivery):
            await self._give_back(delivery, requeue=True)
            return
        queue, plain = self._queue, delivery._plain
        if self._sync_each or queue.settings.dead_letter is not None:
            # The due time is to be synced, or the message may have to be moved.
            await self._aside_run(lambda: queue.nack(plain, delay=delay, count=count))
        else:
            self._settler.nack(plain, delay, count)
            self._hand_over()

    async def cancel(self, seq_id: int) -> bool:
        """Drop a message that was never delivered, delayed or not.

        Args:
            seq_id: The seq_id that publishing the message returned.

        Returns:
            True if no consumer has had the message and none will. False if nothing changed.
        """
        dropped = self._settler.cancel(seq_id)
        if self._owed:
            self._hand_over()
        if self._sync_each and dropped:
            await self._ports.here().durable(self._queue)
        return dropped

    async def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a message for good: it becomes a dead letter, or is dropped.

        A cancellation is raised when the call is done.

        Args:
            delivery: A delivery of this queue that is not settled.
            reason: A text for the reader of the dead letter.

        Raises:
            QueueFullError: The dead-letter queue is full. The delivery is as it was.
            StoreError: As :meth:`ack`.
        """
        if reason is None or not isinstance(delivery, Delivery):
            await self._give_back(delivery, requeue=False)
        else:
            plain = delivery._plain
            await self._aside_run(lambda: self._queue.reject(plain, reason))

    async def move(
        self,
        delivery: Delivery,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        """Put a message into another queue of the engine, all or nothing.

        A cancellation is raised when the call is done.

        Args:
            delivery: A delivery of this queue that is not settled.
            queue: The name of the other queue, which is made if there is none.
            headers: The message's new headers. None: its present ones.
            delay: Seconds before which it is not delivered there.

        Raises:
            QueueFullError: The other queue is full. The delivery is as it was.
            StoreError: As :meth:`ack`.
        """
        if not isinstance(delivery, Delivery):
            raise no_delivery(delivery)
        plain = delivery._plain
        await self._aside_run(lambda: self._queue.move(plain, queue, headers=headers, delay=delay))

    async def _give_back(self, delivery: Delivery, *, requeue: bool) -> None:
        if not isinstance(delivery, Delivery):
            raise no_delivery(delivery)
        queue = self._queue
        moves = queue.settings.dead_letter is not None and self._sync_each
        if moves:
            # To be durable it takes several syncs, in order.
            self._state.check_open()
            await to_the_end(self._ports.here().give_back(queue, delivery._plain, requeue))
            await self._catch_up()
            return
        if requeue:
            self._settler.nack(delivery._plain)
            self._hand_over()
            return
        self._settler.reject(delivery._plain)
        if self._owed:
            await self._catch_up()
        if self._sync_each:
            await self._ports.here().durable(queue)

    async def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now.

        Args:
            delivery: A delivery with a lease.
            seconds: The new time that is left.

        Raises:
            UsageError: The delivery has no lease, or the lease would get shorter.
            LeaseExpiredError: The lease has ended.
        """
        if not isinstance(delivery, Delivery):
            raise no_delivery(delivery)
        self._queue.extend_lease(delivery._plain, seconds)

    # -- the rest -------------------------------------------------------------------------------

    async def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them.

        Args:
            max_messages: The most messages to return.

        Returns:
            Up to ``max_messages`` deliveries, which can't be settled.
        """
        found = await self._aside_run(lambda: self._queue.peek(max_messages))
        return [Delivery(self, one) for one in found]

    async def find(self, key: str, max_messages: int = 100) -> list[Delivery]:
        """Look at the messages with a key, without taking them.

        Args:
            key: The key that the messages were published with.
            max_messages: The most messages to return.

        Returns:
            The messages that are ready or delayed, in the order of their seq_ids.
        """
        found = await self._aside_run(lambda: self._queue.find(key, max_messages))
        return [Delivery(self, one) for one in found]

    async def configure(self, **settings: Any) -> None:
        """Change settings of the queue. They are kept with it.

        Args:
            settings: The settings to change, by name. ``qindex.UNSET`` takes one away.

        Raises:
            UsageError: There is no such setting, or its value is wrong.
        """
        await self._aside_run(partial(self._queue.configure, **settings))

    async def run(self, handler: Handlers, **options: Unpack[TaskOptions]) -> Figures:
        """Run a coroutine function for each message until SIGTERM, SIGINT or cancellation.

        Args:
            handler: A coroutine function of a delivery, or a mapping from message types to such.
            options: Keyword arguments of :class:`qindex.worker.Worker`, those in
                :class:`qindex.worker.tasks.TaskOptions`. ``on_error`` must be a coroutine function.

        Returns:
            The worker's figures.

        Example:
            >>> await orders.run(handle, concurrency=100, retries=5, timeout=30)  # doctest: +SKIP
        """
        from qindex.worker.tasks import TaskWorker

        return await TaskWorker(self, handler, **options).run()

    async def redrive(self, **options: Unpack[RedriveOptions]) -> RedriveReport:
        """Put dead letters back into the queues that they died in.

        It works in a thread of its own.

        Args:
            options: The keyword arguments of :func:`qindex.worker.redriving.redrive`.

        Returns:
            The numbers of moved and left messages.
        """
        return await asyncio.to_thread(partial(self._queue.redrive, **options))

    async def purge(self) -> int:
        """Drop all ready and delayed messages. Those with consumers stay.

        Returns:
            The number of dropped messages.
        """
        return await self._aside_run(self._queue.purge)

    async def flush(self) -> None:
        """Bring the journal into the segment files and empty it; durable on return."""
        await self._aside_run(self._queue.flush)

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings."""
        return self._queue.settings

    async def stats(self) -> QueueStats:
        """Return the queue's figures at this moment."""
        return self._queue.stats()

    async def sync(self) -> None:
        """Make all that returned before durable against power loss; concurrent calls share it."""
        queue = self._queue
        self._state.check_open()
        if self._flusher.mover.is_behind():
            await self._aside_run(self._flusher.mover.settle)
        await self._ports.here().durable(queue)

    async def _aside_run(self, call: Callable[[], T]) -> T:
        self._state.check_open()
        return await self._ports.helper.run(call)

    def __len__(self) -> int:
        """Messages that are ready: waiting, not with a consumer. O(1)."""
        return len(self._queue)

    def __bool__(self) -> bool:
        """A queue is true, empty or not."""
        return True

    def __repr__(self) -> str:
        return repr(self._queue)


class Consumer(AsyncIterator[Delivery]):
    """The iterator of :meth:`Queue.consume`.

    It is not a generator: it has nothing to clean up, wherever it is left. ``stopped``: it gives no
    more messages. It is also an async context manager that stops it.
    """

    def __init__(
        self, queue: Queue, prefetch: int, timeout: float | None, lease: float | None
    ) -> None:
        self._queue = queue
        self._lease = lease
        self._prefetch = prefetch
        self._timeout = timeout
        self._given: list[Delivery] = []
        self.stopped: bool = False

    def stop(self) -> None:
        """Deliver no more messages: the loop over this iterator ends.

        Messages that it gave can be settled as before. From any thread.
        """
        self.stopped = True
        self._queue._deliverer.wake_consumers()

    async def aclose(self) -> None:
        """Stop: the consumer of a shared store has something to give back then."""
        self.stop()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_ended: object) -> None:
        self.stop()

    def _ends(self) -> bool:
        self.stopped = self.stopped or self._queue._deliverer.is_drained()
        return self.stopped

    async def __anext__(self) -> Delivery:
        queue = self._queue
        if len(self._given) >= self._prefetch:
            self._given = await queue.await_settled(self._given, LONG_HELD, self._ends)
            if len(self._given) >= self._prefetch and not self._ends():
                warn_of_full_prefetch(queue.name, [one.seq_id for one in self._given])
                self._given = await queue.await_settled(self._given, None, self._ends)
        delivery = None
        if not self._ends():
            try:
                delivery = await queue.get_unless(self._timeout, self._lease, self._ends)
            except ClosedError:
                if not self._ends():
                    raise
        if delivery is None:
            raise StopAsyncIteration
        self._given.append(delivery)
        return delivery
