"""The programs of examples/ run, are killed, and no order is lost."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

import qindex
from tests.effort import by_tier, chance
from tests.server.support import WAIT, end_in_order, end_server, end_store, server_pid

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_orders_survive_the_death_of_workers_and_of_the_server(tmp_path: Path) -> None:
    data, done = tmp_path / "data", tmp_path / "done"
    environment = os.environ | {"ORDERS": str(data), "DONE": str(done)}

    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", str(EXAMPLES / name), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    webs = [start("orders_web.py", "0") for _ in range(2)]
    workers = [start("orders_worker.py") for _ in range(2)]
    try:
        urls = [web.stdout.readline().strip() for web in webs]  # type: ignore[union-attr]
        taken = {}
        for at in range(40):
            body = f"order {at}"
            try:
                with urllib.request.urlopen(urls[at % 2], body.encode(), WAIT) as answer:
                    assert answer.status == 201
                    taken[body] = int(answer.read())
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
            if at in (10, 25):
                workers[0].kill()
                workers[0].wait(WAIT)
                workers[0] = start("orders_worker.py")
            if at == 18:
                os.kill(server_pid(data), signal.SIGKILL)
        assert len(taken) >= 38
        deadline = time.monotonic() + WAIT
        while True:
            lines = done.read_text().splitlines() if done.exists() else []
            if {f"{number} {body}" for body, number in taken.items()} <= set(lines):
                break
            assert time.monotonic() < deadline, lines
            time.sleep(0.02)
        for worker in workers:
            end_in_order(worker)
        report = start("orders_report.py")
        assert report.communicate(timeout=WAIT)[0] == "0 wait, 0 are with a worker, 0 have failed\n"
    finally:
        for process in [*webs, *workers]:
            process.kill()
            process.communicate()
    end_store(data)


def run_and_kill(command: list[str], seed: str) -> None:
    """Run a program until it ends by itself; at first it is killed, again and again."""
    rng = chance(seed)
    for number in range(by_tier(quick=4, all=15, nightly=150)):
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            try:
                process.wait(rng.uniform(0.2, 0.25 + 0.05 * number))
            except subprocess.TimeoutExpired:
                process.kill()
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


def test_the_outbox_sends_what_follows_from_an_order_once(tmp_path: Path) -> None:
    store, count = tmp_path / "store", by_tier(quick=200, all=2000, nightly=20_000)
    command = [sys.executable, "-P", str(EXAMPLES / "outbox.py"), str(store), str(count)]
    run_and_kill(command, "outbox")
    with qindex.open(store) as engine:
        for name in ("mails", "invoices"):
            sent = [one.body.decode() for one in engine.queue(name).get_many(count + 1)]
            assert sent == [f"order {number}" for number in range(count)]


def test_the_pipeline_counts_each_word_once(tmp_path: Path) -> None:
    store, count = tmp_path / "store", by_tier(quick=200, all=2000, nightly=20_000)
    command = [sys.executable, "-P", str(EXAMPLES / "pipeline.py"), str(store)]
    text = b"".join(b"one two %d\n" % (number % 7) for number in range(count))
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.flush()
        with contextlib.closing(sqlite3.connect(f"{store}.db")) as database:
            deadline = time.monotonic() + WAIT
            while time.monotonic() < deadline:
                journals = list(store.glob("queues/*/journal.jif"))
                if journals and journals[0].read_bytes().count(b"one two") == count:
                    break
                time.sleep(0.01)
            process.kill()
            process.wait()
            run_and_kill(command, "pipeline")
            found = dict(database.execute("SELECT word, count FROM words"))
    assert found == Counter(text.decode().split())


def test_a_reminder_is_sent_when_it_is_due_unless_it_is_cancelled(tmp_path: Path) -> None:
    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", str(EXAMPLES / "mailer.py"), str(tmp_path), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def told(*arguments: str) -> str:
        with start(*arguments) as process:
            return process.communicate(timeout=WAIT)[0].strip()

    with qindex.open(tmp_path, shared=True):
        assert [told("remind", seconds, "pay") for seconds in ("0.5", "0.5", "1e6")] == [
            "0",
            "1",
            "2",
        ]
        assert told("cancel", "0") == "cancelled"
        with start("send") as sender:
            assert sender.stdout is not None
            assert sender.stdout.readline() == "1 pay\n"
            assert told("cancel", "1") == "too late"
            end_in_order(sender)
        assert told("cancel", "2") == "cancelled"
    os.kill(server_pid(tmp_path), signal.SIGTERM)
    end_server(tmp_path)


def test_jobs_run_in_the_order_of_their_priorities_and_survive_their_runners(
    tmp_path: Path,
) -> None:
    data, done = tmp_path / "data", tmp_path / "done"
    environment = os.environ | {"JOBS": str(data), "DONE": str(done), "SECONDS": "0.05"}
    command = [sys.executable, "-P", str(EXAMPLES / "jobs.py")]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "run"], env=environment)

    def lines() -> list[str]:
        return done.read_text().splitlines() if done.exists() else []

    def until(count: int) -> list[str]:
        deadline = time.monotonic() + WAIT
        while len(lines()) < count:
            assert time.monotonic() < deadline, lines()
            time.sleep(0.01)
        return lines()

    for priority, name in ((1, "mail"), (0, "fail"), (5, "invoice"), (1, "mail too")):
        subprocess.run([*command, "add", str(priority), name], env=environment, check=True)
    runner = start()
    try:
        found = until(3)
        assert [line.split(" ", 2)[2] for line in found[:3]] == ["invoice", "mail", "mail too"]
        with qindex.open(data, shared=True) as engine:
            jobs = engine.queue("jobs")
            jobs.publish_many([b"low %d" % number for number in range(30)])
            until(8)
            jobs.publish(b"urgent", priority=9)
            before = len(lines())
            runner_was = runner
            bodies = [line.split(" ", 2)[2] for line in until(before + 4)]
            assert bodies.index("urgent") <= before + 1
            runner_was.kill()
            runner_was.wait(WAIT)
            runner = start()
            wanted = {"urgent", *(f"low {number}" for number in range(30))}
            deadline = time.monotonic() + WAIT
            while not wanted <= {line.split(" ", 2)[2] for line in lines()}:
                assert time.monotonic() < deadline, lines()
                time.sleep(0.02)
            failed = engine.queue("failed-jobs").get(timeout=WAIT)
            assert failed is not None
            assert failed.body == b"fail"
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(WAIT) == 0
        repeated = Counter(line.split(" ", 2)[2] for line in lines())
        assert sum(count - 1 for count in repeated.values()) <= 1  # the job in hand, once more
    finally:
        runner.kill()
        runner.wait()
        end_server(data)


class _Socket(http.client.HTTPConnection):
    """A connection to a server's Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=WAIT)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT)
        self.sock.connect(self._path)


def _sign_up(path: Path, name: str) -> bool:
    """Sign up; return whether the service took it."""
    connection = _Socket(path)
    try:
        connection.request("POST", f"/signup/{name}")
        return connection.getresponse().status == 202
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@pytest.mark.rotates(2)
def test_mails_of_a_web_service_are_sent_by_workers_that_are_killed(tmp_path: Path) -> None:
    data, sent, smtp, where = (tmp_path / one for one in ("data", "sent", "smtp", "socket"))
    environment = os.environ | {"SIGNUP": str(data), "SENT": str(sent), "SMTP": str(smtp)}
    environment["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parent)])

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def names() -> list[str]:
        return [one.split()[0] for one in sent.read_text().splitlines()] if sent.exists() else []

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < deadline, names()
            time.sleep(0.01)

    web = start("uvicorn", "signup:app", "--uds", where)
    arguments = ("qindex.cli", "worker", "signup:welcome", data, "mails", "--processes", 1)
    workers = [start(*arguments) for _ in range(2)]
    try:
        until(lambda: _sign_up(where, "first"))
        with qindex.open(data, shared=True) as engine:
            failed = engine.queue("mails.failed")
            until(lambda: len(failed) == 1)  # the mail server is down
            assert "is down" in failed.peek()[0].headers["x-death"][0]["cause"]
            smtp.touch()
            assert failed.redrive(rate=10).moved == {"mails": 1}
            until(lambda: names() == ["first"])
            assert sent.read_text() == "first 1 1\n"
            wanted = {"first"}
            for number in range(20):
                if _sign_up(where, f"user-{number}"):
                    wanted.add(f"user-{number}")
                if number % 10 == 2:
                    workers[number % 2].kill()
                    workers[number % 2].wait(WAIT)
                    workers[number % 2] = start(*arguments)
            assert _sign_up(where, "nobody")
            until(lambda: wanted <= set(names()))
            until(lambda: len(failed) == 1)
            assert failed.peek()[0].headers["x-death"][0]["cause"] == "no such address"
    finally:
        for process in [*workers, web]:
            process.terminate()
            process.wait(WAIT)
    end_store(data)


@pytest.mark.rotates(2)
def test_each_report_is_made_once_by_three_processes_that_are_killed(tmp_path: Path) -> None:
    data, reports = tmp_path / "data", tmp_path / "reports"
    environment = os.environ | {"NIGHTLY": str(data), "REPORTS": str(reports), "EVERY": "0.25"}
    command = [sys.executable, "-P", str(EXAMPLES / "nightly.py")]
    count = by_tier(quick=8, all=40, nightly=400)
    rng = chance("nightly")

    def instants() -> list[str]:
        if not reports.exists():
            return []
        return [line.split()[0] for line in reports.read_text().splitlines()]

    processes = [subprocess.Popen(command, env=environment) for _ in range(3)]
    kills = 0
    deadline = time.monotonic() + WAIT + count
    try:
        while len(set(instants())) < count:
            assert time.monotonic() < deadline
            time.sleep(rng.uniform(0.2, 0.6))
            if instants():
                at = rng.randrange(3)
                processes[at].kill()
                processes[at].wait(WAIT)
                processes[at] = subprocess.Popen(command, env=environment)
                kills += 1
    finally:
        for process in processes:
            process.terminate()
            process.wait(WAIT)
    found = [datetime.fromisoformat(one).timestamp() for one in instants()]
    # A report whose process was killed between its line and its ack is made again.
    assert len(found) - len(set(found)) <= kills
    with qindex.open(data, shared=True) as engine:
        # What a killed process had may come behind a later one, and be there still at the end.
        there = engine.queue("reports").get_many(count)
        left = [one.headers["qindex-instant"] / 1_000_000 for one in there]
    gaps = [after - before for before, after in itertools.pairwise(sorted({*found, *left}))]
    assert all(gap == pytest.approx(0.25, abs=1e-3) for gap in gaps)
    end_store(data)
