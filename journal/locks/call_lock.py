"""A lock that a thread can't take twice, and that says so.

A signal's handler, and the finalizer of an object, run in the middle of whatever call their thread
is in. If they call the same queue or store, they find it half changed, under a lock that is their
own thread's. A plain lock would wait for ever there, and a reentrant one let them in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NoReturn

from journal.errors import ForkedError, StoreError, UsageError
from journal.locks.owned_lock import OwnedLock
from journal.memory import forks, words

if TYPE_CHECKING:
    from _thread import RLock


_NOTHING = nullcontext()


def refuse_twice() -> NoReturn:
    """Raise :class:`UsageError`: the calling thread is in the middle of a call."""
    raise UsageError(
        "this thread is in the middle of another call: a signal's handler, or the finalizer of an "
        "object, can't use the same queue or store now"
    )


def forked_text(whose: str) -> str:
    """Say why a forked child can't use what its parent process has opened."""
    return (
        f"{whose} was opened before the fork, and belongs to the parent process; close it before "
        "the fork, and open it in the one process that uses it"
    )


def check_alone(lock: CallLock | RLock) -> None:
    """Raise :class:`UsageError` if the calling thread has this lock: for the calls of users that
    wait for others before they take it, or that may take it again themselves."""
    if lock._is_owned():  # type: ignore[union-attr]  # the stubs leave it out
        refuse_twice()


def held_or(lock: CallLock) -> AbstractContextManager[object]:
    """Take the lock unless this thread holds it."""
    return _NOTHING if lock.is_mine() else lock


def _nothing() -> None:
    """It has no place in an order."""


class CallLock(OwnedLock):
    """A lock that knows its owner, and that may refuse. It may be the lock of a condition.

    In a forked child each call that takes it raises :class:`ForkedError`: a thread of the parent
    may have had it, and what it guards belongs to the parent. ``whose``: what was opened, for the
    text of that error.
    ``refusal``: what each call that takes it raises since :meth:`refuse`, or ``None``.
    ``before_waiting``: called before it is waited for (:mod:`journal.locks.lock_order`).
    """

    __slots__ = ("_stamp", "before_waiting", "refusal", "whose")

    refusal: tuple[type[StoreError], str] | None
    before_waiting: Callable[[], None]
    whose: str

    def __init__(self, whose: str = "the store") -> None:
        super().__init__()
        self.whose = whose
        self._stamp: int = forks.stamp()
        self.refusal = None
        self.before_waiting = _nothing

    def refuse(self, kind: type[StoreError], text: str) -> None:
        """Let each call that takes it raise ``kind(text)`` from now on, those that wait for it
        included: they are asked before they take it, and once they have it. The holder calls this,
        or a thread that knows that there is none any more. The first refusal is kept."""
        if self.refusal is None:
            self.refusal = kind, text

    def is_inherited(self) -> bool:
        """Return whether this process is a forked child of the process that made it."""
        return self._stamp != words.kept_stamp()

    def is_over(self) -> bool:
        """Return whether each call that takes it raises."""
        return self.refusal is not None or self.is_inherited()

    def check(self) -> None:
        """Raise the error set by :meth:`refuse`, if any. Held or not."""
        if self.is_inherited():
            forks.noticed()
            self.refuse(ForkedError, forked_text(self.whose))
        refusal = self.refusal
        if refusal is not None:
            kind, text = refusal
            raise kind(text)

    def check_taken(self) -> None:
        """As :meth:`check`, for a caller that has just taken it. On an error it is released at
        once, because a signal's handler may raise as :meth:`let_go` begins."""
        if self.is_over():
            self.release()
            self.check()

    @property
    def anyway(self) -> Anyway:
        """The same lock without the check, for work at and after the end of the store."""
        return Anyway(self)

    def let_go(self) -> None:
        """Release it, if the calling thread has it: a handler may raise before and after."""
        if self.is_mine():
            self.release()

    def wait_for_it(self) -> None:
        """Take it, refused or not."""
        if not self.acquire(False):
            self.before_waiting()
            self.acquire()

    def __enter__(self, *_: object) -> bool:
        words.room_on_stack()
        self.check()
        if self.is_mine():
            refuse_twice()
        try:
            self.wait_for_it()
            # Again: it may have been told to refuse while this call waited.
            self.check_taken()
        except BaseException:
            self.let_go()
            raise
        return True


class Anyway:
    """A lock without its refusal: a context manager."""

    __slots__ = ("__exit__", "_lock")

    __exit__: Callable[..., None]

    def __init__(self, lock: CallLock) -> None:
        self._lock = lock
        # A function in C: as one of ours begins, a signal's handler may raise in its stead.
        self.__exit__ = lock.__exit__

    def __enter__(self) -> None:
        words.room_on_stack()
        lock = self._lock
        if lock.is_inherited():
            lock.check()
        if lock.is_mine():
            refuse_twice()
        try:
            lock.wait_for_it()
        except BaseException:
            lock.let_go()
            raise
