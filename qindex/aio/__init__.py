"""qindex for asyncio: the same names as in :mod:`qindex`, awaitable.

>>> import asyncio, tempfile
>>> import qindex.aio
>>> async def main() -> None:
...     async with qindex.aio.open(tempfile.mkdtemp()) as engine:
...         orders = await engine.queue("orders")
...         await orders.publish(b"first", key="o-17", confirm=True)
...         async with await orders.get() as delivery:
...             print(delivery.body, delivery.key)
>>> asyncio.run(main())
b'first' o-17

No call has a thread of its own. Calls of microseconds (publish, get, ack) are done on the loop at
once. A publish, from any thread or loop, wakes a waiting get. Confirmed publishes of all loops
share the syncs of one thread. Calls that would stop a loop (opening, flushing, purging, large
messages) go through one other. Both start when they are first needed.

Cancellation loses and doubles nothing:

* ``publish`` has appended the message before its first suspension. Cancelled while it waits (for
  the confirm, for a flush), it stops waiting: the message is in the queue, once.
* ``get`` takes a message after its last suspension. Cancelled, it has taken none, and the
  next waiter is woken in its place.
* ``ack``, ``nack`` and ``reject`` are also done before their first suspension.
"""

from __future__ import annotations

from typing import TypeAlias

from qindex.aio.delivery import Batch, Delivery
from qindex.aio.engine import Engine, open
from qindex.aio.queue import Consumer, Queue
from qindex.aio.shared import SharedConsumer, SharedQueue
from qindex.aio.shared_engine import SharedEngine
from qindex.aio.transaction import Transaction

AnyEngine: TypeAlias = Engine | SharedEngine
"""An engine of either kind, as ``open(..., shared=flag)`` gives it."""
AnyQueue: TypeAlias = Queue | SharedQueue
"""A queue of either kind of engine."""

__all__ = [
    "AnyEngine",
    "AnyQueue",
    "Batch",
    "Consumer",
    "Delivery",
    "Engine",
    "Queue",
    "SharedConsumer",
    "SharedEngine",
    "SharedQueue",
    "Transaction",
    "open",
]
