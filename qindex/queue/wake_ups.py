"""Bells, which wake threads, and event loops, which may not be stopped.

A thread sleeps on a condition. A coroutine can't: it leaves a listener with the same condition
(:class:`Bell`), which is called where a thread would be woken.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from time import monotonic

from journal.errors import UsageError
from journal.patience import PatientLock

Listener = Callable[[], bool]
"""Wakes the waiter that left it, from any thread, with the queue's lock held; false: it is gone."""


class Bell:
    """A condition that also calls listeners, each once, in the order in which they came.

    Its lock is held for every call, and taken again with patience. ``notify(n)`` wakes ``n``
    threads and ``n`` listeners; those that find nothing left go on waiting. The condition is made
    at the first wait: most bells of thousands of queues never ring.
    """

    __slots__ = ("_condition", "_listeners", "_lock")

    def __init__(self, lock: PatientLock) -> None:
        self._lock = lock
        self._condition: threading.Condition | None = None
        self._listeners: dict[Listener, None] | None = None

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the bell rings; false when ``timeout`` seconds have passed without that."""
        if self._condition is None:
            self._condition = threading.Condition(self._lock)  # type: ignore[arg-type]
        try:
            return self._condition.wait(timeout)
        finally:
            if not self._lock.is_mine():
                self._lock.acquire()  # a signal's handler may have raised as that was to do it

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` at the next notification."""
        if self._listeners is None:
            self._listeners = {}
        self._listeners[listener] = None

    def forget(self, listener: Listener) -> bool:
        """Take a listener back; false when it has been called."""
        if self._listeners is None or listener not in self._listeners:
            return False
        del self._listeners[listener]
        return True

    def notify(self, n: int = 1) -> None:
        """Wake ``n`` of the threads, and ``n`` of the listeners that still reach someone."""
        if self._condition is not None:
            self._condition.notify(n)
        while n > 0 and self._listeners:
            listener = next(iter(self._listeners))
            del self._listeners[listener]
            if listener():
                n -= 1

    def notify_all(self) -> None:
        """Wake all."""
        if self._condition is not None:
            self._condition.notify_all()
        self.notify(len(self._listeners or ()))


def deadline_after(timeout: float | None) -> float | None:
    """Give the time, of :func:`time.monotonic`, at which so many seconds are over; ``None``: never.

    Raises :class:`UsageError` for what is no number of seconds.
    """
    if timeout is None:
        return None
    try:
        deadline = monotonic() + timeout
    except (TypeError, OverflowError):
        deadline = math.nan
    if math.isnan(deadline):
        raise UsageError(f"a timeout is a number of seconds, not {timeout!r}")
    return deadline


def has_time(timeout: float | None) -> bool:
    """Tell whether there is anything to wait for. Raises as :func:`deadline_after`."""
    deadline_after(timeout)
    return timeout is None or timeout > 0


def time_left(deadline: float | None) -> float | None:
    """Give the seconds left, no more than a lock can wait for; ``None``: for ever."""
    return None if deadline is None else min(deadline - monotonic(), threading.TIMEOUT_MAX)
