"""Tasks for tests/qindex/compat/test_django.py, which sets Django up before it imports them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from qindex.compat.django.names import HOME

if HOME == "django.tasks":
    from django.tasks import task
else:
    from django_tasks import task

RAN: list[Any] = []


@task
def note(value: object) -> object:
    RAN.append(value)
    return value


@task(takes_context=True)
def attempts(context: Any) -> int:
    found: int = context.attempt
    return found


@task
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
def unserializable() -> object:
    return object()


@task
def hold(name: str) -> str:
    """Take as long as there is a file of this name; tell the file beside it of each run."""
    with open(f"{name}.runs", "a") as runs:
        runs.write("run\n")
    while Path(name).exists():
        time.sleep(0.01)
    return "held"


@task
def deadly(name: str) -> None:
    with open(f"{name}.runs", "a") as runs:
        runs.write("run\n")
    os.kill(os.getpid(), 9)
