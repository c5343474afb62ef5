"""A worker in threads, coroutines and processes: one set of rules."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.worker import Figures, Worker, processes
from tests.waiting import WAIT, wait_until
from tests.worker import handlers
from tests.worker.support import QUICK, Running, letters, lines, running

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "threads": (handlers.handle, {"concurrency": 2}),
    "coroutines": (handlers.handle_soon, {"concurrency": 2}),
    "processes": (handlers.handle, {"processes": 2}),
}


@pytest.fixture(params=[False, True], ids=["own", "shared"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[qindex.AnyEngine]:
    shared: dict[str, Any] = {"shared": True, "linger": 0} if request.param else {}
    with qindex.open(tmp_path / "data", **shared) as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
def test_what_becomes_of_messages(engine: qindex.AnyEngine, kind: str, tmp_path: Path) -> None:
    handler, options = KINDS[kind]
    queue = engine.queue("q")
    out = tmp_path / "out"
    queue.publish(f"write {out} one".encode())
    queue.publish_many([b"raise no  such\nthing", b"refuse never", b"ack", b"move other"])
    with running(queue, handler, **QUICK, **options) as found:
        wait_until(lambda: found.worker.figures.dead == 2 and found.worker.figures.done == 3)
        wait_until(lambda: queue.stats().unacked == 0)
    assert found.join() == Figures(done=3, failed=4, dead=2)
    assert [line[:2] for line in lines(out)] == [["one", "1"]]
    dead = letters(engine)
    assert dead[b"raise no  such\nthing"]["cause"] == "ValueError: no such thing"
    assert dead[b"refuse never"]["cause"] == "never"
    moved = engine.queue("other").get()
    assert (moved.body, moved.headers) == (b"move other", {"moved": True})
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.unacked) == (0, 0, 0)
    assert stats.settings.delivery_limit == 3


def test_a_queue_keeps_its_settings(engine: qindex.AnyEngine) -> None:
    queue = engine.queue("q", delivery_limit=2, dead_letter="dead", backoff="exponential:0.01:1")
    before = queue.settings
    queue.publish(b"raise x")
    with running(queue, handlers.handle) as found:
        wait_until(lambda: found.worker.figures.dead)
    assert queue.settings == before
    assert list(letters(engine, "dead")) == [b"raise x"]


def test_a_message_without_a_handler_is_a_dead_letter_in_the_end(engine: qindex.AnyEngine) -> None:
    queue = engine.queue("q")
    queue.publish(b"ack", properties={"type": "known"})
    queue.publish(b"ack", properties={"type": "other"})
    queue.publish(b"without")
    with running(queue, handlers.BY_TYPE, **QUICK) as found:
        wait_until(lambda: found.worker.figures.dead == 2)
    assert found.join() == Figures(done=1, failed=6, dead=2)
    causes = {one["cause"] for one in letters(engine).values()}
    assert causes == {f"no handler for messages of type {one!r}" for one in ("other", None)}


def test_a_failing_handler_does_not_loop_hot(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"raise x"] * 10)
        with running(queue, handlers.handle, concurrency=4) as found:
            wait_until(lambda: found.worker.figures.failed == 10)
            time.sleep(0.2)
            assert found.worker.figures.failed == 10  # the first pause is half a second at least
        assert queue.stats().delayed == 10


def test_retry_without_an_attempt(engine: qindex.AnyEngine) -> None:
    queue = engine.queue("q")
    queue.publish(b"retry 0.01")
    with running(queue, handlers.handle, **QUICK) as found:
        wait_until(lambda: found.worker.figures.failed > 5)
    assert found.join().dead == 0


def test_on_error_sees_each_failure_and_may_settle(engine: qindex.AnyEngine) -> None:
    queue = engine.queue("q")
    queue.publish_many([b"raise one", b"raise two"])
    seen: list[str] = []

    def on_error(delivery: qindex.Delivery, error: BaseException) -> None:
        seen.append(str(error))
        if delivery.body == b"raise one":
            delivery.ack()
        raise RuntimeError("on_error itself")

    with running(queue, handlers.handle, on_error=on_error, **QUICK):
        wait_until(lambda: len(seen) == 4)
        wait_until(lambda: len(queue) == queue.stats().unacked == 0)
    assert sorted(seen) == ["one", "two", "two", "two"]
    assert list(letters(engine)) == [b"raise two"]


def test_a_handler_that_takes_ten_leases_runs_once(
    engine: qindex.AnyEngine, tmp_path: Path
) -> None:
    queue = engine.queue("q")
    started: list[int] = []

    def slow(delivery: qindex.Delivery) -> None:
        started.append(delivery.delivery_count)
        time.sleep(3)

    queue.publish(b"x")
    with running(queue, slow, lease=0.3, concurrency=2) as found:
        wait_until(lambda: found.worker.figures.done)
    assert started == [1]


@pytest.mark.parametrize("shared", [False, True], ids=["embedded", "shared"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_end_gives_back_uncounted_what_still_runs(
    tmp_path: Path, kind: str, shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    handler, options = KINDS[kind]
    told: list[BaseException] = []
    if kind != "coroutines":
        options = options | {"on_error": lambda _, error: told.append(error)}
    store = tmp_path / "data"
    with qindex.open(store, shared=True, linger=0) if shared else qindex.open(store) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"sleep 20", b"sleep 20", b"ack"])
        with running(queue, handler, grace=0.1, **options) as found:
            wait_until(lambda: found.worker.figures.running == 2)
            found.worker.stop()
            assert found.join().cut == 2
            figures = found.worker.figures
        assert caplog.text.count("cut: given back, not counted") == 2
        assert (told, figures.failed) == ([], 0)
        again = queue.get_many(3)
        assert [(one.body, one.delivery_count) for one in again] == [
            (b"sleep 20", 1),
            (b"sleep 20", 1),
            (b"ack", 1),
        ]


def test_a_signal_that_another_thread_got_ends_the_wait(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish(b"")

        def end(_: object) -> None:
            time.sleep(0.2)  # the main thread waits
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        assert Worker(queue, end, slow_after=1e6).run().done == 1


def test_a_second_stop_hurries(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish(b"sleep 20")
        with running(queue, handlers.handle, grace=1000) as found:
            wait_until(lambda: found.worker.figures.running)
            found.worker.stop()
            time.sleep(0.05)
            assert found.thread.is_alive()
            found.worker.stop()
            assert found.join().cut == 1


def test_within_the_grace_period_a_handler_ends(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"sleep 0.3", b"ack"])
        with running(queue, handlers.handle, grace=WAIT) as found:
            wait_until(lambda: found.worker.figures.running)
            found.worker.stop()
            assert found.join() == Figures(done=1)
        assert len(queue) == 1


@pytest.mark.parametrize("kind", ["coroutines", "processes"])
def test_a_timeout_ends_a_handler_and_its_slot_comes_back(
    engine: qindex.AnyEngine, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler, _ = KINDS[kind]
    queue = engine.queue("q")
    queue.publish_many([b"hang", b"ack"])
    one: dict[str, Any] = {"processes": 1} if kind == "processes" else {"concurrency": 1}
    with running(
        queue, handler, timeout=0.5, retries=1, backoff="exponential:0.1:1", **one
    ) as found:
        wait_until(lambda: found.worker.figures.dead)
        assert found.worker.figures.done == 1
    cause = letters(engine)[b"hang"]["cause"]
    if kind == "processes":
        assert cause == "its process was killed after 0.5 s"
        assert "in handle" in caplog.text  # its stack
        assert found.join().restarts == 2
    else:
        assert cause == "the handler took longer than 0.5 s"


@pytest.mark.parametrize("end", ["hang", "die"])
def test_the_programs_that_a_handler_started_end_with_its_process(end: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish(f"start {out} {end}".encode())
        with running(queue, handlers.handle, processes=1, timeout=0.5, retries=0) as found:
            wait_until(lambda: found.worker.figures.dead)
    program = int(out.read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{program}/fd/0"))


def test_one_that_kills_its_process_is_a_dead_letter_after_the_limit(
    engine: qindex.AnyEngine, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    queue = engine.queue("q")
    queue.publish_many([b"kill", b"exit 7"])
    queue.publish_many([f"write {out} {at}".encode() for at in range(20)])
    with running(queue, handlers.handle, processes=2, **QUICK) as found:
        wait_until(lambda: found.worker.figures.dead == 2)
        wait_until(lambda: len(lines(out)) == 20)
    assert found.join().failed == 6
    assert found.join().restarts == 6
    assert {one[1] for one in lines(out)} == {"1"}
    dead = letters(engine)
    assert dead[b"kill"]["cause"] == "its process was killed by SIGKILL"
    assert dead[b"exit 7"]["cause"] == "its process ended with exit code 7"


def test_what_a_handler_does_out_of_turn_settles_no_other_message(
    engine: qindex.AnyEngine, tmp_path: Path
) -> None:
    """A delivery of before is acknowledged, a value can't be sent, and a fork returns as well."""
    out = tmp_path / "out"
    queue = engine.queue("q")
    queue.publish_many([b"keep", b"late", b"odd", f"write {out} a".encode(), b"forked"])
    queue.publish_many([f"write {out} {at}".encode() for at in "bcd"])
    with running(queue, handlers.handle, processes=1, **QUICK) as found:
        wait_until(lambda: len(lines(out)) == 4)
        wait_until(lambda: queue.stats().messages == 0)
    assert found.join().done == 6  # but for those two
    dead = letters(engine)
    assert "handler has ended" in dead[b"late"]["cause"] or "pop" in dead[b"late"]["cause"]
    assert "can't be read" in dead[b"odd"]["cause"]


@pytest.mark.parametrize("kind", KINDS)
def test_sys_exit_and_kinds_of_reject(engine: qindex.AnyEngine, kind: str) -> None:
    handler, options = KINDS[kind]
    queue = engine.queue("q")
    queue.publish_many([b"exits", b"refused", b"ack"])
    with running(queue, handler, **QUICK, **options) as found:
        wait_until(lambda: found.worker.figures.dead == 2)
        wait_until(lambda: queue.stats().messages == 0)
    assert (found.join().done, found.join().failed) == (1, 4)
    assert letters(engine)[b"refused"]["cause"] == "no way"


@pytest.mark.parametrize("kind", KINDS)
def test_odd_errors_do_not_end_the_worker(engine: qindex.AnyEngine, kind: str) -> None:
    """An error has no text, and pauses are none."""
    handler, options = KINDS[kind]
    queue = engine.queue("q")
    odd = [b"unsayable", b"bare", b"backwards", b"before -1", b"before nan", b"before 1e11"]
    queue.publish_many([*odd, b"fine"])
    with running(queue, handler, **QUICK, **options) as found:
        wait_until(lambda: found.worker.figures.dead == len(odd) or not found.thread.is_alive())
        wait_until(lambda: queue.stats().messages == 0 or not found.thread.is_alive())
    assert (found.join().done, found.join().failed) == (1, 3 * len(odd))
    assert found.join().restarts == 0
    causes = {body: one["cause"] for body, one in letters(engine).items()}
    assert causes[b"unsayable"] == "Unsayable: its text can't be made: RuntimeError"
    assert causes[b"before -1"] == "UsageError: delay must be seconds from 0 to 1e10, not -1.0"
    assert set(causes) == set(odd)


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_a_handler_forks_takes_no_messages(
    engine: qindex.AnyEngine, kind: str, tmp_path: Path
) -> None:
    handler, options = KINDS[kind]
    out = tmp_path / "out"
    queue = engine.queue("q")
    queue.publish_many([b"forks", b"forks"])
    queue.publish_many([f"write {out} {at}".encode() for at in range(20)])
    with running(queue, handler, **QUICK, **options) as found:
        wait_until(lambda: found.worker.figures.done == 22)
    assert found.join().failed == 0
    assert sorted(int(one[0]) for one in lines(out)) == list(range(20))


def test_one_that_is_killed_by_a_signal_without_a_name(engine: qindex.AnyEngine) -> None:
    queue = engine.queue("q")
    number = signal.SIGRTMIN + 3
    queue.publish(b"signal %d" % number)
    with running(queue, handlers.handle, processes=1, **QUICK) as found:
        wait_until(lambda: found.worker.figures.dead == 1 or not found.thread.is_alive())
    assert found.join().failed == 3
    dead = letters(engine)
    assert dead[b"signal %d" % number]["cause"] == f"its process was killed by signal {number}"


def test_a_coroutine_that_stops_its_loop_does_not_stop_the_others(
    engine: qindex.AnyEngine,
) -> None:
    queue = engine.queue("q")
    queue.publish_many([b"stop", b"sleep 0.01", b"stop", b"sleep 0.01"])
    with running(queue, handlers.handle_soon, concurrency=2) as found:
        wait_until(lambda: found.worker.figures.done == 4)


def run_where_starts_fail(
    queue: Any, monkeypatch: pytest.MonkeyPatch, failures: list[OSError]
) -> Running:
    """Run a worker whose process is replaced after each message. After the first message a start
    fails for each of the ``failures``, which are used up."""
    start = processes._SPAWN.Process.start

    def start_or_fail(process: Any) -> None:
        if worker.figures.done and failures:
            raise failures.pop(0)
        start(process)

    worker = Worker(queue, handlers.handle, processes=1, max_tasks=1)
    monkeypatch.setattr(processes._SPAWN.Process, "start", start_or_fail)
    return Running(worker)


def test_a_process_that_can_not_be_started_is_waited_for(
    engine: qindex.AnyEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "_SCARCE_PAUSE", 0.01)
    failures = [OSError(one, os.strerror(one)) for one in (errno.EMFILE, errno.EAGAIN)]
    queue = engine.queue("q")
    queue.publish_many([b"fine", b"fine"])
    found = run_where_starts_fail(queue, monkeypatch, failures)
    wait_until(lambda: found.worker.figures.done == 2 or not found.thread.is_alive())
    found.worker.stop()
    assert (found.join().done, failures) == (2, [])
    assert "can't be started now: Too many open files" in caplog.text


def test_a_worker_whose_process_can_not_be_started_ends_with_that_error(
    engine: qindex.AnyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = engine.queue("q")
    queue.publish_many([b"fine", b"fine"])
    found = run_where_starts_fail(queue, monkeypatch, [PermissionError(errno.EPERM, "no")])
    with pytest.raises(PermissionError):
        found.join()
    assert queue.stats().ready == 1


def test_replaced_processes_begin_while_the_parents_threads_hold_locks(tmp_path: Path) -> None:
    """A fork would inherit them taken."""
    lock = logging.getLogger().handlers[0].lock if logging.getLogger().handlers else None
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"kill", b"ack"])
        done = threading.Event()

        def hold() -> None:
            while not done.is_set():
                if lock is not None:
                    with lock:
                        time.sleep(0.001)
                for _ in range(1000):
                    bytearray(1000)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            with running(queue, handlers.handle, processes=1, **QUICK) as found:
                wait_until(lambda: found.worker.figures.dead and found.worker.figures.done)
        finally:
            done.set()
            holder.join()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_batches(engine: qindex.AnyEngine, kind: str, tmp_path: Path) -> None:
    handler, options = KINDS[kind]
    out = tmp_path / "out"
    queue = engine.queue("q")
    bodies = [f"write {out} {at}".encode() for at in range(40)]
    bodies[7], bodies[9], bodies[20], bodies[33] = b"raise x", b"ack", b"refuse y", b"move other"
    if kind == "processes":
        bodies[30] = b"kill"
    queue.publish_many(bodies)
    with running(queue, handler, batch=16, **QUICK, **options) as found:
        wait_until(lambda: found.worker.figures.dead == (3 if kind == "processes" else 2))
        wait_until(lambda: queue.stats().messages == 0)
    wanted = {str(at) for at in range(40)} - {"7", "9", "20", "33"}
    wanted -= {"30"} if kind == "processes" else set()
    assert sorted(line[0] for line in lines(out)) == sorted(wanted)
    assert {line[1] for line in lines(out)} == {"1"}
    assert len(letters(engine)) == found.join().dead
    assert engine.queue("other").get().body == b"move other"


def test_processes_are_replaced_between_messages(engine: qindex.AnyEngine, tmp_path: Path) -> None:
    out = tmp_path / "out"
    queue = engine.queue("q")
    queue.publish_many([f"write {out} {at}".encode() for at in range(7)])
    with running(queue, handlers.handle, processes=1, max_tasks=3) as found:
        wait_until(lambda: found.worker.figures.done == 7)
    assert found.join().restarts == 2
    pids = [line[2] for line in lines(out)]
    assert [len(set(pids[at : at + 3])) for at in (0, 3, 6)] == [1, 1, 1]
    assert len(set(pids)) == 3


def test_a_process_that_grew_is_replaced(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"hold 300000000", b"ack", b"ack"])
        with running(queue, handlers.handle, processes=1, max_memory=250_000_000) as found:
            wait_until(lambda: found.worker.figures.done == 3)
        assert found.join().restarts == 1


def test_slow_handlers_are_reported_with_their_stack(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        for handler, options in KINDS.values():
            caplog.clear()
            queue.publish(b"sleep 20")
            with running(queue, handler, slow_after=0.1, grace=0, **options):
                wait_until(lambda: "runs for 0 s:" in caplog.text)
                wait_until(lambda: "handlers.py" in caplog.text)
            queue.purge()


def test_a_health_file_that_nobody_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may put a FIFO into /tmp: the worker goes on, and says so."""
    path = tmp_path / "health"
    os.mkfifo(f"{path}.new")
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish(b"ack")
        with running(queue, handlers.handle, health=str(path)) as found:
            wait_until(lambda: found.worker.figures.done)
            wait_until(lambda: "is a FIFO, not a file" in caplog.text)


def test_the_health_file(tmp_path: Path) -> None:
    path = tmp_path / "health"
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        with running(queue, handlers.handle, health=str(path)):
            wait_until(path.exists)
            found = json.loads(path.read_text())
            assert found["pid"] == os.getpid()
            assert found["done"] == 0
        assert not path.exists()


def test_a_store_that_can_not_be_used_ends_the_worker(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        found = Running(Worker(queue, handlers.handle))
        wait_until(lambda: all(slot._consumer for slot in found.worker._slots))
        engine.delete_queue("q")
        with pytest.raises(qindex.ClosedError):
            found.join()


def test_a_full_dead_letter_queue_is_waited_for(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        engine.queue("q.failed", max_length=1).publish(b"first")
        queue = engine.queue("q")
        queue.publish(b"refuse it")
        with running(queue, handlers.handle) as found:
            wait_until(lambda: found.worker.figures.dead)
            assert queue.stats().unacked == 1
            engine.queue("q.failed").get().ack()
            wait_until(lambda: queue.stats().unacked == 0)
        assert list(letters(engine)) == [b"refuse it"]
        assert found.join().failed == 1


@pytest.mark.parametrize(
    ("handler", "options", "text"),
    [
        (handlers.handle, {"timeout": 3}, "a thread can't be ended"),
        (handlers.handle, {"concurrency": 0}, "at least 1"),
        (handlers.handle, {"concurrency": "2"}, "must be an integer"),
        (handlers.handle, {"concurrency": 2, "processes": 2}, "one handler at a time"),
        (handlers.handle_soon, {"timeout": 0}, "timeout must be a number of seconds, above 0"),
        (handlers.handle_soon, {"timeout": float("nan")}, "timeout must be a number"),
        (handlers.handle, {"grace": -1}, "grace must be a number of seconds, at least 0"),
        (handlers.handle, {"lease": "1"}, "lease is a number"),
        (handlers.handle, {"on_error": 3}, "on_error must be a function"),
        (handlers.handle, {"health": 3}, "health must be the path of a file"),
        (lambda delivery: None, {"processes": 1}, "a function that a process can import"),
        (handlers.handle, {"retries": -1}, "at least 0"),
        (handlers.handle, {"max_tasks": 3}, "for processes"),
        (handlers.handle, {"backoff": "linear"}, "backoff"),
        (handlers.NOTHING, {}, "a handler must be a callable"),
        ({}, {}, "a handler must be a callable"),
        ({"a": handlers.handle, "b": handlers.handle_soon}, {}, "or none is"),
        ("tests.worker.handlers", {}, "module:handler"),
        ("tests.worker.nothing:x", {}, "No module named"),
        ("tests.worker.handlers:nothing", {}, "has no 'nothing'"),
        ("tests.worker.broken:handle", {}, r"NameError: name 'no_such_name'.*broken.py:3\)"),
    ],
)
def test_wrong_use(tmp_path: Path, handler: Any, options: dict[str, Any], text: str) -> None:
    with qindex.open(tmp_path / "data") as engine, pytest.raises(qindex.UsageError, match=text):
        Worker(engine.queue("q"), handler, **options)


def test_a_worker_that_was_stopped_before_it_ran_takes_nothing(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish(b"")
        worker = Worker(queue, handlers.handle)
        worker.stop()
        assert worker.run() == Figures()
        assert queue.get().delivery_count == 1


def test_a_process_that_still_imports_its_handler_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish(b"")
        os.environ["QINDEX_TEST_SLOW_IMPORT"] = "100"
        try:
            with running(queue, "tests.worker.slow_import:handle", processes=1) as found:
                time.sleep(0.2)
        finally:
            del os.environ["QINDEX_TEST_SLOW_IMPORT"]
        assert found.join() == Figures()


def test_an_error_after_the_message_was_settled_is_no_death(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        queue.publish(b"twice")
        with running(queue, handlers.handle, retries=0) as found:
            wait_until(lambda: found.worker.figures.failed)
        assert found.join() == Figures(failed=1)
        assert "next='settled' error='UsageError" in caplog.text
        assert len(queue) == 0
        assert letters(engine) == {}


def test_signals_stop_a_worker_of_the_main_thread(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        queue = engine.queue("q")
        before = signal.getsignal(signal.SIGTERM)
        worker = Worker(queue, handlers.handle)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        assert worker.run() == Figures()
        timer.join()
        assert signal.getsignal(signal.SIGTERM) is before
