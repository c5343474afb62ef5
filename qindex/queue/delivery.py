"""One message handed to a consumer."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, overload

from journal.arguments import refuse_pickling
from journal.errors import LeaseExpiredError, StoreError, UsageError
from qindex.format.message import Message, Microseconds, Nanoseconds
from qindex.format.priorities import SHIFT, properties_of
from qindex.format.values import value_as, value_of

if TYPE_CHECKING:
    from qindex.format.entries import Entry
    from qindex.index.read_ahead import Extras

T = TypeVar("T")

DELIVERED = 2
"""As :data:`qindex.index.segment.DELIVERED`, whose module needs numpy: clients of a server have
deliveries, too."""


class Settles(Protocol):
    """The part of a queue that its deliveries need."""

    name: str

    def ack(self, delivery: Delivery, /) -> Callable[[], None] | None:
        """Acknowledge it. Returns what makes that durable, where it is to be so on return."""

    def nack(
        self, delivery: Delivery, delay: float | None = None, count: bool = True, /
    ) -> Callable[[], None] | None:
        """Requeue it, to be delivered again."""

    def reject(self, delivery: Delivery, reason: str | None = None, /) -> Callable[[], None] | None:
        """Refuse it for good."""

    def move(
        self,
        delivery: Delivery,
        queue: str,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
        /,
    ) -> None:
        """Put it into another queue."""

    def extend_lease(self, delivery: Delivery, seconds: float, /) -> None:
        """Let its lease end later."""

    def take_back_uncounted(self, deliveries: Iterable[Delivery], /) -> None:
        """Take back the unsettled deliveries, as if they had not been delivered."""

    def catch_up(self) -> None:
        """Do what settling has found due, or wait for it. No lock is held."""

    def is_out(self, seq_id: int, taken: int | None = None, /) -> bool:
        """Return whether an entry is still with a consumer."""

    def has_lapsed(self, seq_id: int, taken: int, /) -> bool:
        """Return whether the lease of an entry has run out that was taken with a batch."""


class Refusing:
    """The owner of deliveries that can't be settled: each call raises `why(seq_id)`."""

    name = ""

    def __init__(self, why: Callable[[int], StoreError]) -> None:
        self.why = why

    def ack(self, delivery: Delivery, /) -> NoReturn:
        """Refuse, as do the other ways to settle."""
        raise self.why(delivery.seq_id)

    def nack(self, delivery: Delivery, /, *_how: object) -> NoReturn:
        """See :meth:`ack`."""
        self.ack(delivery)

    def reject(self, delivery: Delivery, /, *_how: object) -> NoReturn:
        """See :meth:`ack`."""
        self.ack(delivery)

    def move(self, delivery: Delivery, /, *_how: object) -> NoReturn:
        """See :meth:`ack`."""
        self.ack(delivery)

    def extend_lease(self, delivery: Delivery, /, *_how: object) -> NoReturn:
        """See :meth:`ack`."""
        self.ack(delivery)

    def take_back_uncounted(self, deliveries: Iterable[Delivery], /) -> None:
        """Do nothing: they came back, or were never out."""

    def catch_up(self) -> None:
        """Do nothing."""

    def is_out(self, seq_id: int, taken: int | None = None, /) -> bool:
        """Return False: none of them is with a consumer."""
        return False

    def has_lapsed(self, seq_id: int, taken: int, /) -> bool:
        """Return whether they came back when their lease ran out."""
        return self is LAPSED


def lease_expired(seq_id: int) -> LeaseExpiredError:
    """Say that a delivery came back when its lease ran out."""
    return LeaseExpiredError(
        f"the lease of the delivery of seq_id {seq_id} has run out: the message went back to its "
        "queue"
    )


def _only_looked_at(seq_id: int) -> UsageError:
    return UsageError(
        f"the message of seq_id {seq_id} was only looked at: take it with get to settle it"
    )


def no_delivery(what: object, at: int = 0, count: int = 1) -> UsageError:
    """Say that this is not a delivery; ``at``: its place in a batch of ``count``."""
    where = "" if count == 1 else f"item {at} of the batch is "
    return UsageError(f"{where}not a delivery: {type(what).__name__}")


LAPSED = Refusing(lease_expired)
LOOKED_AT = Refusing(_only_looked_at)
"""The owner of what `peek`, a read-only engine or a follower shows."""


class Delivery:
    """A message with its place in the queue, until it is acknowledged or given back.

    ``seq_id``: its place; ``body``: the bytes that were published; ``redelivered``: it was
    delivered before. Used in a ``with`` block it is acknowledged at the end, and requeued when
    the block raises; it does not count as delivered then where the program is ended (Ctrl-C,
    ``SystemExit``). A lease that ran out meanwhile is a :class:`RuntimeWarning`.
    """

    __slots__ = ("_count", "_extra", "_queue", "body", "redelivered", "seq_id")

    # There is no __init__: it would cost as much as all that it sets. make_delivery and the path of
    # a single get make the object.
    _queue: Settles | None
    seq_id: int
    body: bytes
    redelivered: bool
    _extra: int | Entry
    """The timestamp of a plain message, or all there is of another."""
    _count: int
    """Set where it is known; a plain first delivery pays nothing for it."""

    @property
    def message(self) -> Message:
        """The whole message: body, key, headers, properties, timestamp."""
        extra = self._extra
        if isinstance(extra, int):
            return Message(self.body, properties=properties_of(self.seq_id), timestamp=extra)
        assert extra.message is not None
        return extra.message

    @property
    def key(self) -> str | None:
        """The key it was published with."""
        return None if isinstance(self._extra, int) else self.message.key

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers it was published with; empty where there were none."""
        return {} if isinstance(self._extra, int) else self.message.headers

    @property
    def properties(self) -> Mapping[str, Any]:
        """The properties it was published with; empty where there were none."""
        if isinstance(self._extra, int):
            return properties_of(self.seq_id)
        return self.message.properties

    @property
    def value(self) -> Any:
        """The value that was published, as its content type says. Raises :class:`UsageError` where
        there is none, or this process does not know it."""
        return value_of(self.message)

    def value_as(self, kind: type[T]) -> T:
        """Return the value as a dataclass or a pydantic model.

        Args:
            kind: The class.

        Returns:
            An object of ``kind``.

        Raises:
            UsageError: The body is not such a value; the delivery can still be settled.

        Example:
            >>> delivery.value_as(Order).number
            17
        """
        return value_as(self.message, kind)

    @property
    def timestamp(self) -> Nanoseconds:
        """When it was published, in nanoseconds since 1970 UTC, as :func:`time.time_ns` gives them;
        0 where the record keeps no time."""
        extra = self._extra
        return extra if isinstance(extra, int) else self.message.timestamp

    @property
    def queue_name(self) -> str:
        """The name of the queue that delivered it; empty once it is settled."""
        return "" if self._queue is None else self._queue.name

    @property
    def priority(self) -> int:
        """Its priority; 0 in a queue without priorities."""
        return self.seq_id >> SHIFT

    @property
    def expiry(self) -> Microseconds | None:
        """When it expires, in microseconds since 1970 UTC, or ``None``."""
        extra = self._extra
        return None if isinstance(extra, int) or not extra.expiry else extra.expiry

    @property
    def delivery_count(self) -> int:
        """Count its deliveries, this one included: 1 for the first.

        Counted as long as the engine is open; over restarts in queues with a ``delivery_limit``.
        Elsewhere a message that was delivered before a restart has 2.
        """
        try:
            count = self._count
        except AttributeError:
            count = 0
        return count or (2 if self.redelivered else 1)

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or given back (or was only looked at)."""
        return self._queue is None or not self._queue.is_out(self.seq_id)

    def ack(self) -> None:
        """Acknowledge; see :meth:`qindex.Queue.ack`."""
        owner = self._its_queue()
        due = owner.ack(self)
        if due is not None:
            due()
        owner.catch_up()

    def nack(self, *, delay: float | None = None, count: bool = True) -> None:
        """Requeue the message, to be delivered again at its place.

        Args:
            delay: Seconds before which it is not delivered. None: the queue's ``backoff``.
            count: Count the attempt towards the ``delivery_limit``.

        Raises:
            StoreError: As :meth:`qindex.Queue.nack`.
        """
        owner = self._its_queue()
        due = owner.nack(self, delay, count)
        if due is not None:
            due()
        owner.catch_up()

    def reject(self, reason: str | None = None) -> None:
        """Refuse the message for good: it becomes a dead letter, or is dropped.

        Args:
            reason: A text for the reader of the dead letter, ``cause`` in ``x-death``.

        Raises:
            StoreError: As :meth:`qindex.Queue.reject`; the delivery is as it was.
        """
        owner = self._its_queue()
        due = owner.reject(self, reason)
        if due is not None:
            due()
        owner.catch_up()

    def move(
        self, queue: str, *, headers: Mapping[str, Any] | None = None, delay: float | None = None
    ) -> None:
        """Put the message into another queue, all or nothing.

        Args:
            queue: The name of the queue.
            headers: New headers. None: the message's own.
            delay: Seconds before which it is not delivered there.

        Raises:
            StoreError: As :meth:`qindex.Queue.move`; the delivery is as it was.
        """
        owner = self._its_queue()
        owner.move(self, queue, headers, delay)
        owner.catch_up()

    def extend_lease(self, seconds: float) -> None:
        """Let the lease end ``seconds`` from now.

        Args:
            seconds: The new time that is left; a lease never gets shorter.

        Raises:
            UsageError: It is settled or has no lease, or the lease would get shorter.
            LeaseExpiredError: The lease has run out.
        """
        self._its_queue().extend_lease(self, seconds)

    def _its_queue(self) -> Settles:
        if self._queue is None:
            raise UsageError(f"delivery of seq_id {self.seq_id} is settled already")
        return self._queue

    def _has_lapsed(self) -> bool:
        """Return whether its lease has run out before it was settled."""
        return self._queue is LAPSED

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_lapsed():
            what = f"the lease of seq_id {self.seq_id} ran out in its with block: it comes again"
            warnings.warn(what, RuntimeWarning, stacklevel=2)
        elif self.settled:
            return
        elif kind is None:
            self.ack()
        elif issubclass(kind, Exception):
            self.nack()
        else:
            # The program ends (Ctrl-C, SystemExit): its handler neither lost nor refused it.
            self._its_queue().take_back_uncounted([self])

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        again = ", redelivered" if self.redelivered else ""
        return f"<Delivery seq_id={self.seq_id}, {len(self.body)} bytes{again}>"


def refusal_of(delivery: Delivery) -> StoreError:
    """Return the error for a delivery that nothing can settle any more."""
    owner = delivery._queue
    if delivery._has_lapsed():
        return lease_expired(delivery.seq_id)
    if isinstance(owner, Refusing):
        return owner.why(delivery.seq_id)
    return UsageError(f"delivery of seq_id {delivery.seq_id} is settled already")


def make_delivery(
    queue: Settles | None, seq_id: int, body: bytes, redelivered: bool, extra: int | Entry
) -> Delivery:
    """Make one; ``queue``: where it is to be settled."""
    made = Delivery()
    made._queue = queue
    made.seq_id = seq_id
    made.body = body
    made.redelivered = redelivered
    made._extra = extra
    return made


class BatchDelivery(Delivery):
    """One message of a :class:`Batch`, made when it is looked at.

    ``taken``: how many messages of the queue had been given back when the batch was taken.
    """

    __slots__ = ("taken",)

    taken: int

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or given back."""
        return self._queue is None or not self._queue.is_out(self.seq_id, self.taken)

    def _has_lapsed(self) -> bool:
        return self._queue is not None and self._queue.has_lapsed(self.seq_id, self.taken)


class Batch(Sequence[Delivery]):
    """Deliveries taken at once, in order; acknowledge them with ``ack_many``.

    A sequence that makes its deliveries as they are looked at; a slice of it is a batch, too, and
    ``+`` makes a list. ``bodies`` are there at no cost.
    """

    __slots__ = (
        "_base",
        "_counts",
        "_extras",
        "_listed",
        "_ordered",
        "_queue",
        "_seqs",
        "_states",
        "_taken",
        "bodies",
    )

    def __init__(self, queue: Settles, taken: int) -> None:
        self._queue = queue
        self._taken = taken
        self._seqs: array[int] = array("q")
        self._listed: list[int] = []
        self.bodies: list[bytes] = []
        self._states = bytearray()
        self._extras: Extras = []
        self._counts: dict[int, int] = {}
        # Added to a seq_id of the index it makes the seq_id that users get.
        self._base = 0
        # The seq_ids ascend: no delayed message is among them.
        self._ordered = True

    def _set_counts(self, counts: dict[int, int]) -> None:
        """Take over how often messages were delivered, by seq_id; those with 0 are taken out."""
        if 0 in counts.values():
            kept = [at for at, seq in enumerate(self._seqs) if counts.get(seq) != 0]
            self._seqs = array("q", [self._seqs[at] for at in kept])
            self.bodies = [self.bodies[at] for at in kept]
            self._states = bytearray(self._states[at] for at in kept)
            self._extras = [self._extras[at] for at in kept]
        self._counts = counts

    def _extend(
        self,
        seqs: array[int],
        bodies: list[bytes],
        states: bytes | bytearray,
        extras: Extras,
    ) -> None:
        """Add columns, which are its own from now on."""
        if not self.bodies:
            self._seqs, self.bodies, self._extras = seqs, bodies, extras
        else:
            self._ordered = self._ordered and (not seqs or self._seqs[-1] < seqs[0])
            self._seqs += seqs
            self.bodies += bodies
            if type(extras) is not type(self._extras):
                self._extras = list(self._extras)
            self._extras += extras
        self._states += states

    @property
    def seq_ids(self) -> list[int]:
        """Their seq_ids, in the order of delivery; a list that is made at the first use."""
        if len(self._listed) != len(self._seqs):
            self._listed = self._seqs.tolist()
            if self._base:
                self._listed = [self._base + seq for seq in self._listed]
        return self._listed

    def __len__(self) -> int:
        return len(self._seqs)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Delivery | Batch:
        if isinstance(index, slice):
            part = Batch(self._queue, self._taken)
            part._seqs, part.bodies = self._seqs[index], self.bodies[index]
            part._states, part._extras = self._states[index], self._extras[index]
            part._counts = self._counts
            part._base = self._base
            part._ordered = self._ordered and (index.step or 1) > 0
            return part
        made = BatchDelivery()
        made._queue = self._queue
        made.seq_id = self._base + self._seqs[index]
        made.body = self.bodies[index]
        made.redelivered = self._states[index] == DELIVERED
        made._extra = self._extras[index]
        made.taken = self._taken
        return self._counted(made)

    def _counted(self, delivery: Delivery) -> Delivery:
        count = self._counts.get(delivery.seq_id - self._base)
        if count:
            delivery._count = count
        return delivery

    def __iter__(self) -> Iterator[Delivery]:
        made = self._each()
        return map(self._counted, made) if self._counts else made

    def _each(self) -> Iterator[Delivery]:
        queue, taken, base = self._queue, self._taken, self._base
        columns = zip(self._seqs, self.bodies, self._states, self._extras, strict=True)
        for seq_id, body, state, extra in columns:
            made = BatchDelivery()
            made._queue = queue
            made.seq_id = base + seq_id
            made.body = body
            made.redelivered = state == DELIVERED
            made._extra = extra
            made.taken = taken
            yield made

    def __add__(self, more: Iterable[Delivery]) -> list[Delivery]:
        return [*self, *more]

    def __radd__(self, before: Iterable[Delivery]) -> list[Delivery]:
        return [*before, *self]

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} deliveries>"


class MixedBatch(Batch):
    """Deliveries of several levels of a priority queue, taken at once: a batch of each."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Batch]) -> None:
        super().__init__(parts[0]._queue, 0)
        self._parts = parts
        self._ordered = False
        self._extras = []
        for part in parts:
            self._seqs += array("q", part.seq_ids)
            self.bodies.extend(part.bodies)
            self._states += part._states
            self._extras += part._extras
            self._counts |= {part._base + seq: count for seq, count in part._counts.items()}

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Delivery | Batch:
        chosen = range(len(self))[index]
        if isinstance(chosen, int):
            for part in self._parts:
                if chosen < len(part):
                    return part[chosen]
                chosen -= len(part)
        assert isinstance(chosen, range)
        parts, start = [], 0
        for part in self._parts:
            inside = [at - start for at in chosen if start <= at < start + len(part)]
            start += len(part)
            if inside:
                end = inside[-1] + (1 if chosen.step > 0 else -1)
                parts.append(part[inside[0] : end if end >= 0 else None : chosen.step])
        parts = parts if chosen.step > 0 else parts[::-1]
        return MixedBatch(parts) if parts else self._parts[0][:0]

    def __iter__(self) -> Iterator[Delivery]:
        return chain.from_iterable(self._parts)


def parts_of(batch: Batch) -> Sequence[Batch]:
    """Return the batches that a batch is made of, each of one level of a queue."""
    return batch._parts if isinstance(batch, MixedBatch) else (batch,)
