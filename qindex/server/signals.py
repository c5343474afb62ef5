"""Signals that tell a program to end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

ENDS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def heard() -> Iterator[socket.socket]:
    """Return a socket with a byte, its number, for each signal that came. In the main thread.

    Python's handlers could be late: a signal that comes just before a wait does not end the wait,
    and handlers run after it. So those of :data:`ENDS` do nothing from here on, also afterwards.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        for number in ENDS:
            signal.signal(number, lambda *_: None)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)
            theirs.shutdown(socket.SHUT_WR)
