"""The lock of a queue or a store. While several threads use it, it is a patient one.

Python's own lock wakes a sleeping thread at each release. That thread finds the lock taken again:
the thread that released it goes on in the same slice of the interpreter's time, and is at its next
message. So eight threads on one queue spend their time in the system, waking each other in vain.

With a patient lock one waiting thread at most tries to take it, now and then, and says so; the
others wait for their turn to try. The holder finishes its call, is refused the lock at its next
one, and also waits for its turn. The interpreter switches threads every 5 ms only, so a thread has
the lock for thousands of calls in a row.

A signal's handler may raise anywhere in here; then the lock knows whether it must be released.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock
from collections.abc import Callable
from contextlib import suppress

from journal.locks.call_lock import CallLock, refuse_twice
from journal.memory import words

_PAUSE = 1e-3
"""Seconds between two tries of the thread that tries, where no release wakes it."""
_ALONE = 256
"""The lock is plain again after this many calls of :meth:`PatientLock.choose` without a waiter."""


class PatientLock(CallLock):
    """The lock of a queue or a store; ``shared``: patient from the start.

    A path of single messages asks :meth:`is_mine`, calls :meth:`take`, :meth:`wait_for_turn` where
    that gives false, and :meth:`check_taken` once it has the lock: ``with`` does the same and more.
    It ends with ``release``, and with :meth:`let_go` after an exception. ``waits`` counts the calls
    that had to wait.
    """

    __slots__ = ("_alone", "_given_up", "_line", "_seen", "_shared", "_user", "_wanted", "waits")

    def __init__(self, whose: str = "the store", *, shared: bool = False) -> None:
        super().__init__(whose)
        # A signal's handler may come to wait while its thread does.
        self._line = RLock()
        self._given_up = allocate_lock()
        self._shared: bool = shared
        # A thread tries to take it, and gets it next.
        self._wanted: bool = False
        self.waits: int = 0
        self._user: int = words.this_thread()
        self._seen = self._alone = 0

    def is_shared(self) -> bool:
        """Return whether it is patient: several threads use it."""
        return self._shared

    def is_wanted(self) -> bool:
        """Return whether a thread tries to take it, which gets it next."""
        return self._wanted

    def share(self, shared: bool) -> None:
        """Make it patient, or plain. Its holder calls this."""
        self._shared = shared
        self._wanted = False

    def take(self) -> bool:
        """Take it, if it is free, nobody else is next, and it does not refuse; false where the
        caller is to call :meth:`wait_for_turn`."""
        if self._wanted or self.refusal is not None or self._stamp != words.kept_stamp():
            return False
        return self.acquire(False)

    def choose(self) -> None:
        """Become patient when another thread calls this than the last time, and plain again after
        many calls without a waiter. The holder calls this once in a while."""
        user, waits = words.this_thread(), self.waits
        if not self._shared:
            if user == self._user:
                return
            self.share(True)
        elif user == self._user and waits == self._seen:
            self._alone += 1
            if self._alone >= _ALONE:
                self.share(False)
            return
        self._user, self._seen, self._alone = user, waits, 0

    def wait_for_turn(self) -> None:
        """Wait for the turn of the calling thread, and take it. Raises the refusal."""
        self.check()
        self._wait(ask=True)

    def is_used_here(self) -> bool:
        """Return whether the calling thread has it, or waits for it."""
        return self.is_mine() or self._line._is_owned()  # type: ignore[attr-defined]

    def _wait(self, *, ask: bool) -> None:
        self.before_waiting()
        if not self.is_shared():
            self.acquire()
            return
        self.give_up()
        with self._line:
            self.waits += 1
            while not self.acquire(False):
                words.look_for_signals()
                if ask:
                    self.check()
                self._wanted = True
                self._given_up.acquire(False)
                self._given_up.acquire(True, _PAUSE)
            self._wanted = False

    def wait_for_it(self) -> None:
        """Take it, refused or not."""
        if self._wanted or not self.acquire(False):
            self._wait(ask=False)

    def __enter__(self, *_: object) -> bool:
        words.room_on_stack()
        if self.is_mine():
            refuse_twice()
        try:
            if not self.take():
                self.wait_for_turn()
            self.check_taken()
        except BaseException:
            self.let_go()
            raise
        return True

    def give_up(self) -> None:
        """Tell the waiting thread that the lock is free."""
        if self._given_up.locked():
            with suppress(RuntimeError):  # another thread has told it meanwhile
                self._given_up.release()

    def while_released(self, call: Callable[[], object]) -> None:
        """Release it, make a call, and take it again, refused or not, and whatever is raised
        meanwhile. A caller that goes on then asks :meth:`check`."""
        try:
            self.release()
            call()
        finally:
            try:
                self.anyway.__enter__()
            finally:
                if not self.is_mine():
                    self.acquire()  # a signal's handler may have raised as that began

    def _acquire_restore(self, _state: object) -> None:
        # A condition takes it again by this name.
        self.anyway.__enter__()
