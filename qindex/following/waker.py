"""Waiting for news of a directory: polls, and file events where there are any.

A publish is a store into a mapped file, of which no system sends events; so while there is news
polls find it, each a few system calls. Events come of writes made with calls (checksums of
the journal now and then, batches, flushes, large messages): they wake a follower that has
been idle so long that it polls seldom. It requests them only then: a busy writer would
send thousands in a second.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from journal.locks.flag import Flag

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver


_log = logging.getLogger("qindex.following")

_FIRST_PAUSE = 0.0005
_IDLE = 1.0
"""Seconds without news, after which events are asked for."""


class Waker:
    """Pauses that grow from half a millisecond to ``poll`` seconds while there is no news.

    ``events``: use watchdog, if it is installed and the file system has events.
    """

    def __init__(self, poll: float, *, events: bool) -> None:
        self._poll = poll
        self._events = events
        self._woken = Flag()
        self._pause = _FIRST_PAUSE
        self._news_at = monotonic()
        self._observer: BaseObserver | None = None
        self._watch: Any = None

    @property
    def watches(self) -> bool:
        """Whether file events are being waited for."""
        return self._watch is not None

    def news(self) -> None:
        """Begin with short pauses again."""
        self._pause = _FIRST_PAUSE
        self._news_at = monotonic()

    def wake(self) -> None:
        """End the pause that is under way, or the next one. From any thread."""
        self._woken.set()

    def wait(self, directory: str | None, most: float | None) -> None:
        """Pause, no longer than ``most`` seconds; ``directory``: what to watch, if it is there."""
        if directory is not None and self._events and monotonic() - self._news_at > _IDLE:
            self._arm(directory)
        pause = self._pause if most is None else min(self._pause, most)
        self._pause = min(self._pause * 1.5, self._poll)
        if self._woken.wait(pause):
            self._woken.clear()
            self._disarm()
            self.news()

    def close(self) -> None:
        """End the thread that waits for events, if there is one."""
        self._watch = None
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = None

    def _arm(self, directory: str) -> None:
        if self._watch is not None:
            return
        try:
            from watchdog import events
            from watchdog.observers import Observer
        except ImportError:
            self._events = False
            return
        waker = self._woken

        class Handler(events.FileSystemEventHandler):
            def on_any_event(self, event: events.FileSystemEvent) -> None:
                waker.set()

        wanted: list[type[events.FileSystemEvent]] = [
            events.FileModifiedEvent,
            events.FileCreatedEvent,
            events.FileMovedEvent,
            events.FileDeletedEvent,
            events.DirDeletedEvent,
        ]
        try:
            if self._observer is None:
                self._observer = Observer()
                self._observer.daemon = True
                self._observer.start()
            self._watch = self._observer.schedule(Handler(), directory, event_filter=wanted)
        except (OSError, RuntimeError) as error:
            _log.info("%s: no file events, polled only: %s", directory, error)
            self._events = False

    def _disarm(self) -> None:
        if self._watch is not None and self._observer is not None:
            self._observer.unschedule(self._watch)
            self._watch = None
