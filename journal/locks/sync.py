"""Group commit: many callers, one fdatasync.

A caller's bytes are in the operating system when it asks. If no sync runs, it runs one. If one
runs, that one may have started before the caller's write, so the caller waits for the next round;
when the running one ends, one of the waiting callers leads the next round for all of them.
So at most two syncs pass between asking and being durable, whatever the number of callers.

How the callers are woken decides the rate under the interpreter's lock: waking sixteen threads at
once makes them fight for it. Here each woken caller wakes the next one (a chain), and the leader
of the next round is in the middle of the chain: late enough that many callers have come back
with their next write, early enough that the disk does not idle. Measured with 16 threads and
a 90 us fdatasync: 4 times one thread. Where to wake a thread on an idle processor takes 20 us, that
is the limit, and several chains at a time, or all woken at once, do no better; where all run on one
processor it is 8 times.
"""

from __future__ import annotations

import itertools
from _thread import allocate_lock, get_ident
from collections.abc import Callable

from journal.locks.call_lock import refuse_twice


class _Waiter:
    """A caller of ``commit``, which sleeps until called, once. ``next``: whom it calls then."""

    __slots__ = ("_called", "_lock", "error", "leads", "next")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()
        self._called = False
        self.next: _Waiter | None = None
        self.leads = False
        self.error: BaseException | None = None

    def call(self) -> None:
        """Let the thread that sleeps here, now or later, go on."""
        if not self._called:
            self._called = True
            self._lock.release()

    def sleep(self) -> BaseException | None:
        """Sleep until called; a signal's exception is given back, not raised: the chain must go
        on."""
        interrupt: BaseException | None = None
        while True:
            try:
                # A handler may raise with the lock taken already: the mark tells, not the lock.
                while not self._called:
                    self._lock.acquire()
                return interrupt
            except BaseException as caught:
                interrupt = caught


class GroupCommit:
    """Share calls of ``sync`` among threads. ``rounds`` counts the calls that were made.
    ``before_waiting``: called before another thread's is waited for
    (:mod:`journal.locks.lock_order`)."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self.before_waiting: Callable[[], None] | None = None
        self._sync = sync
        # A plain lock: a handler that comes here while its thread has it is refused before.
        self._lock = allocate_lock()
        self._leader: _Waiter | None = None
        self._waiting: list[_Waiter] = []
        self._callers: set[int] = set()
        self.rounds: int = 0

    def is_mine(self) -> bool:
        """Return whether the calling thread is in here already."""
        return get_ident() in self._callers

    def commit(self) -> None:
        """Return when a ``sync`` that began after this call has ended.

        Raises what that ``sync`` raised, in every caller that it stood for, and
        :class:`UsageError` when the calling thread is in here already, as what it waits for can't
        come then (:mod:`journal.locks.call_lock`).
        """
        caller = get_ident()
        if caller in self._callers:
            refuse_twice()
        if self._leader is not None and self.before_waiting is not None:
            self.before_waiting()
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
            # A leader also wakes the rest of the chain it stood in before it is busy with the
            # disk.
            if me.next is not None:
                me.next.call()
            if me.leads:
                self._lead(me)
        except BaseException as error:
            if self._leader is me:
                # A signal's handler has raised in between; another caller has to lead.
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
            self._sync()
        except BaseException as caught:
            error = caught
            raise
        finally:
            if self._leader is me:
                self._pass_on(followers, error)

    def _pass_on(self, followers: list[_Waiter], error: BaseException | None) -> None:
        """Tell the followers how it went, and let the first caller that came meanwhile lead."""
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
            followers[0].call()
