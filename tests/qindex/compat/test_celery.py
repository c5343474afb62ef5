"""Celery on a store: workers are killed, and no task is lost."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

pytest.importorskip("celery")

import qindex
from tests.effort import not_quick
from tests.server.support import end_server, server_pid
from tests.waiting import WAIT, wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DATABASE_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
BEAT_SETTINGS = """\
SECRET_KEY = "tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "beat.sqlite3"}}
USE_TZ = True
"""


class Application:
    """An application of Celery: its programs run until the end of the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "queue"
        self.done = directory / "done"
        self.environment = os.environ | {
            "CELERY_STORE": str(self.store),
            "CELERY_DONE": str(self.done),
            "PYTHONPATH": f"{HERE}:{ROOT}",
            "PYTHONWARNINGS": "ignore",
        }
        # Tests of Django set it, and Celery would look for its settings.
        self.environment.pop("DJANGO_SETTINGS_MODULE", None)
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command of Celery, as the leader of a group."""
        command = [sys.executable, "-P", "-m", "celery", "-A", "celery_child", *arguments]
        log = self.directory / f"{len(self.started)}.log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.directory,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker."""
        number = len(self.started)
        return self.run("worker", "-l", "INFO", "-n", f"worker{number}@here", *options)

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        return (self.directory / f"{self.started.index(process)}.log").read_text()

    def await_ready(self, *workers: subprocess.Popen[bytes]) -> None:
        for one in workers:
            wait_until(lambda one=one: self._is_ready(one), self.logs)  # type: ignore[misc]

    def _is_ready(self, worker: subprocess.Popen[bytes]) -> bool:
        assert worker.poll() is None, self.logs()
        return " ready." in self.log_of(worker)

    def logs(self) -> str:
        return "\n".join(self.log_of(one)[-3000:] for one in self.started)

    def python(self, program: str) -> Any:
        """Run a program of the application. Return what it prints, which is JSON."""
        start = "from celery_child import *\nimport json, sys\n"
        done = subprocess.run(
            [sys.executable, "-P", "-c", start + program],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT,
        )
        assert done.returncode == 0, (done.stderr, self.logs())
        return json.loads(done.stdout) if done.stdout else None

    def lines(self) -> list[str]:
        """Return what the tasks have written, without the times."""
        return [one.split()[0] for one in self._lines()]

    def times(self, text: str) -> list[float]:
        return [float(one.split()[1]) for one in self._lines() if one.split()[0] == text]

    def _lines(self) -> list[str]:
        return self.done.read_text().splitlines() if self.done.exists() else []

    def stop(self, *workers: subprocess.Popen[bytes]) -> None:
        for one in workers:
            one.terminate()
        for one in workers:
            assert one.wait(WAIT) == 0, self.log_of(one)

    def kill(self, *workers: subprocess.Popen[bytes]) -> None:
        """Kill a process with all its children."""
        for one in workers:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait(WAIT)

    def end(self) -> None:
        self.kill(*self.started)
        if (self.store / "qindex.server").exists():
            with suppress(ProcessLookupError):
                os.kill(server_pid(self.store), signal.SIGTERM)
            end_server(self.store)


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Application]:
    made = Application(tmp_path)
    yield made
    made.end()


@not_quick("each worker takes seconds to start")
def test_an_eta_is_kept_and_runs_once(application: Application) -> None:
    seconds = 10.0
    workers = [application.worker("-P", "solo", "--without-gossip") for _ in range(3)]
    application.await_ready(*workers)
    begun = time.time()
    application.python(
        f"for n in range(5): note.apply_async((n,), countdown={seconds})\n"
        "again.apply_async(('x', 0.2))"
    )
    wait_until(lambda: len(application.lines()) >= 8, application.logs)
    found = Counter(application.lines())
    assert found == {f"note:{n}": 1 for n in range(5)} | {"again:x": 3}
    for n in range(5):
        assert application.times(f"note:{n}")[0] >= begun + seconds
    assert all(b - a >= 0.2 for a, b in pairs(application.times("again:x")))
    # Nothing was in a worker's hands meanwhile: each received a task when it was due.
    received = [
        one
        for worker in workers
        for one in application.log_of(worker).splitlines()
        if "received" in one and "note" in one
    ]
    assert len(received) == 5


def pairs(times: list[float]) -> Iterator[tuple[float, float]]:
    return itertools.pairwise(times)


@not_quick("a worker takes seconds to start")
def test_remote_control_results_and_events(application: Application) -> None:
    worker = application.worker("--concurrency", "1", "-E")
    application.await_ready(worker)
    found = application.python(
        """if True:
        import threading
        events = []
        def watch():
            with app.connection() as connection:
                handlers = {"*": lambda event: events.append(event["type"])}
                receiver = app.events.Receiver(connection, handlers)
                for _ in receiver.itercapture(limit=None, timeout=None): pass
        import time
        deadline = time.time() + 60
        threading.Thread(target=watch, daemon=True).start()
        while not events and time.time() < deadline: time.sleep(0.05)
        results = [note.delay(n).get(timeout=60) for n in range(3)]
        inspect = app.control.inspect(timeout=20, limit=1)
        ping = inspect.ping()
        queues = [one["name"] for one in list(inspect.active_queues().values())[0]]
        app.control.revoke("revoked-id")
        while "revoked-id" not in str(inspect.revoked()): pass
        note.apply_async(("never",), task_id="revoked-id")
        purged = [note.apply_async((n,), queue="idle") for n in range(4)]
        with app.connection_for_write() as connection:
            gone = connection.default_channel.queue_purge("idle")
        slow.apply_async(("end", 0)).get(timeout=60)
        while events.count("task-succeeded") < 4 and time.time() < deadline: time.sleep(0.05)
        print(json.dumps([results, ping, queues, gone, sorted(set(events))]))
        """
    )
    results, ping, queues, gone, events = found
    assert results == [f"noted {n}" for n in range(3)]
    assert list(ping.values()) == [{"ok": "pong"}]
    assert {one.partition(".")[0] for one in queues} == {"celery", "bcast"}
    assert gone == 4
    assert {"task-received", "task-started", "task-succeeded"} <= set(events)
    wait_until(lambda: "Discarding revoked task" in application.log_of(worker), application.logs)
    assert "note:never" not in application.lines()
    application.python("app.control.shutdown()")
    assert worker.wait(WAIT) == 0


@not_quick("the other tests kill workers, too")
def test_acks_late_and_early(application: Application) -> None:
    first = application.worker("--concurrency", "2")
    application.await_ready(first)
    application.python("late.delay('a', 600)\nslow.delay('b', 600)")
    wait_until(lambda: set(application.lines()) == {"late:a", "slow:b"}, application.logs)
    second = application.worker("--concurrency", "2")
    application.await_ready(second)
    application.kill(first)
    wait_until(lambda: application.lines().count("late:a") == 2, application.logs)
    application.python("note.delay(1).get(timeout=60)")  # what was before it has been delivered
    assert application.lines().count("slow:b") == 1


@not_quick("a longer variant of a test that the quick tier has")
def test_only_the_main_process_of_a_worker_is_killed(application: Application) -> None:
    """Its children live on, one of them forked later; they do not keep its messages."""
    first = application.worker("--concurrency", "1", "--max-tasks-per-child", "1")
    application.await_ready(first)
    application.python("note.delay(1)\nnote.delay(2)\nlate.delay('a', 300)")
    wait_until(lambda: "late:a" in application.lines(), application.logs)
    second = application.worker("-P", "solo")
    application.await_ready(second)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: application.lines().count("late:a") == 2, application.logs)
    application.kill(second)


@not_quick("workers take seconds to start")
def test_tasks_for_all_tasks_that_die_and_tasks_that_are_refused(application: Application) -> None:
    """One pair of workers for several behaviours of docs/celery.md."""
    workers = [application.worker("--concurrency", "1") for _ in range(2)]
    application.await_ready(*workers)
    found = application.python(
        """if True:
        note.apply_async(("everywhere",), queue="all")
        refuse.delay("bad")
        note.apply_async(("late",), expires=0.0001)
        die.delay("always", 100)
        print(json.dumps([
            die.delay("twice", 2).get(timeout=60),
            note.apply_async(("in time",), expires=600).get(timeout=60),
        ]))
        """
    )
    assert found == ["twice", "noted in time"]
    wait_until(lambda: application.lines().count("note:everywhere") == 2, application.logs)
    wait_until(lambda: application.lines().count("die:twice") == 3, application.logs)
    with qindex.open(application.store, shared=True) as engine:
        failed = engine.queue("celery.failed")
        wait_until(lambda: len(failed) == 3, application.logs)
        letters = {
            one.headers["task"]: one.headers["x-death"][0]["reason"] for one in failed.peek(5)
        }
    assert letters == {
        "celery_child.refuse": "rejected",
        "celery_child.die": "limit",
        "celery_child.note": "expired",
    }
    assert application.lines().count("refuse:bad") == 1
    assert application.lines().count("die:always") == 3
    assert not any(one.startswith("note:late") for one in application.lines())
    application.stop(*workers)


@not_quick("each pool takes seconds to start")
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_pools(application: Application, pool: str) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    worker = application.worker("--pool", pool, "--concurrency", "2")
    application.await_ready(worker)
    found = application.python(
        "results = [note.delay(n) for n in range(20)] + [again.delay('x', 0.1)]\n"
        "late.delay('l', 0.1).get(timeout=60)\n"
        "print(json.dumps([one.get(timeout=60) for one in results]))"
    )
    assert found == [f"noted {n}" for n in range(20)] + [2]
    os.kill(server_pid(application.store), signal.SIGKILL)
    found = application.python(
        "print(json.dumps([note.delay(n).get(timeout=60) for n in range(5)]))"
    )
    assert found == [f"noted {n}" for n in range(5)]
    application.stop(worker)
    with qindex.open(application.store, shared=True) as engine:
        assert engine.queue("celery").stats().unacked == 0


@not_quick("a longer variant of a test that the quick tier has")
def test_priorities_and_prefetch(application: Application) -> None:
    application.python("for n in range(10): note.apply_async((n,), priority=n)")
    worker = application.worker("-P", "solo")
    wait_until(lambda: len(application.lines()) == 10, application.logs)
    assert application.lines() == [f"note:{n}" for n in reversed(range(10))]
    application.stop(worker)


@not_quick("beat takes seconds to start")
@pytest.mark.parametrize("scheduler", ["celery.beat:PersistentScheduler", DATABASE_SCHEDULER])
def test_beat(application: Application, scheduler: str) -> None:
    if scheduler == DATABASE_SCHEDULER:
        pytest.importorskip("django_celery_beat")
        (application.directory / "beat_settings.py").write_text(BEAT_SETTINGS)
        application.environment["DJANGO_SETTINGS_MODULE"] = "beat_settings"
        application.environment["PYTHONPATH"] += f":{application.directory}"
        migrate = [sys.executable, "-P", "-m", "django", "migrate"]
        there, environment = application.directory, application.environment
        subprocess.run(migrate, cwd=there, env=environment, check=True, capture_output=True)
    worker = application.worker("-P", "solo")
    beat = application.run("beat", "-l", "INFO", "--scheduler", scheduler)
    wait_until(lambda: application.lines().count("note:tick") >= 3, application.logs)
    os.kill(server_pid(application.store), signal.SIGKILL)
    count = application.lines().count("note:tick")
    wait_until(lambda: application.lines().count("note:tick") >= count + 3, application.logs)
    application.kill(beat)
    application.stop(worker)


@not_quick("Flower takes seconds to start")
def test_flower(application: Application) -> None:
    pytest.importorskip("flower")
    worker = application.worker("-P", "solo", "-E")
    application.await_ready(worker)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    application.environment["FLOWER_UNAUTHENTICATED_API"] = "true"
    application.run("flower", "--address=127.0.0.1", f"--port={port}")

    def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(f"http://127.0.0.1:{port}/api/{path}", data, WAIT) as answer:
            return json.load(answer)

    def knows_worker() -> bool:
        with suppress(URLError):
            return list(ask("workers?refresh=1")) == ["worker0@here"]
        return False

    wait_until(knows_worker, application.logs)
    done = ask("task/apply/celery_child.note", {"args": ["seen"]})
    assert (done["state"], done["result"]) == ("SUCCESS", "noted seen")
    number = done["task-id"]
    wait_until(lambda: ask("tasks").get(number, {}).get("state") == "SUCCESS", application.logs)
    application.stop(worker)


@not_quick("it watches an idle worker for seconds")
def test_an_idle_worker_sleeps(application: Application) -> None:
    worker = application.worker("--concurrency", "1", "--without-gossip", "--without-mingle")
    application.await_ready(worker)
    time.sleep(2)

    def used(pid: int) -> float:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")

    pids = [worker.pid, server_pid(application.store)]
    before = [used(pid) for pid in pids]
    time.sleep(10)
    spent = [used(pid) - at for pid, at in zip(pids, before, strict=True)]
    assert max(spent) < 1, spent
