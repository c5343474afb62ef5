"""Calls under way: a close waits for them, and lets none in."""

from __future__ import annotations

import threading

import pytest

from journal.errors import ClosedError, UsageError
from journal.locks.call_lock import CallLock
from journal.locks.calls import Calls
from journal.locks.lock_order import LockOrder, Rank
from journal.locks.patience import PatientLock
from tests.interrupts.interruption import interrupted_at, points_of
from tests.waiting import WAIT


def test_it_waits_for_those_inside_and_refuses_the_next() -> None:
    calls = Calls()
    inside, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        with calls.here():
            inside.set()
            assert goes_on.wait(WAIT)
            with calls.here():  # a part of the same call
                assert calls.is_mine()

    def close() -> None:
        calls.refuse(ClosedError, "closed")
        calls.wait()
        ended.set()

    threads = [threading.Thread(target=one) for one in (call, close)]
    threads[0].start()
    assert inside.wait(WAIT)
    threads[1].start()
    assert not ended.wait(0.05)
    with pytest.raises(ClosedError, match="closed"), calls.here():
        pass
    assert not calls.is_mine()
    goes_on.set()
    for thread in threads:
        thread.join(WAIT)
    assert ended.is_set()


def test_nobody_waits_for_himself() -> None:
    calls = Calls()
    with calls.here(), pytest.raises(UsageError, match="middle of another call"):
        calls.wait()


def test_a_wait_that_is_cut_short_is_made_again() -> None:
    def made() -> Calls:
        calls = Calls()
        with calls.here():
            pass
        return calls

    for point in range(1, points_of(made().wait) + 1):
        calls = made()
        assert interrupted_at(calls.wait, point) is not None
        calls.wait()
        assert not calls.is_mine()


@pytest.mark.parametrize("kind", [CallLock, PatientLock])
def test_a_lock_refuses_before_and_behind_the_take(kind: type[CallLock]) -> None:
    lock = kind()
    held, told = threading.Event(), []

    def late() -> None:
        held.set()
        try:
            with lock:
                told.append("in")
        except ClosedError:
            told.append("refused")

    with lock:
        waiter = threading.Thread(target=late)
        waiter.start()
        assert held.wait(WAIT)
        threading.Event().wait(0.02)  # it stands at the lock by now
        lock.refuse(ClosedError, "closed")
    waiter.join(WAIT)
    assert told == ["refused"]
    with pytest.raises(ClosedError), lock:
        pass
    assert not lock.is_mine()
    with lock.anyway:
        assert lock.is_mine()
    assert not lock.is_mine()


@pytest.mark.parametrize("kind", [CallLock, PatientLock])
def test_who_holds_a_later_lock_does_not_wait(kind: type[CallLock]) -> None:
    order = LockOrder()
    first, later = kind(), kind()
    for lock, rank in ((first, Rank.QUEUE), (later, Rank.STORE)):
        lock.before_waiting = order.add(rank, lock.is_mine)
    with later, first:
        pass  # it is free: nobody waits
    taken, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        with first:
            taken.set()
            goes_on.wait(WAIT)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(WAIT)
    with later, pytest.raises(UsageError, match="middle of another call"), first:
        pass
    goes_on.set()
    holder.join(WAIT)
    assert not first.is_mine()
