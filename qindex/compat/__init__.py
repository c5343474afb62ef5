"""The faces of other queues, on qindex: :class:`PersistentQueue` is :class:`queue.Queue`,
persistent; :mod:`qindex.compat.queuelib` is queuelib's, :mod:`qindex.compat.scrapy` has Scrapy
use it, and :mod:`qindex.compat.kombu` has kombu and Celery use a store in the place of a broker."""

from __future__ import annotations

from qindex.compat.queue import PersistentLifoQueue, PersistentQueue, Serializer, Taken
from qindex.compat.set_aside import UnreadableItemError

__all__ = ["PersistentLifoQueue", "PersistentQueue", "Serializer", "Taken", "UnreadableItemError"]
