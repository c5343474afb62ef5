"""Timers: leases that end, moves to be tried again.

One thread for an engine, started when the first alarm is set, with or without the engine's other
background work. It sleeps until the earliest time; an engine that sets no alarm has no such thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from time import monotonic
from typing import Protocol

from journal.background import Background
from journal.errors import ClosedError, StoreError
from journal.locks.flag import Flag
from journal.locks.lock_order import LockOrder, Rank

_log = logging.getLogger("qindex.queue")


class Sleeper(Protocol):
    """Something that wants to be called at a time."""

    def on_alarm(self) -> None:
        """Do the work that is due."""


class Alarm:
    """One time for each sleeper: the earliest it has asked for. Thread-safe."""

    def __init__(self, order: LockOrder | None = None) -> None:
        self._lock = threading.RLock()
        if order is not None:
            order.add(Rank.ROSTER, self._lock._is_owned)  # type: ignore[attr-defined]
        self._wake = Flag()
        self._times: dict[Sleeper, float] = {}
        self._thread = Background(self._run, "qindex-alarm")
        self._begun = False
        self._stopped = False

    def begin(self) -> None:
        """Start calling sleepers that are due.

        Until then they wait: a timer that moves messages while the open still compares the queues
        would move a message a second time.
        """
        with self._lock:
            self._begun = True
            if self._times:
                self._thread.start()

    def set(self, who: Sleeper, when: float) -> None:
        """Call ``who`` at ``when`` (of :func:`time.monotonic`). A queue's lock may be held."""
        with self._lock:
            if self._stopped:
                return
            if self._begun:
                # If the system has no thread left, the next alarm tries again. The caller's action
                # is done.
                self._thread.start()
            if self._times.get(who, when + 1) <= when:
                return
            first = min(self._times.values(), default=None)
            if first is None or when < first:
                # Before the time is noted: a signal's handler may raise in between.
                self._wake.set()
            self._times[who] = when

    def is_mine(self) -> bool:
        """Return whether the calling thread is this one."""
        return self._thread.is_mine()

    def stop(self) -> None:
        """End the thread; a call under way is finished first."""
        with self._lock:
            self._stopped = True
            self._times.clear()
            self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                if self._stopped:
                    return
                due = self._take_due()
                first = min(self._times.values(), default=None)
            if due:
                self._call(due)
            else:
                self._wake.wait(None if first is None else max(first - monotonic(), 0))

    def _take_due(self) -> list[Sleeper]:
        now = monotonic()
        due = [who for who, when in self._times.items() if when <= now]
        for who in due:
            del self._times[who]
        return due

    def _call(self, due: Iterable[Sleeper]) -> None:
        for who in due:
            try:
                who.on_alarm()
            except ClosedError:
                continue  # closed, or deleted, meanwhile: nothing of it is left to do
            except StoreError as error:
                _log.error("%r: %s", who, error)
