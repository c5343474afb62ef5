"""The state of a task as it is stored: JSON, from which a ``TaskResult`` is made in any process."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.utils.module_loading import import_string

from qindex.compat.django.names import TaskError, TaskResult, TaskResultStatus

_TIMES = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")
FINISHED = {TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL}


def to_bytes(result: Any) -> bytes:
    """Return the bytes that are stored for a result."""
    task = result.task
    state: dict[str, Any] = {
        "id": result.id,
        "task": task.module_path,
        "priority": task.priority,
        "queue_name": task.queue_name,
        "run_after": None if task.run_after is None else task.run_after.isoformat(),
        "backend": result.backend,
        "args": result.args,
        "kwargs": result.kwargs,
        "status": str(result.status),
        "errors": [[one.exception_class_path, one.traceback] for one in result.errors],
        "worker_ids": result.worker_ids,
        "return_value": result._return_value,
    }
    for name in _TIMES:
        time = getattr(result, name)
        state[name] = None if time is None else time.isoformat()
    return json.dumps(state).encode()


def from_bytes(data: bytes) -> Any:
    """Return the result. Raises ``ImportError`` where its task is not known here."""
    state = json.loads(data)
    task = import_string(state["task"])
    changes = {name: state[name] for name in ("priority", "queue_name", "backend")}
    if state["run_after"] is not None:
        changes["run_after"] = datetime.fromisoformat(state["run_after"])
    result = TaskResult(
        task=task.using(**changes),
        id=state["id"],
        status=TaskResultStatus[state["status"]],
        args=state["args"],
        kwargs=state["kwargs"],
        backend=state["backend"],
        errors=[TaskError(exception_class_path=path, traceback=t) for path, t in state["errors"]],
        worker_ids=state["worker_ids"],
        **{name: None if state[name] is None else _time(state[name]) for name in _TIMES},
    )
    change(result, _return_value=state["return_value"])
    return result


def failed_bytes(data: bytes, error: str, now: datetime) -> bytes:
    """Return a stored state as FAILED, without a look at its task, which may not be known here."""
    state = json.loads(data)
    state["status"] = str(TaskResultStatus.FAILED)
    state["finished_at"] = now.isoformat()
    state["errors"].append(["qindex.worker.HandlerError", error])
    return json.dumps(state).encode()


def is_finished(data: bytes) -> bool:
    """Return whether a stored state is the last one of its task."""
    return json.loads(data)["status"] in FINISHED


def change(result: Any, **values: Any) -> None:
    """Change a result, which is frozen for its users."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
