"""Queues that are not in use rest: they have no open file, and take little memory.

A queue is put to rest when it was idle for a while, or when more queues are in use than the engine
may have files open for: then the one that was not used for longest, or nearly. Its journal is
flushed, emptied and closed, so that all it holds is durable in its segment files; the state maps of
its segments, and the entries read ahead, are given back. Counters stay, and so do the deliveries
that consumers have. None of this can be seen from outside: a call takes again what it needs of a
queue at rest (:mod:`journal.rested`, :meth:`QueueIndex.segment_of`), in the same lock that it takes
anyway, so that a queue in use pays nothing for it.

Locks: a queue wakes with its lock held, and puts others to rest then. So theirs are only ever
tried, never waited for: a queue whose lock is taken is in use anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from journal.call_lock import CallLock
from journal.errors import StoreError
from journal.lock_order import LockOrder, Rank
from qindex.queue.parts import QueueParts
from qindex.queue.state import QueueState

_log = logging.getLogger("qindex.engine")

_PART_SPARE = 8
_MOST_FAILURES = 4


class Roster:
    """The queues of an engine that are awake: ``most`` at any time. Thread-safe.

    A few less than ``most`` are left by a background thread, which ``ask`` calls (``None``: there
    is none), so that a call that wakes a queue need not put another one to rest first.
    """

    def __init__(
        self, most: int, ask: Callable[[], None] | None, order: LockOrder | None = None
    ) -> None:
        self.most = most
        self._few = most - most // _PART_SPARE
        self._ask = ask
        self._lock = CallLock()
        # The queues that were looked at least recently come first, each with its actions by then.
        self._awake: dict[QueueParts, int] = {}
        if order is not None:
            self._put_in(order)

    def _put_in(self, order: LockOrder) -> None:
        """Give the locks of this, and of the queues that are awake, their places in the order."""
        awake = self._awake
        self._lock.before_waiting = order.add(Rank.ROSTER, self._lock.is_mine)

        def of_queues(is_mine: Callable[[QueueState], bool]) -> Callable[[], bool]:
            return lambda: any(is_mine(one.state) for one in list(awake))

        order.add(Rank.LETTERS, lambda: any(one.letters.is_moving_here() for one in list(awake)))
        order.add(Rank.QUEUE, of_queues(lambda one: one.lock.is_used_here()))
        order.add(Rank.JOURNAL_SYNC, of_queues(lambda one: one.index.journal.is_syncing_here()))
        order.add(Rank.JOURNAL_FILES, of_queues(lambda one: one.index.journal.is_changing_here()))

    def __len__(self) -> int:
        return len(self._awake)

    def awake(self) -> list[QueueParts]:
        """Give the queues that are awake. All records of the others are durable."""
        with self._lock:
            return list(self._awake)

    def admit(self, queue: QueueParts) -> None:
        """Make room for a queue that is about to wake, and whose lock is held.

        Where none of the others can be put to rest (a full disk: they can't be flushed) there
        will be one too many.
        """
        with self._lock:
            self._awake[queue] = queue.flusher.actions()
            count = len(self._awake)
        if self._ask is not None and count > self._few:
            self._ask()
        if count > self.most:
            self._shrink(self.most, queue)

    def leave(self, queue: QueueParts) -> None:
        """Take note that a queue is at rest, or closed."""
        with self._lock:
            self._awake.pop(queue, None)

    def trim(self) -> None:
        """Put queues to rest until a few more can wake without that."""
        if len(self._awake) > self._few:
            self._shrink(self._few, None)

    def _shrink(self, most: int, but: QueueParts | None) -> None:
        failures = 0
        # A queue that has done something since the last look gets another turn.
        for _ in range(2 * len(self._awake)):
            queue = self._next(most)
            if queue is None or failures == _MOST_FAILURES:
                return
            if queue is but:
                continue
            try:
                self.put_to_rest(queue)
            except StoreError as error:
                failures += 1
                _log.warning("queue %r can't be put to rest: %s", queue.state.name, error)

    def _next(self, most: int) -> QueueParts | None:
        """Give the next queue that has done nothing since it was looked at last, if there are more
        than ``most``. It goes behind the others, as those do that have."""
        with self._lock:
            for _ in range(len(self._awake)):
                if len(self._awake) <= most:
                    return None
                queue = next(iter(self._awake))
                before, now = self._awake.pop(queue), queue.flusher.actions()
                self._awake[queue] = now
                if before == now:
                    return queue
            return next(iter(self._awake), None)

    def put_to_rest(self, queue: QueueParts) -> bool:
        """Flush a queue, close its journal, and give back the memory of what can be had again;
        false when it is in use at this moment, or closed. Waits for no lock of a queue.

        All that it holds is durable on return. Raises :class:`StorageError` and
        :class:`WritesRefusedError`; it is awake as before then.
        """
        state = queue.state
        lock = state.lock
        if lock.is_mine() or not lock.acquire(blocking=False):
            return False
        try:
            if state.flushing or lock.refusal is not None or not queue.letters.is_empty():
                return False
            queue.flusher.write_and_empty(held=True)
            state.index.ahead.rewind()
            state.index.rest()
            # This comes before the lock is released: the queue may wake at once.
            self.leave(queue)
        finally:
            lock.release()
        return True
