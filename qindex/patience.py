"""The lock of a queue; while several threads use the queue, a patient one.

A thread that sleeps on a lock of Python's is woken by each release, and finds it taken again: the
thread that released it goes on in the same slice of the interpreter's time, and is at its next
message. So eight threads on one queue spend their time in the system, waking each other in vain.

With the patient lock no more than one thread tries, now and then, and says so; the others stand in
line behind it. Who holds the lock finishes its call, sees that it is wanted, and stands in line
itself. As the one that tries gets to run only when the interpreter takes its time from the other,
every 5 ms, a thread has the lock for thousands of calls in a row.

Patience costs each call 40 ns, so a queue has it only while several threads use it, see
:meth:`QueueLock.choose`. It is one lock all the time, whose class changes.

It knows its owner, for one reason: a signal's handler may raise anywhere in here, and then what is
to be given back must be known. Nobody takes it twice.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock, get_ident
from contextlib import suppress

__all__ = ["PatientLock", "QueueLock"]

_PAUSE = 1e-3
"""Seconds between two looks of the one that tries, where nobody tells it."""
_ALONE = 256
"""So many calls of :meth:`QueueLock.choose` without anybody who waits, and it is plain again."""


class QueueLock(RLock):  # type: ignore[misc]  # the stubs say final, the class does not
    """The lock of a queue that one thread uses. ``wanted``: somebody tries for the patient one;
    ``waits``: how often somebody had to."""

    __slots__ = ("_alone", "_given_up", "_line", "_seen", "_user", "waits", "wanted")

    def __init__(self) -> None:
        self._line = allocate_lock()
        self._given_up = allocate_lock()
        self.wanted = False
        self.waits = 0
        self._user = get_ident()
        self._seen = self._alone = 0

    def is_shared(self) -> bool:
        """Tell whether it is the patient one."""
        return self.__class__ is PatientLock

    def choose(self) -> None:
        """Become patient when another thread than the last time is here, and plain again when
        nobody has waited for many calls of this. Who holds it calls this once in a while."""
        user, waits = get_ident(), self.waits
        if not self.is_shared():
            if user == self._user:
                return
            self.__class__ = PatientLock
        elif user == self._user and waits == self._seen:
            self._alone += 1
            if self._alone >= _ALONE:
                self.__class__ = QueueLock
            return
        self._user, self._seen, self._alone = user, waits, 0

    take = RLock.acquire
    """What ``with`` begins with, for the paths that spare themselves the rest of it: a third of
    what it costs. Each of them ends with ``release``, and with :meth:`let_go` after an
    exception."""

    def let_go(self) -> None:
        """Release it, if the calling thread has it: a handler may raise before and after."""
        if self.is_mine():
            self.release()

    def is_mine(self) -> bool:
        """Tell whether the calling thread has it."""
        owned: bool = self._is_owned()  # type: ignore[attr-defined]
        return owned

    def give_up(self) -> None:
        """Tell the one that tries that the lock is free."""
        if self._given_up.locked():
            with suppress(RuntimeError):  # another thread has told it meanwhile
                self._given_up.release()

    def _acquire_restore(self, _state: object) -> None:
        # How a condition takes it again.
        self.__enter__()


class PatientLock(QueueLock):  # type: ignore[misc]
    """The same while several threads use it."""

    __slots__ = ()

    def take(self) -> bool:  # type: ignore[override]
        """What ``with`` begins with."""
        try:
            if self.wanted or not self.acquire(False):
                self._stand_in_line()
        except BaseException:
            self.let_go()
            raise
        return True

    __enter__ = take  # type: ignore[assignment]

    def _stand_in_line(self) -> None:
        self.give_up()
        with self._line:
            self.waits += 1
            while not self.acquire(False):
                self.wanted = True
                self._given_up.acquire(False)
                self._given_up.acquire(True, _PAUSE)
            self.wanted = False
