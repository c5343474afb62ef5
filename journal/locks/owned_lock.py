"""A lock that its owner may take again, in two builds.

Interpreted it is the interpreter's own reentrant lock: its methods are functions in C, so that no
signal's handler can raise in their stead.

Compiled it is the class here. Compiled code lets other threads run, and signals' handlers, only
where it calls Python. So to take a free lock, or to give it back, is to set two fields. A thread
that has to wait sleeps at a gate of its own, a plain lock. When the lock is given back, the gate of
the first sleeper is opened. The thread that gave it back goes on meanwhile, and often has the lock
again before the sleeper runs. That is quick, but it must not last: the lock is kept for a sleeper
that wakes in vain after a while.

A Python that runs threads without a lock of its own switches that one on when it imports compiled
modules.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock
from time import monotonic

from journal.compiled import INTERPRETED, build
from journal.memory import words

_KEPT = 1
"""In the owner's place: the lock is kept for a thread that waits. No thread has this identifier."""

_WHILE = 0.02
"""Seconds for which others may come before a thread that waits."""


class _Sleeper:
    """A thread that waits for the lock. ``is_late``: the lock is kept for it."""

    __slots__ = ("gate", "is_awake", "is_late", "thread")

    def __init__(self, thread: int) -> None:
        self.thread: int = thread
        self.gate = allocate_lock()
        self.gate.acquire()
        self.is_awake: bool = False
        self.is_late: bool = False


class OwnedLock:
    """A lock that knows its owner, which may take it again. It may be the lock of a condition."""

    __slots__ = ("_depth", "_kept_for", "_owner", "_sleepers")

    def __init__(self) -> None:
        # The owner's thread; 0: it is free.
        self._owner: int = 0
        self._depth: int = 0
        self._kept_for: int = 0
        self._sleepers: list[_Sleeper] = []

    def is_mine(self) -> bool:
        """Return whether the calling thread has it."""
        return self._owner == words.this_thread()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; false when it is taken, and ``blocking`` is false or ``timeout`` seconds are
        over (below 0: never)."""
        me = words.this_thread()
        if not self._owner:
            self._owner = me
            self._depth = 1
            return True
        if self._owner == me:
            self._depth += 1
            return True
        return blocking and self._sleep(me, timeout)

    def _sleep(self, me: int, timeout: float) -> bool:
        """Wait for it, and take it; false when the time is up."""
        began = monotonic()
        left = -1.0
        sleeper = _Sleeper(me)
        for other in self._sleepers:
            if other.thread == me:
                # A signal's handler waits, and what it interrupted can't run before it.
                self._sleepers.insert(0, sleeper)
                break
        else:
            self._sleepers.append(sleeper)
        try:
            while not self._may_have_it(me):
                waited = monotonic() - began
                if sleeper.is_awake:
                    sleeper.is_awake, sleeper.is_late = False, waited >= _WHILE
                if timeout >= 0:
                    left = timeout - waited
                    if left <= 0:
                        return False
                words.look_for_signals()
                sleeper.gate.acquire(True, left)
            self._owner = me
            self._depth = 1
            return True
        finally:
            self._sleepers.remove(sleeper)
            if sleeper.is_awake and self._may_have_it(me):
                # It gave up.
                self._free()

    def _may_have_it(self, me: int) -> bool:
        return not self._owner or (self._owner == _KEPT and self._kept_for == me)

    def _free(self) -> None:
        """Let the first sleeper take it, or anybody where that one has not waited for long."""
        self._owner = 0
        if self._sleepers:
            first = self._sleepers[0]
            if first.is_late:
                self._owner, self._kept_for = _KEPT, first.thread
            if not first.is_awake:
                first.is_awake = True
                first.gate.release()

    def release(self) -> None:
        """Release it. Raises :class:`RuntimeError` where the calling thread does not have it."""
        if self._owner != words.this_thread():
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            self._free()

    def __enter__(self, *_: object) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # By these names a condition gives it back, whole, and takes it again.

    def _is_owned(self) -> bool:
        return self.is_mine()

    def _release_save(self) -> int:
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        self.acquire()
        self._depth = depth


LockByOwner = OwnedLock
"""The class above, also where another class is used instead."""


class _Interpreted(RLock):  # type: ignore[misc]  # the stubs say final, the class does not
    __slots__ = ()

    is_mine = RLock._is_owned  # type: ignore[attr-defined]


if build() == INTERPRETED:
    globals()["OwnedLock"] = _Interpreted
