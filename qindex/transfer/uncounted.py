"""Deliveries that do not count: to what moves messages elsewhere, and is no consumer of them.

A queue with a ``delivery_limit`` gives a message up that came back too often. A broker that can't
be reached says nothing about a message, so what is taken for it counts as if it had not been, also
after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable

from qindex.queue.delivery import Delivery
from qindex.queue.queue import Queue

__all__ = ["give_back_uncounted", "take_uncounted"]


def take_uncounted(queue: Queue, most: int) -> list[Delivery]:
    """Take up to ``most`` messages, without waiting for one. Raises as ``get_many``."""
    held = list(queue.get_many(most))
    queue._settler.forgive(held)
    return held


def give_back_uncounted(queue: Queue, deliveries: Iterable[Delivery]) -> None:
    """Give back those of these that are not settled, each to its place."""
    queue._settler.take_back_uncounted(deliveries)
