"""The applications of examples/, whose workers, servers and clients are killed."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import qindex
from tests.effort import by_tier, chance, part
from tests.server.support import WAIT, end_store, server_pid
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
KILLS = by_tier(quick=1, all=4, nightly=100)
BATCH = 40
"""Tasks that are sent for each kill."""
IN_HAND = 2
"""Tasks that a worker runs at a time."""

# It sends the tasks of each line that it reads, and prints each one that was accepted.
CLIENT = """
import sys
for line in sys.stdin:
    for number in range(*map(int, line.split())):
        while True:
            try:
                send(number)
                break
            except Lost:
                pass  # the server was killed: the task may be there or not
        print(number, flush=True)
"""


@dataclass(frozen=True)
class Application:
    """How the programs of an application are started, and where it keeps its tasks.

    ``client``: makes ``send`` for a number, and ``Lost``, what it raises when the server dies;
    ``done``: the file with a line for each task that ran; ``store``, ``queue``: of the tasks.
    """

    needs: str
    worker: tuple[str, ...]
    client: str
    done: str
    store: str
    queue: str


def celery(*options: str) -> Application:
    return Application(
        "celery",
        ("-m", "celery", "-A", "celery_app", "worker", "-l", "WARNING", *options),
        "from celery_app import ship\nfrom kombu.exceptions import OperationalError as Lost\n"
        "send = lambda number: ship.apply_async((number,), priority=number % 10)",
        done="shipped",
        store="queue",
        queue="celery",
    )


def huey(kind: str) -> Application:
    quick = ("-d", "0.01", "-m", "0.1", "-c", "1")
    return Application(
        "huey",
        ("-m", "huey.bin.huey_consumer", "huey_mails.huey", "-w", "2", "-k", kind, *quick),
        "import huey_mails\nfrom qindex import DisconnectedError as Lost\n"
        "send = lambda number: huey_mails.send(f'{number}@')",
        done="sent",
        store="data",
        queue="mails",
    )


def django(*options: str) -> Application:
    return Application(
        "django.tasks" if sys.version_info >= (3, 12) else "django_tasks",
        ("-m", "django", "qindex_worker", "--verbosity", "0", *options),
        "import django\ndjango.setup()\nfrom shop.tasks import send_mail\n"
        "from qindex import DisconnectedError as Lost\n"
        "send = lambda number: send_mail.enqueue(f'{number}@')",
        done="sent",
        store="tasks",
        queue="django.queue.mails",
    )


APPLICATIONS = {
    "celery-prefork": celery("--concurrency", "2"),
    "celery-threads": celery("--pool", "threads", "--concurrency", "2"),
    "celery-solo": celery("--pool", "solo"),
    "huey-thread": huey("thread"),
    "huey-process": huey("process"),
    "django-threads": django("--concurrency", "2"),
    "django-processes": django("--processes", "2"),
}


class Running:
    """A worker and a client of an application."""

    def __init__(self, application: Application, place: Path) -> None:
        self._application = application
        self._place = place
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, EXAMPLES, EXAMPLES / "django_shop"))),
            "PYTHONWARNINGS": "ignore",
            "ORDERS_DATA": str(place),
            "MAILS": str(place / "data"),
            "SENT": str(place / "sent"),
            "SHOP": str(place),
            "SECONDS": "0.01",
            "DJANGO_SETTINGS_MODULE": "shop.settings",
        }
        if application.needs == "celery":  # else it looks for its settings among Django's
            del self._environment["DJANGO_SETTINGS_MODULE"]
        self.store = place / application.store
        self.sent = 0
        self.worker = self._start(application.worker)
        self.client = self._start_client()

    def _start(self, command: tuple[str, ...], name: str = "worker") -> subprocess.Popen[bytes]:
        with (
            open(self._place / f"{name}.log", "ab") as log,
            open(self._place / "accepted", "ab") as accepted,
        ):
            return subprocess.Popen(
                [sys.executable, "-P", *command],
                env=self._environment,
                cwd=self._place,
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=accepted if name == "client" else log,
                stderr=log,
            )

    def _start_client(self) -> subprocess.Popen[bytes]:
        return self._start(("-c", self._application.client + CLIENT), "client")

    def send(self) -> None:
        """Have the client send some tasks."""
        assert self.client.stdin is not None
        self.client.stdin.write(f"{self.sent} {self.sent + BATCH}\n".encode())
        self.client.stdin.flush()
        self.sent += BATCH

    def accepted(self) -> list[str]:
        """Return the tasks whose call has returned in a client."""
        lines = (self._place / "accepted").read_text().splitlines(keepends=True)
        return [one.strip() for one in lines if one.endswith("\n")]

    def done(self) -> list[str]:
        """Return the tasks that ran, in their order."""
        path = self._place / self._application.done
        lines = path.read_text().splitlines() if path.exists() else []
        return [one.removesuffix("@") for one in lines]

    def logs(self) -> str:
        return "\n".join(
            f"{one.name}\n{one.read_text()[-4000:]}" for one in self._place.glob("*.log")
        )

    def await_alive(self) -> None:
        """Wait until a task has run since the last kill."""
        before = len(self.done())
        wait_until(lambda: len(self.done()) > before, self.logs)

    def kill_worker(self) -> None:
        self._kill(self.worker)
        self.worker = self._start(self._application.worker)

    def kill_server(self) -> None:
        os.kill(server_pid(self.store), signal.SIGKILL)

    def kill_client(self) -> None:
        self._kill(self.client)
        with open(self._place / "accepted", "r+b") as accepted:
            text = accepted.read()
            accepted.truncate(text.rfind(b"\n") + 1)
        self.client = self._start_client()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT)
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()

    def end(self) -> None:
        for process in (self.client, self.worker):
            self._kill(process)

    def await_end(self) -> None:
        """Wait until all tasks have run; end the client and the worker as one does."""
        assert self.client.stdin is not None
        self.client.stdin.close()
        assert self.client.wait(WAIT) == 0, self.logs()
        wait_until(lambda: set(self.accepted()) <= set(self.done()), self.logs)
        with qindex.open(self.store, shared=True) as engine:
            tasks = engine.queue(self._application.queue)

            def nothing_left() -> bool:
                stats = tasks.stats()
                return stats.ready == stats.unacked == stats.delayed == 0

            wait_until(nothing_left, self.logs)
            self.worker.send_signal(signal.SIGTERM)
            assert self.worker.wait(WAIT) == 0, self.logs()
            assert nothing_left()
            if self._application.needs.startswith("django"):
                results = engine.queue("django.values").peek(len(self.done()) + 1)
                done = self.done()
                # A client that did not hear the reply to its publish sends a second task.
                assert len(set(done)) <= len(results) <= len(done)
                assert len({one.key for one in results}) == len(results)
                assert all(b'"SUCCESSFUL"' in one.body for one in results)
                assert {one.priority for one in results} == {0}  # the others are of tasks to come


@pytest.fixture
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    application = APPLICATIONS[request.param]
    if importlib.util.find_spec(application.needs.partition(".")[0]) is None:
        pytest.skip(f"{application.needs} is not installed")
    made = Running(application, tmp_path)
    yield made
    made.end()
    if (made.store / "qindex.server").exists():
        end_store(made.store)


def of_each_library(victims: list[str]) -> list[tuple[str, str]]:
    """Return each application with each victim; the quick tier takes one of each library."""
    found: list[tuple[str, str]] = []
    for library in ("celery", "huey", "django"):
        names = [one for one in APPLICATIONS if one.startswith(library)]
        cases = [(name, victim) for name in names for victim in victims]
        found += part(cases, by_tier(quick=len(cases), all=1, nightly=1), f"kills {library}")
    return found


@pytest.mark.timeout(by_tier(quick=300, all=300, nightly=3600))
@pytest.mark.parametrize(
    ("running", "victim"), of_each_library(["worker", "server", "client"]), indirect=["running"]
)
@pytest.mark.rotates(2)
def test_no_task_is_lost_whoever_is_killed(running: Running, victim: str) -> None:
    rng: random.Random = chance("kills", victim)
    running.send()
    running.await_alive()
    for _ in range(KILLS):
        before = len(running.accepted())
        running.send()
        if victim == "client":
            # It dies in the middle of what it sends.
            wanted = before + rng.randrange(BATCH)
            wait_until(lambda: len(running.accepted()) >= wanted, running.logs)  # noqa: B023
        else:
            running.await_alive()
        time.sleep(rng.uniform(0, 0.03))
        getattr(running, f"kill_{victim}")()
    running.send()
    running.await_end()
    done = Counter(running.done())
    accepted = running.accepted()
    # The last task of a client that was killed may be there although its call has not returned.
    assert len(set(done) - set(accepted)) <= (KILLS if victim == "client" else 0)
    # Others run twice only where their acknowledgement, or the reply to their publish, was lost.
    twice = sum(done.values()) - len(done)
    assert twice <= {"client": 0, "worker": IN_HAND, "server": IN_HAND + 1}[victim] * KILLS
    print(f"{victim}: {KILLS} kills, {len(accepted)} tasks accepted, {twice} ran twice")
