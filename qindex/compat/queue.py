"""``queue.Queue`` and ``queue.LifoQueue`` whose items outlive the process."""

from __future__ import annotations

import os
import pickle
import queue as standard
import threading
from collections import deque
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from journal.errors import UsageError
from qindex.compat import shared
from qindex.queue.delivery import Delivery
from qindex.queue.lifo import take_last

__all__ = ["LifoQueue", "Queue", "Serializer"]

T = TypeVar("T")


class Serializer(Protocol):
    """Turns items into bytes and back: ``pickle``, ``marshal``, ``json`` with bytes, ..."""

    def dumps(self, item: Any, /) -> bytes: ...  # noqa: D102
    def loads(self, data: bytes, /) -> Any: ...  # noqa: D102


class _Bytes:
    """Items are bytes."""

    @staticmethod
    def dumps(item: Any, /) -> bytes:
        if not isinstance(item, bytes):
            raise TypeError(f"items of this queue are bytes, not {type(item).__name__}")
        return item

    @staticmethod
    def loads(data: bytes, /) -> bytes:
        return data


class Queue(standard.Queue[Any]):
    """A drop-in for :class:`queue.Queue` that persists; ``Empty`` and ``Full`` are the standard's.

    ``directory``: the store; ``name``: the queue in it. Queues of one process share the engine of
    a directory; another process is refused (:class:`~journal.errors.LockedError`).

    ``put`` is in the operating system on return: the death of the process loses nothing. An item
    that was got is done with when ``task_done`` is called, by the thread that got it or, if that
    one holds none, by any: oldest first. What was got and not done with comes again, first, when
    the queue is opened the next time. With ``auto_done=True`` an item is done with when it is got,
    for programs that never call ``task_done``: then a crash loses what was being worked on.
    At open, ``join`` waits for all that is there.

    ``serializer``: ``"pickle"`` (any item; **never open a directory from a source that you do not
    trust with it: unpickling runs code**), ``"bytes"``, or an object with ``dumps`` and ``loads``.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with Queue(directory, maxsize=10) as jobs:
    ...     jobs.put({"n": 1})
    >>> with Queue(directory) as jobs:
    ...     print(jobs.get())
    ...     jobs.task_done()
    {'n': 1}
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        maxsize: int = 0,
        *,
        name: str = "queue",
        serializer: Literal["pickle", "bytes"] | Serializer = "pickle",
        auto_done: bool = False,
    ) -> None:
        codec: Any = serializer
        if isinstance(serializer, str):
            codec = {"pickle": pickle, "bytes": _Bytes}.get(serializer)
        if not all(callable(getattr(codec, name, None)) for name in ("dumps", "loads")):
            raise UsageError(f"serializer must have dumps and loads, not {serializer!r}")
        self._codec = codec
        self._auto_done = auto_done
        self._held: deque[tuple[int, Delivery]] = deque()
        self._engine = shared.acquire(directory)
        self._closed = False
        try:
            self._queue = self._engine.queue(name)
        except BaseException:
            shared.release(self._engine)
            raise
        super().__init__(maxsize)
        self.unfinished_tasks = len(self._queue)

    # The hooks that queue.Queue calls with its mutex held.

    def _init(self, maxsize: int) -> None:
        """Nothing: the items are in the engine."""

    def _qsize(self) -> int:
        return len(self._queue)

    def _put(self, item: Any) -> None:
        self._queue.publish(self._codec.dumps(item))

    def _get(self) -> Any:
        delivery = self._take()
        if delivery is None:
            # The count was of messages that had expired, or were damaged.
            raise standard.Empty
        item = self._codec.loads(delivery.body)
        if self._auto_done:
            delivery.ack()
        else:
            self._held.append((threading.get_ident(), delivery))
        return item

    def _take(self) -> Delivery | None:
        return self._queue.get(0)

    def task_done(self) -> None:
        """Say that an item is done with: it does not come again. Raises :class:`ValueError` when
        called more often than there were items, as :meth:`queue.Queue.task_done` does."""
        with self.all_tasks_done:
            if self.unfinished_tasks <= 0:
                raise ValueError("task_done() called too many times")
            if self._held:
                me = threading.get_ident()
                mine = next((one for one in self._held if one[0] == me), self._held[0])
                self._held.remove(mine)
                mine[1].ack()
            self.unfinished_tasks -= 1
            if not self.unfinished_tasks:
                self.all_tasks_done.notify_all()

    def close(self) -> None:
        """Close; what was got and not done with comes again at the next open."""
        with self.mutex:
            if self._closed:
                return
            self._closed = True
            for _, delivery in self._held:
                if not delivery.settled:
                    delivery.nack()
            self._held.clear()
        shared.release(self._engine)

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class LifoQueue(Queue):
    """The same for :class:`queue.LifoQueue`: last in, first out."""

    def _take(self) -> Delivery | None:
        return take_last(self._queue)
