"""Bells: who was woken is not woken again, and a ring that woke somebody in vain goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import qindex
from journal.locks.patience import PatientLock
from qindex.queue.waiting import take_from
from qindex.queue.wake_ups import Bell
from tests.qindex.support import WAIT
from tests.qindex.test_threads import join, start, until


@pytest.fixture
def lock() -> PatientLock:
    return PatientLock()


@pytest.fixture
def bell(lock: PatientLock) -> Bell:
    return Bell(lock)


def sleeper(lock: PatientLock, bell: Bell, rung: list[bool]) -> Callable[[], None]:
    def sleep() -> None:
        with lock:
            rung.append(bell.wait(WAIT))

    return sleep


def test_it_counts_those_that_were_not_woken(lock: PatientLock, bell: Bell) -> None:
    """Woken threads, which can't go on yet, are rung for no more: a publish would pay for it."""
    rung: list[bool] = []
    threads = start(*[sleeper(lock, bell, rung)] * 3)
    until(lambda: bell.waiting == 3)
    with lock:
        bell.listen(lambda: True)
        assert bell.waiting == 4
        bell.notify()
        assert bell.waiting == 3
        bell.notify(5)
        assert (bell.waiting, rung) == (0, [])
    join(threads)
    assert rung == [True] * 3


def test_time_is_up(lock: PatientLock, bell: Bell) -> None:
    with lock:
        for seconds in (0, 0.001, -1):
            assert not bell.wait(seconds)
            assert bell.waiting == 0
            assert lock.is_mine()


def test_who_is_rung_as_time_is_up_was_rung(lock: PatientLock, bell: Bell) -> None:
    """The ring is not lost between the end of the time and the lock."""
    rung: list[bool] = []

    def sleep() -> None:
        with lock:
            rung.append(bell.wait(0.01))

    threads = start(sleep)
    until(lambda: bell.waiting == 1)
    with lock:
        threading.Event().wait(0.05)
        bell.notify()
    join(threads)
    assert rung == [True]


@pytest.fixture
def raising() -> Iterator[None]:
    """A signal whose handler raises."""

    def handler(_signal: int, _frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("raising")
def test_a_ring_for_one_that_is_interrupted_wakes_another(lock: PatientLock, bell: Bell) -> None:
    rung: list[bool] = []
    others: list[threading.Thread] = []
    main = threading.main_thread().ident
    assert main is not None

    def ring() -> None:
        until(lambda: bell.waiting == 1)
        others.extend(start(sleeper(lock, bell, rung)))
        until(lambda: bell.waiting == 2)
        with lock:
            bell.notify()
            signal.pthread_kill(main, signal.SIGUSR1)
            threading.Event().wait(0.05)

    ringer = start(ring)
    with pytest.raises(InterruptedError), lock:
        bell.wait(WAIT)
    assert not lock.is_mine()
    join(ringer)
    join(others)
    assert (rung, bell.waiting) == ([True], 0)


def test_a_ring_after_the_message_wakes_another(tmp_path: Path) -> None:
    """Between its message and the end of its call a waiter may be rung for a second message."""
    got: list[bytes] = []
    others: list[threading.Thread] = []
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"1")

        def get() -> None:
            delivery = queue.get(WAIT)
            assert delivery is not None
            got.append(delivery.body)

        def take() -> bytes | None:
            delivery = queue.get(0)
            assert delivery is not None
            others.extend(start(get))
            until(lambda: queue._parts.state.arrived.waiting == 2)
            queue.publish(b"2")
            return delivery.body

        assert take_from(queue._parts.state, take, WAIT) == b"1"
        join(others)
    assert got == [b"2"]
