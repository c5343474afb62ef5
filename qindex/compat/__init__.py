"""The faces of other queues, on qindex: :class:`PersistentQueue` is :class:`queue.Queue`,
persistent; :mod:`qindex.compat.queuelib` is queuelib's, :mod:`qindex.compat.scrapy` has Scrapy use
it, :mod:`qindex.compat.kombu` has kombu and Celery use a store in the place of a broker,
:mod:`qindex.compat.huey` is a storage of huey, and :mod:`qindex.compat.django` a backend of
Django's tasks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qindex.compat.queue import PersistentLifoQueue, PersistentQueue, Serializer, Taken
    from qindex.compat.set_aside import UnreadableItemError

__all__ = ["PersistentLifoQueue", "PersistentQueue", "Serializer", "Taken", "UnreadableItemError"]


def __getattr__(name: str) -> Any:
    # They need numpy. Programs that use huey or Django as clients of a server do not.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "set_aside" if name == "UnreadableItemError" else "queue"
    return getattr(importlib.import_module(f"qindex.compat.{home}"), name)
