"""Timers: leases that end, moves to be tried again.

One thread for an engine, started when the first alarm is set, with or without the engine's other
background work. It sleeps until the earliest time; an engine that sets no alarm has no such thread.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import Protocol

from journal.errors import ClosedError, StoreError

__all__ = ["Alarm", "Sleeper"]

_log = logging.getLogger("qindex.queue")


class Sleeper(Protocol):
    """Something that wants to be called at a time."""

    def on_alarm(self) -> None:
        """Do what is due."""


class Alarm:
    """One time for each sleeper: the earliest it has asked for. Thread-safe."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._times: dict[Sleeper, float] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False

    def set(self, who: Sleeper, when: float) -> None:
        """Call ``who`` at ``when`` (of :func:`time.monotonic`). A queue's lock may be held."""
        with self._wake:
            if self._stopped or self._times.get(who, when + 1) <= when:
                return
            first = min(self._times.values(), default=None)
            self._times[who] = when
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="qindex-alarm", daemon=True)
                self._thread.start()
            elif first is None or when < first:
                self._wake.notify()

    def stop(self) -> None:
        """End the thread; a call under way is finished first."""
        with self._wake:
            self._stopped = True
            self._times.clear()
            thread = self._thread
            self._wake.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                due = self._sleep()
                if self._stopped:
                    return
            for who in due:
                try:
                    who.on_alarm()
                except ClosedError:
                    continue  # closed, or deleted, meanwhile: nothing of it is left to do
                except StoreError as error:
                    _log.error("%r: %s", who, error)

    def _sleep(self) -> list[Sleeper]:
        """Wait until somebody is due; gives them."""
        while not self._stopped:
            now = monotonic()
            due = [who for who, when in self._times.items() if when <= now]
            if due:
                for who in due:
                    del self._times[who]
                return due
            left = min(self._times.values()) - now if self._times else None
            self._wake.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
        return []
