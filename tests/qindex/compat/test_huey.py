"""huey on qindex: no task is lost when its consumer is killed."""

from __future__ import annotations

import datetime
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import qindex
from tests.effort import by_tier, part
from tests.server.support import WAIT, end_store
from tests.waiting import wait_until

pytest.importorskip("huey", reason="huey is not installed: pip install 'qindex[huey]'")

from huey import crontab
from huey.constants import EmptyData
from huey.exceptions import TaskException

from qindex.compat.huey import QindexHuey, QindexStorage

ROOT = Path(__file__).parents[3]
KINDS = part(["thread", "process"], by_tier(quick=2, all=1, nightly=1), "huey")
"""The kinds of workers: the quick tier takes another one with each commit."""


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a directory whose server runs."""
    directory = tmp_path_factory.mktemp("huey") / "data"
    with qindex.open(directory, shared=True):
        yield directory
    end_store(directory)


@pytest.fixture
def make(store: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., QindexHuey]]:
    """Give a function that makes a Huey. Those of one test share their queues."""
    made: list[QindexHuey] = []

    def make_one(**options: Any) -> QindexHuey:
        made.append(QindexHuey(request.node.name, directory=store, blocking=False, **options))
        return made[-1]

    yield make_one
    for one in made:
        one.storage.close()


@pytest.fixture
def huey(make: Callable[..., QindexHuey]) -> QindexHuey:
    return make()


def run_next(huey: QindexHuey) -> Any:
    task = huey.dequeue()
    assert task is not None
    return huey.execute(task)


# -- tasks --------------------------------------------------------------------------------------


def test_a_task_is_the_workers_until_it_is_done(
    make: Callable[..., QindexHuey],
) -> None:
    one, other = make(), make()

    def add(a: int, b: int) -> int:
        return a + b

    task, _ = one.task()(add), other.task()(add)
    result = task(3, 4)
    assert len(one) == 1
    taken = one.dequeue()
    assert taken is not None
    assert other.dequeue() is None
    one.storage.close()  # as the end of its process does
    assert run_next(other) == 7
    assert other.dequeue() is None
    assert len(other) == 0
    assert result.get() == 7


def test_priorities_are_kept_over_a_retry_and_a_schedule(huey: QindexHuey) -> None:
    ran: list[str] = []

    @huey.task(retries=1)
    def note(name: str, fails: bool = False) -> None:
        ran.append(name)
        if fails and ran.count(name) == 1:
            raise ValueError(name)

    for name, priority in (("low", -100), ("none", None), ("high", 90), ("over", 1000)):
        huey.enqueue(note.s(name, fails=name == "high", priority=priority))
    note.schedule(("later",), delay=0.05, priority=95)
    run_next(huey)
    run_next(huey)
    wait_until(lambda: len(huey) + len(ran) == 5)  # the time of "later" has come
    while len(huey):
        run_next(huey)
    assert ran == ["over", "later", "high", "high", "none", "low"]


def test_a_scheduled_task_needs_no_scheduler(huey: QindexHuey) -> None:
    @huey.task()
    def note(name: str) -> str:
        return name

    far, farther = note.schedule(("far",), delay=1e6), note.schedule(("farther",), delay=2e6)
    begun = time.monotonic()
    soon = note.schedule(("soon",), delay=0.2)
    while soon.get() is None:
        task = huey.dequeue()
        if task is not None:
            huey.execute(task)
    assert time.monotonic() - begun >= 0.2
    assert huey.read_schedule() == []
    assert len(huey) == 0
    assert [task.id for task in huey.scheduled()] == [far.id, farther.id]
    assert huey.scheduled_count() == 2
    later = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(days=15)
    assert [task.id for task in huey.read_schedule(later)] == [far.id]
    assert [task.id for task in huey.scheduled(5)] == [farther.id]


def test_a_failed_task_is_done_with_and_its_retry_takes_its_place(huey: QindexHuey) -> None:
    @huey.task(retries=2)
    def fail() -> None:
        raise ValueError("no")

    result = fail()
    for left in (2, 1, 0):
        assert huey.pending()[0].retries == left
        run_next(huey)
        stats = huey.storage.tasks.stats()
        assert stats.unacked == 0
        assert stats.ready == (left > 0)
    with pytest.raises(TaskException, match="no"):
        result.get()


@pytest.mark.interpreted  # a method of a queue is replaced
def test_a_step_of_a_pipeline_is_enqueued_as_the_one_before_is_acknowledged(
    huey: QindexHuey, monkeypatch: pytest.MonkeyPatch
) -> None:
    @huey.task()
    def add(a: int, b: int) -> int:
        return a + b

    results = huey.enqueue(add.s(1, 2).then(add, 10).then(add, 100))
    acks: list[object] = []
    monkeypatch.setattr(type(huey.storage.tasks), "ack", lambda *_: acks.append(1))
    for wanted in (3, 13, 113):
        assert run_next(huey) == wanted
        assert huey.storage.tasks.stats().unacked == 0
    assert results.get() == [3, 13, 113]
    assert len(huey) == 0


def test_a_task_that_is_interrupted_runs_again(huey: QindexHuey) -> None:
    ran: list[int] = []

    @huey.task()
    def work() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise KeyboardInterrupt
        return "done"

    result = work()
    assert run_next(huey) is None
    assert run_next(huey) == "done"
    assert result.get() == "done"


def test_a_task_that_nobody_knows_is_put_aside(make: Callable[..., QindexHuey]) -> None:
    one, other = make(), make()

    @one.task()
    def known_to_one() -> None:
        """Nothing."""

    known_to_one()
    with pytest.raises(Exception, match="not found in TaskRegistry"):
        other.dequeue()
    assert other.dequeue() is None
    failed = one.storage.store.engine.queue(f"{one.name}.failed").peek()
    assert "not found in TaskRegistry" in failed[0].headers["x-death"][0]["cause"]


def test_revoked_tasks_do_not_run(huey: QindexHuey) -> None:
    @huey.task()
    def work() -> str:
        return "done"

    result = work()
    result.revoke()
    assert run_next(huey) is None
    assert result.get() is None
    assert len(huey) == 0


def test_a_tick_of_a_periodic_task_is_enqueued_once(make: Callable[..., QindexHuey]) -> None:
    consumers = [make() for _ in range(3)]
    for one in consumers:

        @one.periodic_task(crontab(minute="*/5"))
        def pulse() -> None:
            """Nothing."""

    for minute in (0, 5, 5, 7):
        now = datetime.datetime(2040, 1, 1, 12, minute)
        for one in consumers:
            for task in one.read_periodic(now):
                one.enqueue(task)
    assert len(consumers[0]) == 2
    for _ in range(2):
        run_next(consumers[1])
    assert len(consumers[0]) == 0


def test_a_minute_that_the_clock_shows_again(
    make: Callable[..., QindexHuey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where clocks are put back by an hour, its tasks run in both hours."""
    monkeypatch.setattr("qindex.compat.huey._TICK_WINDOW", 0.4)  # that hour
    huey = make(utc=False)

    @huey.periodic_task(crontab())
    def pulse() -> None:
        """Nothing."""

    for _hour in range(2):
        for task in huey.read_periodic(datetime.datetime(2026, 10, 25, 2, 30)):
            huey.enqueue(task)
        assert run_next(huey) is None
        time.sleep(0.3)  # three quarters of it: the times of ticks differ by some seconds
    assert huey.storage.tasks.stats().published == 2


def test_flush_and_what_is_pending(huey: QindexHuey) -> None:
    @huey.task()
    def work(number: int) -> int:
        return number

    for number in range(5):
        work(number)
    huey.storage.add_to_schedule(b"later", datetime.datetime(2040, 1, 1))
    assert [task.args for task in huey.pending()] == [(number,) for number in range(5)]
    assert len(huey.pending(2)) == 2
    huey.storage.flush_queue()
    assert (len(huey), huey.scheduled_count()) == (0, 1)
    huey.flush()
    assert (len(huey), huey.scheduled_count()) == (0, 0)


def test_immediate_mode_uses_no_store(tmp_path: Path) -> None:
    huey = QindexHuey(directory=tmp_path / "none", immediate=True)

    @huey.task()
    def work() -> str:
        return "done"

    assert work().get() == "done"
    assert not (tmp_path / "none").exists()


# -- values and locks ---------------------------------------------------------------------------


def test_values_outlive_the_processes_that_set_them(make: Callable[..., QindexHuey]) -> None:
    one, other = make().storage, make().storage
    one.put_data("kept", b"1")
    one.put_data("result", b"2", is_result=True)
    one.put_data("result", b"3", is_result=True)
    one.close()
    assert other.peek_many(["kept", "result", "none"]) == {"kept": b"1", "result": b"3"}
    assert other.pop_data(b"result") == b"3"
    assert other.pop_data(b"result") is EmptyData
    assert one.result_items() == {"kept": b"1"}


def test_results_expire_behind_values_that_do_not(make: Callable[..., QindexHuey]) -> None:
    storage = make(expire_time=0.2).storage
    storage.put_data("kept", b"1")
    for number in range(10):
        storage.put_data(f"result-{number}", b"2", is_result=True)
    storage.incr("counter")
    wait_until(lambda: storage.result_items() == {"kept": b"1"})
    for name, left in (("values", 1), ("counters", 0)):
        queue = storage.store.engine.queue(f"{storage.name}.{name}")
        wait_until(lambda: len(queue) == left)  # noqa: B023
    assert storage.put_if_empty("brief", b"1", ttl=0.1)
    assert not storage.put_if_empty("brief", b"2", ttl=0.1)
    wait_until(lambda: storage.put_if_empty("brief", b"3"))
    assert storage.peek_data("brief") == b"3"


def test_counters_and_puts_of_many_threads(make: Callable[..., QindexHuey]) -> None:
    storages = [make().storage for _ in range(3)]
    won: list[int] = []
    rounds = by_tier(quick=10, all=50, nightly=500)

    def work(storage: QindexStorage) -> None:
        for number in range(rounds):
            storage.incr("counter")
            storage.put_data("value", b"%d" % number)
            if storage.put_if_empty(f"key-{number}", b"1"):
                won.append(number)

    threads = [threading.Thread(target=work, args=(one,)) for one in storages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert storages[0].incr("counter", 0) == 3 * rounds
    assert sorted(won) == list(range(rounds))
    assert storages[0].peek_data("value") == b"%d" % (rounds - 1)
    assert len(storages[0].store.engine.queue(f"{storages[0].name}.values").find("value")) == 1


def test_a_lock_goes_with_its_process(make: Callable[..., QindexHuey]) -> None:
    one, other = make(), make()
    lock, same = one.lock_task("door"), other.lock_task("door")
    with lock:
        assert other.is_locked("door")
        assert not other.is_locked("window")
        with pytest.raises(Exception, match="unable to acquire"):
            same.acquire()
        assert not same.clear()  # it is of one that is alive
        assert other.is_locked("door")
    assert not other.is_locked("door")
    lock.acquire()
    one.storage.close()  # as its death does
    wait_until(lambda: not other.is_locked("door"))
    same.acquire()
    assert other.flush_locks() == {"door"}
    with one.lock_task("brief", ttl=0.2):
        wait_until(lambda: not other.is_locked("brief"))
    assert len(other.storage.store.engine.queue(f"{other.name}.locks")) == 0


def test_a_late_release_does_not_free_another_s_lock(make: Callable[..., QindexHuey]) -> None:
    huey = make()
    lock = huey.lock_task("import", ttl=0.2)
    late = threading.Event()

    def slow() -> None:
        with lock:
            late.wait(WAIT)

    thread = threading.Thread(target=slow)
    thread.start()
    wait_until(lambda: huey.is_locked("import"))
    wait_until(lambda: not huey.is_locked("import"))
    successor = huey.lock_task("import", ttl=WAIT)
    successor.acquire()
    late.set()
    thread.join(WAIT)
    assert huey.is_locked("import")
    assert huey.lock_task("import").release()  # by its name, as in huey
    assert not successor.release()
    assert not huey.is_locked("import")


# -- consumers that are killed ------------------------------------------------------------------


class Consumers:
    """Consumers of an application, each in a session of its own with its worker processes."""

    def __init__(self, application: str, kind: str, path: Path, **variables: object) -> None:
        where = [str(path), str(ROOT)]
        self._environment = os.environ | {key: str(one) for key, one in variables.items()}
        self._environment["PYTHONPATH"] = os.pathsep.join(where)
        command = [sys.executable, "-P", "-m", "huey.bin.huey_consumer", application]
        self._command = [*command, "-k", kind, "-w", "2", "-d", "0.01", "-m", "0.1", "-c", "1"]
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command,
            env=self._environment,
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a consumer and its worker processes."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT)
        self._running.remove(process)

    def close(self) -> None:
        for process in list(self._running):
            self.kill(process)


@pytest.mark.parametrize("kind", KINDS)
def test_the_task_of_a_killed_consumer_runs_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, notes = tmp_path / "data", tmp_path / "notes"
    consumers = Consumers("tests.qindex.compat.huey_tasks.huey", kind, ROOT, PLACE=tmp_path)
    with qindex.open(data, shared=True) as engine:  # the server outlives the consumers
        monkeypatch.setenv("PLACE", str(tmp_path))
        monkeypatch.delitem(sys.modules, "tests.qindex.compat.huey_tasks", raising=False)
        huey_tasks = importlib.import_module("tests.qindex.compat.huey_tasks")
        (tmp_path / "held").touch()
        result = huey_tasks.hold("held")
        first = consumers.start()
        try:
            wait_until(lambda: len(lines_of(notes)) == 1)
            consumers.kill(first)
            second = consumers.start()
            wait_until(lambda: len(lines_of(notes)) == 2)  # its lock is free, too
            if kind == "process":
                second.terminate()  # interrupts the task
                assert second.wait(WAIT) == 0
                # Its other worker may have taken the task again before its own end.
                runs = len(lines_of(notes))
                second = consumers.start()
                wait_until(lambda: len(lines_of(notes)) > runs)
            (tmp_path / "held").unlink()
            assert result.get(blocking=True, timeout=WAIT) == "held"
            if kind == "process":
                huey_tasks.deadly()
                wait_until(lambda: len(engine.queue("tasks.failed")) == 1, lambda: lines_of(notes))
            second.send_signal(signal.SIGINT)
            assert second.wait(WAIT) == 0
            stats = engine.queue("tasks").stats()
            assert (stats.ready, stats.unacked, stats.delayed) == (0, 0, 0)
        finally:
            consumers.close()
            huey_tasks.huey.storage.close()
    end_store(data)
    found = Counter(line.rsplit(" ", 1)[0] for line in lines_of(notes))
    assert found["begin held"] in ((3, 4) if kind == "process" else (2,))
    assert found["end"] == 1
