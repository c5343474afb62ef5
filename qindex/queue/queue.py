"""A queue: the face that its users hold. Its parts do the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Unpack, overload

from journal.arguments import refuse_pickling
from journal.errors import UsageError
from qindex.format.message import Body, Message
from qindex.format.settings import QueueSettings, changeable
from qindex.format.unique import Until
from qindex.format.values import Coder, Value, coded
from qindex.queue.delivering import Consumer, Deliverer
from qindex.queue.delivery import Batch, Delivery
from qindex.queue.parts import QueueParts
from qindex.queue.producing import Producer
from qindex.queue.settling import Settler
from qindex.queue.stats import QueueStats

if TYPE_CHECKING:
    from qindex.worker.outcomes import Figures, Handlers
    from qindex.worker.redriving import RedriveOptions, RedriveReport
    from qindex.worker.run import WorkerOptions


class Opener(Protocol):
    """The engine of a queue."""

    directory: str

    @property
    def queue(self) -> Callable[..., Queue]:
        """Return a queue with other settings."""


class Queue:
    """One durable queue, first in, first out. Made by :meth:`qindex.engine.engine.Engine.queue`.

    Thread-safe. The engine's ``durability`` says what is durable when a call returns; with
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
        "_parts",
        "_producer",
        "_settler",
    )

    def __init__(self, parts: QueueParts, engine: Opener) -> None:
        self._parts: QueueParts = parts
        self._engine: Opener = engine
        self._coder: Coder | None = None
        self._producer: Producer = parts.producer
        self._deliverer: Deliverer = parts.deliverer
        self._settler: Settler = parts.settler

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
        """Append a message; gives its seq_id.

        ``body``: bytes, or a :class:`~qindex.format.message.Message`, which has a key, headers and
        properties of its own; or any value, if the queue was asked for with a ``serializer``.
        ``ttl``: seconds after which it is dropped when it gets to the head.
        ``persistent``: whether it outlives the engine's run. ``confirm``: wait until it is on disk.
        ``timeout``: seconds to wait for room in a queue with ``overflow="block"`` (``None``: for
        ever). ``delay``: seconds before which the message is not delivered; ``at``: the time before
        which it is not, a datetime with a time zone. A delayed message holds no other one up. It
        takes its place among the messages that are published at the time when it is due, and its
        header ``qindex-due`` has that time in microseconds since 1970 UTC. ``unique``: a key that
        at most one message of the queue holds at a time, until it is acknowledged, dropped or moved
        (``until="acked"``) or delivered for the first time (``until="delivered"``), and at least
        for ``window`` seconds from the publish. ``priority``: from 0 to the queue's
        ``max_priority``; messages with a higher number are delivered first. Without it a message
        has the priority that its property ``priority`` says, up to the highest, or 0. The seq_id of
        a message has its priority in the bits from 55 on.
        Raises :class:`~journal.errors.DuplicateError` if another message holds the unique key,
        :class:`UsageError` for values that can't be stored, and
        :class:`~journal.errors.QueueFullError`; nothing has changed then.
        O(size of the message).
        """
        given: Any = body
        if self._coder is not None:
            given, properties = self._coder.encode(body, properties)
        if priority is not None:
            return self._producer.publish_at(
                priority,
                given,
                key,
                headers,
                properties,
                ttl,
                persistent,
                confirm,
                timeout,
                delay,
                at,
                unique,
                window,
                until,
            )
        return self._producer.publish(
            given,
            key,
            headers,
            properties,
            ttl,
            persistent,
            confirm,
            timeout,
            delay,
            at,
            unique,
            window,
            until,
        )

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
        """Append a batch, in order, with one write; gives the range of its seq_ids.

        Each is a body, or a :class:`~qindex.format.message.Message` with key, headers and
        properties, which keeps its timestamp where it has one. All have the same priority:
        ``priority``, or that of their properties. Raises as :meth:`publish`, and says which message
        of the batch is wrong; then none of it is published.
        """
        return self._producer.publish_many(
            coded(self._coder, messages),
            ttl=ttl,
            persistent=persistent,
            confirm=confirm,
            timeout=timeout,
            delay=delay,
            at=at,
            priority=priority,
        )

    def reserve(self, count: int) -> int:
        """Reserve seq_ids for the next ``count`` messages, durably on return; gives the first.

        Until as many are published, a crash of this process skips no seq_id: how many of them
        were published can be told from the next one. Raises :class:`UsageError` for a count above
        :data:`~qindex.queue.producing.MOST_RESERVED`, :class:`StorageError`.
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
        """Take the next message; waits for one up to ``timeout`` seconds (``None``: for ever).

        Gives ``None`` when there was none in time. The message stays in the queue until it is
        acknowledged; after a crash it is delivered again, with ``redelivered`` true. ``lease``:
        seconds in which it is to be settled; then it returns to its place in the queue by itself.
        ``ack``: a delivery that is acknowledged first, as by :meth:`ack`. ``seq_id``: take this
        message, wherever it is in the queue, delayed or not, without waiting for it; ``None`` when
        it is with a consumer, or is not there any more.
        Raises :class:`DamageError` when the next message is damaged: it names file and offset,
        the bytes are set aside in a quarantine file, and the next call goes on after it.
        O(1), whatever the backlog.
        """
        if ack is not None:
            self._settler.ack(ack)
        if seq_id is not None:
            return self._deliverer.take_at(seq_id, lease=lease)
        return self._deliverer.get(timeout, lease)

    def get_many(
        self, max_messages: int, timeout: float | None = 0, *, lease: float | None = None
    ) -> Batch:
        """Take up to ``max_messages`` at once, in order.

        Waits up to ``timeout`` seconds for the first one only (default: not at all); gives an
        empty batch when there is none. ``lease`` as in :meth:`get`, of each of them. A damaged
        message ends the batch before it; the next call raises its :class:`DamageError`. One append
        to the journal for the batch, or for each priority in it.
        """
        return self._deliverer.get_many(max_messages, timeout, lease=lease)

    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> Consumer:
        """Yield messages as they come; ends when none came for ``timeout`` seconds.

        ``stop()`` of the iterator that is returned ends it at once, from any thread or in a
        signal's handler: it gives no more messages, and those that it gave can be settled. It ends
        as well when ``Engine.close(drain=...)`` begins.

        At most ``prefetch`` of those it gave are unacknowledged at a time: then it waits for an
        ack (by another thread), however long, before it gives the next; a long wait is logged.
        ``lease`` as in :meth:`get`, of each of them.
        """
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch must be at least 1, not {prefetch!r}")
        return self._deliverer.consume(prefetch, timeout, lease)

    def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them. O(max_messages)."""
        return self._deliverer.peek(max_messages)

    def find(self, key: str, max_messages: int = 100) -> list[Delivery]:
        """Look at the messages with a key, without taking them: those that are ready or delayed.

        The first call in a run reads the queue once, and each later call reads what was published
        since. Queues whose messages nobody looks for pay nothing. `get(seq_id=)` takes a message
        that was found.

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
        """Acknowledge: the message is done with, and never comes back once this is durable.

        Raises :class:`UsageError` for a delivery of another queue, or one that was settled, and
        :class:`~journal.errors.LeaseExpiredError` for one whose lease has run out.
        """
        self._settler.ack(delivery)

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write. Raises as :meth:`ack`; then none is acknowledged."""
        self._settler.ack_many(deliveries)

    def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries with a seq_id up to this one; gives their
        number. In a priority queue those of the same priority alone."""
        return self._settler.ack_up_to(seq_id)

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
        self._settler.nack(delivery, delay, count)

    def cancel(self, seq_id: int) -> bool:
        """Drop a message that was never delivered, delayed or not.

        Returns:
            True: no consumer has had the message, and none will. False: it was delivered,
            acknowledged or dropped before, or there is none with this seq_id; nothing has changed.

        Example:
            >>> reminder = orders.publish(b"pay", delay=3600)
            >>> orders.cancel(reminder)
            True
        """
        return self._settler.cancel(seq_id)

    def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a message for good: it goes to the dead-letter queue; without one it is dropped.

        ``reason``: a text for the reader of the dead letter, ``cause`` in its header ``x-death``.
        Raises as :meth:`ack`, and :class:`~journal.errors.QueueFullError` when the dead-letter
        queue is full: the delivery is then as it was.
        """
        self._settler.reject(delivery, reason)

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
            headers: The message's new headers. None: those that it has.
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

    def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now.

        Raises :class:`UsageError` for one that is settled, or that has none, and for a time that
        would shorten it, and :class:`~journal.errors.LeaseExpiredError`.
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
        """Run a handler for each message until SIGTERM or SIGINT; see
        :class:`qindex.worker.Worker`.

        Example:
            >>> orders.run(print, concurrency=8, retries=5, until_empty=True).failed
            0
        """
        from qindex.worker.run import Worker

        return Worker(self, handler, **options).run()

    def redrive(self, **options: Unpack[RedriveOptions]) -> RedriveReport:
        """Put dead letters back into the queues that they came from; see
        :func:`qindex.worker.redriving.redrive`.

        Example:
            >>> failed.redrive(rate=100).moved
            Counter({'orders': 3})
        """
        from qindex.worker.redriving import redrive

        return redrive(self, **options)

    def purge(self) -> int:
        """Drop all ready and delayed messages; gives their number. Those with consumers stay
        theirs."""
        return self._parts.purge()

    def flush(self) -> None:
        """Bring the journal into the segment files and empty it. All that returned before is
        durable on return, as after :meth:`sync`.

        Publishers and consumers go on meanwhile. Raises :class:`StorageError`: a full disk leaves
        all as it was; after any other failure no more writes are taken.
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
