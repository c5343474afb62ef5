"""Room in a queue with limits.

A publish takes its room first, under the queue's lock, before anything is stored; so a batch, or a
message for several queues, is published as a whole or not at all. A message that returns to its
place (a requeue, a restart) is taken back however full the queue is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from journal.errors import DamageError, QueueFullError
from qindex.queue.dead_letters import DeadLetters
from qindex.queue.delivering import Deliverer
from qindex.queue.delivery import Batch
from qindex.queue.limits import Limits
from qindex.queue.prepared_message import Prepared
from qindex.queue.settling import Settler
from qindex.queue.state import QueueState

_log = logging.getLogger("qindex.queue")


class WouldWaitError(QueueFullError):
    """The queue is full, and the core does not wait for room. The caller's loop does, as
    :func:`qindex.queue.waiting.await_room`, for ``room`` for ``count`` messages with bodies of
    ``size`` bytes, and publishes again.

    ``is_stuck``: the messages at the head could not be moved to their dead-letter queue. The loop
    tries that once more (:meth:`Room.free_head`), and does not wait.
    """

    def __init__(
        self, room: Room, count: int, size: int, text: str, *, is_stuck: bool = False
    ) -> None:
        super().__init__(text)
        self.room = room
        self.count = count
        self.size = size
        self.is_stuck = is_stuck


class Room:
    """Allots the room of one queue, if it has limits."""

    def __init__(
        self,
        state: QueueState,
        letters: DeadLetters,
        deliverer: Deliverer,
        settler: Settler,
    ) -> None:
        self.state = state
        self._letters = letters
        self._deliverer = deliverer
        self._settler = settler

    def is_stuck(self) -> bool:
        """Return whether nothing can be dropped from the head now: the dead-letter queue is
        full."""
        return self._letters.stuck

    def ask(self, items: Sequence[Prepared]) -> list[Prepared]:
        """Take room for a publish, as :meth:`take`; a publish that is refused is counted."""
        try:
            return self.take(items)
        except WouldWaitError:
            raise
        except QueueFullError:
            self.count_refusal(len(items))
            raise

    def count_refusal(self, count: int) -> None:
        """Count messages that were not published, because the queue was full. No lock is held."""
        with self.state.lock.anyway:
            self.state.tally.refused += count

    def take(self, items: Sequence[Prepared]) -> list[Prepared]:
        """Keep room in a queue with limits. Returns what room was kept for: nothing where the queue
        has no limits.

        Raises :class:`QueueFullError`; :class:`WouldWaitError` if the queue's publishers wait.
        """
        limits = self.state.limits
        if limits is None or not items:
            return []
        count, size = _sizes(items)
        if limits.overflow == "drop-head":
            self._check_head(limits, items)
        with self.state.lock, self.state:
            if limits.overflow != "drop-head":
                self._check(limits, count, size)
            limits.take(count, size)
        return list(items)

    def _check_head(self, limits: Limits, items: Sequence[Prepared]) -> None:
        """See that there is a head to be dropped: its messages may have nowhere to go."""
        name, letters = self.state.name, self._letters
        largest = max(item.size for item in items)
        if limits.max_bytes is not None and largest > limits.max_bytes:
            raise QueueFullError(
                f"queue {name!r} takes {limits.max_bytes} bytes (max_bytes), not {largest}"
            )
        if letters.stuck:
            text = (
                f"queue {name!r} is full, and so is its dead-letter queue "
                f"{letters.target!r}: nothing can be dropped from its head"
            )
            raise WouldWaitError(self, *_sizes(items), text, is_stuck=True)

    def free_head(self) -> bool:
        """Move again what was dropped from the head; false where that fails. No lock is held."""
        if self._letters.move_waiting(again=True):
            self._letters.owe()
        return not self._letters.stuck

    def _check(self, limits: Limits, count: int, size: int) -> None:
        if limits.never_fits(count, size):
            what = f"{count} messages of {size} bytes never fit"
            raise QueueFullError(f"{self._full(limits)}: {what}")
        inside = self.state.inside_all()
        if not limits.fits(inside, count, size):
            text = f"{self._full(limits)}, and has {inside} messages"
            if limits.overflow == "reject":
                raise QueueFullError(text)
            raise WouldWaitError(self, count, size, text)

    def is_awaited(self, count: int, size: int) -> bool:
        """Return whether a publish of so much would still raise :class:`WouldWaitError`. Lock
        held."""
        limits = self.state.limits
        return (
            limits is not None
            and limits.overflow == "block"
            and not limits.never_fits(count, size)
            and not limits.fits(self.state.inside_all(), count, size)
        )

    def _full(self, limits: Limits) -> str:
        said = [
            f"{name}={value}"
            for name, value in (("max_length", limits.max_length), ("max_bytes", limits.max_bytes))
            if value is not None
        ]
        return f"queue {self.state.name!r} is full ({', '.join(said)})"

    def give_back(self, held: list[Prepared]) -> None:
        """Release the room that was reserved for messages that were not published."""
        limits = self.state.limits
        if held and limits is not None:
            with self.state.lock.anyway:
                limits.give_back(*_sizes(held))
                held.clear()
                self.state.room.notify_all()

    def keep_within(self) -> None:
        """Drop the oldest messages of a queue with ``overflow="drop-head"`` until it is within its
        limits; with a dead-letter queue they go there. No lock is held."""
        state = self.state
        limits = state.limits
        if limits is None or limits.overflow != "drop-head":
            return
        with state.lock, state:
            while limits.is_over(state.inside_all()) and self.drop_some(limits):
                pass
        self.owe_letters()

    def owe_letters(self) -> None:
        """Note that the dropped messages go to the dead-letter queue."""
        self._letters.owe()

    def drop_some(self, limits: Limits) -> bool:
        """Drop messages that are certainly too many; false when there is nothing to drop. Lock
        held."""
        state = self.state
        most = 1 if limits.max_length is None else max(state.inside_all() - limits.max_length, 1)
        batch = Batch(self._settler, state.index.nacks)
        try:
            # One step at a time: after a message that has expired, enough may be gone.
            goes_on = self._deliverer.take_some(batch, most)
        except DamageError as error:
            _log.warning("dropped from the head: %s", error)
            return True
        if not batch:
            return goes_on
        self._deliverer.mark_out(batch, None)
        self._letters.part_with_batch(batch, "overflow")
        return True


def _sizes(items: Sequence[Prepared]) -> tuple[int, int]:
    return len(items), sum(item.size for item in items)
