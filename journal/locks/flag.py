"""An event that a signal's handler can't spoil.

The methods of :class:`threading.Event` take a lock and give it back in code of Python, where a
handler may raise in between: the lock stays taken, and the thread that waits never ends. Here every
step is one function in C.
"""

from __future__ import annotations

from _thread import TIMEOUT_MAX, allocate_lock
from time import monotonic


class Flag:
    """An event: threads wait until it is set. Thread-safe, and safe in handlers."""

    def __init__(self) -> None:
        self._is_set = False
        # Open, or about to be, while it is set; now and then also when it is not.
        self._gate = allocate_lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all threads that wait."""
        # No handler runs between these two steps. A call of a function of ours would let one in.
        self._is_set = True
        try:  # noqa: SIM105  # a handler may raise as a function of Python begins
            self._gate.release()
        except RuntimeError:
            pass  # it is open

    def clear(self) -> None:
        """Take it back."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most ``timeout`` seconds. Return whether it is set."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._is_set:
            left = -1.0 if deadline is None else min(deadline - monotonic(), TIMEOUT_MAX)
            if deadline is not None and left <= 0:
                return False
            self._gate.acquire(True, left)
        self.set()  # for the next thread that waits
        return True
