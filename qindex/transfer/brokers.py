"""``push`` and ``pull``: a queue's messages into a RabbitMQ broker, and out of one.

The giving side lets go of a message last: a push acknowledges it in the queue when the broker has
confirmed it, a pull acknowledges it to the broker when it is durable in the queue. Cut off in
between, a message is on both sides; it is never on none. Without a crash each is moved once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pika

from journal.errors import UsageError
from qindex.queue.delivery import Delivery
from qindex.transfer.amqp import (
    BrokerError,
    GuardedConnection,
    answered_within,
    blocking_connection,
    broker_errors,
    incoming,
    outgoing,
    parameters_of,
    raw_properties,
)
from qindex.transfer.ends import (
    EitherQueue,
    give_back_uncounted,
    most_bytes,
    restore,
    take_uncounted,
)

__all__ = ["BATCH", "PushReport", "pull", "push", "ready"]

BATCH = 500
"""Messages under way at a time."""
_BATCH_BYTES = 16 << 20
_SECONDS = 60.0
"""That a broker may take to answer, or to confirm a batch, before it counts as gone."""

Told = Callable[[int], None]


@dataclass(slots=True)
class PushReport:
    """``messages``: confirmed by the broker and acknowledged in the queue; ``refused``: the broker
    did not take them (a full queue that rejects): they are back in their place."""

    messages: int = 0
    refused: int = 0


def push(
    queue: EitherQueue,
    url: str,
    *,
    to: str | None = None,
    exchange: str = "",
    count: int | None = None,
    batch: int = BATCH,
    told: Told | None = None,
) -> PushReport:
    """Publish a queue's messages to a broker, with publisher confirms.

    It ends when the queue is empty, or at the first batch of which the broker refuses any. Messages
    that it does not confirm return to their places, and this delivery does not count towards the
    ``delivery_limit``.

    Args:
        queue: The queue.
        url: The broker, ``amqp://user:password@host:port/vhost``.
        to: The broker's queue, which must exist. None: that of the same name. With ``exchange``,
            the routing key of messages without a key.
        exchange: An exchange that gets the messages, each with its own key.
        count: The most messages. None: all.
        batch: Messages under way at a time.
        told: Called after each batch with the number of messages so far.

    Returns:
        What the broker confirmed and refused.

    Raises:
        BrokerError: The broker can't be reached, or went away.
        UsageError: AMQP can't hold a message.
    """
    report = PushReport()
    target = to or queue.name
    with broker_errors(url):
        broker = _Publisher(parameters_of(url))
        try:
            broker.open(target if not exchange else None)
            while not report.refused and (count is None or report.messages < count):
                most = batch if count is None else min(batch, count - report.messages)
                if not _push_batch(queue, broker, most, target, exchange, report):
                    break
                if told is not None:
                    told(report.messages)
        finally:
            broker.close()
    return report


def _push_batch(
    queue: EitherQueue,
    broker: _Publisher,
    most: int,
    target: str,
    exchange: str,
    report: PushReport,
) -> bool:
    """Move a batch; false when there was none."""
    held = take_uncounted(queue, most)
    try:
        frames = []
        for delivery in held:
            key = (delivery.key or target) if exchange else target
            frames.append((exchange, key, *outgoing(delivery)))
        try:
            confirmed = broker.publish(frames)
        except BaseException:
            _settle(queue, held, broker.confirmed, report)
            raise
        _settle(queue, held, confirmed, report)
    finally:
        give_back_uncounted(queue, held)
    report.refused = len(held) - len(confirmed)
    return bool(held)


def _settle(
    queue: EitherQueue, held: list[Delivery], confirmed: set[int], report: PushReport
) -> None:
    done = [delivery for at, delivery in enumerate(held) if at in confirmed]
    queue.ack_many(done)
    report.messages += len(done)


class _Publisher:
    """A connection with one channel that confirms. pika's loop runs only while this waits."""

    def __init__(self, parameters: Any) -> None:
        self.confirmed: set[int] = set()
        self._failure: BaseException | None = None
        self._waiting: set[int] = set()
        self._first_tag = 1
        self._next_tag = 1
        self._returned = False
        self._channel: Any = None
        self._closing = False
        self._connection = GuardedConnection(
            parameters,
            on_open_callback=lambda _: self._stop(),
            on_open_error_callback=lambda _, error: self._fail(error),
            on_close_callback=lambda _, error: self._fail(error),
        )

    def open(self, queue: str | None) -> None:
        """Open the channel; see that ``queue`` is there."""
        self._run()
        self._channel = self._connection.channel(on_open_callback=lambda _: self._stop())
        self._channel.add_on_close_callback(lambda _, error: self._fail(error))
        self._channel.add_on_return_callback(self._on_return)
        self._run()
        if queue is not None:
            self._channel.queue_declare(queue, passive=True, callback=lambda _: self._stop())
            self._run()
        self._channel.confirm_delivery(self._on_confirm, callback=lambda _: self._stop())
        self._run()

    def publish(self, frames: list[tuple[str, str, Any, bytes]]) -> set[int]:
        """Publish a batch. Return the places of the messages that the broker confirmed."""
        self.confirmed, self._returned = set(), False
        if not frames:
            return self.confirmed
        self._first_tag = self._next_tag
        self._waiting = set(range(len(frames)))
        for exchange, key, properties, body in frames:
            self._channel.basic_publish(exchange, key, body, properties, mandatory=True)
            self._next_tag += 1
        self._run()
        return self.confirmed

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        last = method.delivery_tag - self._first_tag
        places = {at for at in self._waiting if at <= last} if method.multiple else {last}
        self._waiting -= places
        # The broker also confirms a message that it returned (no queue was bound), right after it.
        if isinstance(method, pika.spec.Basic.Ack) and not self._returned:
            self.confirmed |= places
        self._returned = False
        if not self._waiting:
            self._stop()

    def _on_return(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        self._returned = True
        text = f"a message was returned: {method.reply_text} ({method.routing_key!r})"
        self._failure = self._failure or BrokerError(text)

    def _run(self) -> None:
        timer = self._connection.ioloop.call_later(
            _SECONDS, lambda: self._fail(BrokerError(f"no answer within {_SECONDS:g} s"))
        )
        if self._failure is None:
            self._connection.ioloop.start()
        self._connection.ioloop.remove_timeout(timer)
        if self._failure is not None:
            raise self._failure

    def _stop(self) -> None:
        self._connection.ioloop.stop()

    def _fail(self, error: Any) -> None:
        if self._failure is None and not self._closing:
            self._failure = error if isinstance(error, BaseException) else BrokerError(str(error))
        self._stop()

    def close(self) -> None:
        """Close; an answer is waited for, if the broker is there to give one."""
        self._closing = True
        ioloop = self._connection.ioloop
        if self._connection.is_open:
            self._connection.close()
            ioloop.call_later(5.0, ioloop.stop)
            ioloop.start()
        ioloop.close()


def ready(url: str, queue: str) -> int:
    """Return the number of messages that wait in a broker's queue.

    Args:
        url: The broker.
        queue: The broker's queue.

    Returns:
        The number.

    Raises:
        BrokerError: The broker can't be reached, or there is no such queue.
    """
    with broker_errors(url):
        connection = blocking_connection(parameters_of(url))
        try:
            with answered_within(connection, _SECONDS):
                declared = connection.channel().queue_declare(queue, passive=True)
            count: int = declared.method.message_count
        finally:
            _close(connection)
        return count


def _close(connection: Any) -> None:
    if connection.is_open:
        with answered_within(connection, _SECONDS):
            connection.close()


def pull(
    url: str,
    source: str,
    queue: EitherQueue,
    *,
    count: int | None = None,
    timeout: float = 1.0,
    batch: int = BATCH,
    told: Told | None = None,
) -> int:
    """Take messages out of a broker's queue.

    A batch is acknowledged to the broker when it is on disk here. After an error the broker
    delivers the others again.

    Args:
        url: The broker, ``amqp://user:password@host:port/vhost``.
        source: The broker's queue.
        queue: The queue that gets the messages.
        count: The most messages. None: all.
        timeout: Seconds without a message after which it ends.
        batch: Messages of a publish.
        told: Called after each batch with the number of messages so far.

    Returns:
        The number of messages.

    Raises:
        BrokerError: The broker can't be reached, or went away.
    """
    if timeout <= 0:
        raise UsageError(f"timeout must be seconds above 0, not {timeout!r}")
    parameters = parameters_of(url)
    total = 0
    with broker_errors(url), raw_properties():
        connection = blocking_connection(parameters)
        connection._impl.most_bytes = most_bytes(queue)
        try:
            with answered_within(connection, _SECONDS):
                channel = connection.channel()
                channel.basic_qos(prefetch_count=batch)
            while count is None or total < count:
                most = batch if count is None else min(batch, count - total)
                moved, last_tag, more = _take_batch(connection, channel, source, most, timeout)
                vhost = parameters.virtual_host
                if moved:
                    restore(queue, [incoming(*one, vhost) for one in moved])
                    queue.sync()
                    with answered_within(connection, _SECONDS):
                        channel.basic_ack(last_tag, multiple=True)
                    total += len(moved)
                    if told is not None:
                        told(total)
                if not more:
                    break
            # Messages that were sent ahead of need go back to the broker.
            with answered_within(connection, _SECONDS):
                channel.cancel()
        finally:
            _close(connection)
    return total


def _take_batch(
    connection: Any, channel: Any, source: str, most: int, timeout: float
) -> tuple[list[tuple[Any, Any, bytes]], int, bool]:
    """Return up to ``most`` messages that the broker delivers, or some megabytes; the tag of the
    last one, and whether more may come: none came for ``timeout`` seconds."""
    taken: list[tuple[Any, Any, bytes]] = []
    size = 0
    deliveries = channel.consume(source, inactivity_timeout=timeout)
    with answered_within(connection, _SECONDS + timeout):
        one = next(deliveries)
    while one[0] is not None:
        taken.append(one)
        size += len(one[2])
        if len(taken) == most or size >= _BATCH_BYTES:
            return taken, one[0].delivery_tag, True
        one = next(deliveries)
    return taken, taken[-1][0].delivery_tag if taken else 0, False
