"""Take messages from the back, as a stack needs it (:mod:`qindex.compat.queuelib`).

A queue should be used in one way at a time: a message that is given back after this has
passed it comes before those read from the front.
"""

from __future__ import annotations

from qindex.queue.delivery import Delivery
from qindex.queue.queue import Queue


def take_last(queue: Queue, *, waits: bool = True) -> Delivery | None:
    """Take the newest message that is ready, or give ``None``; it is settled as any other.
    ``waits``: whether the call may wait for a flush, or for the disk.

    Raises as :meth:`qindex.queue.queue.Queue.get`. O(1): about 50 us.
    """
    return queue._deliverer.take_last(waits=waits)


def peek_last(queue: Queue) -> bytes | None:
    """Return the body of the newest message that is ready, or ``None``; nothing is changed.

    A damaged or expired message is skipped.
    """
    return queue._deliverer.peek_last()
