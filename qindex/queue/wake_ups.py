"""Bells, which wake threads, and event loops, which may not be stopped.

A thread sleeps until a bell rings. A coroutine can't: it leaves a listener with the same bell
(:class:`Bell`), which is called where a thread would be woken.
"""

from __future__ import annotations

import math
from _thread import TIMEOUT_MAX, LockType, allocate_lock
from collections.abc import Callable
from functools import partial
from itertools import islice
from time import monotonic

from journal.errors import UsageError
from journal.locks.patience import PatientLock

Listener = Callable[[], bool]
"""Wakes the waiter that left it, from any thread, with the queue's lock held; false: it is gone."""


class Bell:
    """Wakes threads that sleep until it rings, and calls listeners, each once, in the order in
    which they came.

    Its lock is held for every call, and taken again with patience. ``notify(n)`` wakes ``n``
    threads and ``n`` listeners; those that find nothing left go on waiting. ``waiting``: the number
    of both that were not woken yet. A path of single messages asks it before it rings: a thread
    that was woken may have to wait for the interpreter for thousands of messages.
    """

    __slots__ = ("_gates", "_listeners", "_lock", "waiting")

    def __init__(self, lock: PatientLock) -> None:
        self._lock = lock
        # Made at the first wait: most bells of thousands of queues never ring.
        self._gates: dict[LockType, None] | None = None
        self._listeners: dict[Listener, None] | None = None
        self.waiting: int = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the bell rings; false when ``timeout`` seconds have passed without that."""
        gate = allocate_lock()
        gate.acquire()
        if self._gates is None:
            self._gates = {}
        self._gates[gate] = None
        self._count()
        seconds = -1 if timeout is None else max(timeout, 0)
        try:
            self._lock.while_released(partial(gate.acquire, True, seconds))
        except BaseException:
            if self._leave(gate):
                self.notify()  # it was woken in vain
            raise
        return self._leave(gate)

    def _leave(self, gate: LockType) -> bool:
        """Stop waiting at a gate; tells whether the bell has rung for it."""
        assert self._gates is not None
        rung = gate not in self._gates
        self._gates.pop(gate, None)
        self._count()
        return rung

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` at the next notification."""
        if self._listeners is None:
            self._listeners = {}
        self._listeners[listener] = None
        self._count()

    def forget(self, listener: Listener) -> bool:
        """Take a listener back; false when it has been called."""
        if self._listeners is None or listener not in self._listeners:
            return False
        del self._listeners[listener]
        self._count()
        return True

    def _count(self) -> None:
        self.waiting = len(self._gates or ()) + len(self._listeners or ())

    def notify(self, n: int = 1) -> None:
        """Wake ``n`` of the threads, and ``n`` of the listeners that still reach someone."""
        for gate in list(islice(self._gates or (), n)):
            assert self._gates is not None
            del self._gates[gate]
            gate.release()
        while n > 0 and self._listeners:
            listener = next(iter(self._listeners))
            del self._listeners[listener]
            if listener():
                n -= 1
        self._count()

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
