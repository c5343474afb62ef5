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

from journal.call_lock import CallLock, refuse_twice
from journal.durations import Stopwatch

__all__ = ["GroupCommit"]


class _Waiter:
    """A caller of ``commit``: sleeps on its gate until ``woken``."""

    __slots__ = ("error", "gate", "leads", "next", "woken")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.next: _Waiter | None = None
        self.leads = False
        self.woken = False
        self.error: BaseException | None = None

    def wake(self) -> None:
        """Let it go on."""
        self.woken = True
        self.gate.release()

    def sleep(self) -> BaseException | None:
        """Sleep until woken; a signal's exception is given back, not raised: the chain must go
        on."""
        interrupt: BaseException | None = None
        while not self.woken:
            try:
                self.gate.acquire()
            except BaseException as caught:
                interrupt = caught
        return interrupt


class GroupCommit:
    """Share calls of ``sync`` among threads. ``rounds`` counts the calls that were made,
    ``stopwatch`` times those that did not raise."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._lock = CallLock()
        self._leader: _Waiter | None = None
        self._waiting: list[_Waiter] = []
        self._callers: set[int] = set()
        self.rounds = 0
        self.stopwatch = Stopwatch()

    def commit(self) -> None:
        """Return when a ``sync`` that began after this call has ended.

        Raises what that ``sync`` raised, in every caller that it stood for, and
        :class:`UsageError` when the calling thread is in here already (:mod:`journal.call_lock`):
        what it waits for can't come.
        """
        caller = threading.get_ident()
        if caller in self._callers:
            refuse_twice()
        try:
            self._callers.add(caller)
            self._commit()
        finally:
            self._callers.discard(caller)

    def _commit(self) -> None:
        me = _Waiter()
        try:
            with self._lock:
                leads = self._leader is None
                if leads:
                    self._leader = me
                else:
                    self._waiting.append(me)
            if leads:
                self._lead(me)
                return
            interrupt = me.sleep()
            # A leader, too, wakes the rest of the chain it stood in before it is busy with the
            # disk.
            if me.next is not None:
                me.next.wake()
            if me.leads:
                self._lead(me)
        except BaseException as error:
            if self._leader is me:
                # A signal's handler has raised in between; somebody else has to lead.
                self._pass_on([], error)
            raise
        if me.error is not None and not me.leads:
            raise me.error
        if interrupt is not None:
            raise interrupt

    def _lead(self, me: _Waiter) -> None:
        followers: list[_Waiter] = []
        error: BaseException | None = None
        try:
            with self._lock:
                followers, self._waiting = self._waiting, []
            with self.stopwatch.running():
                self._sync()
        except BaseException as caught:
            error = caught
            raise
        finally:
            if self._leader is me:
                self._pass_on(followers, error)

    def _pass_on(self, followers: list[_Waiter], error: BaseException | None) -> None:
        """Tell the followers how it went, and let the first of those who came meanwhile lead."""
        for waiter in followers:
            waiter.error = error
        with self._lock:
            self.rounds += 1
            leader = self._waiting.pop(0) if self._waiting else None
            self._leader = leader
            if leader is not None:
                leader.leads = True
                followers.insert(len(followers) // 2, leader)
        for waiter, following in itertools.pairwise(followers):
            waiter.next = following
        if followers:
            followers[0].wake()
