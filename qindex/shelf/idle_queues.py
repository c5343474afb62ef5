"""Queues that are not in use rest: they have no open file, and take little memory.

A queue is put to rest when it was idle for a while, or when more queues are in use than the engine
may have files open for: then the queue that was not used for longest, or nearly. The file of its
journal is closed, and stays as it is. The state maps of its segments are packed or given back,
and the entries read ahead are forgotten. Counters stay, and so do the deliveries that consumers
have. Nobody outside can see any of this: a call takes again what it needs of a queue at rest
(:meth:`Journal.wake`, :meth:`QueueIndex.segment_of`), in the same lock that it takes anyway, so
that a queue in use pays nothing for it.

Locks: a queue wakes with its lock held, and puts others to rest then. So theirs are only ever
tried, never waited for: a queue whose lock is taken is in use anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile
from time import monotonic

from journal.locks.call_lock import CallLock
from journal.locks.lock_order import LockOrder, Rank
from qindex.queue.parts import QueueParts
from qindex.queue.state import QueueState

_PART_SPARE = 8


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
        # Queues at rest whose journals hold something, or are not durable, and since when.
        self._at_rest: dict[QueueParts, float] = {}
        if order is not None:
            self._put_in(order)

    def _put_in(self, order: LockOrder) -> None:
        """Put the locks of this and of all queues in use into the lock order."""
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
        """Return the queues that are awake."""
        with self._lock:
            return list(self._awake)

    def unflushed(self) -> list[QueueParts]:
        """Return the queues that are awake, and those at rest whose journals are not empty, or not
        durable. All that the others hold is on disk, in their segment files."""
        with self._lock:
            return [*self._awake, *self._at_rest]

    def rested_before(self, moment: float, most: int) -> list[QueueParts]:
        """Return up to ``most`` of the queues at rest that have something in their journals since
        before ``moment``. Their time at rest begins anew, whatever becomes of them."""
        with self._lock:
            old = takewhile(lambda one: one[1] < moment, self._at_rest.items())
            found = [queue for queue, _ in islice(old, most)]
            for queue in found:
                del self._at_rest[queue]
                self._at_rest[queue] = monotonic()
            return found

    def admit(self, queue: QueueParts) -> None:
        """Make room for a queue that is about to wake, and whose lock is held.

        Where none of the others can be put to rest (all are in use) there is one too many.
        """
        with self._lock:
            self._at_rest.pop(queue, None)
            self._awake[queue] = queue.flusher.actions()
            count = len(self._awake)
        if self._ask is not None and count > self._few:
            self._ask()
        if count > self.most:
            self._shrink(self.most, queue)

    def leave(self, queue: QueueParts) -> None:
        """Forget a queue that is closed."""
        with self._lock:
            self._awake.pop(queue, None)
            self._at_rest.pop(queue, None)

    def _now_at_rest(self, queue: QueueParts) -> None:
        journal = queue.state.index.journal
        with self._lock:
            self._awake.pop(queue, None)
            if journal.end or not journal.is_durable():
                self._at_rest[queue] = monotonic()

    def trim(self) -> None:
        """Put queues to rest until a few more can wake without that."""
        if len(self._awake) > self._few:
            self._shrink(self._few, None)

    def _shrink(self, most: int, but: QueueParts | None) -> None:
        # A queue that has done something since the last look gets another turn.
        for _ in range(2 * len(self._awake)):
            queue = self._next(most)
            if queue is None:
                return
            if queue is not but:
                self.put_to_rest(queue)

    def _next(self, most: int) -> QueueParts | None:
        """Return the next queue that has done nothing since it was looked at last, if there are
        more than ``most``. It goes to the end, as those do that have done something."""
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
        """Close a queue's files, and put its memory away. Return whether that was done: not of a
        queue that is in use at this moment, or closed. Waits for no lock of a queue."""
        state = queue.state
        lock = state.lock
        if lock.is_mine() or not lock.acquire(blocking=False):
            return False
        try:
            in_use = state.flushing or state.index.changing or not queue.letters.is_empty()
            if in_use or lock.refusal is not None:
                return False
            state.rewind()
            state.index.rest()
            # This comes before the lock is released: the queue may wake at once.
            self._now_at_rest(queue)
        finally:
            lock.release()
        return True
