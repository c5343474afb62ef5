"""One order in which a thread takes the locks of an engine. A handler that would take them in
another one gets an error.

Calls take locks in the order of :class:`Rank`, so that no two threads wait for each other. A
signal's handler or a finalizer begins a call in the middle of another one of its thread, which may
hold a lock that comes later. The handler takes a lock that is free. But it never waits while its
thread holds a lock of the same place in the order, or of a later one: the holder of the other lock
may be waiting for that one. It gets :class:`~journal.errors.UsageError` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NoReturn

from journal.locks.call_lock import refuse_twice


class Rank(IntEnum):
    """The places in the order."""

    LETTERS = 0
    """Moving the dead letters of one queue (:mod:`qindex.queue.dead_letters`)."""
    MOVE_ROUND = 1
    """Doing the moves that threads have asked for (:mod:`qindex.engine.moves`)."""
    ENGINE = 2
    MOVES = 3
    COMPACTION = 4
    QUEUE = 5
    TRANSACTIONS = 6
    """The file of transactions (:mod:`qindex.engine.transaction_log`)."""
    ROSTER = 7
    """The tables of awake queues, of alarms, and of requests to the housekeeper."""
    JOURNAL_SYNC = 8
    JOURNAL_FILES = 9
    STORE_OPENING = 10
    STORE_APPEND = 11
    STORE_SYNC = 12
    STORE = 13
    STORE_ROOM = 14


class LockOrder:
    """The locks of one engine, or of one store of :mod:`rocketstore` (which has places of its own):
    returns whether a thread has one of a place in the order."""

    def __init__(self) -> None:
        self._held: list[tuple[int, Callable[[], bool]]] = []
        # One for all locks of a place: there may be many queues.
        self._checks: dict[tuple[int, Callable[[], NoReturn]], Callable[[], None]] = {}

    def add(self, rank: int, is_mine: Callable[[], bool]) -> Callable[[], None]:
        """Take in a lock, or many of one place; ``is_mine`` returns whether the calling thread has
        it. Returns a check to call before waiting for it; the check raises :class:`UsageError`."""
        self._held.append((rank, is_mine))
        return self.checked(rank)

    def checked(
        self, rank: int, refuse: Callable[[], NoReturn] = refuse_twice
    ) -> Callable[[], None]:
        """Return a check to call before waiting for a lock of this place. It calls ``refuse``,
        which raises, if the calling thread may not wait for the lock."""

        def check() -> None:
            for place, is_mine in self._held:
                if place >= rank and is_mine():
                    refuse()

        return self._checks.setdefault((rank, refuse), check)

    def holds_any(self) -> bool:
        """Return whether the calling thread has any of the locks: it is a handler, in the middle of
        a call."""
        return any(is_mine() for _, is_mine in self._held)
