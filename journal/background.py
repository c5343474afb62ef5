"""The threads of our own: how each is started, and how it ends."""

from __future__ import annotations

import logging
import threading
from _thread import get_ident
from collections.abc import Callable

_log = logging.getLogger("qindex.journal")

_LONGEST_START = 1.0
"""Seconds to wait for a started thread to begin, after a signal handler has raised."""


class Background:
    """One thread, for ``run``, that is started when it is first needed. It never keeps the process
    from ending.

    Nobody waits for ever on its account: where the system has no thread left, or is shutting down,
    :meth:`start` says so and can be called again. :meth:`join` waits only for a started thread.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self._name = name
        # Held by the thread that starts it. A handler that comes here then finds it started.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._ident = 0
        self._began = threading.Event()
        self._said = False

    def start(self) -> bool:
        """Start it, unless it was started; false where that can't be had now, which is logged."""
        if self._thread is not None:
            return True
        with self._lock:
            if self._thread is not None:
                return True
            self._thread = thread = threading.Thread(
                target=self._main, name=self._name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                self._thread = None
                if not self._said:
                    self._said = True  # it may be tried again at each call
                    _log.error("thread %s can't be started: %s", self._name, error)
                return False
            except BaseException:  # a signal's handler; before the start, or after it
                if not self._began.wait(_LONGEST_START):
                    self._thread = None
                raise
        return True

    def _main(self) -> None:
        self._ident = get_ident()
        self._began.set()
        try:
            self._run()
        finally:
            self._ident = 0  # another thread may get the number of a thread that has ended

    def is_mine(self) -> bool:
        """Return whether it is the calling thread."""
        return self._ident == get_ident()

    def join(self) -> None:
        """Wait until it has ended, if it was started; not in the thread itself."""
        with self._lock:
            thread = self._thread
        if thread is not None and not self.is_mine():
            thread.join()
