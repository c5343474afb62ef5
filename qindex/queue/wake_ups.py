"""Bells, which wake threads, and event loops, which may not be stopped.

Each waiter leaves a listener with a bell (:class:`Bell`). That of a thread opens the gate at which
the thread sleeps. That of a coroutine tells its loop.
"""

from __future__ import annotations

import math
from _thread import TIMEOUT_MAX, allocate_lock
from collections.abc import Callable
from functools import partial
from time import monotonic

from journal.errors import UsageError
from journal.locks.patience import PatientLock

Listener = Callable[[], bool]
"""Wakes the waiter that left it, from any thread, with the queue's lock held; false: it is gone."""


class Bell:
    """Calls the listeners of its waiters, each once, in the order in which they came.

    Its lock is held for every call, and taken again with patience. A waiter that finds nothing left
    goes on waiting. ``waiting``: the number of those that were not woken yet. A path of single
    messages asks it before it rings: a thread that was woken may have to wait for the interpreter
    for thousands of messages.
    """

    __slots__ = ("_listeners", "_lock", "waiting")

    def __init__(self, lock: PatientLock) -> None:
        self._lock = lock
        # Made at the first wait: most bells of thousands of queues never ring.
        self._listeners: dict[Listener, None] | None = None
        self.waiting: int = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the bell rings; false when ``timeout`` seconds have passed without that."""
        gate = allocate_lock()
        gate.acquire()

        def ring() -> bool:
            gate.release()
            return True

        self.listen(ring)
        seconds = -1 if timeout is None else max(timeout, 0)
        try:
            self._lock.while_released(partial(gate.acquire, True, seconds))
        except BaseException:
            if not self.forget(ring):
                self.notify()  # it was woken in vain
            raise
        return not self.forget(ring)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` at the next notification."""
        if self._listeners is None:
            self._listeners = {}
        self._listeners[listener] = None
        self.waiting = len(self._listeners)

    def forget(self, listener: Listener) -> bool:
        """Take a listener back; false when it has been called."""
        if self._listeners is None or listener not in self._listeners:
            return False
        del self._listeners[listener]
        self.waiting = len(self._listeners)
        return True

    def notify(self, n: int = 1) -> None:
        """Wake ``n`` of those that can still be reached."""
        while n > 0 and self._listeners:
            listener = next(iter(self._listeners))
            del self._listeners[listener]
            self.waiting = len(self._listeners)
            if listener():
                n -= 1

    def notify_all(self) -> None:
        """Wake all."""
        self.notify(self.waiting)


def deadline_after(timeout: float | None) -> float | None:
    """Return the time, of :func:`time.monotonic`, at which so many seconds are over; ``None``:
    never.

    Raises :class:`UsageError` if it is not a number of seconds.
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
    """Return whether there is anything to wait for. Raises as :func:`deadline_after`."""
    deadline_after(timeout)
    return timeout is None or timeout > 0


def time_left(deadline: float | None) -> float | None:
    """Return the seconds left, no more than a lock can wait for; ``None``: for ever."""
    return None if deadline is None else min(deadline - monotonic(), TIMEOUT_MAX)
