"""Group commit: who asks is durable on return, and many share one sync."""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from journal.errors import StorageError, WritesRefusedError
from journal.journal import Journal
from journal.locks.sync import GroupCommit, _Waiter
from journal.poison import Poison
from tests.faulty_fs import FaultyFileSystem
from tests.waiting import WAIT


def test_alone_each_commit_is_one_sync() -> None:
    calls = []
    commits = GroupCommit(lambda: calls.append(1))
    for _ in range(3):
        commits.commit()
    assert (len(calls), commits.rounds) == (3, 3)


def test_those_who_come_during_a_sync_share_the_next() -> None:
    """One leads and is held inside its sync; ten more ask; they need one more sync together."""
    started, go_on = threading.Event(), threading.Event()
    rounds: list[int] = []

    def sync() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            started.set()
            assert go_on.wait(WAIT)

    commits = GroupCommit(sync)
    leader = threading.Thread(target=commits.commit)
    leader.start()
    assert started.wait(WAIT)
    followers = [threading.Thread(target=commits.commit) for _ in range(10)]
    for follower in followers:
        follower.start()
    waiting_for(lambda: len(commits._waiting) == 10)
    go_on.set()
    for thread in (leader, *followers):
        thread.join(WAIT)
        assert not thread.is_alive()
    assert len(rounds) == 2


def test_nobody_returns_before_a_sync_that_began_after_the_call() -> None:
    """Each caller notes a number, commits, and finds it in what a sync has covered."""
    lock = threading.Lock()
    written: list[int] = []
    covered: set[int] = set()

    def sync() -> None:
        with lock:
            seen = list(written)
        covered.update(seen)

    commits = GroupCommit(sync)
    failures: list[int] = []

    def work(first: int) -> None:
        for number in range(first, first + 200):
            with lock:
                written.append(number)
            commits.commit()
            if number not in covered:
                failures.append(number)

    threads = [threading.Thread(target=work, args=(at * 1000,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert failures == []
    assert commits.rounds <= 1600


def test_a_failure_reaches_all_that_it_stood_for() -> None:
    started, go_on = threading.Event(), threading.Event()
    rounds: list[int] = []

    def sync() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            started.set()
            assert go_on.wait(WAIT)
        else:
            raise OSError(errno.EIO, "gone")

    commits = GroupCommit(sync)
    outcomes: list[str] = []

    def work() -> None:
        try:
            commits.commit()
            outcomes.append("durable")
        except OSError:
            outcomes.append("failed")

    threads = [threading.Thread(target=work)]
    threads[0].start()
    assert started.wait(WAIT)
    threads += [threading.Thread(target=work) for _ in range(5)]
    for thread in threads[1:]:
        thread.start()
    waiting_for(lambda: len(commits._waiting) == 5)
    go_on.set()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert sorted(outcomes) == ["durable"] + ["failed"] * 5
    assert len(rounds) == 2


def test_after_a_failed_sync_nothing_is_taken_any_more(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    journal = Journal(fs, tmp_path / "journal.jif", Poison())
    journal.append(b"12345678")
    fs.fail("fdatasync", errno.EIO)
    with pytest.raises(StorageError, match="sync failed"):
        journal.sync()
    with pytest.raises(WritesRefusedError, match="sync failed"):
        journal.sync()
    with pytest.raises(WritesRefusedError):
        journal.append(b"12345678")
    with pytest.raises(WritesRefusedError):
        journal.append(b"12345678", reserve=True)
    with pytest.raises(WritesRefusedError):
        journal.make_room(1)
    assert fs.calls["fdatasync"] == 1
    journal.close()


def test_the_name_is_synced_once(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    journal = Journal(fs, tmp_path / "journal.jif", Poison())
    for _ in range(3):
        journal.append(b"12345678")
        journal.sync()
    assert (fs.calls["fdatasync"], fs.calls["sync_dir"], journal.syncs) == (3, 1, 3)
    assert journal.synced == 24
    journal.close()


def test_a_waiter_called_before_it_sleeps_and_called_twice() -> None:
    waiter = _Waiter()
    waiter.call()
    waiter.call()
    for _ in range(2):
        thread = threading.Thread(target=waiter.sleep, daemon=True)
        thread.start()
        thread.join(WAIT)
        assert not thread.is_alive()


def test_a_waiter_sleeps_until_it_is_called() -> None:
    waiter, passed = _Waiter(), threading.Event()

    def work() -> None:
        waiter.sleep()
        passed.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not passed.wait(0.05)
    waiter.call()
    assert passed.wait(WAIT)
    thread.join(WAIT)


@contextmanager
def signals(handler: Callable[..., object], waiter: _Waiter, count: int) -> Iterator[list[_Waiter]]:
    """This thread gets so many signals, one after the other; then ``waiter`` is called, and listed
    in what this gives."""
    called: list[_Waiter] = []
    taken = threading.Semaphore(0)

    def taking(*given: object) -> object:
        taken.release()
        return handler(*given)

    before = signal.signal(signal.SIGUSR1, taking)
    other = signal.signal(signal.SIGUSR2, lambda *_: None)
    main = threading.main_thread().ident
    assert main is not None

    def is_asleep() -> bool:
        frame = sys._current_frames()[main]
        return frame.f_code is _Waiter.sleep.__code__ and "interrupt" in frame.f_locals

    def work() -> None:
        for _ in range(count):
            waiting_for(is_asleep)
            signal.pthread_kill(main, signal.SIGUSR1)
            # Two signals under way at once become one. One that comes just before the thread sleeps
            # is handled when another one wakes it.
            while not taken.acquire(timeout=0.05):
                signal.pthread_kill(main, signal.SIGUSR2)
        waiting_for(is_asleep)
        called.append(waiter)
        waiter.call()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield called
    finally:
        thread.join(WAIT)
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGUSR2, other)


def test_a_handler_that_raises_while_its_thread_sleeps() -> None:
    """The thread sleeps on until it is called; the exception is given then."""
    waiter = _Waiter()

    def handler(_signal: int, _frame: object) -> None:
        raise InterruptedError

    with signals(handler, waiter, 2) as called:
        assert type(waiter.sleep()) is InterruptedError
        assert called == [waiter]


def test_a_handler_that_returns_while_its_thread_sleeps() -> None:
    waiter, seen = _Waiter(), []
    with signals(lambda *_: seen.append(1), waiter, 3):
        assert waiter.sleep() is None
        assert seen == [1, 1, 1]


def waiting_for(condition: object) -> None:
    """Give way to other threads until ``condition`` holds."""
    assert callable(condition)
    pause = threading.Event()
    for _ in range(int(WAIT / 0.002)):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError("it never came to that")
