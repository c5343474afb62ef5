"""Wait for the first of several bells: a message may come to any of several queues."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Sequence
from typing import TypeVar

from qindex.queue.state import QueueState
from qindex.queue.wake_ups import deadline_after, time_left

T = TypeVar("T")


def _never() -> bool:
    return False


class _Gate:
    """A gate to sleep at until the first bell rings."""

    def __init__(self) -> None:
        self._gate = allocate_lock()
        self._gate.acquire()
        # Two bells may ring at the same time, each under the lock of its queue: one takes this.
        self._unrung = [True]
        self.rung_by: QueueState | None = None

    def listener(self, state: QueueState) -> Callable[[], bool]:
        """Return what the bell of a queue is to call."""

        def ring() -> bool:
            try:
                self._unrung.pop()
            except IndexError:
                return False  # the bell wakes somebody else
            self.rung_by = state
            self._gate.release()
            return True

        return ring

    def wait(self, seconds: float | None) -> None:
        """Sleep until a bell rings, or ``seconds`` have passed."""
        self._gate.acquire(True, -1 if seconds is None else max(seconds, 0))


def take_first(
    states: Sequence[QueueState],
    take: Callable[[], tuple[QueueState, T] | None],
    timeout: float | None,
    is_stopped: Callable[[], bool] = _never,
) -> T | None:
    """Wait until ``take`` returns a message, and the queue that it is from.

    ``states``: the queues that it takes from, each with a bell of its own. It is called at least
    once, and once more after each bell. Returns None after ``timeout`` seconds, or once
    ``is_stopped()``. No lock is held. Raises as ``take``.
    """
    deadline = deadline_after(timeout)
    while True:
        gate = _Gate()
        ringers = [(state, gate.listener(state)) for state in states]
        taken = None
        goes_on = False
        try:
            # The bells are asked to ring before the look: no message comes unnoticed in between.
            for state, ring in ringers:
                with state.lock, state:
                    state.check_open()
                    state.arrived.listen(ring)
            taken = take()
            left = time_left(deadline)
            is_over = is_stopped() or (left is not None and left <= 0)
            if taken is None and not is_over:
                gate.wait(left)
                taken = take()
                goes_on = taken is None
        finally:
            for state, ring in ringers:
                with state.lock.anyway:
                    state.arrived.forget(ring)
            rung_by = gate.rung_by
            if rung_by is not None and not goes_on and (taken is None or taken[0] is not rung_by):
                # The message that it rang for was not taken: another one may wait for it.
                with rung_by.lock.anyway:
                    rung_by.arrived.notify()
        if taken is not None:
            return taken[1]
        if is_over:
            return None
