"""Queues take the paths of single messages that are written in C, where there are any.

They are ``publish`` of a plain message, ``get`` of one that was read ahead with its entry, and
``ack``; whatever else there is to be seen to they leave to the methods of the same names.
"""

from __future__ import annotations

from journal.compiled import described
from journal.errors import StoreError
from journal.format import ACK_BITS
from journal.journal import Journal
from journal.patience import PatientLock
from qindex.index.queue_index import QueueIndex
from qindex.index.read_ahead import Fetched
from qindex.index.segment import ACKED, OUT, PUBLISHED, Segment
from qindex.queue.compiled import COMPILED
from qindex.queue.cut_short import count_anew, put_back, set_right
from qindex.queue.delivery import BatchDelivery, Delivery

__all__ = ["install"]


def install(queue: type) -> None:
    """Put them in the place of the methods of ``queue``, the class."""
    if COMPILED is not None:
        COMPILED.install(
            {
                "Queue": queue,
                "QueueIndex": QueueIndex,
                "Journal": Journal,
                "Segment": Segment,
                "Fetched": Fetched,
                "Delivery": Delivery,
                "BatchDelivery": BatchDelivery,
                "PatientLock": PatientLock,
                "set_right": set_right,
                "put_back": put_back,
                "count_anew": count_anew,
                "StoreError": StoreError,
                "PUBLISHED": PUBLISHED,
                "OUT": OUT,
                "ACKED": ACKED,
                "ACK_BITS": ACK_BITS,
                **{
                    name: described(getattr(queue, name))
                    for name in ("publish", "_publish_on_loop", "get", "ack")
                },
            }
        )
