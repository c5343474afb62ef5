"""The lock of a queue that several threads use: exclusive, nobody starves, and not for ever."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from time import sleep

import pytest

import qindex
from journal.locks.patience import PatientLock
from tests.qindex.support import WAIT
from tests.qindex.test_threads import join, start, until


def in_thread(work: object) -> None:
    assert callable(work)
    join(start(work))


def made_patient() -> PatientLock:
    lock = PatientLock()
    lock.share(True)
    return lock


def test_it_excludes_threads_before_and_after_it_becomes_patient() -> None:
    lock = PatientLock()
    inside = 0
    most = 0
    count = [0] * 6

    def work(number: int) -> None:
        nonlocal inside, most
        for _ in range(4000):
            with lock:
                inside += 1
                most = max(most, inside)
                count[number] += 1
                inside -= 1
                if count[number] % 500 == 0:
                    lock.share(not lock.is_shared())

    join(start(*(lambda number=number: work(number) for number in range(6))))
    assert (most, inside, sum(count)) == (1, 0, 24_000)
    assert lock.acquire(blocking=False)


def test_one_that_waits_gets_in_while_another_never_rests() -> None:
    patient = made_patient()
    got_in = threading.Event()

    def hog() -> None:
        while not got_in.is_set():
            with patient:
                sum(range(200))

    def guest() -> None:
        for _ in range(20):
            with patient:
                count.append(1)
            sleep(0.001)  # the others take it meanwhile
        got_in.set()

    count: list[int] = []
    join(start(hog, hog, guest))
    assert len(count) == 20


def test_who_holds_it_is_seen_to_be_wanted_and_gives_it_up() -> None:
    patient = made_patient()
    done = threading.Event()

    def guest() -> None:
        with patient:
            done.set()

    patient.give_up()  # nobody wants it: nothing happens
    with patient:
        guests = start(guest)
        until(patient.is_wanted)
        assert not done.is_set()
    patient.give_up()
    join(guests)
    assert done.is_set()
    assert not patient.is_wanted()


@pytest.mark.parametrize("shared", [False, True])
def test_one_that_was_refused_gets_in_whatever_it_has_become_meanwhile(shared: bool) -> None:
    lock = made_patient()
    refused = threading.Event()
    goes_on = threading.Event()
    got_in: list[bool] = []

    def guest() -> None:
        assert not lock.take()
        refused.set()
        goes_on.wait(WAIT)
        lock.wait_for_turn()
        got_in.append(lock.is_mine())
        lock.release()

    with lock:
        guests = start(guest)
        assert refused.wait(WAIT)
        lock.share(shared)
        goes_on.set()
        if shared:
            until(lock.is_wanted)  # a plain one is slept for
    join(guests)
    assert got_in == [True]
    assert lock.is_shared() == shared
    assert lock.take()


def test_a_handler_gets_in_while_its_thread_waits() -> None:
    lock = made_patient()
    inside = threading.Event()
    order: list[str] = []

    def hold() -> None:
        with lock:
            inside.set()
            until(lock.is_wanted)  # the thread waits
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            until(lambda: lock.waits == 2)  # and so does its handler
            order.append("holder")

    def handle(*_: object) -> None:
        with lock:
            order.append("handler")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        thread = start(hold)
        assert inside.wait(WAIT)
        with lock:
            order.append("thread")
        join(thread)
        in_thread(lambda: handle())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert order == ["holder", "handler", "thread", "handler"]


def test_a_condition_can_be_made_of_it() -> None:
    patient = made_patient()
    condition = threading.Condition(patient)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="un-acquired"):
        condition.notify()
    rung = []

    def sleeper() -> None:
        with condition:
            rung.append(condition.wait(WAIT))

    sleepers = start(sleeper)
    until(lambda: condition._waiters)  # type: ignore[attr-defined]
    with condition:
        condition.notify()
    join(sleepers)
    assert rung == [True]
    with condition:
        assert condition.wait(0.001) is False


def test_a_queue_has_it_while_several_threads_use_it(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "store", background=False) as engine:
        queue = engine.queue("q")
        lock = queue._parts.state.lock
        for number in range(200):
            queue.publish(b"%d" % number)
        assert not lock.is_shared()
        in_thread(lambda: [queue.publish(b"of another thread") for _ in range(64)])
        assert lock.is_shared()
        for _ in range(64 * 256):
            queue.publish(b"alone again")
        assert lock.is_shared(), "a thread was here, and so was another"
        for _ in range(64):
            queue.publish(b"alone again")
        assert not lock.is_shared()
        queue.ack_many(queue.get_many(30_000))
        assert len(queue) == 0


def test_a_closed_queue_stays_closed_for_one_that_waits(tmp_path: Path) -> None:
    engine = qindex.open(tmp_path / "store", background=False)
    queue = engine.queue("q")
    in_thread(lambda: [queue.publish(b"x") for _ in range(65)])
    queue.publish_many([b"x"])
    assert queue._parts.state.lock.is_shared()
    engine.close()
    with pytest.raises(qindex.ClosedError):
        queue.publish(b"x")
