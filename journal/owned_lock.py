"""A lock that its owner may take again, in two builds.

Interpreted it is the interpreter's own reentrant lock: its methods are functions in C, so that no
signal's handler can raise in their stead.

Compiled it is the class here. Compiled code lets other threads run, and signals' handlers, only
where it calls Python. So to take a free lock, or to give it back, is to set two fields. Who has to
wait sleeps at a gate, a plain lock that is opened for one sleeper when the lock is given back.

A Python that runs threads without a lock of its own switches that one on when it imports compiled
modules.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock
from time import monotonic

from journal import words
from journal.compiled import INTERPRETED, build

__all__ = ["LockByOwner", "OwnedLock"]


class OwnedLock:
    """A lock that knows its owner, who may take it again. It may be the lock of a condition."""

    __slots__ = ("_asleep", "_depth", "_gate", "_is_open", "_owner")

    def __init__(self) -> None:
        # The owner's thread; 0: it is free.
        self._owner: int = 0
        self._depth: int = 0
        # How many wait, and whether one of them is about to wake.
        self._asleep: int = 0
        self._is_open: bool = False
        self._gate = allocate_lock()
        self._gate.acquire()

    def is_mine(self) -> bool:
        """Tell whether the calling thread has it."""
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
        deadline = monotonic() + timeout
        left = -1.0
        self._asleep += 1
        try:
            while self._owner:
                if timeout >= 0:
                    left = deadline - monotonic()
                    if left <= 0:
                        return False
                words.look_for_signals()
                if self._gate.acquire(True, left):
                    self._is_open = False
            self._owner = me
            self._depth = 1
            return True
        finally:
            self._asleep -= 1

    def release(self) -> None:
        """Give it back. Raises :class:`RuntimeError` where the calling thread does not have it."""
        if self._owner != words.this_thread():
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            if self._asleep and not self._is_open:
                self._is_open = True
                self._gate.release()

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
"""The class above, also where it is not the one that is used."""


class _Interpreted(RLock):  # type: ignore[misc]  # the stubs say final, the class does not
    __slots__ = ()

    is_mine = RLock._is_owned  # type: ignore[attr-defined]


if build() == INTERPRETED:
    globals()["OwnedLock"] = _Interpreted
