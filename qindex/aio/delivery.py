"""A message handed to a coroutine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar, overload

from qindex.format.message import Message, Microseconds, Nanoseconds
from qindex.queue import delivery as plain

T = TypeVar("T")


class Settling(Protocol):
    """The part of :class:`qindex.aio.queue.Queue` that a delivery is settled by."""

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery."""

    async def nack(
        self, delivery: Delivery, *, delay: float | None = None, count: bool = True
    ) -> None:
        """Requeue a delivery, to be delivered again."""

    async def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a delivery for good."""

    async def move(
        self,
        delivery: Delivery,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        """Put a delivery into another queue."""

    async def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end later."""


class Delivery:
    """A message with its place in the queue, until it is acknowledged or given back.

    ``seq_id``, ``body``, ``redelivered`` and all that can be read: as in
    :class:`qindex.queue.delivery.Delivery`. Used in an ``async with`` block it is acknowledged at
    the end, and requeued when the block raises or is cancelled.
    """

    __slots__ = ("_plain", "_queue", "body", "redelivered", "seq_id")

    def __init__(self, queue: Settling, delivery: plain.Delivery) -> None:
        self._queue = queue
        self._plain = delivery
        self.seq_id: int = delivery.seq_id
        self.body: bytes = delivery.body
        self.redelivered: bool = delivery.redelivered

    @property
    def message(self) -> Message:
        """The whole message: body, key, headers, properties, timestamp."""
        return self._plain.message

    @property
    def key(self) -> str | None:
        """The key it was published with."""
        return self._plain.key

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers it was published with; empty where there were none."""
        return self._plain.headers

    @property
    def properties(self) -> Mapping[str, Any]:
        """The properties it was published with; empty where there were none."""
        return self._plain.properties

    @property
    def queue_name(self) -> str:
        """The name of the queue that delivered it; empty once it is settled."""
        return self._plain.queue_name

    @property
    def priority(self) -> int:
        """Its priority; 0 in a queue without priorities."""
        return self._plain.priority

    @property
    def value(self) -> Any:
        """The value that was published; see :attr:`qindex.queue.delivery.Delivery.value`."""
        return self._plain.value

    def value_as(self, kind: type[T]) -> T:
        """Return the value as a dataclass or a pydantic model.

        Args:
            kind: The class.

        Returns:
            An object of ``kind``.
        """
        return self._plain.value_as(kind)

    @property
    def timestamp(self) -> Nanoseconds:
        """When it was published, in nanoseconds since 1970 UTC; 0: the record keeps no time."""
        return self._plain.timestamp

    @property
    def expiry(self) -> Microseconds | None:
        """When it expires, in microseconds since 1970 UTC, or ``None``."""
        return self._plain.expiry

    @property
    def delivery_count(self) -> int:
        """Count its deliveries, this one included."""
        return self._plain.delivery_count

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or given back (or was only looked at)."""
        return self._plain.settled

    async def ack(self) -> None:
        """Acknowledge: the message never comes back."""
        await self._queue.ack(self)

    async def nack(self, *, delay: float | None = None, count: bool = True) -> None:
        """Requeue the message at its place, to be delivered again.

        Args:
            delay: Seconds before which it is not delivered again. None: the queue's ``backoff``.
            count: Whether this delivery counts towards the ``delivery_limit``.
        """
        await self._queue.nack(self, delay=delay, count=count)

    async def reject(self, reason: str | None = None) -> None:
        """Refuse the message for good: it becomes a dead letter, or is dropped.

        Args:
            reason: A text for the reader of the dead letter.
        """
        await self._queue.reject(self, reason)

    async def move(
        self, queue: str, *, headers: Mapping[str, Any] | None = None, delay: float | None = None
    ) -> None:
        """Put the message into another queue, all or nothing.

        Args:
            queue: The name of the other queue, which is made if there is none.
            headers: The message's new headers. None: its present ones.
            delay: Seconds before which it is not delivered there.
        """
        await self._queue.move(self, queue, headers=headers, delay=delay)

    async def extend_lease(self, seconds: float) -> None:
        """Let the lease end ``seconds`` from now.

        Args:
            seconds: The new time that is left.
        """
        await self._queue.extend_lease(self, seconds)

    async def __aenter__(self) -> Delivery:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self.settled:
            await self.ack()
        elif kind is not None and issubclass(kind, Exception) and not self.settled:
            await self.nack()
        else:
            # A cancellation, or the end of the program: it gives back what its handler neither lost
            # nor refused. And a lease that ran out is warned of.
            self._plain.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return repr(self._plain)


class Batch(Sequence[Delivery]):
    """The result of :meth:`qindex.aio.queue.Queue.get_many`: deliveries in order of ``seq_id``.

    Makes its deliveries as they are looked at; a slice of it is also a batch, and ``+`` makes a
    list. ``bodies`` are there at no cost.
    """

    __slots__ = ("_plain", "_queue")

    def __init__(self, queue: Settling, batch: plain.Batch) -> None:
        self._queue = queue
        self._plain = batch

    @property
    def bodies(self) -> list[bytes]:
        """The bodies, in order."""
        return self._plain.bodies

    @property
    def seq_ids(self) -> list[int]:
        """The seq_ids, in the order of delivery."""
        return self._plain.seq_ids

    def __len__(self) -> int:
        return len(self._plain)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Delivery | Batch:
        if isinstance(index, slice):
            return Batch(self._queue, self._plain[index])
        return Delivery(self._queue, self._plain[index])

    def __iter__(self) -> Iterator[Delivery]:
        queue = self._queue
        return (Delivery(queue, one) for one in self._plain)

    def __add__(self, more: Iterable[Delivery]) -> list[Delivery]:
        return [*self, *more]

    def __radd__(self, before: Iterable[Delivery]) -> list[Delivery]:
        return [*before, *self]

    def __repr__(self) -> str:
        return repr(self._plain)
