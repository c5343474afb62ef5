"""A lock that a thread can't take twice, and that says so.

A signal's handler, and the finalizer of an object, run in the middle of whatever call their thread
is in. If they call the same queue or store, they find it half changed, under a lock that is their
own thread's. A plain lock would wait for ever there, and a reentrant one let them in.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from typing import NoReturn

from journal.errors import UsageError

__all__ = ["CallLock", "Entrance", "refuse_twice"]


def refuse_twice() -> NoReturn:
    """Raise :class:`UsageError`: the calling thread is in the middle of a call."""
    raise UsageError(
        "this thread is in the middle of another call: a signal's handler, or the finalizer of an "
        "object, can't use the same queue or store now"
    )


class CallLock(RLock):  # type: ignore[misc]  # the stubs say final, the class does not
    """A lock that knows its owner. It may be the lock of a condition."""

    __slots__ = ()

    is_mine: Callable[[], bool] = RLock._is_owned  # type: ignore[attr-defined]
    """Tell whether the calling thread has it."""

    def let_go(self) -> None:
        """Release it, if the calling thread has it: a handler may raise before and after."""
        if self.is_mine():
            self.release()

    def __enter__(self, *_: object) -> bool:
        if self.is_mine():
            refuse_twice()
        try:
            self.acquire()
        except BaseException:
            self.let_go()
            raise
        return True


class Entrance:
    """What a user's call takes of a reentrant lock, which calls that it makes itself take again.
    A context manager."""

    __slots__ = ("_lock",)

    def __init__(self, lock: RLock) -> None:
        self._lock = lock

    def check(self) -> None:
        """Raise :class:`UsageError` if the calling thread has the lock."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            refuse_twice()

    def __enter__(self) -> None:
        self.check()
        try:
            self._lock.acquire()
        except BaseException:
            if self._lock._is_owned():  # type: ignore[attr-defined]
                self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
