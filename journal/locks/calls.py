"""The calls that are under way in an engine, so that its close can wait for them.

A call that is done under one hold of a lock needs nothing of this: the lock refuses after the end,
before and after it is taken. A call that takes several steps (a message goes to the message store,
then its entry to the journal, then both are synced) would be cut in two by a close in between. It
holds a lock of its own meanwhile, one for each thread: a close takes all of them once.
"""

from __future__ import annotations

from _thread import RLock, get_ident
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from journal.errors import ForkedError, StoreError
from journal.locks.call_lock import forked_text, refuse_twice
from journal.memory import forks

_NOTHING = nullcontext()


class _Here(RLock):  # type: ignore[misc]  # the stubs say final, the class does not
    """The lock of one thread, which does not have it yet."""

    __slots__ = ("_calls",)

    _is_owned: Callable[[], bool]

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __enter__(self, *_: object) -> bool:
        try:
            self.acquire()
            # Asked after the take: a close that does not wait for this call has refused it by
            # then.
            self._calls.check()
        except BaseException:
            if self._is_owned():
                self.release()
            raise
        return True


class Calls:
    """``with calls.here():`` around a call that a close has to wait for. Thread-safe. ``whose``:
    what was opened, for the error in a forked child."""

    def __init__(self, whose: str = "the store") -> None:
        self._whose = whose
        self._stamp = forks.stamp()
        self._locks: dict[int, _Here] = {}
        self._refusal: tuple[type[StoreError], str] | None = None
        # The thread that waits for the end of the calls, none of which is its own.
        self._closer = 0

    def here(self) -> AbstractContextManager[object]:
        """Return what the calling thread holds while it makes a call; raises, on entry, what
        :meth:`refuse` was told. A call within another one, or of a handler, is a part of that."""
        me = get_ident()
        lock = self._locks.get(me)
        if lock is None:
            lock = self._locks.setdefault(me, _Here(self))
        return _NOTHING if lock._is_owned() else lock

    def is_mine(self) -> bool:
        """Return whether the calling thread is in the middle of a call."""
        lock = self._locks.get(get_ident())
        return lock is not None and lock._is_owned()

    def check(self) -> None:
        """Raise the error set by :meth:`refuse`, if any; :class:`ForkedError` in a forked child."""
        if self._stamp != forks.stamp():
            self.refuse(ForkedError, forked_text(self._whose))
        if self._refusal is not None:
            kind, text = self._refusal
            raise kind(text)

    def refuse(self, kind: type[StoreError], text: str) -> None:
        """Let no call in any more: each raises ``kind(text)``. The first refusal is kept."""
        if self._refusal is None:
            self._refusal = kind, text

    def wait(self) -> None:
        """Wait until the calls of all other threads have ended; none may begin any more."""
        me = get_ident()
        if self._closer != me:
            if self.is_mine():
                refuse_twice()
            self._closer = me
        for lock in list(self._locks.values()):
            try:
                lock.acquire()
            finally:
                # A handler may raise anywhere here: the next wait of this thread gives all back.
                while lock._is_owned():
                    lock.release()
