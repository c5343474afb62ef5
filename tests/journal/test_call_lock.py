"""Locks that a thread can't take twice."""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from journal import call_lock
from journal.call_lock import CallLock, check_alone, held_or
from journal.errors import UsageError
from journal.owned_lock import OwnedLock
from journal.patience import PatientLock
from journal.sync import GroupCommit
from tests.waiting import WAIT


def test_a_lock_is_taken_once() -> None:
    lock = CallLock()
    for _ in range(2):
        with lock:
            assert lock.is_mine()
            with pytest.raises(UsageError, match="in the middle of another call"), lock:
                raise AssertionError("it was taken twice")
            assert lock.is_mine()
        assert not lock.is_mine()
    lock.let_go()


def test_another_thread_waits_for_it() -> None:
    lock = CallLock()
    inside = threading.Event()

    def wait() -> None:
        with lock:
            inside.set()

    thread = threading.Thread(target=wait)
    with lock:
        thread.start()
        assert not inside.wait(0.05)
    thread.join(WAIT)
    assert inside.is_set()


@pytest.mark.parametrize("kind", [OwnedLock, CallLock, PatientLock])
def test_many_threads_want_it(kind: type[OwnedLock]) -> None:
    lock, inside, entered, wrong = kind(), 0, 0, 0

    def work() -> None:
        nonlocal inside, entered, wrong
        for number in range(1500):
            if not lock.acquire(True, (-1, 0.5, 1e-4)[number % 3]):
                continue
            inside += 1
            wrong += inside != 1
            if not number % 50:
                time.sleep(0)  # others run meanwhile
            wrong += not lock.is_mine()
            entered += 1
            inside -= 1
            lock.release()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(work) for _ in range(6)]:
                done.result(WAIT)
    finally:
        sys.setswitchinterval(interval)
    assert (inside, wrong) == (0, 0)
    assert entered >= 6 * 1000
    assert lock.acquire(False)
    assert lock.acquire(False), "its owner takes it again"
    lock.release()
    assert lock.is_mine()
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_handler_that_raises_ends_the_wait() -> None:
    lock = CallLock()
    held, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            goes_on.wait(WAIT)

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, end)
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(WAIT)
    main = threading.main_thread().ident or 0
    timer = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
    finally:
        signal.signal(signal.SIGUSR1, before)
        goes_on.set()
        holder.join(WAIT)
        timer.join(WAIT)
    with lock:
        assert lock.is_mine()


def test_it_is_the_lock_of_a_condition() -> None:
    lock = CallLock()
    condition = threading.Condition(lock)  # type: ignore[arg-type]

    def wake() -> None:
        with lock:
            condition.notify()

    with lock:
        thread = threading.Thread(target=wake)
        thread.start()
        assert condition.wait(WAIT)
        assert lock.is_mine()
    thread.join(WAIT)


def test_a_call_of_a_user_is_the_outer_one_only() -> None:
    lock = threading.RLock()
    check_alone(lock)
    with lock:
        with pytest.raises(UsageError), lock:
            check_alone(lock)
        with pytest.raises(UsageError):
            check_alone(lock)
    check_alone(lock)
    assert not lock._is_owned()  # type: ignore[attr-defined]


def test_a_commit_within_a_commit_of_the_same_thread() -> None:
    errors: list[str] = []

    def sync() -> None:
        try:
            commits.commit()
        except UsageError as error:
            errors.append(str(error))

    commits = GroupCommit(sync)
    for number in range(1, 3):
        commits.commit()
        assert len(errors) == commits.rounds == number


def test_a_part_of_a_call_takes_the_lock_where_the_call_has_not() -> None:
    lock = CallLock()
    with held_or(lock):
        assert lock.is_mine()
        with held_or(lock):
            assert lock.is_mine()
        assert lock.is_mine()
    assert not lock.is_mine()


@pytest.mark.interpreted  # compiled functions leave no trace
def test_a_handler_that_raises_as_a_function_begins_leaves_the_lock_free() -> None:
    lock, before = CallLock(), sys.gettrace()
    begun = point = 0

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        nonlocal begun
        if event == "call" and frame.f_code.co_filename == call_lock.__file__:
            begun += 1
            if begun == point:
                sys.settrace(None)
                raise KeyboardInterrupt

    for _ in range(20):
        begun, point = 0, point + 1
        try:
            sys.settrace(interrupt)
            with lock.anyway:
                pass
        except KeyboardInterrupt:
            assert not lock.is_mine()
        else:
            break
        finally:
            sys.settrace(before)
    assert 1 < point < 20
