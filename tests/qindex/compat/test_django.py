"""Django's tasks on qindex: enqueued with the commit, run in workers that may be killed."""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import io
import os
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import qindex
from tests.effort import by_tier, not_quick, part
from tests.server.support import WAIT, end_store
from tests.waiting import wait_until

if importlib.util.find_spec("django") is None:
    pytest.skip("Django is not installed: pip install 'qindex[django]'", allow_module_level=True)
if not (importlib.util.find_spec("django.tasks") or importlib.util.find_spec("django_tasks")):
    pytest.skip(
        "neither Django 6 nor django-tasks is installed: pip install 'qindex[django]'",
        allow_module_level=True,
    )
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.qindex.compat.django_project"

import django

django.setup()  # before the tasks of the tests are imported, which need the settings

from django.core import checks
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import TestCase, override_settings
from django.utils import timezone

from qindex.compat.django import QindexBackend, running
from qindex.compat.django.backend import close_stores
from qindex.compat.django.names import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from qindex.worker import TimedOutError
from tests.qindex.compat import django_jobs as jobs

ROOT = Path(__file__).parents[3]
SHOP = ROOT / "examples" / "django_shop"
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a directory whose server runs."""
    directory = tmp_path_factory.mktemp("django") / "tasks"
    with qindex.open(directory, shared=True):
        yield directory
    end_store(directory)


def settings_of(directory: object, name: str, **more: Any) -> dict[str, Any]:
    options = {"directory": directory, "name": name, "max_attempts": 2, **more.pop("OPTIONS", {})}
    backend = {"BACKEND": "qindex.compat.django.QindexBackend", "QUEUES": ["default", "other"]}
    return {"default": {**backend, "OPTIONS": options, **more}}


@pytest.fixture
def configure(store: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Give a function that changes TASKS. The queues of each test have names of their own."""
    changed: list[override_settings] = []

    def change(**more: Any) -> None:
        changed.append(override_settings(TASKS=settings_of(store, request.node.name, **more)))
        changed[-1].enable()

    change()
    jobs.RAN.clear()
    yield change
    for one in reversed(changed):
        one.disable()
    close_stores()


def work(**options: Any) -> None:
    call_command("qindex_worker", until_empty=True, verbosity=0, **options)


# -- what the interface promises ------------------------------------------------------------------


@pytest.mark.usefixtures("configure")
def test_a_task_and_its_result() -> None:
    told: list[tuple[str, str]] = []

    def listen(name: str) -> Callable[..., None]:
        return lambda task_result, **_: told.append((name, str(task_result.status)))

    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    listeners = {name: listen(name) for name in signals}
    for name, one in signals.items():
        one.connect(listeners[name])
    result = jobs.note.enqueue({"a": [1, None]})
    assert (result.status, result.attempts, jobs.RAN) == (READY, 0, [])
    assert jobs.note.get_result(result.id).enqueued_at == result.enqueued_at is not None
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    work()
    result.refresh()
    for name, one in signals.items():
        one.disconnect(listeners[name])
    assert jobs.RAN == [{"a": [1, None]}]
    assert (result.status, result.return_value) == (SUCCESSFUL, {"a": [1, None]})
    assert result.enqueued_at <= result.started_at <= result.finished_at <= timezone.now()
    assert (result.attempts, result.errors) == (1, [])
    assert told == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    with pytest.raises(TaskResultDoesNotExist):
        jobs.note.get_result("unknown")


@pytest.mark.usefixtures("configure")
def test_failures() -> None:
    failed, strange = jobs.fail.enqueue("no such customer"), jobs.unserializable.enqueue()
    work()
    failed.refresh()
    strange.refresh()
    assert (failed.status, failed.attempts) == (FAILED, 1)
    assert failed.errors[0].exception_class is ValueError
    assert "no such customer" in failed.errors[0].traceback
    assert (strange.status, strange.errors[0].exception_class) == (FAILED, TypeError)


@pytest.mark.usefixtures("configure")
def test_priorities_queues_and_times() -> None:
    soon = timezone.now() + datetime.timedelta(seconds=0.2)
    late = jobs.note.using(run_after=soon).enqueue("late")
    for priority in (-100, 0, 100, 7):
        jobs.note.using(priority=priority).enqueue(priority)
    jobs.note.using(queue_name="other").enqueue("other")
    work(queue=["default"])
    ready = [value for value in jobs.RAN if value != "late"]  # it may have been time for that
    assert ready == [100, 7, 0, -100]

    def is_late() -> bool:
        work()
        return "late" in jobs.RAN

    wait_until(is_late)
    assert "other" in jobs.RAN
    late.refresh()
    assert late.started_at >= soon
    assert (late.task.run_after, late.task.priority) == (soon, 0)


@pytest.mark.usefixtures("configure")
@pytest.mark.parametrize("zone", [None, datetime.UTC])
def test_a_time_without_time_zones(zone: datetime.tzinfo | None) -> None:
    with override_settings(USE_TZ=False):
        when = datetime.datetime.now(zone) + datetime.timedelta(hours=1)
        with transaction.atomic():
            later = jobs.note.using(run_after=when).enqueue(1)
        assert status_of(later) == READY
        past = when - datetime.timedelta(hours=2)
        due = jobs.note.using(run_after=past).enqueue(2)
        work()
        due.refresh()
        assert (due.status, due.task.run_after) == (SUCCESSFUL, past)
    assert jobs.RAN == [2]
    queue = task_backends["default"].store.queue("default")
    assert queue.stats().delayed == 1


@pytest.mark.usefixtures("configure")
def test_a_time_that_is_none_is_refused_before_the_commit() -> None:
    with override_settings(USE_TZ=False), transaction.atomic():
        task = jobs.note.using(run_after="tomorrow")
        with pytest.raises(InvalidTask, match="run_after must be a datetime"):
            task.enqueue(1)


@pytest.mark.usefixtures("configure")
def test_failures_are_logged_with_their_cause(caplog: pytest.LogCaptureFixture) -> None:
    """Django's receiver of the signal logs the current exception."""
    backend = task_backends["default"]
    jobs.fail.enqueue("no such customer")
    work()
    assert "ValueError: no such customer" in caplog.text
    killed = jobs.note.enqueue(1)
    delivery = backend.store.queue("default").get()
    running.give_up("default", delivery, TimedOutError("killed after 2 s"))
    assert status_of(killed) == FAILED
    assert f"Task id={killed.id}" in caplog.text
    assert "killed after 2 s" in caplog.text


@pytest.mark.usefixtures("configure")
def test_coroutines_and_contexts() -> None:
    async def enqueue() -> list[Any]:
        found = [await jobs.note.aenqueue(1), await jobs.sleep.aenqueue(0.01)]
        assert (await jobs.note.aget_result(found[0].id)).status == READY
        return [*found, await jobs.attempts.aenqueue()]

    results = asyncio.run(enqueue())
    work(concurrency=2)
    for one in results:
        asyncio.run(one.arefresh())
    assert [one.return_value for one in results] == [1, "slept", 1]


def test_any_name_is_valid_where_no_queues_are_named(configure: Callable[..., None]) -> None:
    configure(QUEUES=[], OPTIONS={"name": "any"})
    with pytest.raises(CommandError, match="no queue yet"):
        work()
    jobs.note.using(queue_name="new").enqueue("new")
    work()
    assert jobs.RAN == ["new"]


@pytest.mark.usefixtures("configure")
def test_a_purge_leaves_the_state_of_a_task() -> None:
    result = jobs.note.enqueue(1)
    assert task_backends["default"].store.queue("default").purge() == 1
    assert status_of(result) == READY


@pytest.mark.usefixtures("configure")
def test_what_django_refuses() -> None:
    for wrong in ({"priority": 101}, {"priority": 1.5}, {"queue_name": "unknown"}):
        with pytest.raises(InvalidTask):
            jobs.note.using(**wrong)
    with pytest.raises(InvalidTask, match="aware"):
        jobs.note.using(run_after=datetime.datetime(2040, 1, 1))
    with pytest.raises(TypeError):
        jobs.note.enqueue(object())
    with pytest.raises(qindex.UsageError, match="max_message_bytes"), transaction.atomic():
        jobs.note.enqueue("x" * (128 << 20))
    backend = task_backends["default"]
    assert isinstance(backend, QindexBackend)
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority
    assert len(backend.store.queue("default")) == 0


def test_an_enqueue_waits_for_the_commit(configure: Callable[..., None]) -> None:
    with suppress(KeyError), transaction.atomic():
        rolled_back = jobs.note.enqueue("rolled back")
        raise KeyError
    with transaction.atomic():
        result = jobs.note.enqueue("committed")
        assert result.enqueued_at is None
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
        work()
    result.refresh()
    assert result.status == READY
    work()
    assert jobs.RAN == ["committed"]

    class OfAProject(TestCase):  # type: ignore[misc]
        def test(self) -> None:
            with self.captureOnCommitCallbacks(execute=True):
                jobs.note.enqueue("captured")

    outcome = unittest.TextTestRunner(stream=io.StringIO()).run(OfAProject("test"))
    assert outcome.wasSuccessful(), outcome
    work()
    assert jobs.RAN.pop() == "captured"
    with pytest.raises(TaskResultDoesNotExist):
        rolled_back.refresh()
    configure(ENQUEUE_ON_COMMIT=False)
    with suppress(KeyError), transaction.atomic():
        jobs.note.enqueue("at once")
        raise KeyError
    work()
    assert jobs.RAN == ["committed", "at once"]


def test_results_expire(configure: Callable[..., None]) -> None:
    configure(OPTIONS={"expires": 0.3})
    result, waiting = (
        jobs.note.enqueue(1),
        jobs.note.using(run_after=timezone.now() + datetime.timedelta(days=1)).enqueue(2),
    )
    work()

    def is_gone() -> bool:
        with suppress(TaskResultDoesNotExist):
            result.refresh()
            return False
        return True

    wait_until(is_gone)
    waiting.refresh()
    assert waiting.status == READY
    values = task_backends["default"].store.engine.queue("test_results_expire.values")
    assert len(values) == 1


def test_settings_are_checked(configure: Callable[..., None]) -> None:
    assert not list(task_backends["default"].check())
    configure(OPTIONS={"directory": None, "max_attempts": 0}, ENQUEUE_ON_COMMIT="nowhere")
    found = list(task_backends["default"].check())
    assert [one.id for one in found] == ["qindex.E001", "qindex.E002", "qindex.E003"]
    assert all(one.level == checks.ERROR for one in found)


@pytest.mark.usefixtures("configure")
def test_wrong_options_of_the_command() -> None:
    with pytest.raises(CommandError, match="none of the queues"):
        work(queue=["unknown"])
    with pytest.raises(CommandError, match="a thread can't be ended"):
        work(timeout=1.0)


@pytest.mark.usefixtures("configure")
def test_a_dead_letter_and_a_task_that_is_not_known_have_failed() -> None:
    store = task_backends["default"].store
    lost, unknown = jobs.note.enqueue(1), jobs.note.enqueue(2)
    store.values.put(lost.id, store.values.get(lost.id).replace(b'"READY"', b'"RUNNING"'))
    lost.refresh()
    assert lost.status == READY  # its message is in the queue
    delivery = store.queue("default").get()
    lost.refresh()
    assert lost.status == RUNNING
    delivery.reject("no memory")
    lost.refresh()
    assert lost.status == FAILED
    state = store.values.get(unknown.id)
    store.values.put(unknown.id, state.replace(b"django_jobs.note", b"django_jobs.gone"))
    work()
    lost.refresh()
    assert (lost.status, lost.errors[0].traceback) == (FAILED, "no memory")
    assert b"FAILED" in store.values.get(unknown.id)
    assert b"does not define a" in store.values.get(unknown.id)


# -- workers that are killed --------------------------------------------------------------------


def worker(*arguments: object, manage: Path | None = None, **variables: object) -> Any:
    """Start a worker in a session of its own."""
    command: list[object] = [sys.executable, "-P", "-m", "django"]
    where = [ROOT]
    environment = os.environ | {key: str(one) for key, one in variables.items()}
    if manage is not None:
        command = [sys.executable, manage]
        where.append(manage.parent)
        environment["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    environment["PYTHONPATH"] = os.pathsep.join(map(str, where))
    command += ["qindex_worker", "--verbosity", "0", *arguments]
    return subprocess.Popen(
        list(map(str, command)),
        env=environment,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


def kill(process: Any) -> None:
    """Kill a worker and its processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(WAIT)


def status_of(result: Any) -> Any:
    result.refresh()
    return result.status


KINDS = part([(), ("--processes", 1)], by_tier(quick=2, all=1, nightly=1), "django")
"""How tasks run: the quick tier takes another one with each commit."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_whose_worker_is_killed_runs_again(kind: tuple[object, ...], tmp_path: Path) -> None:
    data, name, runs = tmp_path / "tasks", tmp_path / "held", tmp_path / "held.runs"
    name.touch()
    with qindex.open(data, shared=True), override_settings(TASKS=settings_of(data, "django")):
        result = jobs.hold.enqueue(str(name))
        process = worker(*kind, TASKS_DIRECTORY=data)
        try:
            wait_until(runs.exists)
            result.refresh()
            assert result.status == RUNNING
            kill(process)
            wait_until(lambda: status_of(result) == READY)
            process = worker(*kind, "--grace", 0.1, TASKS_DIRECTORY=data)
            wait_until(lambda: runs.read_text().count("run") == 2)
            process.terminate()  # the task gets no longer than --grace
            assert process.wait(WAIT) == 0
            assert status_of(result) == READY
            name.unlink()
            process = worker(*kind, TASKS_DIRECTORY=data)
            wait_until(lambda: status_of(result) == SUCCESSFUL)
            # The run which SIGTERM ended does not count against max_attempts, which is 2.
            assert (result.return_value, result.attempts) == ("held", 3)
            process.terminate()
            assert process.wait(WAIT) == 0
        finally:
            kill(process)
            close_stores()
    end_store(data)


@not_quick("several workers die")
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_kills_its_workers_has_failed(kind: tuple[object, ...], tmp_path: Path) -> None:
    data, name = tmp_path / "tasks", tmp_path / "deadly"
    with qindex.open(data, shared=True), override_settings(TASKS=settings_of(data, "django")):
        result = jobs.deadly.enqueue(str(name))
        workers = [worker(*kind, TASKS_DIRECTORY=data)]
        try:
            while status_of(result) != FAILED:
                if workers[-1].poll() is not None:  # it dies with a task that is in its thread
                    workers.append(worker(*kind, TASKS_DIRECTORY=data))
                time.sleep(0.05)
            assert result.attempts == 2
            assert "died" in result.errors[0].traceback
            assert (tmp_path / "deadly.runs").read_text() == "run\nrun\n"
            assert len(workers) == (1 if kind else 3)
        finally:
            for one in workers:
                kill(one)
            close_stores()
    end_store(data)


@not_quick("processes that begin anew")
def test_a_task_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    data, name = tmp_path / "tasks", tmp_path / "held"
    name.touch()
    with qindex.open(data, shared=True), override_settings(TASKS=settings_of(data, "django")):
        results = [jobs.hold.enqueue(str(name)), jobs.note.enqueue("next")]
        process = worker("--processes", 1, "--timeout", 2, TASKS_DIRECTORY=data)
        try:
            wait_until(lambda: status_of(results[1]) == SUCCESSFUL)
            assert status_of(results[0]) == FAILED
            assert results[0].attempts == 1
        finally:
            kill(process)
            close_stores()
    end_store(data)
