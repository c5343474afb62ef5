"""A queue whose store a server has open: :class:`qindex.queue.queue.Queue` in another process."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import Any, NoReturn, cast, overload

from journal.arguments import refuse_pickling
from journal.errors import (
    ClosedError,
    DisconnectedError,
    DuplicateError,
    LeaseExpiredError,
    StoreError,
    UsageError,
)
from qindex.client.link import Home, Link, Opens, UnsentError, result, went_back
from qindex.format.message import Body, Message, as_bytes, refuse_parts
from qindex.format.settings import QueueSettings
from qindex.format.unique import Until
from qindex.queue.delivery import (
    DELIVERED,
    LOOKED_AT,
    Batch,
    BatchDelivery,
    Delivery,
    Refusing,
    Settles,
    lease_expired,
    no_delivery,
)
from qindex.queue.stats import QueueStats
from qindex.queue.wake_ups import deadline_after
from qindex.server import protocol as wire

_log = logging.getLogger("qindex.queue")

_LONG_HELD = 5.0
_LONGEST_WAIT = 1e8


class Parts:
    """What a message has beside its body: as :class:`qindex.format.entries.Entry` to a delivery."""

    __slots__ = ("expiry", "message")

    def __init__(self, message: Message, expiry: int) -> None:
        self.message: Message = message
        self.expiry: int = expiry


def delivery_extra(body: bytes, value: Any) -> Any:
    """Return what a delivery has beside its body, of what the server sent."""
    if type(value) is int:
        return value
    stamp, key, headers, properties, expiry = value
    return Parts(Message(body, key, headers, properties, stamp), expiry or 0)


class Owner:
    """Settles deliveries of one session, or the messages of one batch.

    ``is_leased``: the server is asked whether they came back. ``consumer``: that they are of.
    """

    __slots__ = ("consumer", "generation", "is_all_done", "is_leased", "name", "queue", "settled")

    def __init__(
        self,
        queue: SharedQueue,
        generation: int,
        *,
        is_leased: bool,
        consumer: SharedConsumer | None = None,
    ) -> None:
        self.queue: SharedQueue = queue
        self.name: str = queue.name
        self.generation: int = generation
        self.is_leased: bool = is_leased
        # It ends as its loop does, though the program has some of its messages still.
        self.consumer: weakref.ref[SharedConsumer] | None = (
            None if consumer is None else weakref.ref(consumer)
        )
        self.settled: set[int] = set()
        self.is_all_done: bool = False

    def ack(self, delivery: Delivery, /) -> None:
        """Acknowledge it."""
        self.settle(wire.ACK, delivery)

    def nack(self, delivery: Delivery, delay: float | None = None, count: bool = True, /) -> None:
        """Give it back, to be delivered again."""
        more = () if delay is None and count else (delay, count)
        self.settle(wire.NACK, delivery, *more)

    def reject(self, delivery: Delivery, reason: str | None = None, /) -> None:
        """Refuse it for good."""
        self.settle(wire.REJECT, delivery, *(() if reason is None else (reason,)))

    def move(
        self,
        delivery: Delivery,
        queue: str,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
        /,
    ) -> None:
        """Put it into another queue."""
        if headers is not None:
            headers = wire.table(headers, "headers") or {}
        self.settle(wire.MOVE, delivery, queue, headers, delay)

    def extend_lease(self, delivery: Delivery, seconds: float, /) -> None:
        """Let its lease end later."""
        tag = cast("BatchDelivery", delivery).taken
        self.call(wire.EXTEND_LEASE, tag, delivery.seq_id, seconds)

    def settle(self, verb: int, delivery: Delivery, *more: Any) -> None:
        """Settle a delivery that is not settled yet. Raises as the engine does."""
        seq = delivery.seq_id
        if self.is_all_done or seq in self.settled:
            raise UsageError(f"delivery of seq_id {seq} is settled already")
        tag = cast("BatchDelivery", delivery).taken
        try:
            consumer = None if self.consumer is None else self.consumer()
            if consumer is None or more or not consumer.settle(self, verb, tag, seq):
                self.call(verb, tag, seq, *more)
        except LeaseExpiredError:
            self._done(delivery)
            delivery._queue = LAPSED
            raise
        self._done(delivery)
        delivery._queue = None

    def _done(self, delivery: Delivery) -> None:
        if self.consumer is not None:
            consumer = self.consumer()
            if consumer is not None:
                consumer.settled()
        elif isinstance(delivery._queue, Owner) and self.settled is not _NONE:
            self.settled.add(delivery.seq_id)

    def call(self, verb: int, *values: Any) -> list[Any]:
        """Make a request about a delivery."""
        queue = self.queue
        return queue._home.call(queue, verb, *values, generation=self.generation)

    def take_back_uncounted(self, deliveries: Iterable[Delivery], /) -> None:
        """Take back those that are not settled, as if they had not been delivered."""
        pairs = [(cast("BatchDelivery", one).taken, one.seq_id) for one in deliveries]
        home = self.queue._home
        if self.generation == home.generation:
            home.call(None, wire.TAKE_BACK, pairs)
        for one in deliveries:
            self._done(one)
            one._queue = None

    def is_out(self, seq_id: int, taken: int | None = None, /) -> bool:
        """Tell whether an entry is still with this consumer."""
        if self.is_all_done or seq_id in self.settled:
            return False
        if self.generation != self.queue._home.generation:
            return False
        return not self.is_leased or bool(self._ask(seq_id, taken)[0])

    def has_lapsed(self, seq_id: int, taken: int, /) -> bool:
        """Tell whether the message has gone back, as its lease has run out or its session ended."""
        if self.is_all_done or seq_id in self.settled:
            return False
        if self.generation != self.queue._home.generation:
            return True
        return self.is_leased and bool(self._ask(seq_id, taken)[1])

    def _ask(self, seq_id: int, taken: int | None) -> list[Any]:
        try:
            return self.call(wire.IS_OUT, taken, seq_id)
        except (DisconnectedError, LeaseExpiredError):
            return [False, True]


_NONE: set[int] = set()
LAPSED = Refusing(lease_expired)


def seconds_to_wait(timeout: float | None) -> float | None:
    """Return a time to wait as the server takes it. Raises :class:`UsageError`."""
    deadline_after(timeout)
    return None if timeout is None or timeout > _LONGEST_WAIT else timeout


class SharedQueue(Opens):
    """One durable queue of a shared store. Made by
    :meth:`qindex.client.engine.SharedEngine.queue`.

    It has the methods of :class:`qindex.queue.queue.Queue`, with their errors and promises. All
    of them may also raise :class:`~journal.errors.DisconnectedError`, when the server goes in the
    middle of the call; the next call finds or starts one. Deliveries of the session that has ended
    raise :class:`~journal.errors.LeaseExpiredError` when they are settled.
    """

    __slots__ = ("__weakref__", "_home", "_owner", "at", "name")

    def __init__(self, home: Home, name: str, at: tuple[int, int]) -> None:
        self._home = home
        self.name: str = name
        self.at: tuple[int, int] = at
        self._owner = self._new_owner(at[0])

    def _new_owner(self, generation: int) -> Owner:
        owner = Owner(self, generation, is_leased=False)
        owner.settled = _NONE
        return owner

    def open(self, link: Link) -> tuple[int, int]:
        """Ask the server of this session for the queue's number. Raises :class:`ClosedError` for a
        queue that was deleted."""
        number = result(link.request(wire.OPEN, self.name, False, {}, []))[0]
        self.at = at = (link.generation, number)
        return at

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings, as they are now."""
        found: QueueSettings = wire.from_plain(self._home.call(self, wire.SETTINGS)[0])
        return found

    # -- publishing -----------------------------------------------------------------------------

    def publish(
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
        """Append a message; see :meth:`qindex.queue.queue.Queue.publish`."""
        seq: int
        if (
            type(body) is bytes
            and key is None
            and headers is None
            and properties is None
            and ttl is None
            and delay is None
            and at is None
            and unique is None
            and priority is None
            and persistent is True
            and confirm is False
            and timeout is None
        ):
            seq = self._home.call(self, wire.PUBLISH, body)[0]
            return seq
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
            batch = [message_parts(body)]
            seq = self._home.call(self, wire.PUBLISH_MANY, batch, options)[0]
            return seq
        body = as_bytes(body)
        options |= publish_options(key, headers, properties)
        try:
            seq = self._home.call(self, wire.PUBLISH_WITH, body, options)[0]
        except DisconnectedError as error:
            if window is None or not error.maybe_done:
                raise
            # The window outlives the message, so a second try can't publish a second one.
            try:
                seq = self._home.call(self, wire.PUBLISH_WITH, body, options)[0]
            except DuplicateError as first:
                seq = first.seq_id
        return seq

    def publish_many(
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
        """Append a batch; see :meth:`qindex.queue.queue.Queue.publish_many`."""
        batch: list[Any] = []
        size = 0
        for number, one in enumerate(messages):
            if type(one) is bytes:
                batch.append(one)
                size += len(one)
                continue
            try:
                batch.append(message_parts(one) if isinstance(one, Message) else as_bytes(one))
            except UsageError as error:
                raise UsageError(f"message {number} of the batch: {error}") from error
            size += len(one.body if isinstance(one, Message) else one)
        options = batch_options(
            ttl=ttl,
            persistent=persistent,
            confirm=confirm,
            timeout=timeout,
            delay=delay,
            at=at,
            priority=priority,
        )
        if size <= wire.PART:
            start, stop = self._home.call(self, wire.PUBLISH_MANY, batch, options)
        else:
            start, stop = self._in_parts(batch, options)
        return range(start, stop)

    def _in_parts(self, batch: list[Any], options: dict[str, Any]) -> list[Any]:
        """Publish a large batch, as one, in several frames."""
        home = self._home
        part: list[Any] = []
        size = 0
        with home.borrowed(self) as link:
            for one in batch:
                part.append(one)
                size += len(one) if type(one) is bytes else len(one[0])
                if size > wire.PART:
                    result(link.request(wire.PART_OF_BATCH, part))
                    part, size = [], 0
            return result(link.request(wire.PUBLISH_MANY, self.at[1], part, options))

    def reserve(self, count: int) -> int:
        """Reserve seq_ids; see :meth:`qindex.queue.queue.Queue.reserve`."""
        first: int = self._home.call(self, wire.RESERVE, count)[0]
        return first

    # -- delivering -----------------------------------------------------------------------------

    @overload
    def get(
        self, timeout: None = None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery: ...
    @overload
    def get(
        self, timeout: float | None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    def get(
        self,
        timeout: float | None = None,
        *,
        lease: float | None = None,
        ack: Delivery | None = None,
    ) -> Delivery | None:
        """Take the next message; see :meth:`qindex.queue.queue.Queue.get`.

        ``ack``: a delivery of this queue that is acknowledged first, in the same request.
        """
        home = self._home
        if home.is_draining:
            self._refuse_delivery()
        seconds = timeout if timeout is None or timeout == 0 else seconds_to_wait(timeout)
        if ack is None:
            values = home.call(self, wire.GET, seconds, lease)
        else:
            values = self._ack_and_get(ack, seconds, lease)
        if not values:
            return None
        return self._made(values, lease)

    def _ack_and_get(self, ack: Delivery, seconds: float | None, lease: float | None) -> list[Any]:
        owner = self._owner_of(ack)
        if owner.consumer is not None or owner.is_all_done or ack.seq_id in owner.settled:
            owner.ack(ack)
            return self._home.call(self, wire.GET, seconds, lease)
        tag = cast("BatchDelivery", ack).taken
        try:
            values = owner.call(wire.GET, seconds, lease, tag, ack.seq_id)
        except LeaseExpiredError:
            ack._queue = LAPSED
            raise
        owner._done(ack)
        ack._queue = None
        return values

    def _made(self, values: list[Any], lease: float | None) -> Delivery:
        generation = self.at[0]
        owner = self._owner
        if lease is not None:
            owner = Owner(self, generation, is_leased=True)
        elif owner.generation != generation:
            owner = self._owner = self._new_owner(generation)
        made = BatchDelivery()
        made._queue = owner
        made.taken, made.seq_id, body, made.redelivered, made._count, extra = values
        made.body = body
        made._extra = delivery_extra(body, extra)
        return made

    def get_many(
        self, max_messages: int, timeout: float | None = 0, *, lease: float | None = None
    ) -> Batch:
        """Take up to ``max_messages`` at once; see :meth:`qindex.queue.queue.Queue.get_many`."""
        if not isinstance(max_messages, int) or max_messages < 1:
            raise UsageError(f"max_messages must be at least 1, not {max_messages!r}")
        home = self._home
        if home.is_draining:
            self._refuse_delivery()
        values = home.call(self, wire.GET_MANY, max_messages, seconds_to_wait(timeout), lease)
        owner = Owner(self, self.at[0], is_leased=lease is not None)
        if not values:
            return Batch(owner, 0)
        tag, more = values[0], values[1]
        batch = Batch(owner, tag)
        extend_batch(batch, *values[2:])
        parts = [batch]
        left = max_messages - len(batch)
        while more and left > 0:
            # Large messages come in several frames.
            try:
                values = home.call(self, wire.GET_MANY, left, 0, lease, generation=owner.generation)
            except StoreError:
                break  # damage: the next call meets it; or the server has gone, and so has this
            if not values:
                break
            more = values[1]
            part = Batch(owner, values[0])
            extend_batch(part, *values[2:])
            parts.append(part)
            left -= len(part)
        return batch if len(parts) == 1 else _Parted(owner, parts)

    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> SharedConsumer:
        """Yield messages as they come; see :meth:`qindex.queue.queue.Queue.consume`.

        The server sends up to ``prefetch`` messages ahead. Those that the loop was not given go
        back as it ends, and do not count as delivered.
        """
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch must be at least 1, not {prefetch!r}")
        seconds_to_wait(timeout)
        return SharedConsumer(self, prefetch, timeout, lease)

    def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them."""
        if not isinstance(max_messages, int) or max_messages < 0:
            raise UsageError(f"max_messages must be at least 0, not {max_messages!r}")
        batch = Batch(cast("Settles", LOOKED_AT), 0)
        extend_batch(batch, *self._home.call(self, wire.PEEK, max_messages))
        return list(batch)

    def _refuse_delivery(self) -> NoReturn:
        raise ClosedError(f"{self._home.directory}: the engine is closing")

    # -- settling -------------------------------------------------------------------------------

    def _owner_of(self, delivery: Delivery) -> Owner:
        """Return what settles a delivery of this queue. Raises :class:`UsageError`."""
        try:
            owner = delivery._queue
        except AttributeError:
            raise no_delivery(delivery) from None
        if isinstance(owner, Owner) and owner.queue._home is self._home:
            if owner.queue is self or owner.name == self.name:
                return owner
            raise UsageError(
                f"delivery of seq_id {delivery.seq_id} belongs to queue {owner.name!r}, "
                f"not to {self.name!r}"
            )
        if isinstance(owner, Refusing):
            raise owner.why(delivery.seq_id)
        if owner is None:
            raise UsageError(f"delivery of seq_id {delivery.seq_id} is settled already")
        raise UsageError(
            f"delivery of seq_id {delivery.seq_id} belongs to queue {owner.name!r} of another "
            f"engine, not to {self.name!r}"
        )

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge; see :meth:`qindex.queue.queue.Queue.ack`."""
        self._owner_of(delivery).ack(delivery)

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write. Raises as :meth:`ack`; then none is acknowledged."""
        if type(deliveries) is Batch and isinstance(deliveries._queue, Owner):
            owner = deliveries._queue
            if len(deliveries) and not owner.settled and not owner.is_all_done:
                owner.call(wire.ACK_MANY, [deliveries._taken], deliveries.seq_ids)
                owner.settled.update(deliveries.seq_ids)
                return
        listed = deliveries if isinstance(deliveries, list) else list(deliveries)
        tags: list[int] = []
        owners: list[Owner] = []
        for at, one in enumerate(listed):
            if not isinstance(one, Delivery):
                raise no_delivery(one, at, len(listed))
            owner = self._owner_of(one)
            if owner.is_all_done or one.seq_id in owner.settled:
                raise UsageError(f"delivery of seq_id {one.seq_id} is settled already")
            owners.append(owner)
            tags.append(cast("BatchDelivery", one).taken)
        if not listed:
            return
        if any(owner.generation != owners[0].generation for owner in owners):
            raise went_back()
        seqs = [one.seq_id for one in listed]
        owners[0].call(wire.ACK_MANY, tags, seqs)
        for owner, one in zip(owners, listed, strict=True):
            owner._done(one)
            one._queue = None

    def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries, of all processes, with a seq_id up to this one;
        gives their number."""
        if not isinstance(seq_id, int) or isinstance(seq_id, bool):
            raise UsageError(f"a seq_id is an int, not {seq_id!r}")
        count: int = self._home.call(self, wire.ACK_UP_TO, seq_id)[0]
        return count

    def nack(self, delivery: Delivery, *, delay: float | None = None, count: bool = True) -> None:
        """Give a message back; see :meth:`qindex.queue.queue.Queue.nack`."""
        self._owner_of(delivery).nack(delivery, delay, count)

    def cancel(self, seq_id: int) -> bool:
        """Drop a message that was never delivered; see
        :meth:`qindex.queue.queue.Queue.cancel`."""
        dropped: bool = self._home.call(self, wire.CANCEL_MESSAGE, seq_id)[0]
        return dropped

    def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a message for good; see :meth:`qindex.queue.queue.Queue.reject`."""
        self._owner_of(delivery).reject(delivery, reason)

    def move(
        self,
        delivery: Delivery,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        """Put a message into another queue; see :meth:`qindex.queue.queue.Queue.move`."""
        self._owner_of(delivery).move(delivery, queue, headers, delay)

    def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now."""
        self._owner_of(delivery).extend_lease(delivery, seconds)

    # -- the whole queue ------------------------------------------------------------------------

    def purge(self) -> int:
        """Drop all ready messages; gives their number. Those with consumers stay theirs."""
        count: int = self._home.call(self, wire.PURGE)[0]
        return count

    def flush(self) -> None:
        """Bring the journal into the segment files and empty it; durable on return."""
        self._home.call(self, wire.QUEUE_FLUSH)

    def sync(self) -> None:
        """Make all that returned before durable against power loss."""
        self._home.call(self, wire.QUEUE_SYNC)

    def stats(self) -> QueueStats:
        """Give the queue's figures at this moment."""
        found: QueueStats = wire.from_plain(self._home.call(self, wire.QUEUE_STATS)[0])
        return found

    def __len__(self) -> int:
        """Messages that are ready: waiting, not with a consumer."""
        count: int = self._home.call(self, wire.READY)[0]
        return count

    def __bool__(self) -> bool:
        """A queue is true, empty or not."""
        return True

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        return f"<SharedQueue {self.name!r} of {self._home.directory!r}>"


class SharedConsumer(Iterator[Delivery]):
    """The iterator of :meth:`SharedQueue.consume`. ``stopped``: it gives no more messages."""

    def __init__(
        self, queue: SharedQueue, prefetch: int, timeout: float | None, lease: float | None
    ) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._timeout = timeout
        self._lease = lease
        self.stopped: bool = False
        self._link: Link | None = None
        self._busy = threading.Lock()
        self._owner: Owner | None = None
        self._ready: deque[BatchDelivery] = deque()
        self._last_tag = 0
        self._unsettled = 0
        self._is_waiting = False

    def stop(self) -> None:
        """Give no more messages: the loop over this iterator ends.

        Messages that it gave can be settled as before. From any thread, and in a signal's handler.
        """
        self.stopped = True
        link = self._link
        if self._is_waiting and link is not None:
            with suppress(OSError):
                link.sock.shutdown(socket.SHUT_RD)

    def __next__(self) -> Delivery:
        if self._ready and not self.stopped:
            return self._hand_out()
        deadline = deadline_after(self._timeout)
        home = self._queue._home
        for _ in range(5):
            if home.is_draining:
                self.stopped = True
            if self.stopped:
                break
            if self._link is None:
                self._begin()
            try:
                found = self._await_one(deadline)
            except UnsentError:
                self._lose()
                continue
            except DisconnectedError:
                if self.stopped:
                    break
                self._lose()
                raise
            if not found:
                break
            return self._hand_out()
        else:
            raise DisconnectedError(f"{home.directory}: servers end as soon as they begin")
        self._end()
        raise StopIteration

    def _hand_out(self) -> Delivery:
        delivery = self._ready.popleft()
        self._last_tag = delivery.taken
        self._unsettled += 1
        return delivery

    def _begin(self) -> None:
        """Ask the server for messages, on a connection of its own."""
        queue, home = self._queue, self._queue._home
        home.call(queue, wire.READY)  # finds a server, and the queue
        link = home.take()
        try:
            at = queue.at if queue.at[0] == link.generation else queue.open(link)
            result(link.request(wire.CONSUME, at[1], self._prefetch, self._lease))
        except BaseException:
            link.close()
            raise
        self._owner = Owner(
            queue, link.generation, is_leased=self._lease is not None, consumer=self
        )
        self._unsettled = 0
        self._last_tag = 0
        self._link = link

    def _lose(self) -> None:
        link, self._link = self._link, None
        self._ready.clear()
        if link is not None:
            self._queue._home.lost(link)

    def _await_one(self, deadline: float | None) -> bool:
        """Wait for a message; false when the time is up, or it was stopped."""
        link = self._link
        assert link is not None
        with self._busy:
            if link.pushed:
                self._take_in(link)
            if self._ready:
                return True
            if self._lease is not None or 2 * self._unsettled > self._prefetch:
                link.tell(wire.WANT, False, self._last_tag)
            warned = False
            warn_at = monotonic() + _LONG_HELD
            while not self._ready:
                seconds = None if deadline is None else deadline - monotonic()
                is_full = self._unsettled >= self._prefetch
                if is_full:
                    # As long as it takes: another thread settles one, or a lease runs out.
                    seconds = min(_LONG_HELD, self._lease or _LONG_HELD)
                self._is_waiting = True
                try:
                    if self.stopped:
                        return False
                    if not link.wait(seconds):
                        if not is_full:
                            # Those that came just now are before the reply.
                            link.request(wire.WANT, True, self._last_tag)
                            self._take_in(link)
                            return bool(self._ready)
                        if not warned and monotonic() >= warn_at:
                            warned = True
                            what = (
                                "queue %r: consume waits: all %d messages of its prefetch are "
                                "unacknowledged"
                            )
                            _log.warning(what, self._queue.name, self._unsettled)
                        link.tell(wire.WANT, False, self._last_tag)
                        continue
                    found = link.read()
                finally:
                    self._is_waiting = False
                if self.stopped:
                    return False
                link.pushed.append(found)
                self._take_in(link)
        return True

    def _take_in(self, link: Link) -> None:
        owner = self._owner
        while link.pushed:
            found = link.pushed.popleft()
            if found[1] == wire.ERROR:
                link.tell(wire.WANT, False, self._last_tag)
                raise wire.error_of(*found[2:5])
            tag, seqs, bodies, states, extras, counts = found[2:]
            for seq, body, state, extra in zip(seqs, bodies, states, extras, strict=True):
                made = BatchDelivery()
                made._queue = owner
                made.taken = tag
                made.seq_id = seq
                made.body = body
                made.redelivered = state == DELIVERED
                made._extra = delivery_extra(body, extra)
                if counts and seq in counts:
                    made._count = counts[seq]
                tag += 1
                self._ready.append(made)

    def settle(self, owner: Owner, verb: int, tag: int, seq: int) -> bool:
        """Settle a delivery through the connection of the consumer, where no other thread waits
        there: the reply brings the next messages. False: it is to be done elsewhere."""
        link = self._link
        if link is None or owner.generation != link.generation or not link.is_clean:
            return False
        if not self._busy.acquire(blocking=False):
            return False
        try:
            if self._link is not link:
                return False
            reply = link.request(verb, self._queue.at[1], tag, seq)
        except UnsentError:
            self._lose()
            raise went_back() from None
        except DisconnectedError:
            self._lose()
            raise
        finally:
            self._busy.release()
        result(reply)
        return True

    def settled(self) -> None:
        """One of its messages was settled."""
        self._unsettled -= 1

    def _end(self) -> None:
        """Let the server have what was not handed out."""
        link, self._link = self._link, None
        self._ready.clear()
        if link is not None:
            home = self._queue._home
            if self.stopped or not link.is_clean:
                # Nothing more is read from it.
                with suppress(UnsentError):
                    link.tell(wire.CANCEL, self._last_tag)
                link.close()
                return
            try:
                link.request(wire.CANCEL, self._last_tag)
            except (UnsentError, DisconnectedError):
                home.lost(link)
                return
            link.pushed.clear()
            home.give(link)

    def __del__(self) -> None:
        if not sys.is_finalizing() and getattr(self, "_link", None) is not None:
            self._end()


class _Parted(Batch):
    """A batch that came in several frames."""

    __slots__ = ("_parts",)

    def __init__(self, owner: Owner, parts: list[Batch]) -> None:
        super().__init__(owner, 0)
        self._parts = parts
        for part in parts:
            self._extend(part._seqs[:], list(part.bodies), part._states, list(part._extras))
            self._counts = {**self._counts, **part._counts}

    def _each(self) -> Iterator[Delivery]:
        for part in self._parts:
            yield from part

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Delivery | Batch:
        if isinstance(index, slice):
            return cast("Batch", list(self)[index])
        if index < 0:
            index += len(self)
        for part in self._parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError("a batch has fewer deliveries")


def extend_batch(
    batch: Batch,
    seqs: list[int],
    bodies: list[bytes],
    states: bytes,
    extras: list[Any],
    counts: dict[int, int],
) -> None:
    """Add the columns that the server sent to a batch."""
    made = [delivery_extra(body, extra) for body, extra in zip(bodies, extras, strict=True)]
    batch._extend(array("q", seqs), bodies, states, made)
    batch._counts = counts


def batch_options(**given: Any) -> dict[str, Any]:
    """Return the options of a publish that are not as usual."""
    if given.get("timeout") is not None:
        given["timeout"] = seconds_to_wait(given["timeout"])
    at = given.get("at")
    if at is not None:
        if not isinstance(at, datetime):
            raise UsageError(f"at must be a datetime, not {at!r}")
        given["at"] = at.isoformat()
    return {
        name: value
        for name, value in given.items()
        if value is not None and (name, value) not in _USUAL
    }


def publish_options(
    key: str | None, headers: Mapping[str, Any] | None, properties: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the parts of a message that there are. Raises :class:`UsageError`."""
    if key is not None and not isinstance(key, str):
        raise UsageError(f"a key must be a str, not {type(key).__name__}")
    return batch_options(
        key=key,
        headers=wire.table(headers, "headers"),
        properties=wire.table(properties, "properties"),
    )


def unique_options(unique: str | None, window: float | None, until: Until) -> dict[str, Any]:
    """Return the options of a publish with a unique key."""
    return {} if unique is None else {"unique": unique, "window": window, "until": until}


_USUAL = (("persistent", True), ("confirm", False))


def message_parts(message: Message) -> list[Any]:
    """Return a message as a list for the wire. Raises :class:`UsageError`."""
    return [
        as_bytes(message.body),
        message.key,
        wire.table(message.headers, "headers"),
        wire.table(message.properties, "properties"),
        message.timestamp,
    ]
