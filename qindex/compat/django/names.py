"""The names of Django's tasks: those of Django itself, or of the package ``django-tasks``."""

from __future__ import annotations

import importlib
import importlib.util

HOME = "django.tasks" if importlib.util.find_spec("django.tasks") else "django_tasks"
"""The package that has the tasks."""

_base = importlib.import_module(f"{HOME}.base")
_exceptions = importlib.import_module(f"{HOME}.exceptions")
_signals = importlib.import_module(f"{HOME}.signals")

BaseTaskBackend = importlib.import_module(f"{HOME}.backends.base").BaseTaskBackend
task_backends = importlib.import_module(HOME).task_backends
Task = _base.Task
TaskContext = _base.TaskContext
TaskError = _base.TaskError
TaskResult = _base.TaskResult
TaskResultStatus = _base.TaskResultStatus
TaskResultDoesNotExist = _exceptions.TaskResultDoesNotExist
InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
task_enqueued = _signals.task_enqueued
task_started = _signals.task_started
task_finished = _signals.task_finished
