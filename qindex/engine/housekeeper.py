"""The engine's background thread: flushes that were asked for, idle queues, the memory budget, and
queues that are put to rest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

from journal.background import Background
from journal.errors import ClosedError, StoreError
from journal.flag import Flag
from journal.lock_order import LockOrder, Rank
from qindex.engine.idle_queues import Roster
from qindex.queue.flushing import Flusher
from qindex.queue.parts import QueueParts

_log = logging.getLogger("qindex.engine")

_BURST_LOOK = 0.005
_BURST_ACTIONS = 1000
"""More actions than this in :data:`_BURST_LOOK` seconds are a burst."""


class Housekeeper:
    """One thread for all queues of an engine.

    Flushes a queue (A) when it has been idle for ``idle`` seconds with actions in its journal,
    (B) when it asks (its journal has more actions than ``max_journal_entries``): at once, or when
    the burst of actions that it is in has ended, or when the journal has several times as many;
    and (C) when the unflushed entries of all queues hold more than ``budget``
    bytes: then the one that holds most. A queue that is still idle when it was flushed is put to
    rest, and so are others when too many are awake.
    """

    def __init__(
        self, roster: Roster, *, idle: float, budget: int, order: LockOrder | None = None
    ) -> None:
        self._roster = roster
        self._idle = idle
        self._budget = budget
        self._lock = threading.RLock()
        if order is not None:
            order.add(Rank.ROSTER, self._lock._is_owned)  # type: ignore[attr-defined]
        self._wake = Flag()
        self._asked: dict[Flusher, int | None] = {}
        self._crowded = False
        self._stopped = False
        self._seen: dict[QueueParts, tuple[int, int]] = {}
        self._thread = Background(self._run, "qindex-housekeeper")
        # Queues whose last flush, or rest, has failed. The begin and the end of that are logged.
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
        """Put queues to rest soon: many are awake. Called with a queue's lock held, too."""
        if not self._crowded:
            with self._lock:
                self._wake.set()
                self._crowded = True

    def is_mine(self) -> bool:
        """Tell whether the calling thread is this one."""
        return self._thread.is_mine()

    def stop(self) -> None:
        """End the thread; a flush under way is finished first."""
        with self._lock:
            self._stopped = True
            self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        tick = min(max(self._idle / 2, 0.001), threading.TIMEOUT_MAX)
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
            # The others have their turn, too, however often one queue asks.
            if monotonic() >= look_at:
                due, idle = self._due()
                for flusher in due:
                    self._flush(flusher)
                for parts in idle:
                    self._rest(parts)
                look_at = monotonic() + tick

    def _is_time(self, queue: Flusher) -> bool:
        """Tell whether a queue that asked should be flushed now: its burst has ended, or its
        journal has grown too far to wait for that."""
        if not queue.is_due():
            del self._asked[queue]
            return False
        actions, before = queue.actions(), self._asked[queue]
        self._asked[queue] = actions
        burst = before is None or actions - before > _BURST_ACTIONS
        return not (burst and queue.can_wait())

    def _due(self) -> tuple[list[Flusher], list[QueueParts]]:
        """Find the queues to be flushed: idle ones, and the fullest when the budget is exceeded;
        and the idle ones that are flushed already, and can rest."""
        due: list[Flusher] = []
        idle: list[QueueParts] = []
        total = 0
        fullest: tuple[int, Flusher | None] = (0, None)
        seen: dict[QueueParts, tuple[int, int]] = {}
        for queue in self._roster.awake():
            flusher = queue.flusher
            dirty, next_seq, held = flusher.unflushed()
            seen[queue] = (dirty, next_seq) if dirty else (0, flusher.actions())
            is_idle = self._seen.get(queue) == seen[queue]
            if not dirty:
                if is_idle:
                    idle.append(queue)
                continue
            flusher.seal()
            total += held
            if held > fullest[0]:
                fullest = (held, flusher)
            if is_idle:
                due.append(flusher)
        self._seen = seen
        if total > self._budget and fullest[1] is not None and fullest[1] not in due:
            due.append(fullest[1])
        return due, idle

    def _rest(self, queue: QueueParts) -> None:
        rest = partial(self._roster.put_to_rest, queue)
        self._try(queue.flusher, rest, "put to rest", logging.INFO)

    def _flush(self, queue: Flusher) -> None:
        # The journal still has everything; publishers see the poison, if it came to that.
        self._try(queue, queue.flush_now, "flushed", logging.ERROR)

    def _try(self, queue: Flusher, call: Callable[[], object], what: str, level: int) -> None:
        try:
            call()
        except ClosedError:
            self._failing.discard(queue)
        except StoreError as error:
            if queue not in self._failing:
                self._failing.add(queue)
                _log.log(
                    level,
                    "queue %r can't be %s; it is tried again, with no word until it is: %s",
                    queue.state.name,
                    what,
                    error,
                )
        else:
            if queue in self._failing:
                self._failing.discard(queue)
                _log.log(level, "queue %r is %s again", queue.state.name, what)
