"""queuelib's queues (``push, pop, peek, clear, close, len``) that survive ``kill -9``.

>>> import tempfile
>>> from qindex.compat.queuelib import FifoDiskQueue
>>> queue = FifoDiskQueue(tempfile.mkdtemp() + "/jobs")
>>> queue.push(b"a"); queue.push(b"b")
>>> queue.pop(), len(queue)
(b'a', 1)
>>> queue.close()

A queue at ``some/path/name`` is the queue ``name`` of the store ``some/path/.qindex``, so that
hundreds of queues side by side share one engine; ``some/path/name`` itself is an empty directory
that says so, and goes with the queue when it is closed empty. What ``push`` took and what ``pop``
gave is in the operating system when the call returns.
"""

from __future__ import annotations

import os
from contextlib import suppress

from journal.errors import UsageError
from qindex.compat import shared
from qindex.queue.delivery import Delivery
from qindex.queue.lifo import peek_last, take_last

__all__ = ["STORE", "FifoDiskQueue", "LifoDiskQueue"]

STORE = ".qindex"
"""Name of the store, beside the queues' own names."""


class FifoDiskQueue:
    """First in, first out. ``chunksize`` is taken and not needed.

    Raises :class:`UsageError` where ``path`` holds something else, a queue of queuelib's own for
    example; :class:`~journal.errors.LockedError` when another process uses a queue beside it.
    """

    def __init__(self, path: str | os.PathLike[str], chunksize: int = 100_000) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.chunksize = chunksize
        try:
            os.makedirs(self.path, exist_ok=True)
            taken = os.listdir(self.path)
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"{self.path}: is a file, no queue of ours") from error
        if taken:
            raise UsageError(f"{self.path}: is no queue of ours: it holds {sorted(taken)[0]!r}")
        directory, self._name = os.path.split(self.path)
        self._engine = shared.acquire(os.path.join(directory, STORE))
        self._closed = False
        try:
            self._queue = self._engine.queue(self._name)
        except BaseException:
            shared.release(self._engine)
            raise

    def push(self, data: bytes) -> None:
        """Append. Raises :class:`TypeError` for what is no bytes."""
        if not isinstance(data, bytes):
            raise TypeError(f"unsupported type: {type(data).__name__}")
        self._queue.publish(data)

    def pop(self) -> bytes | None:
        """Take the next one; ``None`` when there is none. Raises
        :class:`~journal.errors.DamageError` for one that is damaged; the next call goes on."""
        delivery = self._take()
        if delivery is None:
            return None
        delivery.ack()
        return delivery.body

    def _take(self) -> Delivery | None:
        return self._queue.get(0)

    def peek(self) -> bytes | None:
        """Give what :meth:`pop` would give, and leave it."""
        seen = self._queue.peek(1)
        return seen[0].body if seen else None

    def clear(self) -> None:
        """Remove all."""
        self._queue.purge()

    def close(self) -> None:
        """Close; an empty queue is removed."""
        if self._closed:
            return
        self._closed = True
        try:
            if not len(self._queue):
                self._engine.delete_queue(self._name)
                # A name that somebody put there meanwhile stays.
                with suppress(OSError):
                    os.rmdir(self.path)
        finally:
            shared.release(self._engine)

    def __len__(self) -> int:
        return len(self._queue)


class LifoDiskQueue(FifoDiskQueue):
    """Last in, first out."""

    def _take(self) -> Delivery | None:
        return take_last(self._queue)

    def peek(self) -> bytes | None:
        """Give what :meth:`pop` would give, and leave it."""
        return peek_last(self._queue)
