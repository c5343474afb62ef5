"""Take messages from the back, as a stack needs it (:mod:`qindex.compat.queuelib`).

A queue should be used from one end at a time: a message that is given back after this has passed it
comes before those read from the front.
"""

from __future__ import annotations

from qindex.queue.delivery import Delivery
from qindex.queue.queue import Queue

__all__ = ["peek_last", "take_last"]


def take_last(queue: Queue) -> Delivery | None:
    """Take the newest message that is ready, or give ``None``; it is settled as any other.

    Raises as :meth:`qindex.queue.queue.Queue.get`. O(1): about 50 us.
    """
    return queue._deliverer.take_last()


def peek_last(queue: Queue) -> bytes | None:
    """Give the body of the newest message that is ready, or ``None``; nothing is changed.

    One that is damaged or expired is passed over.
    """
    return queue._deliverer.peek_last()
