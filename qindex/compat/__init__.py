"""The faces of other queues, on qindex: :class:`Queue` is the standard library's, persistent;
:mod:`qindex.compat.queuelib` is queuelib's, and :mod:`qindex.compat.scrapy` has Scrapy use it."""

from __future__ import annotations

from qindex.compat.queue import LifoQueue, Queue, Serializer, Taken
from qindex.compat.set_aside import UnreadableItemError

__all__ = ["LifoQueue", "Queue", "Serializer", "Taken", "UnreadableItemError"]
