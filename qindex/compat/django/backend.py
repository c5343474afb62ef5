"""The backend: it stores tasks and results in a directory that any number of processes share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any

from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

import qindex
from qindex.compat.django.names import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from qindex.compat.django.states import change, failed_bytes, from_bytes, is_finished, to_bytes
from qindex.compat.priorities import LEVELS, level_of
from qindex.compat.values import Values
from qindex.options import Options

DAY = 86_400.0
DIED = "the worker died in the middle of the task"
_BACKOFF = "exponential:1:300"
_TIME_BYTES = 64
"""Bytes that the time of its enqueueing may add to a task."""


class Store:
    """An open store, and the queues of one backend in it.

    ``name``: the start of their names. ``attempts``: how many workers a task may kill.
    """

    def __init__(
        self, engine: qindex.SharedEngine, name: str, attempts: int, expires: float
    ) -> None:
        self.engine = engine
        self.attempts = attempts
        self._name = name
        self._queues: dict[str, qindex.SharedQueue] = {}
        self.failed: qindex.SharedQueue = engine.queue(f"{name}.failed")
        self.values = Values(engine, f"{name}.values", expires)

    def queue(self, name: str) -> qindex.SharedQueue:
        """Return the queue of the tasks of one of Django's queues."""
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = self.engine.queue(
                f"{self._name}.queue.{name}",
                max_priority=LEVELS,
                # The last delivery is for the worker to see that there were too many.
                delivery_limit=self.attempts + 1,
                dead_letter=self.failed.name,
                backoff=_BACKOFF,
            )
        return found

    def queue_names(self) -> list[str]:
        """Return the names of Django's queues that there are."""
        start = f"{self._name}.queue."
        names = self.engine.queue_names()
        return sorted(one.removeprefix(start) for one in names if one.startswith(start))

    def finish(self, result_id: str, state: bytes) -> None:
        """Store the last state of a task. It expires."""
        self.values.put(result_id, state, expiring=True)


_opening = threading.Lock()
_stores: dict[tuple[str, str], Store] = {}


def close_stores() -> None:
    """Close the stores of all backends in this process. The next use opens them again."""
    with _opening:
        stores = list(_stores.values())
        _stores.clear()
    for one in stores:
        one.engine.close()


class QindexBackend(BaseTaskBackend):  # type: ignore[misc]
    """A backend of Django's tasks in a directory.

    ``OPTIONS``: ``directory``, which is required; ``name``, the start of the names of the queues
    (``"django"``); ``max_attempts``, how many workers a task may kill before it has failed (3);
    ``expires``, seconds after which results are dropped (a week). Others are those of
    :func:`qindex.open`, such as ``durability``.

    ``ENQUEUE_ON_COMMIT``, beside ``OPTIONS``: whether ``enqueue`` in a transaction of the database
    waits for its commit (True); it may be the alias of a database that is not the default one.

    Example:
        >>> TASKS = {
        ...     "default": {
        ...         "BACKEND": "qindex.compat.django.QindexBackend",
        ...         "OPTIONS": {"directory": BASE_DIR / "tasks"},
        ...     }
        ... }
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        self._directory: str | os.PathLike[str] | None = options.pop("directory", None)
        self._name: str = options.pop("name", "django")
        self._attempts: int = options.pop("max_attempts", 3)
        self._expires: float = options.pop("expires", 7 * DAY)
        self._open_options = options
        on_commit: bool | str = params.get("ENQUEUE_ON_COMMIT", True)
        self._database = DEFAULT_DB_ALIAS if on_commit is True else on_commit

    @property
    def store(self) -> Store:
        """The store, which is opened when it is first needed."""
        if self._directory is None:
            raise qindex.UsageError(f"TASKS[{self.alias!r}]: OPTIONS has no directory")
        key = (os.path.abspath(self._directory), self._name)
        found = _stores.get(key)
        if found is None:
            with _opening:
                found = _stores.get(key)
                if found is None:
                    engine = qindex.open(key[0], shared=True, **self._open_options)
                    found = Store(engine, self._name, self._attempts, self._expires)
                    _stores[key] = found
        return found

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task, in a transaction of the database at its commit."""
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=get_random_string(32),
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        # What can't be stored raises here, not at the commit.
        options = _options_of(result)
        self._check_size(len(to_bytes(result)))
        # Asked first: on_commit() would open a connection for a task outside of a transaction.
        if self._database and connections[self._database].in_atomic_block:
            publish = partial(self._publish, result, options)
            transaction.on_commit(publish, using=self._database)
        else:
            self._publish(result, options)
        return result

    def _check_size(self, size: int) -> None:
        most = self._open_options.get("max_message_bytes", Options().max_message_bytes)
        if size + _TIME_BYTES > most:
            raise qindex.UsageError(
                f"a task may have {most} bytes with its arguments (max_message_bytes), not {size}"
            )

    def _publish(self, result: Any, options: dict[str, Any]) -> None:
        """Publish a task and its first state, both or none."""
        change(result, enqueued_at=timezone.now())
        store, state = self.store, to_bytes(result)
        queue = store.queue(result.task.queue_name)
        with store.engine.transaction() as tx:
            store.values.put_first(tx, result.id, state)
            tx.publish(queue, state, **options)
        task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """Return the state of a task of any process, or raise ``TaskResultDoesNotExist``."""
        store = self.store
        state = store.values.get(str(result_id))
        if state is None:
            raise TaskResultDoesNotExist(result_id)
        if is_finished(state):
            return from_bytes(state)
        result = from_bytes(state)
        if result.status == TaskResultStatus.RUNNING:
            # A worker that is killed leaves this state. Where its task is tells the true one.
            if store.queue(result.task.queue_name).find(result.id, 1):
                change(result, status=TaskResultStatus.READY)
            elif store.failed.find(result.id, 1):
                return from_bytes(failed_bytes(state, DIED, timezone.now()))
        return result

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings."""
        hint = "Name the directory in which tasks are stored."
        if self._directory is None:
            yield checks.Error(
                f"TASKS[{self.alias!r}]: OPTIONS has no directory.", hint=hint, id="qindex.E001"
            )
        if not isinstance(self._attempts, int) or self._attempts < 1:
            yield checks.Error(
                f"TASKS[{self.alias!r}]: max_attempts must be at least 1.", id="qindex.E002"
            )
        if isinstance(self._database, str) and self._database not in connections:
            yield checks.Error(
                f"TASKS[{self.alias!r}]: ENQUEUE_ON_COMMIT names no database.", id="qindex.E003"
            )


def _options_of(result: Any) -> dict[str, Any]:
    """Return how the message of a task is published. Raises ``InvalidTask``."""
    task = result.task
    options: dict[str, Any] = {"key": result.id, "priority": level_of(task.priority)}
    due = task.run_after
    if due is not None:
        if not isinstance(due, datetime):
            raise InvalidTask(f"run_after must be a datetime, not {due!r}")
        # Naive where USE_TZ is False: a time of the current zone.
        options["at"] = due if timezone.is_aware(due) else timezone.make_aware(due)
    return options
