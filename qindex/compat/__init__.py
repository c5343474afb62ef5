"""The faces of other queues, on qindex: :class:`PersistentQueue` is :class:`queue.Queue`,
persistent; :mod:`qindex.compat.queuelib` is queuelib's, and :mod:`qindex.compat.scrapy` has Scrapy
use it."""

from __future__ import annotations

from qindex.compat.queue import PersistentLifoQueue, PersistentQueue, Serializer, Taken
from qindex.compat.set_aside import UnreadableItemError

__all__ = ["PersistentLifoQueue", "PersistentQueue", "Serializer", "Taken", "UnreadableItemError"]
