"""The engine's background thread: flushes that were asked for, idle queues, the memory budget, and
queues that are put to rest."""

from __future__ import annotations

import logging
import threading
from time import monotonic

from journal.background import Background
from journal.errors import ClosedError, StoreError
from journal.locks.flag import Flag
from journal.locks.lock_order import LockOrder, Rank
from qindex.queue.flushing import Flusher
from qindex.queue.parts import QueueParts
from qindex.shelf.idle_queues import Roster

_log = logging.getLogger("qindex.engine")

_BURST_LOOK = 0.005
_RESTED_AT_ONCE = 16
_BURST_ACTIONS = 1000
"""More actions than this in :data:`_BURST_LOOK` seconds are a burst."""


class Housekeeper:
    """One thread for all queues of an engine.

    It flushes a queue (A) when it has been idle for ``flush_idle`` seconds with actions in its
    journal, at rest or not; (B) when it asks, because its journal has more actions than
    ``max_journal_entries``: at once, when the burst of actions that it is in has ended, or when the
    journal has several times as many; (C) when the unflushed entries of all queues hold more than
    ``budget`` bytes: then the queue that holds most. It puts a queue to rest that has been idle for
    ``rest_idle`` seconds, and others when too many are awake.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        flush_idle: float,
        rest_idle: float,
        budget: int,
        order: LockOrder | None = None,
    ) -> None:
        self._roster = roster
        self._flush_idle = flush_idle
        self._rest_idle = rest_idle
        self._budget = budget
        self._lock = threading.RLock()
        if order is not None:
            order.add(Rank.ROSTER, self._lock._is_owned)  # type: ignore[attr-defined]
        self._wake = Flag()
        self._asked: dict[Flusher, int | None] = {}
        self._crowded = False
        self._stopped = False
        # The actions of each queue that is awake, and since when it has had no other.
        self._seen: dict[QueueParts, tuple[int, float]] = {}
        self._thread = Background(self._run, "qindex-housekeeper")
        # Queues whose last flush has failed. The begin and the end of that are logged.
        self._failing: set[Flusher] = set()
        self._thread.start()

    def ask(self, queue: Flusher) -> bool:
        """Flush ``queue`` soon; false where the system has no thread for that. Called with the
        queue's lock held, so it never waits."""
        if not self._thread.start():
            return False
        if queue not in self._asked:
            with self._lock:
                self._wake.set()
                self._asked[queue] = None
        return True

    def ask_for_room(self) -> None:
        """Put queues to rest soon: many are awake. May be called with a queue's lock held."""
        if not self._crowded:
            with self._lock:
                self._wake.set()
                self._crowded = True

    def is_mine(self) -> bool:
        """Return whether the calling thread is this one."""
        return self._thread.is_mine()

    def stop(self) -> None:
        """End the thread; a flush under way is finished first."""
        with self._lock:
            self._stopped = True
            self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        idle = min(self._rest_idle, self._flush_idle)
        tick = min(max(idle / 2, 0.001), threading.TIMEOUT_MAX)
        look_at = monotonic() + tick
        while True:
            left = max(look_at - monotonic(), 0)
            self._wake.wait(min(left, _BURST_LOOK) if self._asked else left)
            self._wake.clear()
            with self._lock:
                if self._stopped:
                    return
                asked = list(self._asked)
                crowded, self._crowded = self._crowded, False
            if crowded:
                self._roster.trim()
            for queue in asked:
                if self._is_time(queue):
                    del self._asked[queue]
                    self._flush(queue)
            # The others also have their turn, however often one queue asks.
            now = monotonic()
            if now >= look_at:
                self._look(now)
                more = self._flush_rested(now)
                look_at = now if more else monotonic() + tick

    def _is_time(self, queue: Flusher) -> bool:
        """Return whether a queue that asked should be flushed now: its burst has ended, or its
        journal has grown too far to wait for that."""
        if not queue.is_due():
            del self._asked[queue]
            return False
        actions, before = queue.actions(), self._asked[queue]
        self._asked[queue] = actions
        burst = before is None or actions - before > _BURST_ACTIONS
        return not (burst and queue.can_wait())

    def _look(self, now: float) -> None:
        """Flush the queues that are awake and have been idle for so long, and the fullest when the
        budget is exceeded; put those to rest that have been idle for long enough."""
        due: list[Flusher] = []
        idle: list[QueueParts] = []
        total = 0
        fullest: tuple[int, Flusher | None] = (0, None)
        seen: dict[QueueParts, tuple[int, float]] = {}
        for queue in self._roster.awake():
            flusher = queue.flusher
            dirty, held = flusher.unflushed()
            actions = flusher.actions()
            before = self._seen.get(queue)
            since = before[1] if before is not None and before[0] == actions else now
            seen[queue] = actions, since
            if now - since >= self._rest_idle:
                idle.append(queue)
            if not dirty:
                continue
            flusher.seal()
            total += held
            if held > fullest[0]:
                fullest = (held, flusher)
            if now - since >= self._flush_idle:
                due.append(flusher)
        self._seen = seen
        if total > self._budget and fullest[1] is not None and fullest[1] not in due:
            due.append(fullest[1])
        for flusher in due:
            self._flush(flusher)
        for queue in idle:
            self._roster.put_to_rest(queue)

    def _flush_rested(self, now: float) -> bool:
        """Flush some of the queues that have been at rest for long enough, and put them to rest
        again. Return whether there are more. Queues that ask for a flush have their turn first."""
        old = self._roster.rested_before(now - self._flush_idle, _RESTED_AT_ONCE)
        for queue in old:
            self._flush(queue.flusher)
            self._roster.put_to_rest(queue)
        return len(old) == _RESTED_AT_ONCE

    def _flush(self, queue: Flusher) -> None:
        # The journal still has everything; publishers see the poison, if it came to that.
        try:
            queue.flush_now()
        except ClosedError:
            self._failing.discard(queue)
        except StoreError as error:
            if queue not in self._failing:
                self._failing.add(queue)
                _log.error(
                    "queue %r can't be flushed; it is tried again, with no word until it is: %s",
                    queue.state.name,
                    error,
                )
        else:
            if queue in self._failing:
                self._failing.discard(queue)
                _log.error("queue %r is flushed again", queue.state.name)
