"""A broker's knowledge beside its messages: exchanges, bindings, and queues that expire.

All of it is kept as messages with unique keys, in two queues of the store. So it is durable, each
change is one step, and every process sees it.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.transport.virtual.exchange import TopicExchange

from journal.errors import ClosedError, DuplicateError, LeaseExpiredError

if TYPE_CHECKING:
    from qindex.client.engine import SharedEngine
    from qindex.queue.delivery import Delivery

__all__ = ["OWNERS", "TOPOLOGY", "Binding", "Owners", "Topic", "Topology"]

TOPOLOGY = "kombu.topology"
"""The queue that holds a message for each exchange and for each binding."""
OWNERS = "kombu.owners"
"""The queue that holds a message for each queue that expires."""

_ALL = 1_000_000
_PAUSE = 0.02
_PATIENCE = 2.0

_log = logging.getLogger("qindex.compat")


class Binding(NamedTuple):
    """A queue's binding to an exchange."""

    routing_key: str
    queue: str
    arguments: Any


class Topic(TopicExchange):
    """Topics as RabbitMQ has them: ``*`` is one word, and ``#`` any number of words, also none.

    kombu's own class wants a word for ``#``, and in older versions ``*`` matches several words.
    """

    wildcards = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}  # noqa: RUF012 - as in kombu

    def key_to_pattern(self, rkey: str) -> str:
        """Return the regular expression for a binding's key: each word has a dot before it."""
        words = rkey.split(".") if rkey else []
        return "".join(self.wildcards.get(one, rf"\.{re.escape(one)}") for one in words) + r"\Z"

    def _match(self, pattern: str, string: str) -> Any:
        return super()._match(pattern, f".{string}" if string else "")


def _key(*parts: str) -> str:
    return json.dumps(parts)


class Topology:
    """The exchanges and bindings of a store."""

    def __init__(self, engine: SharedEngine) -> None:
        self._engine = engine
        self._queue = engine.queue(TOPOLOGY)
        self._lock = threading.RLock()
        self._version: tuple[int, int] | None = None
        self._records: dict[str, int] = {}
        self._exchanges: dict[str, str] = {}
        self._bindings: dict[str, list[Binding]] = {}

    # -- looking --------------------------------------------------------------------------------

    def exchanges(self) -> dict[str, str]:
        """Return the types of the exchanges by name."""
        with self._lock:
            self._refresh()
            return self._exchanges

    def all_bindings(self) -> Iterator[tuple[str, Binding]]:
        """Yield each binding with the name of its exchange."""
        with self._lock:
            self._refresh()
            found = [(name, one) for name, its in self._bindings.items() for one in its]
        yield from found

    def route(self, exchange: str) -> tuple[str, list[Binding]]:
        """Return the type of an exchange and its bindings."""
        with self._lock:
            self._refresh()
            return self._exchanges.get(exchange, "direct"), self._bindings.get(exchange, [])

    def _refresh(self, *, anyhow: bool = False) -> None:
        """Read the queue again if it has changed."""
        stats = self._queue.stats()
        # Each addition raises the first number, and each removal lowers the second one.
        version = stats.next_seq_id, stats.ready
        if version == self._version and not anyhow:
            return
        records: dict[str, int] = {}
        exchanges: dict[str, str] = {}
        bindings: dict[str, list[Binding]] = {}
        for one in self._queue.peek(_ALL):
            kind, *values = json.loads(one.body)
            if kind == "exchange":
                name, type = values[:2]
                exchanges[name] = type
                records[_key(kind, name)] = one.seq_id
            else:
                exchange, queue, routing_key, arguments = values
                records[_key(kind, exchange, queue, routing_key)] = one.seq_id
                bindings.setdefault(exchange, []).append(Binding(routing_key, queue, arguments))
        self._records, self._exchanges, self._bindings = records, exchanges, bindings
        self._version = version

    # -- changing -------------------------------------------------------------------------------

    def declare(self, name: str, type: str) -> None:
        """Add an exchange, unless there is one of this name."""
        self._add(_key("exchange", name), ["exchange", name, type])

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: Any) -> None:
        """Add a binding, unless it is there."""
        key = _key("binding", exchange, queue, routing_key)
        self._add(key, ["binding", exchange, queue, routing_key, arguments])

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Remove a binding."""
        self._remove([_key("binding", exchange, queue, routing_key)])

    def forget_queue(self, queue: str) -> None:
        """Remove all bindings of a queue."""
        self._remove(
            [
                _key("binding", exchange, one.queue, one.routing_key)
                for exchange, one in self.all_bindings()
                if one.queue == queue
            ]
        )

    def forget_exchange(self, name: str) -> None:
        """Remove an exchange and its bindings."""
        _, bindings = self.route(name)
        keys = [_key("binding", name, one.queue, one.routing_key) for one in bindings]
        self._remove([*keys, _key("exchange", name)])

    def _add(self, key: str, record: list[Any]) -> None:
        deadline = monotonic() + _PATIENCE
        with self._lock:
            if key in self._records:
                self._refresh()
                if key in self._records:
                    return
            while True:
                try:
                    self._queue.publish(json.dumps(record).encode(), unique=key)
                except DuplicateError:
                    self._refresh(anyhow=True)
                    if key in self._records or monotonic() > deadline:
                        return
                    # Another process is about to remove it.
                    sleep(_PAUSE)
                else:
                    return

    def _remove(self, keys: Iterable[str]) -> None:
        with self._lock:
            self._refresh()
            for key in keys:
                seq_id = self._records.get(key)
                found = None if seq_id is None else self._queue.get(seq_id=seq_id)
                if found is not None:
                    found.ack()


class Owners:
    """The queues that expire, each with a message in the queue :data:`OWNERS`.

    The process that uses such a queue holds its message as a delivery. The message comes back when
    that process ends, however it ends. :meth:`sweep` takes messages that nobody holds. The first
    time, it delays the message by the time that the queue may be unused. The second time, it
    removes the queue.
    """

    def __init__(self, engine: SharedEngine, remove: Callable[[str], None]) -> None:
        self._engine = engine
        self._queue = engine.queue(OWNERS)
        self._remove = remove
        self._held: dict[str, tuple[Delivery, float]] = {}
        self._wanted: dict[str, float] = {}
        self._lock = threading.RLock()

    def note(self, name: str, unused: float) -> None:
        """Have a queue removed that is unused for this many seconds."""
        with suppress(DuplicateError):
            self._publish(name, unused)

    def hold(self, name: str, unused: float) -> bool:
        """Keep a queue that expires for as long as this process uses it. Return False if another
        one holds it; :meth:`sweep` tries again."""
        with self._lock:
            self._wanted[name] = unused
            held = self._held.get(name)
            if held is not None and not held[0].settled:
                return True
            delivery = self._take(name, unused)
            if delivery is not None and delivery.headers.get("unused"):
                delivery = self._queue.get(seq_id=self._replace(delivery, name, unused, {}))
            if delivery is None:
                self._held.pop(name, None)
                return False
            self._held[name] = delivery, unused
            return True

    def _take(self, name: str, unused: float) -> Delivery | None:
        try:
            # It is delayed, so that no other process finds it before the next line.
            seq_id = self._publish(name, unused)
        except DuplicateError as error:
            seq_id = error.seq_id
        return self._queue.get(seq_id=seq_id)

    def _replace(
        self, delivery: Delivery, name: str, unused: float, headers: dict[str, Any]
    ) -> int:
        with self._engine.transaction() as tx:
            tx.ack(delivery)
            return tx.publish(
                OWNERS, self._body(name, unused), headers=headers, unique=name, delay=unused
            )

    def _publish(self, name: str, unused: float) -> int:
        return self._queue.publish(self._body(name, unused), unique=name, delay=unused)

    @staticmethod
    def _body(name: str, unused: float) -> bytes:
        return json.dumps({"queue": name, "unused": unused}).encode()

    def release(self, name: str) -> None:
        """Stop using a queue: it is removed unless another process uses it in time."""
        with self._lock:
            self._wanted.pop(name, None)
            held = self._held.pop(name, None)
        if held is not None and not held[0].settled:
            held[0].nack(delay=held[1], count=False)

    def removed(self, name: str) -> None:
        """Take note that a queue was removed."""
        with self._lock:
            self._wanted.pop(name, None)
            held = self._held.pop(name, None)
        if held is not None and not held[0].settled:
            with suppress(LeaseExpiredError):
                held[0].ack()

    def sweep(self) -> None:
        """Remove queues that nobody uses any more."""
        with self._lock:
            for name, unused in list(self._wanted.items()):
                self.hold(name, unused)
            while (found := self._queue.get(0)) is not None:
                record = json.loads(found.body)
                name, unused = record["queue"], record["unused"]
                if not found.headers.get("unused"):
                    self._replace(found, name, unused, {"unused": True})
                    continue
                _log.info("queue %r has not been used for %g s: it is removed", name, unused)
                with suppress(ClosedError):
                    self._remove(name)
                found.ack()
