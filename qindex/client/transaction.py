"""Transactions of a shared store: :class:`qindex.Transaction` in another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Unpack

from journal.errors import DisconnectedError, LeaseExpiredError
from qindex.client.calls import InOptions, OpenTransaction, Request
from qindex.client.link import Home
from qindex.client.shared_queue import SharedQueue
from qindex.format.message import Body, Message
from qindex.format.values import Value
from qindex.queue.delivery import Delivery


class SharedTransaction:
    """As :class:`qindex.Transaction`. Made by
    :meth:`qindex.client.engine.SharedEngine.transaction`, and used in a ``with`` block.

    It is rolled back if the client or the server dies before the block ends.
    """

    def __init__(self, home: Home, queue_of: Callable[[str], SharedQueue]) -> None:
        self._home = home
        self._queue_of = queue_of
        self._calls = OpenTransaction(home)

    def __enter__(self) -> SharedTransaction:
        generation, found = self._home.call_together(None, (self._calls.begin(),))
        self._calls.begun(generation, found[0])
        return self

    def publish(
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
        target = queue if isinstance(queue, SharedQueue) else self._queue_of(queue)
        given: Any = body
        if target._coder is not None:
            given, properties = target._coder.encode(body, properties)
        request = self._calls.publish(given, key, headers, properties, options)
        seq: int = self._make(target, request)[0]
        return seq

    def _make(self, queue: SharedQueue | None, request: Request) -> list[Any]:
        try:
            return self._home.make(queue, request)
        except LeaseExpiredError as error:
            self._calls.check(error)
            raise

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery when the transaction is committed.

        Args:
            delivery: A delivery of this store that is not settled.
        """
        queue, request = self._calls.ack(delivery)
        self._make(queue, request)
        self._calls.acked(delivery)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            with suppress(DisconnectedError):  # it was rolled back by that
                self._make(None, self._calls.end(commit=False))
            self._calls.rolled_back()
            return
        try:
            self._make(None, self._calls.end(commit=True))
        except BaseException:
            self._calls.rolled_back()
            raise
