"""Deliveries that do not count: to what moves messages elsewhere, and is no consumer of them.

A queue with a ``delivery_limit`` gives a message up that came back too often. A broker that can't
be reached says nothing about a message, so what is taken for it counts as if it had not been, also
after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qindex.queue.delivery import Delivery

if TYPE_CHECKING:
    from qindex.queue.queue import Queue

__all__ = ["give_back_uncounted", "take_uncounted"]


def take_uncounted(queue: Queue, most: int) -> list[Delivery]:
    """Take up to ``most`` messages, without waiting for one. Raises as ``get_many``."""
    held = list(queue.get_many(most))
    counts = queue._counts
    if counts is not None and held:
        with queue._lock:
            for delivery in held:
                before = delivery.delivery_count - 1
                queue._returns[delivery.seq_id] = before
                queue._nacked_at.setdefault(delivery.seq_id, 0)
                counts.forgive(delivery.seq_id, before, queue._returns)
    return held


def give_back_uncounted(queue: Queue, deliveries: Iterable[Delivery]) -> None:
    """Give back those of these that are not settled, each to its place."""
    with queue._lock:
        for delivery in deliveries:
            if not delivery.settled:
                before = delivery.delivery_count - 1
                queue._come_back(delivery.seq_id, delivery.body, delivery._extra, before)
                delivery._queue = None
