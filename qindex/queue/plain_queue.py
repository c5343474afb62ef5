"""A queue: the face that its users hold. Its parts do the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, Unpack, overload

from journal.arguments import refuse_pickling
from journal.errors import UsageError
from qindex.format.headers import Until
from qindex.format.message import Body, Message
from qindex.format.settings import QueueSettings, changeable
from qindex.format.values import Coder, Value, coded
from qindex.queue.delivering import Deliverer
from qindex.queue.delivery import Batch, Delivery
from qindex.queue.parts import QueueParts
from qindex.queue.producing import Producer
from qindex.queue.room import WouldWaitError
from qindex.queue.settling import Settler
from qindex.queue.state import QueueState
from qindex.queue.stats import QueueStats
from qindex.queue.waiting import Consumer, await_message, await_room, take_from

if TYPE_CHECKING:
    from qindex.worker.outcomes import Figures, Handlers
    from qindex.worker.redriving import RedriveOptions, RedriveReport
    from qindex.worker.run import WorkerOptions


T = TypeVar("T")


class Opener(Protocol):
    """The engine of a queue."""

    directory: str

    @property
    def queue(self) -> Callable[..., Queue]:
        """Return a queue with other settings."""


class Queue:
    """One durable queue, first in, first out. Made by :meth:`qindex.engine.engine.Engine.queue`.

    Thread-safe. The engine's ``durability`` decides which calls are durable on return; with
    ``confirm=True`` a publish is on disk when it returns, in any mode. All methods raise
    :class:`~journal.errors.ClosedError` after close, :class:`~journal.errors.ForkedError` in a
    forked child, and writing ones :class:`~journal.errors.StorageError` when the system refuses
    (full disk) and :class:`~journal.errors.WritesRefusedError` after a write or sync has failed.
    """

    __slots__ = (
        "__weakref__",
        "_coder",
        "_deliverer",
        "_engine",
        "_owed",
        "_parts",
        "_producer",
        "_settler",
        "_state",
    )

    def __init__(self, parts: QueueParts, engine: Opener) -> None:
        self._parts: QueueParts = parts
        self._engine: Opener = engine
        self._coder: Coder | None = None
        self._producer: Producer = parts.producer
        self._deliverer: Deliverer = parts.deliverer
        self._settler: Settler = parts.settler
        self._state: QueueState = parts.state
        self._owed = parts.state.owed

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._parts.state.name

    @property
    def directory(self) -> str:
        """The directory of its store."""
        return self._engine.directory

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings."""
        return self._parts.state.settings

    # -- publishing -----------------------------------------------------------------------------

    def publish(
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

        A delayed message holds up no other. It takes its place among the messages that are
        published when it is due; its header ``qindex-due`` has that time in microseconds since 1970
        UTC.

        Args:
            body: Bytes, a :class:`~qindex.format.message.Message` with its own key, headers and
                properties, or any value if the queue was asked for with a ``serializer``.
            key: A key for ``find`` and for consumers.
            headers: Headers, kept with their types.
            properties: RabbitMQ's properties.
            ttl: Seconds after which the message is dropped once it is at the head.
            persistent: Keep the message beyond the engine's run.
            confirm: Wait until the message is on disk.
            timeout: Seconds to wait for room with ``overflow="block"``. None: forever.
            delay: Seconds before which the message is not delivered.
            at: Time before which it is not delivered, a datetime with a time zone.
            unique: A key that at most one message of the queue holds at a time.
            window: Seconds from the publish for which the unique key stays taken at least.
            until: What frees the unique key: ``"acked"``, the end of the message, or
                ``"delivered"``, its first delivery.
            priority: 0 to the queue's ``max_priority``, higher first. None: that of the property
                ``priority``, or 0.

        Returns:
            The seq_id, unique in this queue and never reused. In a priority queue its bits from 55
            on are the priority.

        Raises:
            DuplicateError: Another message holds the unique key; nothing was published.
            UsageError: A value can't be stored; nothing was published.
            QueueFullError: The queue is full; nothing was published.

        O(size of the message).

        Example:
            >>> orders.publish(b"paid", key="o-17", ttl=30.0)
            0
        """
        given: Any = body
        if self._coder is not None:
            given, properties = self._coder.encode(body, properties)
        if confirm or self._state.sync_each:
            publish = partial(
                self._parts.producer.publish,
                *(given, key, headers, properties, ttl, persistent, confirm, delay, at),
                *(unique, window, until, priority),
            )
            return self._durably(publish, timeout, lambda seq: seq)
        while True:
            try:
                seq = self._producer.publish(
                    given,
                    key,
                    headers,
                    properties,
                    ttl,
                    persistent,
                    confirm,
                    delay,
                    at,
                    unique,
                    window,
                    until,
                    priority,
                )
            except WouldWaitError as full:
                timeout = await_room(full, timeout)
            else:
                # A return within the try takes 3% longer.
                if self._owed:
                    self._state.catch_up()
                return seq

    def publish_many(
        self,
        messages: Iterable[Body | Message | Value],
        *,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        timeout: float | None = None,
        delay: float | None = None,
        at: datetime | None = None,
        priority: int | None = None,
    ) -> range:
        """Append a batch with one write and return the range of its seq_ids.

        Args:
            messages: Bodies, or :class:`~qindex.format.message.Message` objects, which keep their
                timestamps.
            ttl: As in :meth:`publish`, for each of them, like the arguments below.
            persistent: As in :meth:`publish`.
            confirm: As in :meth:`publish`.
            timeout: As in :meth:`publish`.
            delay: As in :meth:`publish`.
            at: As in :meth:`publish`.
            priority: The priority of all of them. None: that of their properties, which must agree.

        Returns:
            The seq_ids, in the order of the messages.

        Raises:
            StoreError: As :meth:`publish`. The text names the wrong message, and none was
                published.
        """
        publish = partial(
            self._producer.publish_many,
            list(coded(self._coder, messages)),
            ttl=ttl,
            persistent=persistent,
            confirm=confirm,
            delay=delay,
            at=at,
            priority=priority,
        )
        if confirm or self._state.sync_each:
            return self._durably(publish, timeout, lambda seqs: seqs.start if seqs else -1)
        while True:
            try:
                seqs = publish()
            except WouldWaitError as full:
                timeout = await_room(full, timeout)
            else:
                if self._owed:
                    self._state.catch_up()
                return seqs

    def _durably(
        self, publish: Callable[[], T], timeout: float | None, first: Callable[[T], int]
    ) -> T:
        """Publish when there is room, and make it durable. ``first``: gives the first seq_id of
        what was published, -1 for nothing."""
        while True:
            try:
                with self._state.calls.here():
                    seqs = publish()
                    seq = first(seqs)
                    if seq >= 0:
                        (self._parts.level_at(seq) or self._parts).state.sync_all()
            except WouldWaitError as full:
                timeout = await_room(full, timeout)
            else:
                if self._owed:
                    self._state.catch_up()
                return seqs

    def reserve(self, count: int) -> int:
        """Reserve seq_ids for the next ``count`` messages, durably on return.

        Until that many are published, a crash of this process skips no seq_id, so the next seq_id
        tells how many were published.

        Args:
            count: How many, at most :data:`~qindex.queue.producing.MAX_RESERVED`.

        Returns:
            The first of them.

        Raises:
            UsageError: ``count`` is too large.
            StorageError: The reservation can't be written.
        """
        return self._producer.reserve(count)

    # -- delivering -----------------------------------------------------------------------------

    @overload
    def get(
        self, timeout: None = None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery: ...
    @overload
    def get(
        self, timeout: float | None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    @overload
    def get(
        self, *, seq_id: int, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    def get(
        self,
        timeout: float | None = None,
        *,
        lease: float | None = None,
        ack: Delivery | None = None,
        seq_id: int | None = None,
    ) -> Delivery | None:
        """Take the next message. It stays in the queue until it is acknowledged.

        After a crash an unacknowledged message is delivered again, with ``redelivered`` set.

        Args:
            timeout: Seconds to wait for a message. None: forever.
            lease: Seconds in which to settle it; then it returns to its place by itself.
            ack: A delivery to acknowledge first, as by :meth:`ack`.
            seq_id: Take this message, wherever it is in the queue, delayed or not, without waiting.

        Returns:
            The delivery. None if no message came in time, or if message ``seq_id`` is with a
            consumer or no longer there.

        Raises:
            DamageError: The next message is damaged. Its bytes are quarantined, and the next call
                goes on after it.

        O(1), whatever the backlog.

        Example:
            >>> with orders.get(timeout=1.0) as delivery:
            ...     print(delivery.body)
            b'paid'
        """
        if ack is not None:
            due = self._settler.ack(ack)
            if due is not None:
                due()
        if seq_id is not None:
            delivery = self._deliverer.take_at(seq_id, lease=lease)
        else:
            delivery = self._deliverer.get(lease)
            while delivery is None and self._deliverer.is_crowded() and self._state.catch_up():
                delivery = self._deliverer.get(lease)
            if delivery is None and timeout != 0:
                delivery = await_message(self._deliverer, timeout, lease)
        if self._owed:
            self._state.catch_up()
        return delivery

    def get_many(
        self, max_messages: int, timeout: float | None = 0, *, lease: float | None = None
    ) -> Batch:
        """Take up to ``max_messages`` at once, in order, with one append for each priority.

        Args:
            max_messages: The most messages to take.
            timeout: Seconds to wait for the first one; 0 does not wait. None: forever.
            lease: As in :meth:`get`, for each of them.

        Returns:
            The batch; empty if no message came in time. It ends before a damaged message.

        Raises:
            DamageError: The first message is damaged; the next call goes on after it.
        """
        batch = self._deliverer.get_many(max_messages, lease=lease)
        while not batch and self._deliverer.is_crowded() and self._state.catch_up():
            batch = self._deliverer.get_many(max_messages, lease=lease)
        if not batch:
            take = partial(self._deliverer.get_many, max_messages, lease=lease)
            batch = take_from(self._parts.state, take, timeout) or batch
        if self._owed:
            self._state.catch_up()
        return batch

    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> Consumer:
        """Yield messages as they come, until none came for ``timeout`` seconds.

        ``stop()`` of the returned iterator ends it at once, from any thread or a signal's handler,
        and so does ``Engine.close(drain=...)``. Yielded messages can still be settled.

        Args:
            prefetch: The most yielded messages that may be unacknowledged. Then it waits for an
                ack by another thread, however long; a long wait is logged.
            timeout: Seconds without a message after which it ends. None: never.
            lease: As in :meth:`get`, for each message.

        Returns:
            An iterator with a ``stop()`` method.

        Example:
            >>> for delivery in orders.consume(timeout=0):
            ...     delivery.ack()
        """
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch must be at least 1, not {prefetch!r}")
        return Consumer(self._deliverer, prefetch, timeout, lease)

    def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them. O(max_messages).

        Args:
            max_messages: The most messages to return.

        Returns:
            Up to ``max_messages`` deliveries, which can't be settled.
        """
        return self._deliverer.peek(max_messages)

    def find(self, key: str, max_messages: int = 100) -> list[Delivery]:
        """Look at the ready and delayed messages with a key, without taking them.

        The first call in a run reads the queue once, and each later call reads the messages
        published since. Queues whose messages nobody looks for pay nothing. `get(seq_id=)` takes a
        message that was found.

        Args:
            key: The key that the messages were published with.
            max_messages: The most messages to return.

        Returns:
            The messages as :meth:`peek` returns them, in the order of their seq_ids, those of
            higher priorities first.

        Raises:
            UsageError: The key is not a str, or max_messages is negative.

        Example:
            >>> seq_id = orders.publish(b"large", key="o-18")
            >>> [(one.seq_id == seq_id, one.body) for one in orders.find("o-18")]
            [(True, b'large')]
        """
        if not isinstance(key, str):
            raise UsageError(f"a key must be a str, not {type(key).__name__}")
        if not isinstance(max_messages, int) or max_messages < 0:
            raise UsageError(f"max_messages must be at least 0, not {max_messages!r}")
        return self._parts.find(key, max_messages)

    # -- settling -------------------------------------------------------------------------------

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery: its message never comes back once this is durable.

        Args:
            delivery: A delivery of this queue that is not settled.

        Raises:
            UsageError: The delivery is of another queue, or was settled.
            LeaseExpiredError: Its lease has run out.
        """
        due = self._settler.ack(delivery)
        if due is not None:
            due()
        if self._owed:
            self._state.catch_up()

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write.

        Args:
            deliveries: Deliveries of this queue that are not settled.

        Raises:
            StoreError: As :meth:`ack`; none was acknowledged.
        """
        due = self._settler.ack_many(deliveries)
        if due is not None:
            due()
        if self._owed:
            self._state.catch_up()

    def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries up to a seq_id.

        Args:
            seq_id: The highest seq_id. In a priority queue only its priority is acknowledged.

        Returns:
            How many deliveries were acknowledged.
        """
        count = self._settler.ack_up_to(seq_id)
        if count and self._state.sync_each:
            (self._parts.level_at(seq_id) or self._parts).state.sync_journal()
        if self._owed:
            self._state.catch_up()
        return count

    def nack(self, delivery: Delivery, *, delay: float | None = None, count: bool = True) -> None:
        """Requeue a message at its place, to be delivered again.

        A message that was delivered ``delivery_limit`` times goes where :meth:`reject` sends it.

        Args:
            delivery: The message, as it was delivered.
            delay: Seconds before which it is not delivered again. The time is written to the
                queue's directory before the call returns. None: the pause of the queue's
                ``backoff``, or none where it has no such setting. 0: at once, in any queue.
            count: Whether this delivery counts towards the ``delivery_limit``. False postpones the
                message without using up an attempt.

        Raises:
            UsageError: The delivery is of another queue, or was settled; or the delay is not
                a number of seconds.
            LeaseExpiredError: Its lease has run out.
            StorageError: The delay can't be written. The delivery is as it was.

        Example:
            >>> delivery = orders.get()
            >>> orders.nack(delivery, delay=60)
        """
        due = self._settler.nack(delivery, delay, count)
        if due is not None:
            due()
        if self._owed:
            self._state.catch_up()

    def cancel(self, seq_id: int) -> bool:
        """Drop a message that was never delivered, delayed or not.

        Args:
            seq_id: What publishing the message returned.

        Returns:
            True: no consumer has had the message, and none will. False: it was delivered,
            acknowledged or dropped before, or there is none with this seq_id; nothing has changed.

        Example:
            >>> reminder = orders.publish(b"pay", delay=3600)
            >>> orders.cancel(reminder)
            True
        """
        dropped = self._settler.cancel(seq_id)
        if dropped and self._state.sync_each:
            (self._parts.level_at(seq_id) or self._parts).state.sync_journal()
        if self._owed:
            self._state.catch_up()
        return dropped

    def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a message for good: it becomes a dead letter, or is dropped.

        Args:
            delivery: A delivery of this queue that is not settled.
            reason: A text for the reader of the dead letter, ``cause`` in its header ``x-death``.

        Raises:
            UsageError: The delivery is of another queue, or was settled.
            LeaseExpiredError: Its lease has run out.
            QueueFullError: The dead-letter queue is full; the delivery is as it was.
        """
        due = self._settler.reject(delivery, reason)
        if due is not None:
            due()
        if self._owed:
            self._state.catch_up()

    def move(
        self,
        delivery: Delivery,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        """Put a message into another queue of the engine, all or nothing.

        After a crash it is in one of the two queues, as a dead letter is.

        Args:
            delivery: The message, as it was delivered.
            queue: The name of the other queue, which is made if there is none.
            headers: The message's new headers. None: its present ones.
            delay: Seconds before which it is not delivered there.

        Raises:
            UsageError: The delivery is of another queue, or was settled; or the other queue is this
                one.
            QueueFullError: The other queue is full. The delivery is as it was.

        Example:
            >>> delivery = orders.get()
            >>> orders.move(delivery, "large-orders", headers={**delivery.headers, "why": "size"})
        """
        self._settler.move(delivery, queue, headers, delay)
        if self._owed:
            self._state.catch_up()

    def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now.

        Args:
            delivery: A delivery with a lease.
            seconds: The new time that is left.

        Raises:
            UsageError: The delivery is settled or has no lease, or the lease would get shorter.
            LeaseExpiredError: The lease has run out.
        """
        self._settler.extend_lease(delivery, seconds)

    # -- the whole queue ------------------------------------------------------------------------

    def configure(self, **settings: Any) -> None:
        """Change settings of the queue, as :meth:`qindex.engine.engine.Engine.queue` does.

        Args:
            settings: Those to change, by their names; ``qindex.UNSET`` takes one away. All but
                ``max_priority``, which is for the engine to change.

        Raises:
            UsageError: There is no such setting, or it can't be right.

        Example:
            >>> orders.configure(delivery_limit=5, dead_letter="failed")
        """
        self._parts.state.check_open()
        self._engine.queue(self.name, **changeable(settings))

    def run(self, handler: Handlers | str, **options: Unpack[WorkerOptions]) -> Figures:
        """Run a handler for each message until SIGTERM or SIGINT.

        Args:
            handler: A function of a delivery, its ``module:name``, or a mapping from message types.
            options: The keyword arguments of :class:`qindex.worker.Worker`.

        Returns:
            The worker's figures.

        Example:
            >>> orders.run(lambda delivery: None, concurrency=8, retries=5, until_empty=True).done
            1
        """
        from qindex.worker.run import Worker

        return Worker(self, handler, **options).run()

    def redrive(self, **options: Unpack[RedriveOptions]) -> RedriveReport:
        """Put dead letters back into the queues that they died in.

        Args:
            options: The keyword arguments of :func:`qindex.worker.redriving.redrive`.

        Returns:
            The numbers of moved and left messages.

        Example:
            >>> failed.redrive(rate=100).moved
            Counter({'orders': 3})
        """
        from qindex.worker.redriving import redrive

        return redrive(self, **options)

    def purge(self) -> int:
        """Drop all ready and delayed messages. Those with consumers stay.

        Returns:
            The number of dropped messages.
        """
        return self._parts.purge()

    def flush(self) -> None:
        """Bring the journal into the segment files and empty it.

        Everything that returned before is durable on return, as after :meth:`sync`. Publishers and
        consumers go on meanwhile.

        Raises:
            StorageError: A full disk leaves everything as it was. After any other failure the
                engine refuses writes.
        """
        self._parts.flusher.flush()

    def sync(self) -> None:
        """Make all that returned before durable against power loss. Concurrent callers share."""
        self._parts.flusher.sync()

    def stats(self) -> QueueStats:
        """Return the queue's figures at this moment."""
        return self._parts.stats()

    def __len__(self) -> int:
        """Messages that are ready: neither with a consumer nor delayed. O(1)."""
        lock = self._parts.state.lock
        if lock.is_inherited():
            lock.check()
        return self._parts.ready()

    def __bool__(self) -> bool:
        """A queue is true, empty or not."""
        return True

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, {len(self)} ready, {self._parts.out()} unacked>"


def take_last(queue: Queue) -> Delivery | None:
    """Take the newest message that is ready, as a stack does, or return ``None``.

    A queue should be used in one way at a time: a message that is given back after this call has
    passed it comes before those read from the front.

    Raises as :meth:`Queue.get`. O(1): about 50 us.
    """
    given = queue._deliverer.take_last()
    if queue._owed:
        queue._state.catch_up()
    return given


def peek_last(queue: Queue) -> bytes | None:
    """Return the body of the newest message that is ready, or ``None``; nothing is changed.

    A damaged or expired message is skipped.
    """
    return queue._deliverer.peek_last()
