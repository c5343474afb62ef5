"""queuelib's queues (``push, pop, peek, clear, close, len``) that survive ``kill -9``.

>>> import tempfile
>>> from qindex.compat.queuelib import FifoDiskQueue
>>> queue = FifoDiskQueue(tempfile.mkdtemp() + "/jobs")
>>> queue.push(b"a"); queue.push(b"b")
>>> queue.pop(), len(queue)
(b'a', 1)
>>> queue.close()

A queue at ``some/path/name`` is the queue ``name`` of the store ``some/path/.qindex``, so that
hundreds of queues side by side share one engine; ``some/path/name`` itself is a directory that says
so, with an empty file that names its order, and goes with the queue when it is closed empty. What
``push`` took and what ``pop`` gave is in the operating system when the call returns.
"""

from __future__ import annotations

import os
from contextlib import suppress

from journal.errors import ClosedError, StorageError, UsageError, storage_errors
from journal.fs.files import REAL
from journal.locks.call_lock import CallLock
from qindex.compat import shared
from qindex.queue.delivery import Delivery
from qindex.queue.plain_queue import peek_last, take_last

__all__ = ["STORE", "FifoDiskQueue", "LifoDiskQueue"]

STORE = ".qindex"
"""Name of the store, beside the queues' own names."""


_MARKS = {"fifo": "qindex.fifo", "lifo": "qindex.lifo"}
"""Empty files in a queue's own directory that say how it is used."""


class _Path(shared.Shared):
    """The state that the objects of one path share: the lock that keeps a signal's handler out of
    the middle of a call of its own thread."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.lock = CallLock()


class FifoDiskQueue:
    """First in, first out. ``chunksize`` is taken and not needed.

    Objects of one path in a process are one queue. Raises :class:`UsageError` where ``path`` holds
    something else, a queue of queuelib's own or one of the other order for example;
    :class:`~journal.errors.LockedError` when another process uses a queue beside it. All methods
    raise :class:`~journal.errors.ClosedError` after :meth:`close`.
    """

    _order = "fifo"

    def __init__(self, path: str | os.PathLike[str], chunksize: int = 100_000) -> None:
        self.path: str = os.path.abspath(os.fspath(path))
        self.chunksize = chunksize
        marks = self._look()
        directory, self._name = os.path.split(self.path)
        self._engine = shared.acquire(os.path.join(directory, STORE))
        self._closed = False
        try:
            self._shared = shared.join(self._engine, self._name, lambda: _Path(self._order))
            try:
                self._queue = self._engine.queue(self._name)
                self._mark(marks)
            except BaseException:
                shared.leave(self._engine, self._name, self._shared)
                raise
        except BaseException:
            shared.release(self._engine)
            raise

    def _look(self) -> list[str]:
        """Make the directory if need be; return the marks in it."""
        try:
            os.makedirs(self.path, exist_ok=True)
            taken = sorted(os.listdir(self.path))
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"{self.path}: is a file, not a queue of qindex") from error
        except OSError as error:
            raise StorageError(self.path, "the queue can't be opened", error) from error
        for name in taken:
            if name not in _MARKS.values():
                raise UsageError(f"{self.path}: is not a queue of qindex: it holds {name!r}")
        return taken

    def _mark(self, marks: list[str]) -> None:
        """Note how the queue is used. A queue of the other order is refused, unless it is empty."""
        mine = _MARKS[self._order]
        if marks == [mine]:
            return
        if set(marks) - {mine} and len(self._queue):
            raise UsageError(f"{self.path}: was filled as {marks[0]}; it can't be {mine} now")
        with storage_errors(self.path, "the queue can't be marked"):
            for other in set(marks) - {mine}:
                os.unlink(os.path.join(self.path, other))
            REAL.close(REAL.open(os.path.join(self.path, mine), os.O_WRONLY | os.O_CREAT))

    def push(self, data: bytes) -> None:
        """Append an item.

        Args:
            data: The item.

        Raises:
            TypeError: It is not bytes.
        """
        if not isinstance(data, bytes):
            raise TypeError(f"unsupported type: {type(data).__name__}")
        with self._shared.lock:
            self._check_open()
            self._queue.publish(data)

    def pop(self) -> bytes | None:
        """Take the next item.

        Returns:
            The item, or None if there is none.

        Raises:
            DamageError: The item is damaged. The next call goes on after it.
        """
        with self._shared.lock:
            self._check_open()
            delivery = self._take()
            if delivery is None:
                return None
            delivery.ack()
            return delivery.body

    def _take(self) -> Delivery | None:
        return self._queue.get(0)

    def peek(self) -> bytes | None:
        """Return the next item without taking it.

        Returns:
            The item, or None if there is none.
        """
        with self._shared.lock:
            self._check_open()
            return self._peek()

    def _peek(self) -> bytes | None:
        seen = self._queue.peek(1)
        return seen[0].body if seen else None

    def clear(self) -> None:
        """Remove all."""
        with self._shared.lock:
            self._check_open()
            self._queue.purge()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: the queue is closed")

    def close(self) -> None:
        """Close. The last object of an empty queue removes it.

        In a forked child it changes nothing.

        Raises:
            UsageError: It is called in the middle of a call of the same thread.
        """
        if shared.is_inherited(self._engine):
            return
        with self._shared.lock:
            if self._closed:
                return
            last = shared.leave(self._engine, self._name, self._shared)
            self._closed = True
        try:
            # Delayed messages of another program are not items, and stay.
            if last and not self._queue.stats().messages:
                self._remove()
        finally:
            shared.release(self._engine)

    def _remove(self) -> None:
        # A handler in the middle of a call of the engine is refused: then it stays, empty.
        with suppress(UsageError):
            self._engine.delete_queue(self._name)
            with suppress(OSError):
                os.unlink(os.path.join(self.path, _MARKS[self._order]))
                # Files that another program put there meanwhile stay.
                os.rmdir(self.path)

    def __len__(self) -> int:
        return len(self._queue)


class LifoDiskQueue(FifoDiskQueue):
    """Last in, first out."""

    _order = "lifo"

    def _take(self) -> Delivery | None:
        return take_last(self._queue)

    def _peek(self) -> bytes | None:
        return peek_last(self._queue)
