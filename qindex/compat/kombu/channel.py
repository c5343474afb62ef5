"""Channels of kombu: exchanges, queues, publishing and consumers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from queue import Empty
from typing import TYPE_CHECKING, Any

from amqp.exceptions import error_for_code
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import base, virtual
from kombu.transport.virtual.base import NotEquivalentError
from kombu.utils.uuid import uuid

from qindex.compat.kombu.getter import Getter, give_back
from qindex.compat.kombu.messages import options_of, payload_of
from qindex.compat.kombu.qos import QoS
from qindex.compat.kombu.topology import Topic

if TYPE_CHECKING:
    from qindex.queue.delivery import Delivery

__all__ = ["Channel"]

UNUSED = 10.0
"""Seconds until an exclusive or auto-delete queue is removed whose process has gone."""

_SETTINGS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "x-message-ttl": ("message_ttl", lambda ms: float(ms) / 1000),
    "x-max-length": ("max_length", int),
    "x-max-length-bytes": ("max_bytes", int),
    "x-max-priority": ("max_priority", int),
    "x-delivery-limit": ("delivery_limit", int),
    "x-dead-letter-routing-key": ("dead_letter", str),
}

_log = logging.getLogger("qindex.compat")


class Channel(virtual.Channel):
    """A channel: its consumers, and their unsettled messages."""

    QoS = QoS
    exchange_types = virtual.Channel.exchange_types | {"topic": Topic}
    supports_fanout = True
    do_restore = False
    max_priority: int | None = 9
    from_transport_options = (*virtual.Channel.from_transport_options, "max_priority")

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self.callbacks: dict[str, Callable[[Delivery], Any]] = {}
        self.getter: Getter | None = None
        self.closed: bool = False
        self.events: dict[str, set[Callable[..., Any]]] = {"basic_return": set()}
        super().__init__(connection, **kwargs)

    # -- exchanges ------------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare an exchange, durably."""
        type = type or "direct"
        exchange = exchange or f"amq.{type}"
        topology = self.connection.topology
        known = topology.exchanges().get(exchange)
        if known is None:
            if passive:
                raise self._not_found("exchange", exchange)
            if type not in self.exchange_types:
                raise ChannelError(f"there is no exchange type {type!r}", (40, 10), "", "503")
            topology.declare(exchange, type)
        elif not passive and known != type:
            raise NotEquivalentError(f"exchange {exchange!r} has the type {known!r}, not {type!r}")

    def exchange_delete(
        self, exchange: str, if_unused: bool = False, nowait: bool = False, **kwargs: Any
    ) -> None:
        """Remove an exchange and its bindings."""
        topology = self.connection.topology
        if not (if_unused and topology.route(exchange)[1]):
            topology.forget_exchange(exchange)

    def get_exchanges(self) -> list[str]:
        """Return the names of the exchanges."""
        return list(self.connection.topology.exchanges())

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """Return the queues that a message goes to."""
        default = default or self.deadletter_queue
        if not exchange:
            return [routing_key or default] if routing_key or default else []
        type, bindings = self.connection.topology.route(exchange)
        kind = self.exchange_types[type]
        table = [
            kind.prepare_bind(one.queue, exchange, one.routing_key, one.arguments)
            for one in bindings
        ]
        found = sorted(kind.lookup(table, exchange, routing_key, None))
        return found or ([default] if default else [])

    def _not_found(self, what: str, name: str) -> ChannelError:
        text = f"NOT_FOUND - no {what} {name!r} in {self.connection.directory!r}"
        return ChannelError(text, (50, 10), f"Channel.{what}_declare", "404")

    # -- queues ---------------------------------------------------------------------------------

    def prepare_queue_arguments(
        self, arguments: dict[str, Any] | None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the arguments of a queue under RabbitMQ's names."""
        found: dict[str, Any] = base.to_rabbitmq_queue_arguments(arguments or {}, **kwargs)
        return found

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> queue_declare_ok_t:
        """Declare a queue: its arguments become settings of the queue in the store."""
        queue = queue or f"amq.gen-{uuid()}"
        given = arguments or {}
        connection = self.connection
        if passive:
            if not self._has_queue(queue):
                raise self._not_found("queue", queue)
            return queue_declare_ok_t(queue, self._size(queue), 0)
        expires = given.get("x-expires")
        if exclusive or auto_delete or expires:
            unused = float(expires) / 1000 if expires else UNUSED
            connection.keep(
                queue, unused, is_exclusive=exclusive, is_owned=not expires or exclusive
            )
        else:
            unused = None
        connection.declare(queue, self._settings(given, is_temporary=unused is not None))
        return queue_declare_ok_t(queue, self._size(queue), 0)

    def _settings(self, given: dict[str, Any], *, is_temporary: bool) -> dict[str, Any]:
        settings = {
            name: convert(given[argument])
            for argument, (name, convert) in _SETTINGS.items()
            if given.get(argument) is not None
        }
        if given.get("x-dead-letter-exchange"):
            _log.warning("x-dead-letter-exchange is ignored: only the default exchange has letters")
            settings.pop("dead_letter", None)
        if "max_length" in settings or "max_bytes" in settings:
            refuses = str(given.get("x-overflow", "")).startswith("reject")
            settings["overflow"] = "reject" if refuses else "drop-head"
        if self.max_priority and not is_temporary:
            settings.setdefault("max_priority", self.max_priority)
        return settings

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self.connection.engine.queue_names()

    def _size(self, queue: str) -> int:
        return int(self.connection.call(queue, len))

    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Drop the messages that are with no consumer. Return how many there were."""
        if not self._has_queue(queue):
            return 0
        return int(self.connection.call(queue, lambda handle: handle.purge()))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete a queue and its bindings."""
        if not (if_empty and self._has_queue(queue) and self._size(queue)):
            self.connection.remove(queue)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue to an exchange, durably."""
        exchange = exchange or "amq.direct"
        self.connection.bind(queue, exchange, routing_key or "", arguments)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Remove a binding."""
        self.connection.topology.unbind(queue, exchange or "amq.direct", routing_key or "")

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Yield queue, exchange and routing key of each binding."""
        for exchange, one in self.connection.topology.all_bindings():
            yield one.queue, exchange, one.routing_key

    def after_reply_message_received(self, queue: str) -> None:
        """Keep the queue of replies, for the next call: it goes with its connection."""

    # -- publishing -----------------------------------------------------------------------------

    def basic_publish(
        self,
        message: dict[str, Any],
        exchange: str,
        routing_key: str,
        mandatory: bool = False,
        **kwargs: Any,
    ) -> None:
        """Publish a message to each queue that it is routed to. A ``mandatory`` one is returned if
        there is none."""
        connection = self.connection
        connection.sweep_in_time()
        exchange, routing_key = exchange or "", routing_key or ""
        body, options = options_of(message, exchange, routing_key)
        names = self._lookup(exchange, routing_key) if exchange else [routing_key]
        routed = False
        for name in names:
            # A binding may be stale, and whoever asked for a reply may have gone with its queue.
            is_made = name == self.deadletter_queue
            if not exchange:
                is_made = not (mandatory or _is_reply(message))
            if is_made:
                connection.call(name, lambda handle: handle.publish(body, **options))
                routed = True
            else:
                routed |= connection.publish_if_there(name, body, options)
        if mandatory and not routed:
            self._return(message, exchange, routing_key)

    def _return(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        error = error_for_code(312, "NO_ROUTE", (60, 50), ChannelError)
        callbacks = self.events["basic_return"]
        if not callbacks:
            _log.warning(
                "a mandatory message was dropped: no queue is bound to exchange %r for %r",
                exchange,
                routing_key,
            )
        info = {"exchange": exchange, "routing_key": routing_key}
        properties = {**message["properties"], "delivery_tag": uuid(), "delivery_info": info}
        properties.pop("body_encoding", None)
        for callback in list(callbacks):
            returned = self.Message({**message, "properties": properties}, channel=self)
            callback(error, exchange, routing_key, returned)

    # -- consuming ------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Have the messages of a queue delivered to a callback."""

        def deliver(delivery: Delivery) -> Any:
            return callback(self._message(delivery, no_ack=no_ack))

        self.connection.use(queue)
        self._tag_to_queue[consumer_tag] = queue
        self._consumers.add(consumer_tag)
        self._active_queues.append(queue)
        self.callbacks[queue] = deliver
        self.connection.retire(self)

    def _message(self, delivery: Delivery, *, no_ack: bool | None) -> Any:
        tag = uuid()
        message = self.Message(payload_of(delivery, tag), channel=self)
        if no_ack:
            delivery.ack()
        else:
            self.qos.append(delivery, tag)
        return message

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Its unsettled messages stay with the channel."""
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag)
        self._active_queues.remove(queue)
        if queue not in self._active_queues:
            self.callbacks.pop(queue, None)
        self.connection.retire(self)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return the next message of a queue, or None."""
        delivery = self.connection.call(queue, lambda handle: handle.get(0))
        return None if delivery is None else self._message(delivery, no_ack=no_ack)

    def deliver(self, delivery: Delivery) -> None:
        """Hand a message to the consumer of its queue."""
        callback = self.callbacks.get(delivery.queue_name)
        if callback is None:
            give_back(delivery)
        else:
            callback(delivery)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message, or all up to it."""
        for tag in self.qos.tags_up_to(delivery_tag) if multiple else [delivery_tag]:
            self.qos.ack(tag)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver a message to a consumer of this channel. Raises `queue.Empty`."""
        if not self.connection.drain([self], timeout):
            raise Empty

    def close(self) -> None:
        """End the consumers, and give unsettled messages back."""
        if self.closed:
            return
        self.closed = True
        connection = self.connection
        if connection is None:
            return
        if not connection.is_inherited:  # else they are the parent's, with their locks
            for tag in list(self._consumers):
                self.basic_cancel(tag)
            if self._qos is not None:
                self._qos.restore_unacked()
        connection.close_channel(self)


def _is_reply(message: dict[str, Any]) -> bool:
    """Return whether this is the reply to a call, and no task."""
    properties = message["properties"]
    is_task = "task" in (message.get("headers") or ()) or properties.get("reply_to")
    return bool(properties.get("correlation_id")) and not is_task
