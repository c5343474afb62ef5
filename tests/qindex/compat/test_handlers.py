"""Signals' handlers, finalizers and other threads, in the middle of a call of a face: nobody waits
for himself, and what is refused has changed nothing."""

from __future__ import annotations

import gc
import queue as standard
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.compat import PersistentQueue, shared
from qindex.compat.queuelib import FifoDiskQueue
from tests.interrupts.interruption import points_of, run_at
from tests.qindex.support import WAIT

pytestmark = pytest.mark.timeout(60)


@contextmanager
def handler(action: Callable[[], None]) -> Iterator[None]:
    """Let a signal be on its way to this thread, that does ``action``."""
    before = signal.signal(signal.SIGALRM, lambda *_: action())
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_handler_closes_the_queue_that_its_thread_waits_for(tmp_path: Path) -> None:
    jobs = PersistentQueue(tmp_path, maxsize=1)
    with handler(jobs.close), pytest.raises(qindex.ClosedError):
        jobs.get()
    jobs = PersistentQueue(tmp_path, maxsize=1)
    jobs.put(1)
    with handler(jobs.close), pytest.raises(qindex.ClosedError):
        jobs.put(2)
    jobs = PersistentQueue(tmp_path, maxsize=1)
    with handler(jobs.close), pytest.raises(qindex.ClosedError):
        jobs.join()


def test_close_wakes_threads_that_wait(tmp_path: Path) -> None:
    jobs = PersistentQueue(tmp_path)
    ends: standard.Queue[Exception] = standard.Queue()

    def wait(call: Callable[[], object]) -> None:
        try:
            call()
        except qindex.ClosedError as error:
            ends.put(error)

    calls: list[Callable[[], object]] = [jobs.get, jobs.take]
    with PersistentQueue(tmp_path) as sibling:
        threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        jobs.close()
        for thread in threads:
            thread.join(WAIT)
        assert ends.qsize() == 2
        sibling.put("goes on")


CALLS: dict[str, Callable[[PersistentQueue], Any]] = {
    "put": lambda jobs: jobs.put("new"),
    "get": lambda jobs: jobs.get(),
    "take": lambda jobs: jobs.take().done(),
    "task_done": lambda jobs: jobs.task_done(),
    "qsize": lambda jobs: jobs.qsize(),
    "close": lambda jobs: jobs.close(),
}


@pytest.mark.interpreted  # the handler comes between lines of modules that may be compiled
@pytest.mark.parametrize("name", CALLS)
def test_close_at_every_point_of_a_call(tmp_path: Path, name: str) -> None:
    """Done, or refused; the call goes on, or finds the queue closed. Nothing is lost."""

    def opened(number: int) -> PersistentQueue:
        jobs = PersistentQueue(tmp_path / f"{number}")
        jobs.put("first")
        jobs.put("second")
        jobs.get()
        return jobs

    whole = opened(0)
    points = points_of(lambda: CALLS[name](whole))
    whole.close()
    outcomes = set()
    for point in range(1, points + 1, max(points // 20, 1)):
        jobs = opened(point)
        outcome: list[str] = []

        def close(jobs: PersistentQueue = jobs, outcome: list[str] = outcome) -> None:
            try:
                jobs.close()
                outcome.append("closed")
            except qindex.UsageError:
                outcome.append("refused")

        def call(jobs: PersistentQueue = jobs, outcome: list[str] = outcome) -> None:
            try:
                CALLS[name](jobs)
            except qindex.ClosedError:
                assert outcome == ["closed"]

        run_at(call, point, close)
        outcomes.update(outcome)
        jobs.close()
        with PersistentQueue(tmp_path / f"{point}") as again:
            left = [again.get_nowait() for _ in range(again.qsize())]
        assert "second" in left or name in ("get", "take")
    assert "closed" in outcomes


@pytest.mark.parametrize("name", ["push", "pop", "close"])
def test_a_handler_in_the_middle_of_queuelibs_face(tmp_path: Path, name: str) -> None:
    calls: dict[str, Callable[[FifoDiskQueue], Any]] = {
        "push": lambda queue: queue.push(b"new"),
        "pop": lambda queue: queue.pop(),
        "close": lambda queue: queue.close(),
    }
    whole = FifoDiskQueue(tmp_path / "whole")
    points = points_of(lambda: calls[name](whole))
    whole.close()
    for point in range(1, points + 1, max(points // 20, 1)):
        path = tmp_path / f"{point}" / "q"
        queue = FifoDiskQueue(path)
        queue.push(b"first")

        def close(queue: FifoDiskQueue = queue) -> None:
            with suppress(qindex.UsageError, qindex.ClosedError):
                queue.close()

        def call(queue: FifoDiskQueue = queue) -> None:
            with suppress(qindex.ClosedError):
                calls[name](queue)

        run_at(call, point, close)
        queue.close()
        again = FifoDiskQueue(path)
        bodies = [again.pop() for _ in range(len(again))]
        assert bodies in ([b"first"], [b"first", b"new"], [] if name == "pop" else None)
        again.close()


def test_a_finalizer_closes_while_another_engine_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of all faces was held over the whole of qindex.open."""

    class Owner:
        def __init__(self, queue: Any) -> None:
            self.queue = queue
            self.itself = self  # only the collector finds it

        def __del__(self) -> None:
            self.queue.close()

    opened = qindex.open
    entered, leave = threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> Any:
        entered.set()
        assert leave.wait(WAIT)
        return opened(*args, **options)

    for face in (PersistentQueue, lambda path: FifoDiskQueue(path / "q")):
        owner = Owner(face(tmp_path / "old"))
        closed = owner.queue
        monkeypatch.setattr(qindex, "open", lambda *a, **o: (gc.collect(), opened(*a, **o))[1])
        del owner
        other = PersistentQueue(tmp_path / "new")
        assert closed._closed
        # And while another thread opens one.
        third = PersistentQueue(tmp_path / "third")
        monkeypatch.setattr(qindex, "open", slow)
        thread = threading.Thread(target=lambda: PersistentQueue(tmp_path / "slow").close())
        thread.start()
        assert entered.wait(WAIT)
        third.close()
        other.close()
        leave.set()
        thread.join()
        entered.clear()
        leave.clear()
        monkeypatch.setattr(qindex, "open", opened)


def test_what_a_handler_gives_back_in_the_middle_is_seen_to(tmp_path: Path) -> None:
    """At every point of opening and closing one directory, a handler closes another one."""

    def life(number: int) -> None:
        PersistentQueue(tmp_path / f"a{number}").close()

    points = points_of(lambda: life(0))
    step = max(points // 30, 1)
    for point in range(1, points + 1, step):
        other = PersistentQueue(tmp_path / "other")
        refused: list[Exception] = []

        def close(other: PersistentQueue = other, refused: list[Exception] = refused) -> None:
            try:
                other.close()
            except qindex.UsageError as error:
                refused.append(error)

        run_at(lambda: life(0), point, close)
        other.close()
        # It was closed: another engine can have it.
        qindex.open(tmp_path / "other").close()
    assert not shared._uses
