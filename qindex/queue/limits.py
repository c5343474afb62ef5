"""How much a queue may hold: ``max_length`` and ``max_bytes``, of the messages that are ready.

A publish takes its room first, under the queue's lock, before anything is stored; so a batch, or a
message for several queues, is published as a whole or not at all. What returns to its place (a
requeue, a restart) is taken back however full the queue is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, cast

from journal.errors import DamageError, QueueFullError
from qindex.format.settings import QueueSettings
from qindex.queue.delivery import Batch
from qindex.queue.wake_ups import CALLER, time_left

if TYPE_CHECKING:
    from qindex.queue.prepared_message import Prepared
    from qindex.queue.producing import Publisher
    from qindex.queue.queue import Queue

__all__ = [
    "Limits",
    "WouldWaitError",
    "ask_for_room",
    "give_room_back",
    "keep_within",
    "note_refusal",
    "take_room",
]

_log = logging.getLogger("qindex.queue")


class WouldWaitError(QueueFullError):
    """The queue is full, and its publishers wait for room, which this caller may not: the asyncio
    twin does the waiting, for room in ``queue`` for ``count`` messages."""

    def __init__(self, queue: Publisher, count: int, text: str) -> None:
        super().__init__(text)
        self.queue = queue
        self.count = count


class Limits:
    """The limits of one queue, whose lock is held for every call.

    ``bytes``: of the bodies that are ready, counted if there is a ``max_bytes``. ``waiting``: how
    many publishers wait for room.
    """

    def __init__(self, settings: QueueSettings, ready_bytes: int) -> None:
        self.max_length = settings.max_length
        self.max_bytes = settings.max_bytes
        self.overflow = settings.overflow
        self.bytes = ready_bytes
        self.waiting = 0
        self._taken = 0
        self._taken_bytes = 0

    def never_fits(self, count: int, size: int) -> bool:
        """Tell whether so much would exceed a limit even of an empty queue."""
        return self._exceeds(count, size)

    def fits(self, ready: int, count: int, size: int) -> bool:
        """Tell whether there is room for so much beside what is ``ready``."""
        return not self._exceeds(ready + self._taken + count, self.bytes + self._taken_bytes + size)

    def is_over(self, ready: int) -> bool:
        """Tell whether more is ready than may be."""
        return self._exceeds(ready, self.bytes)

    def _exceeds(self, count: int, size: int) -> bool:
        return (self.max_length is not None and count > self.max_length) or (
            self.max_bytes is not None and size > self.max_bytes
        )

    def take(self, count: int, size: int) -> None:
        """Keep room for what is about to be published."""
        self._taken += count
        self._taken_bytes += size

    def give_back(self, count: int, size: int) -> None:
        """Give back what was kept: it was published, or will not be."""
        self._taken -= count
        self._taken_bytes -= size


def _sizes(items: Sequence[Prepared]) -> tuple[int, int]:
    return len(items), sum(item.size for item in items)


def ask_for_room(queue: Publisher, items: Sequence[Prepared], timeout: float | None) -> None:
    """Take room for a publish, as :func:`take_room`; one that is refused is counted."""
    try:
        take_room(queue, items, timeout)
    except WouldWaitError:
        raise
    except QueueFullError:
        note_refusal(queue, len(items))
        raise


def note_refusal(queue: Publisher, count: int) -> None:
    """Count messages that were not published, because the queue was full. No lock is held."""
    with queue._real_lock:
        queue._tally.refused += count


def take_room(queue: Publisher, items: Sequence[Prepared], timeout: float | None) -> None:
    """Keep room in a queue with limits; waits up to ``timeout`` seconds for it (``None``: for
    ever) if the queue's publishers do.

    Raises :class:`QueueFullError`; :class:`WouldWaitError` on the thread of an event loop.
    """
    limits = queue._limits
    assert limits is not None
    count, size = _sizes(items)
    if limits.overflow == "drop-head":
        _check_head(queue, items)
    with queue._lock:
        if limits.overflow != "drop-head":
            _await_room(queue, limits, count, size, timeout)
        limits.take(count, size)


def _check_head(queue: Publisher, items: Sequence[Prepared]) -> None:
    """See that there is a head to be dropped: its messages may have nowhere to go."""
    limits = queue._limits
    assert limits is not None
    largest = max(item.size for item in items)
    if limits.max_bytes is not None and largest > limits.max_bytes:
        raise QueueFullError(
            f"queue {queue.name!r} takes {limits.max_bytes} bytes (max_bytes), not {largest}"
        )
    if queue._stuck:
        cast("Queue", queue)._move_waiting(again=True)
        if queue._stuck:
            raise QueueFullError(
                f"queue {queue.name!r} is full, and so is its dead-letter queue "
                f"{queue.settings.dead_letter!r}: nothing can be dropped from its head"
            )


def _await_room(
    queue: Publisher, limits: Limits, count: int, size: int, timeout: float | None
) -> None:
    if limits.never_fits(count, size):
        raise QueueFullError(f"{_full(queue, limits)}: {count} messages of {size} bytes never fit")
    deadline = None if timeout is None else monotonic() + timeout
    while not limits.fits(len(queue), count, size):
        left = time_left(deadline)
        if limits.overflow == "reject" or (left is not None and left <= 0):
            raise QueueFullError(f"{_full(queue, limits)}, and has {len(queue)} messages")
        if not CALLER.waits:
            raise WouldWaitError(queue, count, _full(queue, limits))
        limits.waiting += 1
        try:
            queue._room.wait(left)
        finally:
            limits.waiting -= 1
        queue._check_open()


def _full(queue: Publisher, limits: Limits) -> str:
    said = [
        f"{name}={value}"
        for name, value in (("max_length", limits.max_length), ("max_bytes", limits.max_bytes))
        if value is not None
    ]
    return f"queue {queue.name!r} is full ({', '.join(said)})"


def give_room_back(queue: Publisher, items: Sequence[Prepared]) -> None:
    """Give back the room that was kept for what could not be published."""
    limits = queue._limits
    if limits is not None:
        with queue._real_lock:
            limits.give_back(*_sizes(items))
            queue._room.notify_all()


def keep_within(publisher: Publisher) -> None:
    """Drop the oldest messages of a queue with ``overflow="drop-head"`` until it is within its
    limits; with a dead-letter queue they go there. No lock is held."""
    queue, limits = cast("Queue", publisher), publisher._limits
    if limits is None or limits.overflow != "drop-head":
        return
    with queue._lock:
        while limits.is_over(len(queue)) and _drop_some(queue, limits):
            pass
    queue._move_waiting()


def _drop_some(queue: Queue, limits: Limits) -> bool:
    """Drop messages that are certainly too many; false when there is nothing to drop."""
    most = 1 if limits.max_length is None else max(len(queue) - limits.max_length, 1)
    batch = Batch(queue, queue._index.nacks)
    try:
        taken = queue._take_into(batch, most)
    except DamageError as error:
        _log.warning("dropped from the head: %s", error)
        return True
    finally:
        queue._mark_out(batch)
    if batch:
        queue._part_with(batch, "overflow")
    return taken
