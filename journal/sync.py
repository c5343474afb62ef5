"""Group commit: many callers, one fdatasync.

A caller's bytes are in the operating system when it asks. If no sync runs, it runs one. If one
runs, that one may have started before the caller's write, so the caller waits for the next round;
when the running one ends, one of those who wait leads the next round, for all who wait by then.
So at most two syncs pass between asking and being durable, whatever the number of callers.

How the callers are woken decides the rate under the interpreter's lock: waking sixteen threads at
once makes them fight for it. Here each woken caller wakes the next one (a chain), and the leader
of the next round stands in the middle of the chain: late enough that many callers have come back
with their next write, early enough that the disk does not idle. Measured with 16 threads and
a 90 us fdatasync: 4 times one thread, against 3 when all are woken at once.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from journal.durations import Stopwatch

__all__ = ["GroupCommit"]


class _Waiter:
    """One blocked caller: ``gate`` is what it sleeps on, ``next`` whom it wakes in turn."""

    __slots__ = ("error", "gate", "leads", "next")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.next: _Waiter | None = None
        self.leads = False
        self.error: BaseException | None = None


class GroupCommit:
    """Share calls of ``sync`` among threads. ``rounds`` counts the calls that were made,
    ``stopwatch`` times those that did not raise."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._lock = threading.Lock()
        self._running = False
        self._waiting: list[_Waiter] = []
        self.rounds = 0
        self.stopwatch = Stopwatch()

    def commit(self) -> None:
        """Return when a ``sync`` that began after this call has ended.

        Raises what that ``sync`` raised, in every caller that it stood for.
        """
        with self._lock:
            if not self._running:
                self._running = True
                waiter = None
            else:
                waiter = _Waiter()
                self._waiting.append(waiter)
        if waiter is None:
            self._lead()
            return
        interrupt = _acquire(waiter.gate)
        # A leader, too, wakes the rest of the chain it stood in before it is busy with the disk.
        if waiter.next is not None:
            waiter.next.gate.release()
        if waiter.leads:
            self._lead()
        elif waiter.error is not None:
            raise waiter.error
        if interrupt is not None:
            raise interrupt

    def _lead(self) -> None:
        with self._lock:
            followers = self._waiting
            self._waiting = []
        error: BaseException | None = None
        try:
            with self.stopwatch.running():
                self._sync()
        except BaseException as caught:
            error = caught
            raise
        finally:
            for waiter in followers:
                waiter.error = error
            with self._lock:
                self.rounds += 1
                if self._waiting:
                    leader = self._waiting.pop(0)
                    leader.leads = True
                    followers.insert(len(followers) // 2, leader)
                else:
                    self._running = False
            for waiter, following in itertools.pairwise(followers):
                waiter.next = following
            if followers:
                followers[0].gate.release()


def _acquire(gate: threading.Lock) -> BaseException | None:
    """Sleep on ``gate``; a signal's exception is given back, not raised: the chain must go on."""
    interrupt: BaseException | None = None
    while True:
        try:
            gate.acquire()
        except BaseException as caught:
            interrupt = caught
        else:
            return interrupt
