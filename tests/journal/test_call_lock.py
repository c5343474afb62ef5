"""Locks that a thread can't take twice."""

from __future__ import annotations

import signal
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType

import pytest

from journal.compiled import INTERPRETED, build
from journal.errors import UsageError
from journal.locks import call_lock, owned_lock
from journal.locks.call_lock import CallLock, check_alone, held_or
from journal.locks.owned_lock import LockByOwner, OwnedLock
from journal.locks.patience import PatientLock
from journal.locks.sync import GroupCommit
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


@pytest.fixture
def switched_where_it_sleeps() -> Iterator[None]:
    """Other threads run where the test's thread sleeps, and nowhere else."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


def take_again_until_it_is_kept(lock: OwnedLock) -> None:
    """Its owner gives it back, and takes it again before those who wait for it can run."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        time.sleep(1e-3)
        lock.release()
        if not lock.acquire(False):
            return
    raise AssertionError("its owner could always take it again")


def waiting(lock: OwnedLock) -> tuple[threading.Thread, threading.Event]:
    """Start a thread that waits for it; the event: it has had it."""
    entered = threading.Event()

    def wait() -> None:
        with suppress(KeyboardInterrupt):
            lock.acquire()
            entered.set()
            lock.release()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, entered


@pytest.mark.usefixtures("switched_where_it_sleeps")
@pytest.mark.parametrize(
    "kind", [LockByOwner] if build() == INTERPRETED else [LockByOwner, CallLock, PatientLock]
)
def test_it_is_kept_for_a_thread_that_woke_in_vain(kind: type[OwnedLock]) -> None:
    lock = kind()
    lock.acquire()
    thread, entered = waiting(lock)
    take_again_until_it_is_kept(lock)
    thread.join(WAIT)
    assert entered.is_set()
    assert lock.acquire(False)


@pytest.mark.usefixtures("switched_where_it_sleeps")
@pytest.mark.parametrize("others", [0, 1])
def test_the_thread_that_it_was_kept_for_gives_up(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """A signal's handler raises as the thread wakes to take it."""

    class Gate:
        def __init__(self) -> None:
            self._lock = allocate_lock()

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            taken = self._lock.acquire(blocking, timeout)
            if threading.current_thread() is thread and is_kept:
                raise KeyboardInterrupt
            return taken

        def release(self) -> None:
            self._lock.release()

    is_kept = False
    thread = threading.current_thread()
    monkeypatch.setattr(owned_lock, "allocate_lock", Gate)
    lock = LockByOwner()
    lock.acquire()
    thread, entered = waiting(lock)
    more = [waiting(lock) for _ in range(others)]
    take_again_until_it_is_kept(lock)
    is_kept = True
    for one, _ in [(thread, entered), *more]:
        one.join(WAIT)
    assert not entered.is_set()
    assert all(event.is_set() for _, event in more)
    assert lock.acquire(False)


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
