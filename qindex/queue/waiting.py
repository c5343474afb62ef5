"""The loops of threads around queues that do not wait.

A verb of a queue's parts returns at once, with nothing if nothing is ready, and raises
:class:`WouldWaitError` if there is no room. The thread leaves a listener with the queue's bell,
tries again, and sleeps until the bell rings: no message comes unnoticed in between.
:mod:`qindex.aio.waiting` does the same for coroutines.
"""

from __future__ import annotations

import logging
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from journal.errors import ClosedError, QueueFullError
from qindex.queue.delivering import Deliverer
from qindex.queue.delivery import Delivery
from qindex.queue.room import WouldWaitError
from qindex.queue.state import QueueState
from qindex.queue.wake_ups import deadline_after, has_time, time_left

T = TypeVar("T")

_log = logging.getLogger("qindex.queue")

LONG_HELD = 5.0
"""Seconds for which a consumer waits for an ack with its prefetch full, before it is warned."""


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
        taken = rung_by = None
        goes_on = False
        try:
            # The bells are asked to ring before the look: no message comes unnoticed in between.
            for state, ring in ringers:
                with state.lock, state:
                    state.check_open()
                    state.arrived.listen(ring)
            rung_by = gate.rung_by
            taken = take()
            left = time_left(deadline)
            is_over = is_stopped() or (left is not None and left <= 0)
            if taken is None and not is_over:
                # A call that has ended early, for the sake of what it owes, found nothing yet.
                paid = [state.catch_up() for state in states if state.owed]
                if not any(paid):
                    gate.wait(left)
                rung_by = gate.rung_by
                taken = take()
                goes_on = taken is None
        finally:
            for state, ring in ringers:
                with state.lock.anyway:
                    state.arrived.forget(ring)
            is_used = taken is not None and taken[0] is rung_by
            if gate.rung_by is not None and not (goes_on or is_used):
                # The bell rang for a message that was not taken, or came after the one that was:
                # another thread may wait for it.
                with gate.rung_by.lock.anyway:
                    gate.rung_by.arrived.notify()
        if taken is not None:
            return taken[1]
        if is_over:
            return None


def take_from(
    state: QueueState,
    take: Callable[[], T],
    timeout: float | None,
    is_stopped: Callable[[], bool] = _never,
) -> T | None:
    """Wait until ``take`` returns messages of one queue, as :func:`take_first`. Return None if the
    call may not wait."""

    def tagged() -> tuple[QueueState, T] | None:
        taken = take()
        return (state, taken) if taken else None

    return take_first([state], tagged, timeout, is_stopped) if has_time(timeout) else None


def await_message(
    deliverer: Deliverer,
    timeout: float | None,
    lease: float | None,
    is_stopped: Callable[[], bool] = _never,
) -> Delivery | None:
    """Wait for a message of a queue that had none, as :func:`take_from`."""
    return take_from(deliverer.state, lambda: deliverer.get(lease), timeout, is_stopped)


def await_room(full: WouldWaitError, timeout: float | None) -> float | None:
    """Wait until there may be the room that a publish has not found, and return what is left of its
    ``timeout``. Raises :class:`QueueFullError` when the time is up, or if nobody may wait."""
    if full.is_stuck:
        if not full.room.free_head():
            full.room.count_refusal(full.count)
            raise QueueFullError(str(full)) from None
        return timeout
    deadline = deadline_after(timeout)
    left = time_left(deadline)
    with full.room.state.lock, full.room.state as state:
        while full.room.is_awaited(full.count, full.size):
            if left is not None and left <= 0:
                state.tally.refused += full.count
                raise QueueFullError(str(full)) from None
            state.wait_for(state.room, left)
            left = time_left(deadline)
    return left


def warn_of_full_prefetch(name: str, seq_ids: Sequence[int]) -> None:
    """Warn of a consumer whose prefetch is full: it acknowledges none of its messages."""
    shown = ", ".join(map(str, seq_ids[:10])) + (", ..." if len(seq_ids) > 10 else "")
    what = "queue %r: consume waits: all %d messages of its prefetch are unacknowledged: seq_ids %s"
    _log.warning(what, name, len(seq_ids), shown)


class Consumer(Iterator[Delivery]):
    """The iterator of :meth:`qindex.Queue.consume`.

    ``stopped``: it gives no more messages.
    """

    def __init__(
        self, deliverer: Deliverer, prefetch: int, timeout: float | None, lease: float | None
    ) -> None:
        self._deliverer = deliverer
        self._prefetch = prefetch
        self._timeout = timeout
        self._lease = lease
        self._given: list[Delivery] = []
        self.stopped: bool = False

    def stop(self) -> None:
        """Deliver no more messages: the loop over this iterator ends.

        Messages that it gave can be settled as before. From any thread, and in a signal's handler.
        """
        self.stopped = True
        self._deliverer.wake_consumers()

    def __next__(self) -> Delivery:
        if len(self._given) >= self._prefetch and not self.stopped:
            self._given = self._await_settled()
        delivery = None
        if not self.stopped:
            try:
                delivery = self._deliverer.get(self._lease)
                if delivery is None:
                    delivery = await_message(
                        self._deliverer, self._timeout, self._lease, lambda: self.stopped
                    )
            except ClosedError:
                if not self._deliverer.is_drained():
                    raise
                self.stopped = True
        if self._deliverer.state.owed:
            self._deliverer.state.catch_up()
        if delivery is None:
            raise StopIteration
        self._given.append(delivery)
        return delivery

    def _await_settled(self) -> list[Delivery]:
        """Wait until a message that it gave is settled, or it is stopped; return those that are
        not settled. Warn of a long wait."""
        until: float | None = LONG_HELD
        given = self._given
        with self._deliverer.state.lock, self._deliverer.state as state:
            while True:
                held = [delivery for delivery in given if not delivery.settled]
                if len(held) < len(given) or self.stopped or state.draining:
                    return held
                rung = state.wait_for(state.settled, until)
                if not rung and until is not None:
                    until = None
                    warn_of_full_prefetch(state.name, [one.seq_id for one in given])
