"""One message handed to a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from journal.errors import UsageError
from qindex.entries import Entry
from qindex.message import Message

if TYPE_CHECKING:
    from qindex.consumer import Consumer

__all__ = ["Batch", "Delivery"]


class Delivery:
    """A message with its place in the queue, until it is acknowledged or given back.

    ``seq_id``: its place; ``body``: the bytes that were published; ``redelivered``: it was
    delivered before. Used in a ``with`` block it is acknowledged at the end, and requeued when
    the block raises.
    """

    __slots__ = ("_extra", "_queue", "body", "redelivered", "seq_id")

    body: bytes

    def __init__(
        self,
        queue: Consumer | None,
        seq_id: int,
        body: bytes,
        redelivered: bool,
        extra: int | Entry,
    ) -> None:
        self._queue = queue
        self.seq_id = seq_id
        self.body = body
        self.redelivered = redelivered
        # The timestamp of a plain message, or all there is of another.
        self._extra = extra

    @property
    def message(self) -> Message:
        """The whole message: body, key, headers, properties, timestamp."""
        extra = self._extra
        if isinstance(extra, int):
            return Message(self.body, timestamp=extra)
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
        return {} if isinstance(self._extra, int) else self.message.properties

    @property
    def timestamp(self) -> float:
        """When it was published, in seconds since 1970 UTC; 0 where the record keeps no time."""
        extra = self._extra
        return (extra if isinstance(extra, int) else self.message.timestamp) / 1e9

    @property
    def expires(self) -> float | None:
        """When it expires, in seconds since 1970 UTC, or ``None``."""
        extra = self._extra
        return None if isinstance(extra, int) or not extra.expiry else extra.expiry / 1e6

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or given back (or was only looked at)."""
        return self._queue is None

    def ack(self) -> None:
        """Acknowledge; see :meth:`qindex.queue.Queue.ack`."""
        self._its_queue().ack(self)

    def nack(self, requeue: bool = True) -> None:
        """Give back; see :meth:`qindex.queue.Queue.nack`."""
        self._its_queue().nack(self, requeue=requeue)

    def _its_queue(self) -> Consumer:
        if self._queue is None:
            raise UsageError(f"delivery of seq_id {self.seq_id} is settled already")
        return self._queue

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._queue is not None:
            if kind is None:
                self.ack()
            else:
                self.nack(requeue=True)

    def __repr__(self) -> str:
        again = ", redelivered" if self.redelivered else ""
        return f"<Delivery seq_id={self.seq_id}, {len(self.body)} bytes{again}>"


class Batch(list[Delivery]):
    """Deliveries taken at once, in order; acknowledge them with ``ack_many``."""

    __slots__ = ()

    @property
    def bodies(self) -> list[bytes]:
        """The bodies, in order."""
        return [delivery.body for delivery in self]
