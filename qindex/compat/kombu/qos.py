"""The unsettled messages of a channel of kombu."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from qindex.compat.kombu.getter import give_back

if TYPE_CHECKING:
    from qindex.queue.delivery import Delivery

__all__ = ["QoS"]

_log = logging.getLogger("qindex.compat")


class QoS:
    """The deliveries of a channel that are not settled, and how many there may be."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        self.channel = channel
        self._prefetch_count = prefetch_count
        self._delivered: OrderedDict[str, Delivery] = OrderedDict()
        self._handed = 0
        self.room = threading.Condition(threading.Lock())

    @property
    def prefetch_count(self) -> int:
        """The number of deliveries that may be unsettled; 0: any number."""
        return self._prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        self._prefetch_count = count
        self._notify()

    def has_room(self) -> bool:
        """Return whether the limit lets another message be delivered."""
        count = self._prefetch_count
        return not count or len(self._delivered) + self._handed < count

    def can_consume(self) -> bool:
        """Return whether another message may be delivered; programs replace this method."""
        return self.has_room()

    def hand(self, change: int) -> None:
        """Count messages that are on their way to the channel."""
        with self.room:
            self._handed += change
            self.room.notify_all()

    def _notify(self) -> None:
        with self.room:
            self.room.notify_all()

    def append(self, delivery: Delivery, delivery_tag: str) -> None:
        """Keep a delivery until it is settled."""
        self._delivered[delivery_tag] = delivery

    def tags_up_to(self, delivery_tag: str) -> list[str]:
        """Return the tags of the unsettled deliveries up to this one."""
        tags = list(self._delivered)
        return tags[: tags.index(delivery_tag) + 1] if delivery_tag in tags else []

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message: it is deleted."""
        delivery = self._take_out(delivery_tag)
        if delivery is not None:
            delivery.ack()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeue a message, or refuse it: it goes to the dead-letter queue of its queue."""
        delivery = self._take_out(delivery_tag)
        if delivery is None:
            return
        if requeue:
            delivery.nack()
        else:
            delivery.reject()

    def _take_out(self, delivery_tag: str) -> Delivery | None:
        delivery = self._delivered.pop(delivery_tag, None)
        if delivery is None:
            _log.warning("a message was settled after it had gone back to its queue")
        self._notify()
        return delivery

    def is_lost(self) -> bool:
        """Return whether the messages went back because the server of the store had gone."""
        with suppress(RuntimeError, StopIteration):  # another thread settles it at this moment
            tag, delivery = next(iter(self._delivered.items()))
            return delivery.settled and tag in self._delivered
        return False

    def restore_unacked(self) -> list[Any]:
        """Requeue all unsettled messages, without counting an attempt."""
        while self._delivered:
            with suppress(KeyError):
                give_back(self._delivered.popitem()[1])
        self._notify()
        return []
