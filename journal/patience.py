"""The lock of a queue or a store; while several threads use it, a patient one.

A thread that sleeps on a lock of Python's is woken by each release, and finds it taken again: the
thread that released it goes on in the same slice of the interpreter's time, and is at its next
message. So eight threads on one queue spend their time in the system, waking each other in vain.

With a patient lock no more than one thread tries, now and then, and says so; the others stand in
line behind it. Who holds the lock finishes its call, is refused the lock at the next one, and
stands in line itself. As the one that tries gets to run only when the interpreter takes its time
from the other, every 5 ms, a thread has the lock for thousands of calls in a row.

All of this is in what :attr:`PatientLock.take` is at the moment, always one call of a built-in
function for the paths of single messages: they ask nothing else.

A signal's handler may raise anywhere in here; then the lock knows whether it is to be given back.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock, get_ident
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from journal.call_lock import CallLock, refuse_twice
from journal.errors import StoreError

__all__ = ["PatientLock"]

_PAUSE = 1e-3
"""Seconds between two looks of the one that tries, where nobody tells it."""
_ALONE = 256
"""So many calls of :meth:`PatientLock.choose` without anybody who waits, and it is plain again."""
_REFUSE = bool
"""What gives false, and takes nothing."""


class PatientLock(CallLock):  # type: ignore[misc]  # as there
    """The lock of a queue or a store; ``shared``: patient from the start.

    ``take``: takes the lock, or gives false; then :meth:`stand_in_line` is to be called. The two,
    and a look at ``refusal`` once it is taken, are what ``with`` begins with, for the paths that
    spare themselves the rest of it, behind a look whether it :meth:`is_mine`; each of them ends
    with ``release``, and with :meth:`let_go` after an exception. ``waits``: how often somebody had
    to stand in line.
    """

    __slots__ = ("_alone", "_given_up", "_line", "_seen", "_shared", "_user", "take", "waits")

    take: Callable[[], bool]

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        # A signal's handler may come to stand in line while its thread does.
        self._line = RLock()
        self._given_up = allocate_lock()
        self._shared = shared
        self.take = self._first_try()
        self.waits = 0
        self._user = get_ident()
        self._seen = self._alone = 0

    def is_shared(self) -> bool:
        """Tell whether it is patient: several threads use it."""
        return self._shared

    def is_wanted(self) -> bool:
        """Tell whether somebody tries for it who gets it next."""
        return self.take is _REFUSE

    def share(self, shared: bool) -> None:
        """Make it patient, or plain; who holds it calls this."""
        self._shared = shared
        self.take = self._first_try()

    def refuse(self, kind: type[StoreError], text: str) -> None:
        """See :meth:`CallLock.refuse`."""
        super().refuse(kind, text)
        self.take = self._first_try()

    def _first_try(self) -> Callable[[], bool]:
        if self.refusal is not None:
            return self._refuse_all
        return partial(self.acquire, False)

    def _refuse_all(self) -> bool:
        self.check()
        return False

    def choose(self) -> None:
        """Become patient when another thread than the last time is here, and plain again when
        nobody has waited for many calls of this. Who holds it calls this once in a while."""
        user, waits = get_ident(), self.waits
        if not self.is_shared():
            if user == self._user:
                return
            self.share(True)
        elif user == self._user and waits == self._seen:
            self._alone += 1
            if self._alone >= _ALONE:
                self.share(False)
            return
        self._user, self._seen, self._alone = user, waits, 0

    def stand_in_line(self) -> None:
        """Take it when it is one's turn. Raises what it was told to raise."""
        self._wait(ask=True)

    def is_used_here(self) -> bool:
        """Tell whether the calling thread has it, or stands in line for it."""
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
                if ask:
                    self.check()
                self.take = _REFUSE
                self._given_up.acquire(False)
                self._given_up.acquire(True, _PAUSE)
            self.take = self._first_try()

    def wait_for_it(self) -> None:
        """Take it, refused or not."""
        if self.is_wanted() or not self.acquire(False):
            self._wait(ask=False)

    def __enter__(self, *_: object) -> bool:
        if self.is_mine():
            refuse_twice()
        try:
            if not self.take():
                self.stand_in_line()
            if self.refusal is not None:
                self.check()
        except BaseException:
            self.let_go()
            raise
        return True

    def give_up(self) -> None:
        """Tell the one that tries that the lock is free."""
        if self._given_up.locked():
            with suppress(RuntimeError):  # another thread has told it meanwhile
                self._given_up.release()

    def retake(self) -> None:
        """Take it again, where it is to be held whatever is raised meanwhile, refused or not: who
        goes on with a call asks then (:meth:`check`)."""
        try:
            self.anyway.__enter__()
        finally:
            if not self.is_mine():
                self.acquire()

    def _acquire_restore(self, _state: object) -> None:
        # How a condition takes it again.
        self.retake()
