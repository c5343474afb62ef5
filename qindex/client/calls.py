"""The calls of a shared store as requests and replies, without a connection.

A call of several steps is a generator: it yields a request, is sent the session that it was made in
and the values of the reply, and returns the call's result. :mod:`qindex.client.shared_queue` makes
the requests for threads, and :mod:`qindex.aio.shared` for coroutines. A request is ``(generation,
verb, *values)``. Its ``generation`` names the session that holds the deliveries it is about, or is
:data:`ANY`.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime
from enum import Enum
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, cast

from journal.errors import (
    DisconnectedError,
    DuplicateError,
    LeaseExpiredError,
    StoreError,
    UsageError,
)
from qindex.client.link import ANY, Opens, went_back
from qindex.format.headers import Until, refuse_without_key
from qindex.format.message import Body, Message, as_bytes, message_of, refuse_parts
from qindex.format.settings import Overflow, Unset, checked_name
from qindex.format.values import Coder, Serializer, coder_of
from qindex.queue.delivery import (
    DELIVERED,
    LOOKED_AT,
    Batch,
    BatchDelivery,
    Delivery,
    MixedBatch,
    Refusing,
    Settles,
    lease_expired,
    no_delivery,
    refusal_of,
)
from qindex.queue.wake_ups import deadline_after
from qindex.server import protocol as wire

if TYPE_CHECKING:
    from qindex.client.link import Home

_log = logging.getLogger("qindex.queue")

T = TypeVar("T")
Queue_ = TypeVar("Queue_", bound=Opens)
Request = tuple[Any, ...]
Reply = tuple[int, list[Any]]
Steps = Generator[Request, Reply, T]

LAPSED = Refusing(lease_expired)
_LONG_HELD = 5.0


def run(steps: Generator[Request, Any, T], make: Callable[[Request], Any]) -> T:
    """Make the requests of a call, each with ``make(request)``, and return the call's result."""
    try:
        request = next(steps)
        while True:
            try:
                values = make(request)
            except BaseException as error:
                request = steps.throw(error)
            else:
                request = steps.send(values)
    except StopIteration as end:
        return cast("T", end.value)


def seconds_to_wait(timeout: float | None) -> float | None:
    """Return a time to wait as the server takes it. Raises :class:`UsageError`."""
    if timeout is None:
        return None
    if timeout == 0:
        return 0
    deadline_after(timeout)
    return None if timeout > wire.LONGEST_WAIT else float(max(timeout, 0))


# -- publishing -----------------------------------------------------------------------------------


class FanOutOptions(TypedDict, total=False):
    """The options of :meth:`qindex.engine.engine.Engine.publish_to` beside the message."""

    ttl: float | None
    persistent: bool
    confirm: bool
    timeout: float | None


class BatchOptions(FanOutOptions, total=False):
    """The options of :meth:`qindex.Queue.publish_many`."""

    delay: float | None
    at: datetime | None
    priority: int | None


class PublishOptions(BatchOptions, total=False):
    """The options of :meth:`qindex.Queue.publish`."""

    key: str | None
    headers: Mapping[str, Any] | None
    properties: Mapping[str, Any] | None
    unique: str | None
    window: float | None
    until: Until


class QueueOptions(TypedDict, total=False):
    """The options of :meth:`qindex.engine.engine.Engine.queue`."""

    message_ttl: float | Unset | None
    max_length: int | Unset | None
    max_bytes: int | Unset | None
    overflow: Overflow | Unset | None
    delivery_limit: int | Unset | None
    dead_letter: str | Unset | None
    backoff: str | Unset | None
    max_priority: int | Unset | None
    serializer: str | Serializer | None


def _check_names(given: Iterable[str], kind: type) -> None:
    for name in given:
        if name not in kind.__annotations__:
            raise TypeError(f"there is no option {name!r}")


def options_of(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the options that differ from the usual ones, as the server takes them. ``kind``: the
    class that has the names of those there are."""
    options = {
        name: value
        for name, value in given.items()
        if value is not None and (name, value) not in _USUAL
    }
    _check_names(given, kind)
    if "timeout" in options:
        options["timeout"] = seconds_to_wait(options["timeout"])
    at = options.get("at")
    if at is not None:
        if not isinstance(at, datetime):
            raise UsageError(f"at must be a datetime, not {at!r}")
        options["at"] = at.isoformat()
    return options


_USUAL = (("persistent", True), ("confirm", False), ("until", "acked"))


def message_parts(message: Message) -> list[Any]:
    """Return a message as a list for the wire. Raises :class:`UsageError`."""
    return [
        as_bytes(message.body),
        message.key,
        wire.table(message.headers, "headers"),
        wire.table(message.properties, "properties"),
        message.timestamp,
    ]


def publish(body: Body | Message, given: PublishOptions) -> Steps[int]:
    """Publish a message."""
    options = options_of(given, PublishOptions)
    if isinstance(body, Message):
        refuse_parts(*(options.get(name) for name in _PARTS))
        parts = message_parts(body)
        if "unique" not in options:
            refuse_without_key(None, options.get("window"), options.get("until", "acked"))
            # A message of a batch keeps its timestamp.
            return (yield ANY, wire.PUBLISH_MANY, [parts], options)[1][0]  # type: ignore[no-any-return]
        body = cast("bytes", parts[0])
        options |= zip(_PARTS, parts[1:4], strict=True)
    request: Request = (ANY, wire.PUBLISH, as_bytes(body))
    if not isinstance(options.get("key", ""), str | None):
        raise UsageError(f"a key must be a str, not {type(options['key']).__name__}")
    for name in _PARTS[1:]:
        if name in options:
            options[name] = wire.table(options[name], name)
    if options:
        request = (ANY, wire.PUBLISH_WITH, request[2], options)
    try:
        found = yield request
    except DisconnectedError as error:
        if "window" not in options or not error.maybe_done:
            raise
        # The window outlives the message, so a second try can't publish a second one.
        try:
            found = yield request
        except DuplicateError as first:
            return first.seq_id
    return found[1][0]  # type: ignore[no-any-return]


_PARTS = ("key", "headers", "properties")


def batch_requests(messages: Iterable[Body | Message], given: BatchOptions) -> list[Request]:
    """Return the requests that publish a batch: a large one passes in several frames.

    They belong together, on one connection, with no other request between them. Raises
    :class:`UsageError` for a batch that the server does not take as a whole.
    """
    parts: list[list[Any]] = [[]]
    size, sizes = 0, 0
    for number, one in enumerate(messages):
        if size > wire.PART:
            parts.append([])
            sizes += size
            size = 0
            if sizes > wire.MAX_PARTS:
                raise UsageError(
                    f"a batch may have {wire.MAX_PARTS} bytes, and this has more: publish it in "
                    "several; none of its messages is published"
                )
        if type(one) is bytes:
            parts[-1].append(one)
            size += len(one) + _AROUND
            continue
        try:
            made = message_parts(one) if isinstance(one, Message) else as_bytes(one)
            size += len(made) + _AROUND if isinstance(made, bytes) else _size_of(made)
        except UsageError as error:
            raise UsageError(f"message {number} of the batch: {error}") from error
        parts[-1].append(made)
    requests, before = sent_ahead(parts)
    options = options_of(given, BatchOptions)
    return [*requests, (ANY, wire.PUBLISH_MANY, parts[-1], options, before)]


def sent_ahead(parts: list[list[Any]]) -> tuple[list[Request], int]:
    """Return the requests for all parts of a batch but the last, and how many messages they have.

    Each says how many messages come before it, and so does the request that ends the batch.
    """
    requests: list[Request] = []
    before = 0
    for part in parts[:-1]:
        requests.append((ANY, wire.PART_OF_BATCH, part, before))
        before += len(part)
    return requests, before


_AROUND = 5
"""Bytes around a body in a frame, at most."""


def _size_of(parts: list[Any]) -> int:
    """Return how many bytes a message of :func:`message_parts` takes in a frame."""
    body, *others = parts
    return len(body) + _AROUND + (len(wire.frame(*others)) if any(others[:3]) else 16)


# -- deliveries -----------------------------------------------------------------------------------


class Parts:
    """The parts of a message that is more than a body, as :class:`qindex.format.entries.Entry` has
    them for a delivery."""

    __slots__ = ("expiry", "message")

    def __init__(self, message: Message, expiry: int) -> None:
        self.message: Message = message
        self.expiry: int = expiry


def _extra_of(body: bytes, value: Any) -> Any:
    if type(value) is int:
        return value
    stamp, key, headers, properties, expiry = value
    return Parts(Message(body, key, headers, properties, stamp), expiry or 0)


class Owner:
    """Settle deliveries that came in one session of ``home``.

    ``ends``: when their lease ends, by this process's clock. ``settled``: the seq_ids of a batch
    that are settled, for a batch makes its deliveries anew; None for single deliveries. ``ahead``:
    of a consumer.
    """

    __slots__ = ("ahead", "ends", "generation", "home", "name", "queue", "settled")

    def __init__(
        self,
        queue: Opens,
        generation: int,
        lease: float | None = None,
        *,
        ahead: Ahead | None = None,
        is_batch: bool = False,
    ) -> None:
        self.queue: Opens = queue
        self.name: str = queue.name
        self.home: Home = queue._home
        self.generation: int = generation
        self.ends: float | None = None if lease is None else monotonic() + lease
        self.ahead: Ahead | None = ahead
        self.settled: set[int] | None = set() if is_batch else None

    def mark(self, delivery: Delivery) -> None:
        """Mark a delivery as settled."""
        delivery._queue = None
        if self.settled is not None:
            self.settled.add(delivery.seq_id)
        if self.ahead is not None:
            self.ahead.unsettled -= 1

    def unmark(self, delivery: Delivery) -> None:
        """Mark a delivery as outstanding again."""
        delivery._queue = cast("Settles", self)
        if self.settled is not None:
            self.settled.discard(delivery.seq_id)
        if self.ahead is not None:
            self.ahead.unsettled += 1

    def check(self, delivery: Delivery) -> None:
        """Raise :class:`UsageError` if the delivery is settled."""
        if self.settled is not None and delivery.seq_id in self.settled:
            raise UsageError(f"delivery of seq_id {delivery.seq_id} is settled already")

    def is_over(self) -> bool:
        """Return whether the messages have gone back by themselves."""
        if not self.home.lives(self.generation):
            return True
        return self.ends is not None and monotonic() >= self.ends

    def is_out(self, seq_id: int, taken: int | None = None, /) -> bool:
        """Return whether an entry is still with this consumer."""
        return not (self.settled is not None and seq_id in self.settled) and not self.is_over()

    def catch_up(self) -> None:
        """Do nothing: the queue is another process's."""

    def has_lapsed(self, seq_id: int, taken: int, /) -> bool:
        """Return whether the message went back unsettled: its lease or its session ended."""
        return not (self.settled is not None and seq_id in self.settled) and self.is_over()

    def marked_back(self, deliveries: Iterable[Delivery]) -> list[tuple[int, int]]:
        """Mark deliveries as taken back. Return their tags and seq_ids, to send to the server."""
        pairs = []
        for one in deliveries:
            pairs.append((cast("BatchDelivery", one).taken, one.seq_id))
            self.mark(one)
        return pairs if self.home.lives(self.generation) else []

    def take_back_uncounted(self, deliveries: Iterable[Delivery], /) -> None:
        """Take back the unsettled deliveries, as if they had not been delivered."""
        raise NotImplementedError


def owner_of(queue: Opens, delivery: Any) -> Owner:
    """Return what settles a delivery of this queue. Raises :class:`UsageError` for any other."""
    try:
        owner: Any = delivery._queue
    except AttributeError:
        raise no_delivery(delivery) from None
    if isinstance(owner, Owner) and owner.home is queue._home:
        if owner.name == queue.name:
            return owner
        raise UsageError(
            f"delivery of seq_id {delivery.seq_id} belongs to queue {owner.name!r}, "
            f"not to {queue.name!r}"
        )
    if isinstance(owner, Refusing):
        raise owner.why(delivery.seq_id)
    if owner is None:
        raise UsageError(f"delivery of seq_id {delivery.seq_id} is settled already")
    raise UsageError(
        f"delivery of seq_id {delivery.seq_id} belongs to queue {owner.name!r} of another "
        f"engine, not to {queue.name!r}"
    )


_GET = wire.GET


def begin(owner: Owner, delivery: Delivery, verb: int, values: tuple[Any, ...] = ()) -> Request:
    """Return the request that settles a delivery, which counts as settled from now on; call
    :func:`failed` if the request fails."""
    owner.check(delivery)
    owner.mark(delivery)
    one = cast("BatchDelivery", delivery)
    tag, seq = one.taken, one.seq_id
    if not values:
        return owner.generation, verb, tag, seq
    if verb == _GET:
        return (owner.generation, verb, *values, tag, seq)
    return (owner.generation, verb, tag, seq, *values)


def failed(owner: Owner, delivery: Delivery, error: BaseException) -> None:
    """Mark a delivery as outstanding again, or as lapsed, after a call to settle it has failed."""
    owner.unmark(delivery)
    if isinstance(error, LeaseExpiredError):
        delivery._queue = LAPSED
        # Not settled: the batch may make the delivery anew, and the next call is to say the same.
        if owner.ahead is not None:
            owner.ahead.unsettled -= 1


def nack_values(delay: float | None, count: bool) -> tuple[Any, ...]:
    """Return the arguments of a NACK."""
    return () if delay is None and count else (delay, count)


def move_values(queue: str, headers: Mapping[str, Any] | None, delay: float | None) -> Request:
    """Return the arguments of a MOVE."""
    if headers is not None:
        headers = wire.table(headers, "headers") or {}
    return queue, headers, delay


def lease_request(owner: Owner, delivery: Delivery, seconds: float) -> Request:
    """Return the request that extends a lease."""
    tag = cast("BatchDelivery", delivery).taken
    return owner.generation, wire.EXTEND_LEASE, tag, delivery.seq_id, seconds


def ack_many(queue: Opens, deliveries: Iterable[Any]) -> Steps[None]:
    """Acknowledge a batch: a huge one passes in several frames."""
    if type(deliveries) is Batch and isinstance(deliveries._queue, Owner):
        owner: Owner = deliveries._queue
        if 0 < len(deliveries) <= wire.MAX_ACKS and not owner.settled and owner.home is queue._home:
            yield owner.generation, wire.ACK_MANY, [deliveries._taken], deliveries.seq_ids
            owner.settled = set(deliveries.seq_ids)
            return
    listed = list(deliveries)
    owners: list[Owner] = []
    for at, one in enumerate(listed):
        if not isinstance(one, Delivery):
            raise no_delivery(one, at, len(listed))
        owners.append(owner_of(queue, one))
        owners[-1].check(one)
    if not listed:
        return
    generation = owners[0].generation
    if any(one.generation != generation for one in owners):
        raise went_back()
    for at in range(0, len(listed), wire.MAX_ACKS):
        some = listed[at : at + wire.MAX_ACKS]
        try:
            yield (
                generation,
                wire.ACK_MANY,
                [one.taken for one in some],
                [one.seq_id for one in some],
            )
        except StoreError as error:
            if at:
                error.args = (f"{error}; the first {at} deliveries are acknowledged",)
            raise
        for its_owner, one in zip(owners[at:], some, strict=False):
            its_owner.mark(one)


def received(owner: Any, values: list[Any]) -> BatchDelivery:
    """Return the delivery of a reply to GET."""
    made = BatchDelivery()
    made._queue = owner
    made.taken, made.seq_id, body, made.redelivered, made._count, extra = values
    made.body = body
    made._extra = extra if type(extra) is int else _extra_of(body, extra)
    return made


def sources_of(home: Home, queues: Iterable[Queue_]) -> list[Queue_]:
    """Return the queues of a get from several, each once. Raises :class:`UsageError`."""
    sources = list(dict.fromkeys(queues))
    for one in sources:
        if one._home is not home:
            raise UsageError(f"queue {one.name!r} is of another engine")
    if not sources:
        raise UsageError("get needs at least one queue")
    return sources


class Several(Opens):
    """Queues that one request is about: their numbers are where that of a queue does."""

    def __init__(self, home: Home, queues: Iterable[Opens]) -> None:
        super().__init__(home, "", (ANY, 0))
        self._queues = queues

    def opening(self, generation: int) -> Generator[Any, list[Any], tuple[int, Any]]:
        """Have the number of each, in this session."""
        numbers = []
        for one in self._queues:
            at = one.at
            if at[0] != generation:
                at = yield from one.opening(generation)
            numbers.append(at[1])
        return generation, numbers


def get_many(
    queue: Opens,
    max_messages: int,
    timeout: float | None,
    lease: float | None,
    owner: Callable[..., Any],
) -> Steps[Batch]:
    """Take up to ``max_messages``: large ones come in several frames."""
    if not isinstance(max_messages, int) or max_messages < 1:
        raise UsageError(f"max_messages must be at least 1, not {max_messages!r}")
    seconds = seconds_to_wait(timeout)
    most = min(max_messages, wire.MAX_MESSAGES)
    generation, values = yield ANY, wire.GET_MANY, most, seconds, lease
    its_owner = owner(queue, generation, lease, is_batch=True)
    if not values:
        return Batch(its_owner, 0)
    parts = []
    left = max_messages
    while values:
        part = batch_of(its_owner, values[0], values[2:])
        parts.append(part)
        left -= len(part)
        if not values[1] or left <= 0:
            break
        try:
            _, values = yield generation, wire.GET_MANY, min(left, most), 0, lease
        except StoreError:
            break  # Damage, which the next call meets; or the server has gone, with the session.
        except BaseException:
            # Cancelled: nobody gets what came until now.
            with contextlib.suppress(StoreError):
                for part in parts:
                    its_owner.take_back_uncounted(part)
            raise
    return parts[0] if len(parts) == 1 else MixedBatch(parts)


def peek(max_messages: int) -> Steps[Batch]:
    """Look at the next messages."""
    if not isinstance(max_messages, int) or max_messages < 0:
        raise UsageError(f"max_messages must be at least 0, not {max_messages!r}")
    most = min(max_messages, wire.MAX_MESSAGES)
    return batch_of(cast("Settles", LOOKED_AT), 0, (yield ANY, wire.PEEK, most)[1])


def batch_of(owner: Settles, tag: int, columns: list[Any]) -> Batch:
    """Return the batch of the columns that the server sent."""
    seqs, bodies, states, extras, counts = columns
    batch = Batch(owner, tag)
    made = [_extra_of(body, extra) for body, extra in zip(bodies, extras, strict=True)]
    batch._extend(array("q", seqs), bodies, states, made)
    batch._counts = counts
    return batch


def find(key: str, max_messages: int) -> Steps[Batch]:
    """Look at the messages with a key."""
    if not isinstance(key, str):
        raise UsageError(f"a key must be a str, not {type(key).__name__}")
    if not isinstance(max_messages, int) or max_messages < 0:
        raise UsageError(f"max_messages must be at least 0, not {max_messages!r}")
    most = min(max_messages, wire.MAX_MESSAGES)
    return batch_of(cast("Settles", LOOKED_AT), 0, (yield ANY, wire.FIND, key, most)[1])


# -- transactions ---------------------------------------------------------------------------------


class InOptions(TypedDict, total=False):
    """The options of :meth:`qindex.Transaction.publish` beside the message."""

    ttl: float | None
    timeout: float | None
    delay: float | None
    at: datetime | None
    priority: int | None
    unique: str | None
    window: float | None
    until: Until


class OpenTransaction:
    """A transaction of a shared store: its requests, and the deliveries that it acknowledges."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._at: tuple[int, int] | None = None
        self._is_over = False
        self._acks: list[tuple[Owner, Delivery]] = []

    def begin(self) -> Request:
        """Return the request that begins it."""
        if self._at is not None or self._is_over:
            raise UsageError("a transaction is used once: make another one")
        return ANY, wire.BEGIN

    def begun(self, generation: int, number: int) -> None:
        """Take note of the reply to :meth:`begin`."""
        self._at = generation, number

    def _request(self, verb: int, *values: Any) -> Request:
        if self._at is None or self._is_over:
            why = "is over" if self._is_over else "must be used in a with block"
            raise UsageError(f"the transaction {why}")
        self.check()
        return self._at[0], verb, self._at[1], *values

    def check(self, error: BaseException | None = None) -> None:
        """Raise :class:`DisconnectedError` if its session has ended, and it with that. ``error``:
        of a request."""
        lost = self._at is not None and not self._home.lives(self._at[0])
        if lost and (error is None or isinstance(error, LeaseExpiredError)):
            text = "the server has gone: the transaction is rolled back"
            raise DisconnectedError(text, maybe_done=False) from error

    def publish(
        self,
        body: Body | Message,
        key: str | None,
        headers: Mapping[str, Any] | None,
        properties: Mapping[str, Any] | None,
        given: InOptions,
    ) -> Request:
        """Return the request that publishes a message."""
        options = options_of(given, InOptions)
        parts = message_parts(message_of(body, key, headers, properties, time_ns()))
        return self._request(wire.PUBLISH_IN, parts, options)

    def ack(self, delivery: Any) -> tuple[Any, Request]:
        """Return the queue of a delivery, and the request that acknowledges it. Call
        :meth:`acked` when that has returned."""
        owner = getattr(delivery, "_queue", None)
        if not isinstance(delivery, Delivery):
            raise no_delivery(delivery)
        if not isinstance(owner, Owner):
            raise refusal_of(delivery)
        if owner.home is not self._home:
            raise UsageError(f"the delivery is of queue {owner.name!r} of another engine")
        owner.check(delivery)
        if not self._home.lives(owner.generation):
            raise went_back()
        tag = cast("BatchDelivery", delivery).taken
        return owner.queue, self._request(wire.ACK_IN, tag, delivery.seq_id)

    def acked(self, delivery: Delivery) -> None:
        """Mark a delivery as settled, by this transaction."""
        owner = cast("Owner", delivery._queue)
        self._acks.append((owner, delivery))
        owner.mark(delivery)

    def end(self, *, commit: bool) -> Request:
        """Return the request that ends it."""
        request = self._request(wire.END, commit)
        self._is_over = True
        return request

    def rolled_back(self) -> None:
        """Mark its deliveries as outstanding again."""
        self._is_over = True
        for owner, delivery in self._acks:
            owner.unmark(delivery)


# -- consumers ------------------------------------------------------------------------------------


class Pushes(Protocol):
    """A connection whose pushes are kept in ``pushed``."""

    pushed: deque[list[Any]]

    def tell(self, *values: Any) -> Any:
        """Make a request whose reply nobody reads."""


class Ahead:
    """The messages that the server has sent a consumer ahead of its loop.

    ``last_tag``: the tag of the last message that the loop got. ``unsettled``: the number of
    messages that it got and has not settled.
    """

    def __init__(self, queue: Opens, prefetch: int, lease: float | None) -> None:
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch must be at least 1, not {prefetch!r}")
        self.queue = queue
        self.prefetch: int = min(prefetch, wire.MAX_MESSAGES)
        self.lease = lease
        self.owner: Callable[..., Any] = Owner
        self.ready: deque[BatchDelivery] = deque()
        self.last_tag: int = 0
        self.unsettled: int = 0

    def hand_out(self) -> BatchDelivery:
        """Return the next message for the loop."""
        delivery = self.ready.popleft()
        self.last_tag = delivery.taken
        self.unsettled += 1
        return delivery

    def take_in(self, link: Pushes, generation: int) -> None:
        """Take the pushed messages. Raises the error that the server has met."""
        while link.pushed:
            found = link.pushed.popleft()
            if found[1] == wire.ERROR:
                link.tell(wire.WANT, False, self.last_tag)
                raise wire.error_of(*found[2:5])
            owner = self.owner(self.queue, generation, self.lease, ahead=self)
            tag, seqs, bodies, states, extras, counts = found[2:]
            for seq, body, state, extra in zip(seqs, bodies, states, extras, strict=True):
                again = state == DELIVERED
                made = received(owner, [tag, seq, body, again, counts.get(seq, 0), extra])
                tag += 1
                self.ready.append(made)

    def await_one(
        self, link: Pushes, generation: int, deadline: float | None
    ) -> Generator[Request, Any, bool]:
        """Wait until there is a message, or the deadline has passed. Yields seconds to wait for the
        next push, and is sent whether one came; or yields a request."""
        self.take_in(link, generation)
        if self.ready:
            return True
        if self.lease is not None or 2 * self.unsettled > self.prefetch:
            link.tell(wire.WANT, False, self.last_tag)
        warn_at: float | None = monotonic() + _LONG_HELD
        while not self.ready:
            is_full = self.unsettled >= self.prefetch
            seconds = None if deadline is None else deadline - monotonic()
            if is_full:
                # As long as it takes: somebody settles one, or a lease ends.
                seconds = min(_LONG_HELD, self.lease or _LONG_HELD)
            if not (yield (seconds,)) and not is_full:
                # Messages that came just now are before the reply.
                yield ANY, wire.WANT, True, self.last_tag
                self.take_in(link, generation)
                return bool(self.ready)
            if is_full and not link.pushed:
                if warn_at is not None and monotonic() >= warn_at:
                    warn_at = None
                    _log.warning(
                        "queue %r: consume waits: all %d messages of its prefetch are "
                        "unacknowledged",
                        self.queue.name,
                        self.unsettled,
                    )
                link.tell(wire.WANT, False, self.last_tag)
            self.take_in(link, generation)
        return True


# -- the whole store ------------------------------------------------------------------------------


def opening(name: str, given: QueueOptions) -> tuple[Coder | None, dict[str, Any], list[str]]:
    """Return the coder of a queue that is asked for, the settings to set, and the names of those to
    take away."""
    checked_name(name)
    _check_names(given, QueueOptions)
    settings: dict[str, Any] = {**given}
    serializer = settings.pop("serializer", None)
    coder = None if serializer is None else coder_of(serializer)
    return coder, *settings_of(settings)


def settings_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings to set, and the names of those to take away."""
    unset = [name for name, value in given.items() if isinstance(value, Enum)]
    values = {
        name: value for name, value in given.items() if value is not None and name not in unset
    }
    return values, unset
