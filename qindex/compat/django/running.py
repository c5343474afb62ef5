"""Running tasks: what the worker of ``qindex_worker`` calls for each message."""

from __future__ import annotations

import functools
import logging
import os
import socket
from traceback import format_exception
from typing import Any

import django
from django.apps import apps
from django.db import close_old_connections
from django.utils import timezone
from django.utils.crypto import get_random_string

from qindex.compat.django.backend import DIED, QindexBackend, Store
from qindex.compat.django.names import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from qindex.compat.django.states import change, failed_bytes, from_bytes, is_finished, to_bytes
from qindex.queue.delivery import Delivery
from qindex.worker import HandlerError, ProcessDiedError, TimedOutError

_log = logging.getLogger("qindex.compat")


@functools.cache
def _worker_id(pid: int) -> str:
    return f"{socket.gethostname()[:20]}-{pid}-{get_random_string(8)}"


def run(alias: str, delivery: Delivery) -> None:
    """Run the task of a message and store its result. Only a store that fails raises."""
    if not apps.ready:
        django.setup()  # in a process of the worker
    backend = task_backends[alias]
    store: Store = backend.store
    assert delivery.key is not None
    state = store.values.get(delivery.key) or delivery.body
    if is_finished(state):
        store.values.drop_kept(delivery.key)  # its worker was killed after the task was done
        return
    if delivery.delivery_count > store.attempts:
        _fail(backend, delivery, HandlerError(DIED))
        return
    try:
        result = from_bytes(state)
    except Exception as error:
        _fail(backend, delivery, error, "".join(format_exception(error)))
        return
    close_old_connections()
    try:
        _run(backend, result)
    finally:
        close_old_connections()


def _run(backend: QindexBackend, result: Any) -> None:
    task, now = result.task, timezone.now()
    result.worker_ids.append(_worker_id(os.getpid()))
    change(
        result,
        status=TaskResultStatus.RUNNING,
        started_at=result.started_at or now,
        last_attempted_at=now,
    )
    backend.store.values.put(result.id, to_bytes(result))
    task_started.send(sender=type(backend), task_result=result)
    context = (TaskContext(task_result=result),) if task.takes_context else ()
    try:
        value = _as_json(task.call(*context, *result.args, **result.kwargs))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        trace = "".join(format_exception(error))
        result.errors.append(TaskError(exception_class_path=path, traceback=trace))
        change(result, status=TaskResultStatus.FAILED)
        _finish(backend, result)  # here, because Django's receiver logs the current exception
    else:
        change(result, status=TaskResultStatus.SUCCESSFUL, _return_value=value)
        _finish(backend, result)


def _finish(backend: QindexBackend, result: Any) -> None:
    change(result, finished_at=timezone.now())
    backend.store.finish(result.id, to_bytes(result))
    task_finished.send(type(backend), task_result=result)


def give_up(alias: str, delivery: Delivery, error: BaseException) -> None:
    """Store that a task has failed whose process was killed, too often or for its time limit."""
    backend = task_backends[alias]
    last = isinstance(error, ProcessDiedError) and delivery.delivery_count >= backend.store.attempts
    if last or isinstance(error, TimedOutError):
        _fail(backend, delivery, error, DIED if last else None)
        delivery.ack()


def bury(alias: str, delivery: Delivery) -> None:
    """Store that a task has failed which is a dead letter."""
    deaths = (delivery.headers or {}).get("x-death") or [{}]
    _fail(task_backends[alias], delivery, HandlerError(deaths[0].get("cause") or DIED))


def _fail(
    backend: QindexBackend, delivery: Delivery, error: BaseException, text: str | None = None
) -> None:
    """Store and tell that a task has failed outside of its function, unless it is finished.
    ``text``: what its result says, by default that of the error."""
    store: Store = backend.store
    assert delivery.key is not None
    state = store.values.get(delivery.key) or delivery.body
    if is_finished(state):
        store.values.drop_kept(delivery.key)
        return
    state = failed_bytes(state, text or str(error), timezone.now())
    store.finish(delivery.key, state)
    try:
        result = from_bytes(state)
    except Exception:
        _log.exception("task %s has failed, and is not known here", delivery.key)
        return
    try:
        raise error
    except type(error):  # Django's receiver logs the current exception
        task_finished.send(type(backend), task_result=result)


def _as_json(value: Any) -> Any:
    try:
        from django.utils.json import normalize_json
    except ImportError:
        from django_tasks.utils import normalize_json
    return normalize_json(value)
