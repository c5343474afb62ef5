"""``queue.Queue`` and ``queue.LifoQueue`` whose items outlive the process."""

from __future__ import annotations

import importlib.util
import os
import pickle
import queue as standard
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from journal.errors import ClosedError, DamageError, UsageError
from journal.locks.call_lock import CallLock
from qindex.compat import shared
from qindex.compat.set_aside import UnreadableItemError, bring_back, item_of
from qindex.engine.engine import Engine
from qindex.queue.delivery import Delivery
from qindex.queue.plain_queue import take_last


class Serializer(Protocol):
    """Turns items into bytes and back: ``pickle``, ``marshal``, ``json`` with bytes, ..."""

    def dumps(self, item: Any, /) -> bytes:
        """Turn an item into bytes.

        Args:
            item: The item.

        Returns:
            The bytes.
        """

    def loads(self, data: bytes, /) -> Any:
        """Turn bytes into an item.

        Args:
            data: What ``dumps`` returned.

        Returns:
            The item.
        """


Codec = Literal["pickle", "bytes"] | Serializer


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


def codec_of(serializer: Codec) -> Serializer:
    """Return the codec for ``serializer``. Raises :class:`UsageError` if it lacks ``dumps`` or
    ``loads``."""
    codec: Any = serializer
    if isinstance(serializer, str):
        codec = {"pickle": pickle, "bytes": _Bytes}.get(serializer)
    if not all(callable(getattr(codec, name, None)) for name in ("dumps", "loads")):
        raise UsageError(f"serializer must have dumps and loads, not {serializer!r}")
    found: Serializer = codec
    return found


def _label(codec: Serializer) -> str:
    of: Any = codec if hasattr(codec, "__qualname__") else type(codec)
    return str(getattr(codec, "__name__", of.__qualname__))


class Held:
    """The items that were got and are not done with: ``got``, each with the thread or task that has
    it, oldest first, and the self-settling ones, ``taken``, by their seq_ids."""

    def __init__(self) -> None:
        self.got: deque[tuple[Any, Delivery]] = deque()
        self.taken: dict[int, Delivery] = {}

    def finish(self, me: Any, ack: Callable[[Delivery], None] = Delivery.ack) -> None:
        """Settle the oldest item that ``me`` got or, if there is none, the oldest of all."""
        if self.got:
            mine = next((one for one in self.got if one[0] == me), self.got[0])
            ack(mine[1])
            self.got.remove(mine)

    def give_all_back(self) -> None:
        """Let all of them come again."""
        for delivery in [*self.taken.values(), *(one for _, one in self.got)]:
            if not delivery.settled:
                delivery.nack()
        self.taken.clear()
        self.got.clear()


class Items:
    """The items of a queue of the engine: the part that the faces for threads and for coroutines
    share."""

    _codec: Serializer
    _name: str
    _dead_letter: str
    _engine: Engine
    _closed: bool
    _empty: type[Exception]
    """The error that the standard's queue raises when it is empty."""

    def _init(self, maxsize: int) -> None:
        """Nothing, where the standard's queue makes its container: the items are in the engine."""

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"queue {self._name!r} of {self._engine.directory} is closed")

    def _next(self) -> tuple[Any, Delivery]:
        self._check_open()
        try:
            delivery = self._take()
            if delivery is None:
                raise self._empty  # the count was of messages that had expired
            loads = self._codec.loads
            item = item_of(self._engine, delivery, loads, self._name, self._dead_letter)
        except (DamageError, UnreadableItemError):
            self._one_less()  # it is set aside, here or by the engine
            raise
        return item, delivery

    def _take(self) -> Delivery | None:
        """Take the next message."""
        raise NotImplementedError

    def _one_less(self) -> None:
        """Count an item that no get will give."""
        raise NotImplementedError


class _State(shared.Shared):
    """The state that the objects of one queue share: the mutex and its conditions, the items that
    are held, and the number of items not done yet."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        # A handler that calls in the middle of a call of its own thread is refused.
        self.mutex = CallLock()
        self.not_empty = threading.Condition(self.mutex)  # type: ignore[arg-type]
        self.not_full = threading.Condition(self.mutex)  # type: ignore[arg-type]
        self.all_tasks_done = threading.Condition(self.mutex)  # type: ignore[arg-type]
        self.held = Held()
        self.unfinished = -1

    def finish_one(self) -> None:
        """Count an item that is done with. The mutex is held."""
        self.unfinished -= 1
        if not self.unfinished:
            self.all_tasks_done.notify_all()


class _Settling(Protocol):
    def _settle(self, delivery: Delivery, *, again: bool) -> None: ...


class Taken:
    """An item that settles itself: what :meth:`PersistentQueue.take` gives.

    Used in a ``with`` block it is done with at the end, and given back when the block raises.
    """

    def __init__(self, queue: _Settling, item: Any, delivery: Delivery) -> None:
        self.item = item
        self._queue = queue
        self._delivery = delivery

    @property
    def redelivered(self) -> bool:
        """Whether it was got before."""
        return self._delivery.redelivered

    @property
    def settled(self) -> bool:
        """Whether it is done with, or was given back."""
        return self._delivery.settled

    def done(self) -> None:
        """Settle this item: it does not come again.

        Raises:
            UsageError: It was settled or given back before.
        """
        self._queue._settle(self._delivery, again=False)

    def give_back(self) -> None:
        """Let the item come again, first.

        Raises:
            UsageError: It was settled or given back before.
        """
        self._queue._settle(self._delivery, again=True)

    def __enter__(self) -> Any:
        return self.item

    def __exit__(self, kind: type[BaseException] | None, *_ended: object) -> None:
        if not self.settled:
            self._queue._settle(self._delivery, again=kind is not None)


def _standard_queue() -> type[standard.Queue[Any]]:
    """Return the standard library's own Queue, though gevent or eventlet exchanged it.

    Their queues wait in ways of their own, past the hooks and conditions that this one replaces.
    The standard's, loaded once more, waits by :mod:`threading`, which they patch.
    """
    if standard.Queue.__module__ == standard.__name__:
        return standard.Queue
    spec = importlib.util.find_spec(standard.__name__)
    assert spec is not None
    assert spec.loader is not None
    copy: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    for name in ("Empty", "Full", "ShutDown"):  # callers catch those that they can import
        if hasattr(standard, name):
            setattr(copy, name, getattr(standard, name))
    found: type[standard.Queue[Any]] = copy.Queue
    return found


if TYPE_CHECKING:
    _StandardQueue = standard.Queue
else:
    _StandardQueue = _standard_queue()


class PersistentQueue(Items, _StandardQueue[Any]):
    """A drop-in for :class:`queue.Queue` that persists; ``Empty`` and ``Full`` are the standard's.

    ``directory``: the store; ``name``: the queue in it. Queues of one process share the engine of a
    directory, and those of one name are one queue: one object gets the items of another. Another
    process is refused (:class:`~journal.errors.LockedError`), and so is another use of the queue in
    this one (:class:`UsageError`).

    ``put`` is in the operating system on return: the death of the process loses nothing. An item
    that was got is done with when ``task_done`` is called, by the thread that got it or, if that
    one holds none, by any: oldest first. Where one thread gets and others work, the oldest may be
    another one's: use :meth:`take` there. Items got and not done with come again, first, when
    the queue is opened the next time. With ``auto_done=True`` an item is done with when it is got,
    for programs that never call ``task_done``: then a crash loses the items being worked on.
    At open, ``join`` waits for all that is there.

    ``serializer``: ``"pickle"`` (any item; **never open a directory from a source that you do not
    trust with it: unpickling runs code**), ``"bytes"``, or an object with ``dumps`` and ``loads``.
    An item that can't be made of its bytes any more goes to the queue ``dead_letter`` (default:
    the name and ``.unreadable``), and :class:`UnreadableItemError` says so, once.

    All methods raise :class:`~journal.errors.ClosedError` after :meth:`close`, also in threads that
    were waiting. They raise :class:`UsageError` in a signal's handler or finalizer that runs in the
    middle of a call of its own thread.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with PersistentQueue(directory, maxsize=10) as jobs:
    ...     jobs.put({"n": 1})
    >>> with PersistentQueue(directory) as jobs:
    ...     print(jobs.get())
    ...     jobs.task_done()
    {'n': 1}
    """

    _order = "first in, first out"
    _empty = standard.Empty

    def __init__(
        self,
        directory: str | os.PathLike[str],
        maxsize: int = 0,
        *,
        name: str = "queue",
        serializer: Codec = "pickle",
        auto_done: bool = False,
        dead_letter: str | None = None,
    ) -> None:
        self._codec = codec_of(serializer)
        self._auto_done = auto_done
        self._name = name
        self._dead_letter = f"{name}.unreadable" if dead_letter is None else dead_letter
        kind = (
            f"{self._order}, with maxsize={maxsize}, auto_done={auto_done} and "
            f"the serializer {_label(self._codec)}"
        )
        self._made = False
        self._engine = shared.acquire(directory)
        self._closed = False
        try:
            self._queue = self._engine.queue(name)
            self._state = shared.join(self._engine, name, lambda: _State(kind))
        except BaseException:
            shared.release(self._engine)
            raise
        super().__init__(maxsize)
        # Those of the standard's own are replaced: all objects of a queue wait for the same.
        self.mutex: threading.Lock = cast("threading.Lock", self._state.mutex)
        self.not_empty: threading.Condition = self._state.not_empty
        self.not_full: threading.Condition = self._state.not_full
        self.all_tasks_done: threading.Condition = self._state.all_tasks_done
        with self.mutex:
            if self._state.unfinished < 0:
                self._state.unfinished = len(self._queue)
            self._made = True

    @property
    def unfinished_tasks(self) -> int:
        """Count the items that were put, and are not done with."""
        return self._state.unfinished

    @unfinished_tasks.setter
    def unfinished_tasks(self, count: int) -> None:
        # queue.Queue sets 0 at first, where others may have put already.
        if self._made:
            self._state.unfinished = count

    # The hooks that queue.Queue calls with its mutex held.

    def _qsize(self) -> int:
        self._check_open()
        return len(self._queue)

    def _put(self, item: Any) -> None:
        self._check_open()
        self._queue.publish(self._codec.dumps(item))

    def _get(self) -> Any:
        item, delivery = self._next()
        if self._auto_done:
            delivery.ack()
        else:
            self._state.held.got.append((threading.get_ident(), delivery))
        return item

    def _one_less(self) -> None:
        self._state.finish_one()
        self.not_full.notify()

    def _take(self) -> Delivery | None:
        return self._queue.get(0)

    if hasattr(_StandardQueue, "shutdown"):  # from Python 3.13 on

        def shutdown(self, immediate: bool = False) -> None:
            """Refuse puts, and gets once the queue is empty; with `immediate`, gets at once.

            Items that are waiting stay in the store, and come again at the next open.

            Args:
                immediate: Refuse gets at once, too, and wake their callers.
            """
            if immediate:
                self._auto_done = False  # queue.Queue gets them all, and nobody handles them
            super().shutdown(immediate)  # type: ignore[misc]

    # Beside the standard library's methods.

    def take(self, block: bool = True, timeout: float | None = None) -> Taken:
        """Get an item that settles itself: ``with jobs.take() as job``.

        It is done at the end of the block, without ``task_done``, in whatever thread. If the block
        raises, it comes again, first.

        Args:
            block: Wait for an item.
            timeout: Seconds to wait. None: forever.

        Returns:
            The item, for a ``with`` block.

        Raises:
            queue.Empty: No item came in time.
        """
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        deadline = None if timeout is None else monotonic() + timeout
        with self.mutex:
            while not self._qsize():
                if getattr(self, "is_shutdown", False):  # from Python 3.13 on
                    raise getattr(standard, "ShutDown")  # noqa: B009
                left = None if deadline is None else deadline - monotonic()
                if not block or (left is not None and left <= 0):
                    raise standard.Empty
                self.not_empty.wait(left)
            item, delivery = self._next()
            self._state.held.taken[delivery.seq_id] = delivery
            self.not_full.notify()
            return Taken(self, item, delivery)

    def _settle(self, delivery: Delivery, *, again: bool) -> None:
        with self.mutex:
            self._check_open()
            if again:
                delivery.nack()
                self.not_empty.notify()
            else:
                delivery.ack()
                self._state.finish_one()
            self._state.held.taken.pop(delivery.seq_id, None)

    def task_done(self) -> None:
        """Mark an item as done: it does not come again.

        Raises:
            ValueError: It was called more often than there were items.
        """
        state = self._state
        with self.mutex:
            self._check_open()
            if state.unfinished <= 0:
                raise ValueError("task_done() called too many times")
            state.held.finish(threading.get_ident())
            state.finish_one()

    def join(self) -> None:
        """Wait until all items are done with."""
        with self.mutex:
            while self._state.unfinished:
                self._check_open()
                self.all_tasks_done.wait()
            self._check_open()

    def retry_unreadable(self) -> int:
        """Return quarantined items that can be read again to the end of the queue.

        Returns:
            The number of items that came back from the dead-letter queue.
        """
        with self.mutex:
            self._check_open()
            if self._dead_letter not in self._engine.queue_names():
                return 0

            def put(delivery: Delivery) -> bool:
                try:
                    self._codec.loads(delivery.body)
                except Exception:
                    return False
                self._queue.publish(delivery.body)
                self._state.unfinished += 1
                self.not_empty.notify()
                return True

            return bring_back(self._engine.queue(self._dead_letter), put)

    def close(self) -> None:
        """Close, and wake all waiters.

        Items that were got and are not done come again at the next open. In a forked child it
        changes nothing.

        Raises:
            UsageError: It is called in the middle of a call of the same thread.
        """
        if shared.is_inherited(self._engine):
            return
        with self.mutex:
            if self._closed:
                return
            last = shared.leave(self._engine, self._name, self._state)
            self._closed = True
            if last:
                self._state.held.give_all_back()
            for condition in (self.not_empty, self.not_full, self.all_tasks_done):
                condition.notify_all()
        shared.release(self._engine)

    def __enter__(self) -> PersistentQueue:
        return self

    def __exit__(self, *_ended: object) -> None:
        self.close()


class PersistentLifoQueue(PersistentQueue):
    """The same for :class:`queue.LifoQueue`: last in, first out."""

    _order = "last in, first out"

    def _take(self) -> Delivery | None:
        return take_last(self._queue)
