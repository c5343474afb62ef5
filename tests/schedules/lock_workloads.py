"""Workloads of the compiled build's lock (:class:`journal.locks.owned_lock.LockByOwner`).

Its methods let other threads run where they call its gate, and nowhere else, as compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from journal.locks import owned_lock
from journal.locks.owned_lock import LockByOwner
from tests.schedules.registry import workload
from tests.schedules.scheduler import Run, point

# No schedule has to wait until a thread is let in.
owned_lock._WHILE = 0.0


class _Ended(BaseException):
    """What a signal's handler raises."""


class _Users:
    """Threads that want one lock: one of them is inside at a time."""

    def __init__(self, run: Run) -> None:
        run.world = self  # type: ignore[attr-defined]
        self.run = run
        self.lock = LockByOwner()
        self.wrong: str | None = None
        self.entered = 0
        self._inside = 0

    def handle(self) -> None:
        raise _Ended

    def inside(self) -> None:
        """What is done by the one who has it."""
        self._inside += 1
        try:
            point("file", "inside")
            if self._inside != 1 or not self.lock.is_mine():
                self.wrong = "two were inside at a time"
        finally:
            self._inside -= 1
        self.entered += 1

    def enter(self, timeout: float = -1) -> bool:
        if not self.lock.acquire(True, timeout):
            return False
        self.inside()
        self.lock.release()
        return True

    def enter_beside(self) -> None:
        """Enter where the thread has not, after others have had time."""
        point("file", "before the lock")
        if not self.lock.is_mine():
            self.enter()

    def enter_or_end(self) -> None:
        """Enter; a signal's handler may end it."""
        try:
            self.enter()
        except _Ended:
            if self.lock.is_mine():
                self.lock.release()

    def try_it(self) -> None:
        """Enter if that is possible at once."""
        if self.lock.acquire(False):
            self.inside()
            self.lock.release()

    def race(self, least: int, **calls: Callable[[], object]) -> None:
        """``least``: how many enter at the least."""
        self.run.race(**calls)
        if self.entered < least:
            self.wrong = "one came away without having had it"
        if not self.lock.acquire(False):
            self.wrong = "nobody has it, and it is not free"

    def state(self) -> object:
        return self.entered

    def verdict(self) -> None:
        """All was judged on the way."""


@workload(delays=3)
def lock_of_three(run: Run) -> None:
    w = _Users(run)

    def twice() -> None:
        w.enter()
        w.enter()

    w.race(4, a=twice, b=w.enter, c=w.enter)


@workload(delays=3)
def lock_with_a_barger(run: Run) -> None:
    w = _Users(run)
    w.race(2, a=w.enter, b=w.enter, c=w.try_it)


@workload(delays=3)
def lock_with_a_timeout(run: Run) -> None:
    w = _Users(run)
    w.race(2, a=w.enter, b=lambda: w.enter(0.01), c=w.enter)


@workload(delays=3, interrupts="b")
def lock_with_a_handler_that_raises(run: Run) -> None:
    w = _Users(run)
    w.race(2, a=w.enter, b=w.enter_or_end, c=w.enter)


@workload(delays=3, interrupts="b")
def lock_kept_for_a_late_one(run: Run) -> None:
    w = _Users(run)

    def thrice() -> None:
        for _ in range(3):
            w.enter()

    w.race(4, a=thrice, b=w.enter_or_end, c=w.enter)


@workload(delays=3, interrupts="b")
def lock_with_a_handler_that_waits(run: Run) -> None:
    w = _Users(run)
    w.handle = w.enter_beside  # type: ignore[method-assign]

    def thrice() -> None:
        for _ in range(3):
            w.enter()

    w.race(5, a=thrice, b=w.enter, c=w.enter)


@workload(delays=3)
def lock_of_a_condition(run: Run) -> None:
    w = _Users(run)
    condition = threading.Condition(w.lock)  # type: ignore[arg-type]
    given: list[int] = []

    def take() -> None:
        with w.lock:
            while not given:
                condition.wait()
            given.pop()
            w.inside()

    def give() -> None:
        with w.lock:
            given.append(1)
            condition.notify()
            w.inside()

    w.race(4, a=take, b=give, c=take, d=give)
