"""huey on qindex: :class:`QindexHuey` loses no task when its consumer is killed.

>>> huey = QindexHuey("shop", directory="tasks")
>>> @huey.task(retries=3, retry_delay=60)
... def send(mail): ...

huey's own storages delete a task as a worker takes it. Here the task's message stays with the
worker until the task is done. If the worker dies, the message goes to another one.
"""

from __future__ import annotations

import datetime
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from huey.api import Huey, PeriodicTask, Task, TaskLock
from huey.constants import EmptyData
from huey.exceptions import TaskLockedException
from huey.signals import SIGNAL_INTERRUPTED
from huey.storage import BaseStorage

import qindex
from qindex.compat.priorities import LEVELS, level_of
from qindex.compat.values import MOST, Values
from qindex.queue.delivery import Delivery

_log = logging.getLogger("qindex.compat")

DAY = 86_400.0
_SCHEDULED = "scheduled"
"""The key of messages that were published with a time."""
_TICK_WINDOW = 3600.0
"""Seconds after which the clock shows a minute again where it is put back. A tick of a periodic
task is remembered for a quarter of that: some clocks are put back by half an hour."""
_MOVED_TOGETHER = 1000


class _Intent:
    """The rest of the next publish of a thread: acknowledge a delivery; use this priority,
    this unique key, this delay."""

    __slots__ = ("delay", "done", "instead_of", "priority", "unique")

    def __init__(
        self,
        instead_of: Delivery | None = None,
        priority: float | None = None,
        unique: str | None = None,
        delay: float | None = None,
    ) -> None:
        self.instead_of = instead_of
        self.priority = priority
        self.unique = unique
        self.delay = delay
        self.done = False


class _Store:
    """An open store, and the queues of one Huey in it."""

    def __init__(self, engine: qindex.SharedEngine, name: str, limit: int, expires: float) -> None:
        self.engine = engine
        self.tasks: qindex.SharedQueue = engine.queue(
            name, max_priority=LEVELS, delivery_limit=limit, dead_letter=f"{name}.failed"
        )
        self.locks: qindex.SharedQueue = engine.queue(f"{name}.locks")
        self.values = Values(engine, f"{name}.values", expires)
        self.counters = Values(engine, f"{name}.counters", expires)


class QindexStorage(BaseStorage):  # type: ignore[misc]
    """A storage of huey in a directory that any number of processes share.

    Use it through :class:`QindexHuey`. With another ``Huey`` class a task is acknowledged as it is
    taken, as in huey's own storages.

    Args:
        name: The name of the queue, and the start of the names of those beside it.
        directory: The directory of the store.
        expire_time: Seconds after which results and counters are dropped.
        delivery_limit: How many workers a task may kill before it is put aside in ``NAME.failed``.
        blocking: Wait for a task up to ``read_timeout`` seconds in :meth:`dequeue`.
        options: Options of :func:`qindex.open`, such as ``durability="fsync"``.
    """

    priority = True

    def __init__(
        self,
        name: str = "huey",
        directory: str | os.PathLike[str] = "huey-data",
        expire_time: float = 7 * DAY,
        delivery_limit: int = 5,
        blocking: bool = True,
        read_timeout: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(name)
        self.blocking = blocking
        self.directory = os.path.abspath(directory)
        self._read_timeout = read_timeout if blocking else 0.0
        self._expire_time = expire_time
        self._delivery_limit = delivery_limit
        self._options = options
        self._store: _Store | None = None
        self._opening = threading.Lock()
        self._next = threading.local()
        self._lock_prefix = f"{name}.lock."
        self._held_locks: dict[str, Delivery] = {}

    # -- the store ------------------------------------------------------------------------------

    @property
    def store(self) -> _Store:
        """The store, which is opened when it is first needed."""
        return self._store or self._open()

    def _open(self) -> _Store:
        with self._opening:
            if self._store is None:
                engine = qindex.open(self.directory, shared=True, **self._options)
                try:
                    self._store = _Store(engine, self.name, self._delivery_limit, self._expire_time)
                except BaseException:
                    engine.close()
                    raise
                weakref.finalize(self, engine.close)  # at the end of the process at the latest
            return self._store

    @property
    def tasks(self) -> qindex.SharedQueue:
        """The queue of the tasks."""
        return self.store.tasks

    def close(self) -> bool:
        """Close the store. The next use opens it again."""
        with self._opening:
            store, self._store = self._store, None
            self._held_locks.clear()
        if store is None:
            return False
        store.engine.close()
        return True

    # -- tasks ----------------------------------------------------------------------------------

    @contextmanager
    def next_publish(self, intent: _Intent) -> Iterator[_Intent]:
        """Let the next publish of this thread do more than huey's interface can tell it."""
        before = getattr(self._next, "intent", None)
        self._next.intent = intent
        try:
            yield intent
        finally:
            self._next.intent = before

    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        """Add a task to the queue."""
        self._publish(data, {"priority": level_of(priority)})

    def add_to_schedule(self, data: bytes, ts: datetime.datetime) -> None:
        """Add a task that is ready at ``ts``. No scheduler is needed for that."""
        intent = getattr(self._next, "intent", None) or _Intent()
        delay = intent.delay
        if delay is None:
            delay = ts.timestamp() - time.time()
        options: dict[str, Any] = {
            "priority": level_of(intent.priority),
            "key": _SCHEDULED,
            "headers": {"eta": ts.timestamp()},
        }
        if delay > 0:
            options["delay"] = delay
        self._publish(data, options)

    def _publish(self, data: bytes, options: dict[str, Any]) -> None:
        intent = getattr(self._next, "intent", None)
        self._next.intent = None  # it is for one publish
        if intent is None:
            self.tasks.publish(data, **options)
            return
        if intent.unique is not None:
            options |= {"unique": intent.unique, "window": _TICK_WINDOW / 4}
        if intent.instead_of is None:
            self.tasks.publish(data, **options)
        else:
            with self.store.engine.transaction() as tx:
                tx.publish(self.tasks, data, **options)
                tx.ack(intent.instead_of)
        intent.done = True

    def take(self, done: Delivery | None = None) -> Delivery | None:
        """Take a task, which is redelivered unless it is acknowledged. ``done``: the one before,
        which is acknowledged first, in the same request."""
        try:
            return self.tasks.get(self._read_timeout, ack=done)
        except (qindex.LeaseExpiredError, qindex.DisconnectedError) as error:
            if done is None:
                raise
            _log_lost(error)
            return None

    def dequeue(self) -> bytes | None:
        """Take a task and acknowledge it, or return None where there is none."""
        delivery = self.take()
        if delivery is None:
            return None
        delivery.ack()
        return delivery.body

    def queue_size(self) -> int:
        """Return the number of tasks that are ready."""
        return len(self.tasks)

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        """Look at the tasks that are ready."""
        return [one.body for one in self.tasks.peek(MOST if limit is None else limit)]

    def flush_queue(self) -> None:
        """Drop the ready tasks, and leave the scheduled ones."""
        while batch := self.tasks.get_many(_MOVED_TOGETHER, timeout=0):
            self.tasks.ack_many(batch)

    def _scheduled(self) -> list[tuple[float, Delivery]]:
        found = [
            ((one.headers or {}).get("eta", 0.0), one)
            for one in self.tasks.find(_SCHEDULED, MOST)
            if not one.redelivered
        ]
        return sorted(found, key=lambda pair: pair[0])

    def read_schedule(self, ts: datetime.datetime) -> list[bytes]:
        """Take the tasks whose time is not after ``ts``. A consumer does not need this."""
        until = ts.timestamp()
        due = [one for eta, one in self._scheduled() if eta <= until]
        return [one.body for one in due if self.tasks.cancel(one.seq_id)]

    def schedule_size(self) -> int:
        """Return the number of tasks that were given a time, and were not taken yet."""
        return len(self._scheduled())

    def scheduled_items(self, limit: int | None = None) -> list[bytes]:
        """Look at the tasks that were given a time, the earliest first."""
        return [one.body for _eta, one in self._scheduled()[:limit]]

    def flush_schedule(self) -> None:
        """Drop the tasks that were given a time."""
        for _eta, one in self._scheduled():
            self.tasks.cancel(one.seq_id)

    # -- values ---------------------------------------------------------------------------------

    def put_data(self, key: str | bytes, value: bytes, is_result: bool = False) -> None:
        """Set a value. A result expires."""
        self.store.values.put(_text(key), bytes(value), expiring=is_result)

    def peek_data(self, key: str | bytes) -> Any:
        """Return a value, or ``EmptyData``."""
        found = self.store.values.get(_text(key))
        return EmptyData if found is None else found

    def pop_data(self, key: str | bytes) -> Any:
        """Drop a value and return it, or ``EmptyData``."""
        found = self.store.values.pop(_text(key))
        return EmptyData if found is None else found

    def delete_data(self, key: str | bytes) -> bool:
        """Drop a value, or give back a lock; return whether there was one."""
        name = _text(key)
        if name.startswith(self._lock_prefix):
            return self._unlock(name)
        return self.store.values.pop(name) is not None

    def has_data_for_key(self, key: str | bytes) -> bool:
        """Return whether there is a value, or whether a lock is held."""
        name = _text(key)
        if name.startswith(self._lock_prefix):
            return self._is_locked(name)
        return self.store.values.get(name) is not None

    def put_if_empty(self, key: str | bytes, value: bytes, ttl: float | None = None) -> bool:
        """Set a value, or take a lock, unless there is one."""
        name = _text(key)
        if name.startswith(self._lock_prefix):
            return self.take_lock(name, ttl) is not None
        return self.store.values.add(name, bytes(value), ttl)

    def incr(self, key: str | bytes, amount: int = 1) -> int:
        """Add to a counter and return it."""
        return self.store.counters.increase(_text(key), amount)

    def delete_counter(self, key: str | bytes) -> None:
        """Drop a counter."""
        self.store.counters.pop(_text(key))

    def flush_counters(self) -> None:
        """Drop all counters."""
        self.store.counters.clear()

    def result_store_size(self) -> int:
        """Return the number of values."""
        return len(self.store.values.items())

    def result_items(self) -> dict[str, bytes]:
        """Return all values by their keys."""
        return self.store.values.items()

    def flush_results(self) -> None:
        """Drop all values."""
        self.store.values.clear()

    # -- locks ----------------------------------------------------------------------------------

    # A lock is a message that is with the process which holds it. When the process dies, the
    # message goes back to the queue, and whoever wants the lock next takes it from there.

    def take_lock(self, key: str, ttl: float | None) -> Delivery | None:
        """Take a lock, or return None where it is held."""
        try:
            seq_id = self.store.locks.publish(b"", key=key, unique=key)
        except qindex.DuplicateError as error:
            seq_id = error.seq_id
        delivery = self.store.locks.get(seq_id=seq_id, lease=ttl)
        if delivery is not None:
            self._held_locks[key] = delivery
        return delivery

    def free_lock(self, key: str, delivery: Delivery) -> bool:
        """Free a lock, and return whether it was still held by this delivery."""
        if self._held_locks.get(key) is delivery:
            del self._held_locks[key]
        if not delivery.settled:  # flush_locks frees locks, too
            with suppress(qindex.LeaseExpiredError, qindex.DisconnectedError, qindex.ClosedError):
                delivery.ack()
                return True
        self._drop_free(key)
        return False

    def _drop_free(self, key: str) -> None:
        """Drop the message of a lock that nobody holds: it was of a process that was killed, or
        its time ran out."""
        for one in self.store.locks.find(key, MOST):
            left = self.store.locks.get(seq_id=one.seq_id)
            if left is not None:
                left.ack()

    def _unlock(self, key: str) -> bool:
        delivery = self._held_locks.get(key)
        if delivery is None:
            self._drop_free(key)  # a live process's lock can't be taken away
        elif self.free_lock(key, delivery):
            return True
        # If the key of a lock has a value, a program has put it there.
        return self.store.values.pop(key) is not None

    def _is_locked(self, key: str) -> bool:
        try:
            seq_id = self.store.locks.publish(b"", key=key, unique=key)
        except qindex.DuplicateError as error:
            return all(one.seq_id != error.seq_id for one in self.store.locks.find(key, MOST))
        return not self.store.locks.cancel(seq_id)


class _Lock(TaskLock):  # type: ignore[misc]
    """A lock that frees what it has taken in this thread: if its time ran out, another may hold
    it. What was taken elsewhere is freed by its key, as in huey."""

    def __init__(self, huey: QindexHuey, name: str, ttl: float | None = None) -> None:
        super().__init__(huey, name, ttl)
        self._mine = threading.local()

    def acquire(self) -> bool:
        """Take the lock. Raises ``TaskLockedException``."""
        if not self._huey.is_durable():
            return bool(super().acquire())
        delivery = self._huey.storage.take_lock(self._key, self._ttl)
        if delivery is None:
            raise TaskLockedException(f"unable to acquire lock {self._name}")
        self._mine.__dict__.setdefault("taken", []).append(delivery)
        return True

    def clear(self) -> bool:
        """Free the lock, and return whether it was held."""
        taken: list[Delivery] = self._mine.__dict__.get("taken", [])
        if taken:
            freed: bool = self._huey.storage.free_lock(self._key, taken.pop())
            return freed
        return bool(super().clear())

    release = clear

    def __exit__(self, *_: object) -> None:
        self.clear()


class QindexHuey(Huey):  # type: ignore[misc]
    """A ``Huey`` whose tasks survive the death of their consumer.

    Args:
        name: The name of the application, and of its queue.
        directory: The directory of the store. Any number of processes may use it.
        options: Those of ``Huey`` and of :class:`QindexStorage`.
    """

    storage_class = QindexStorage

    def __init__(
        self, name: str = "huey", directory: str | os.PathLike[str] = "huey-data", **options: Any
    ) -> None:
        self._interrupted = threading.local()
        self._worker = threading.local()
        super().__init__(name, directory=directory, **options)
        self.signal(SIGNAL_INTERRUPTED)(self._note_interrupted)
        self.on_startup("qindex")(self._begin_worker)
        self.on_shutdown("qindex")(self._end_worker)

    def _note_interrupted(self, _signal: str, task: Task, *_more: Any) -> None:
        # In the thread of the task: it did not finish. At the end of a consumer the main thread
        # tells of tasks that may still finish.
        self._interrupted.task = task

    # A worker asks for its next task as soon as one is done, so that one request acknowledges the
    # one and takes the other. In its thread, ``done`` is the delivery of the first.

    def _begin_worker(self) -> None:
        self._worker.done = None

    def _end_worker(self) -> None:
        done: Delivery | None = self._worker.__dict__.pop("done", None)
        if done is not None:
            _settle(done, done.ack)

    def lock_task(self, lock_name: str, ttl: float | None = None) -> TaskLock:
        """Return a lock. It is free once its process dies, or after ``ttl`` seconds."""
        return _Lock(self, lock_name, ttl)

    def is_durable(self) -> bool:
        """Return whether tasks go to a store: in immediate mode they don't."""
        return isinstance(self.storage, QindexStorage)

    def dequeue(self) -> Task | None:
        """Take a task, which is the caller's until :meth:`execute` has returned."""
        if not self.is_durable():
            return super().dequeue()
        worker = self._worker.__dict__
        done = worker.get("done")
        if done is not None:
            worker["done"] = None
        delivery = self.storage.take(done)
        if delivery is None:
            return None
        try:
            task = self.deserialize_task(delivery.body)
        except Exception as error:
            delivery.reject(f"{type(error).__name__}: {error}")
            raise
        task.delivery = delivery
        return task

    def execute(self, task: Task, timestamp: datetime.datetime | None = None) -> Any:
        """Execute a task, and acknowledge it once it is done or its retry is enqueued."""
        delivery: Delivery | None = getattr(task, "delivery", None)
        if delivery is None:
            return super().execute(task, timestamp)
        self._interrupted.task = None
        if task.on_complete is not None:
            task.on_complete.preceding = task
        try:
            value = super().execute(task, timestamp)
        except Exception as error:
            _settle(delivery, partial(delivery.reject, f"{type(error).__name__}: {error}"))
            raise
        except BaseException:
            _settle(delivery, partial(delivery.nack, delay=0, count=False))
            raise
        if self._interrupted.task is task:
            self._interrupted.task = None
            _settle(delivery, partial(delivery.nack, delay=0, count=False))
        elif "done" in self._worker.__dict__ and not delivery.settled:
            self._worker.done = delivery
        else:
            _settle(delivery, delivery.ack)
        return value

    def enqueue(self, task: Any) -> Any:
        """Enqueue a task. A task that is tried again, and the next one of a pipeline, are enqueued
        in the step that acknowledges the one before."""
        if not self.is_durable() or self._immediate or not isinstance(task, Task):
            return super().enqueue(task)
        intent = _Intent(_delivery_before(task), unique=getattr(task, "tick", None))
        with self.storage.next_publish(intent):
            try:
                return super().enqueue(task)
            except qindex.DuplicateError:
                # Another consumer, or this one before it began anew, has enqueued this tick.
                return self._result_handle(task) if self.results else None

    def add_schedule(self, task: Task) -> None:
        """Let a task wait for its time."""
        if not self.is_durable():
            super().add_schedule(task)
            return
        now = self._get_timestamp()
        delay = 0.0 if task.eta is None else max(0.0, (task.eta - now).total_seconds())
        intent = _Intent(_delivery_before(task), priority=task.priority, delay=delay)
        with self.storage.next_publish(intent):
            super().add_schedule(task)

    def read_schedule(self, timestamp: datetime.datetime | None = None) -> list[Task]:
        """Return nothing: a task whose time has come is delivered by itself.

        With a ``timestamp`` those whose time is not after it are taken from the schedule.
        """
        if timestamp is None and self.is_durable():
            return []
        found: list[Task] = super().read_schedule(timestamp)
        return found

    def read_periodic(self, timestamp: datetime.datetime | None) -> list[PeriodicTask]:
        """Return the periodic tasks of this minute. Each is enqueued once, however many consumers
        there are."""
        found: list[PeriodicTask] = super().read_periodic(timestamp)
        minute = (timestamp or self._get_timestamp()).strftime("%Y-%m-%dT%H:%M")
        for task in found:
            task.tick = f"{self._registry.task_to_string(type(task))} {minute}"
        return found


def _delivery_before(task: Task) -> Delivery | None:
    """Return the delivery that a task takes the place of: its own, when it is tried again, or that
    of the task before it in a pipeline."""
    before = getattr(task, "preceding", task)
    delivery: Delivery | None = getattr(before, "delivery", None)
    return None if delivery is None or delivery.settled else delivery


def _settle(delivery: Delivery, settle: Callable[[], object]) -> None:
    """Settle a delivery unless it is. A task whose delivery was lost runs again."""
    if delivery.settled:
        return
    try:
        settle()
    except (qindex.LeaseExpiredError, qindex.DisconnectedError) as error:
        _log_lost(error)


def _log_lost(error: Exception) -> None:
    _log.warning("a task will run again: %s", error)


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key
