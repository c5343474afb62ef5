"""The lock of a queue that several threads use at once.

A thread that sleeps on a lock of Python's is woken by each release, and finds it taken again: the
thread that released it goes on in the same slice of the interpreter's time, and is at its next
message. So eight threads on one queue spend their time in the system, waking each other in vain.

Here no more than one thread tries for the lock, now and then, and says so; the others stand in line
behind it. Who holds the lock finishes its call, sees that it is wanted, and stands in line itself.
As the one that tries gets to run only when the interpreter takes its time from the other, every 5
ms, a thread has the lock for thousands of calls in a row.

It costs each call 0.2 us, so a queue has one only while several threads use it, see
:meth:`qindex.queue_core.QueueCore._tick`; both ways lock the same lock.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType

__all__ = ["PatientLock"]

_PAUSE = 1e-3
"""Seconds between two looks of the one that tries, where nobody tells it."""


class PatientLock:
    """Locks ``lock``, with patience. ``wanted``: somebody tries for it; ``waits``: how often
    somebody had to."""

    __slots__ = ("_exit", "_given_up", "_is_taken", "_line", "_try", "waits", "wanted")

    def __init__(self, lock: threading.Lock) -> None:
        self._exit = lock.release
        self._try = lock.acquire
        self._is_taken = lock.locked
        self._line = threading.Lock()
        self._given_up = threading.Lock()
        self.wanted = False
        self.waits = 0

    def __enter__(self) -> None:
        if self.wanted or not self._try(False):
            self._stand_in_line()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit()

    acquire = __enter__

    def release(self) -> None:
        """Let go of it."""
        self._exit()

    def _is_owned(self) -> bool:
        # What a condition asks of its lock; who asks has taken it, or is wrong to ask.
        return self._is_taken()

    def give_up(self) -> None:
        """Tell the one that tries that the lock is free."""
        if self._given_up.locked():
            with suppress(RuntimeError):  # another thread has told it meanwhile
                self._given_up.release()

    def _stand_in_line(self) -> None:
        self.give_up()
        with self._line:
            self.waits += 1
            while not self._try(False):
                self.wanted = True
                self._given_up.acquire(False)
                self._given_up.acquire(True, _PAUSE)
            self.wanted = False
