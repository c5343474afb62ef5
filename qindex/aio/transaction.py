"""Transactions of coroutines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import time_ns
from types import TracebackType
from typing import Any, Unpack

from qindex.aio.delivery import Delivery
from qindex.aio.queue import Queue
from qindex.aio.threads import Helper, asked_to_end
from qindex.aio.waiting import with_room
from qindex.client.calls import InOptions
from qindex.engine import transactions as plain
from qindex.format.message import Body, Message, message_of
from qindex.format.values import Value
from qindex.queue.delivery import no_delivery
from qindex.queue.notes.delays import due_time


class Transaction:
    """As :class:`qindex.Transaction`, used in an ``async with`` block. Made by
    :meth:`qindex.aio.Engine.transaction`.

    A block that is cancelled rolls back, also if the cancellation comes with the block's end. Once
    the commit has begun it goes on, and the cancellation is raised when it has ended.
    """

    __slots__ = ("_helper", "_plain")

    def __init__(self, transaction: plain.Transaction, helper: Helper) -> None:
        self._plain = transaction
        self._helper = helper

    async def __aenter__(self) -> Transaction:
        await self._helper.finish(self._plain.__enter__)
        return self

    async def publish(
        self,
        queue: str | Queue,
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
        coder = queue._queue._coder if isinstance(queue, Queue) else None
        given: Any = body
        if coder is not None:
            given, properties = coder.encode(body, properties)
        message = message_of(given, key, headers, properties, time_ns())
        how: Any = options
        timeout = how.pop("timeout", None)
        due = due_time(how.pop("delay", None), how.pop("at", None))
        target = queue._queue if isinstance(queue, Queue) else queue
        publish = partial(self._plain._publish, target, message, due=due, **how)
        return await with_room(partial(self._helper.finish, publish), timeout, self._helper)

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery when the transaction is committed.

        Args:
            delivery: A delivery of this store that is not settled.
        """
        if not isinstance(delivery, Delivery):
            raise no_delivery(delivery)
        await self._helper.finish(partial(self._plain.ack, delivery._plain))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        cancelled = None if error is not None else await asked_to_end()
        end = partial(self._plain.__exit__, kind, error or cancelled, trace)
        await self._helper.finish(end)
        if cancelled is not None:
            raise cancelled
