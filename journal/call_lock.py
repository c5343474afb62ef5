"""A lock that a thread can't take twice, and that says so.

A signal's handler, and the finalizer of an object, run in the middle of whatever call their thread
is in. If they call the same queue or store, they find it half changed, under a lock that is their
own thread's. A plain lock would wait for ever there, and a reentrant one let them in.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

from journal.errors import UsageError

__all__ = ["CallLock", "check_alone", "held_or", "refuse_twice"]

_NOTHING = nullcontext()


def refuse_twice() -> NoReturn:
    """Raise :class:`UsageError`: the calling thread is in the middle of a call."""
    raise UsageError(
        "this thread is in the middle of another call: a signal's handler, or the finalizer of an "
        "object, can't use the same queue or store now"
    )


def check_alone(lock: RLock) -> None:
    """Raise :class:`UsageError` if the calling thread has this lock: for the calls of users that
    wait for others before they take it, or that may take it again themselves."""
    if lock._is_owned():  # type: ignore[attr-defined]
        refuse_twice()


def held_or(lock: CallLock) -> AbstractContextManager[object]:
    """What takes the lock, or nothing where the calling thread has it: for what is a part of some
    calls that have it, and of others that don't."""
    return _NOTHING if lock.is_mine() else lock


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
