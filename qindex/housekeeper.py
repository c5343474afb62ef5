"""The engine's background thread: flushes that were asked for, idle queues, the memory budget."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from time import monotonic

from journal.errors import StoreError
from qindex.queue_core import QueueCore

__all__ = ["Housekeeper"]

_log = logging.getLogger("qindex.housekeeper")

_BURST_LOOK = 0.005
_BURST_ACTIONS = 1000
"""More actions than this in :data:`_BURST_LOOK` seconds are a burst."""


class Housekeeper:
    """One thread for all queues of an engine.

    Flushes a queue (A) when it has been idle for ``idle`` seconds with actions in its journal,
    (B) when it asks (its journal has more actions than ``max_journal_entries``): at once, or when
    the burst of actions that it is in has ended, or when the journal has several times as many;
    and (C) when the unflushed entries of all queues hold more than ``budget``
    bytes: then the one that holds most.
    """

    def __init__(
        self, queues: Callable[[], Iterable[QueueCore]], *, idle: float, budget: int
    ) -> None:
        self._queues = queues
        self._idle = idle
        self._budget = budget
        self._wake = threading.Condition()
        self._asked: dict[QueueCore, int | None] = {}
        self._stopped = False
        self._seen: dict[QueueCore, tuple[int, int]] = {}
        self._thread = threading.Thread(target=self._run, name="qindex-housekeeper", daemon=True)
        self._thread.start()

    def ask(self, queue: QueueCore) -> None:
        """Flush ``queue`` soon. Called with the queue's lock held, so it waits for nothing."""
        if queue not in self._asked:
            with self._wake:
                self._asked[queue] = None
                self._wake.notify()

    def stop(self) -> None:
        """End the thread; a flush under way is finished first."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        tick = min(max(self._idle / 2, 0.001), threading.TIMEOUT_MAX)
        look_at = monotonic() + tick
        while True:
            with self._wake:
                if not self._stopped:
                    left = max(look_at - monotonic(), 0)
                    self._wake.wait(min(left, _BURST_LOOK) if self._asked else left)
                if self._stopped:
                    return
                asked = list(self._asked)
            for queue in asked:
                if self._is_time(queue):
                    del self._asked[queue]
                    self._flush(queue)
            # However often one queue asks: the others have their turn too.
            if monotonic() >= look_at:
                for queue in self._due():
                    self._flush(queue)
                look_at = monotonic() + tick

    def _is_time(self, queue: QueueCore) -> bool:
        """Tell whether a queue that asked should be flushed now: its burst has ended, or its
        journal has grown too far to wait for that."""
        if not queue._is_due():
            del self._asked[queue]
            return False
        actions, before = queue._actions(), self._asked[queue]
        self._asked[queue] = actions
        burst = before is None or actions - before > _BURST_ACTIONS
        return not (burst and queue._can_wait())

    def _due(self) -> list[QueueCore]:
        """Find idle queues, and the fullest when the budget is exceeded."""
        due = []
        total = 0
        fullest: tuple[int, QueueCore | None] = (0, None)
        seen: dict[QueueCore, tuple[int, int]] = {}
        for queue in self._queues():
            dirty, next_seq, held = queue.unflushed()
            if not dirty:
                continue
            queue._seal()
            total += held
            if held > fullest[0]:
                fullest = (held, queue)
            seen[queue] = (dirty, next_seq)
            if self._seen.get(queue) == (dirty, next_seq):
                due.append(queue)
        self._seen = seen
        if total > self._budget and fullest[1] is not None and fullest[1] not in due:
            due.append(fullest[1])
        return due

    def _flush(self, queue: QueueCore) -> None:
        try:
            queue.flush()
        except StoreError as error:
            # The journal still has everything; publishers see the poison, if it came to that.
            _log.error("flush of queue %r failed: %s", queue.name, error)
