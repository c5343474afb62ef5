"""Publish, from a coroutine, to queues whose publishers wait for room (``overflow="block"``).

A call on a loop's thread, or in the helper's, waits for nothing: it says which queue is full. The
coroutine leaves a listener there and tries again, once at once, for there may have been room made
in between, and then each time it is called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from qindex.aio.waiting import Waiter
from qindex.queue.room import Room, WouldWaitError
from qindex.queue.wake_ups import deadline_after, time_left

T = TypeVar("T")


async def with_room(publish: Callable[[], Awaitable[T]], timeout: float | None) -> T:
    """Await ``publish()`` until it finds room, for up to ``timeout`` seconds (``None``: for ever).

    Raises :class:`QueueFullError` when the time is up. Cancelled while it waits, nothing is
    published.
    """
    deadline = deadline_after(timeout)
    waiter: Waiter | None = None
    full: Room | None = None
    try:
        while True:
            try:
                published = await publish()
            except WouldWaitError as error:
                left = time_left(deadline)
                if left is not None and left <= 0:
                    error.room.count_refusal(error.count)
                    raise
                if waiter is None or error.room is not full:
                    _leave(full, waiter)
                    full, waiter = error.room, Waiter(error.room.state.room)
                    with full.state.lock, full.state:
                        waiter.listen()
                    continue
                await waiter.wait(left)
                _leave(full, waiter)
                waiter = None
                continue
            _leave(full, waiter)
            return published
    except GeneratorExit:
        # The loop has ended and dropped this coroutine, at whatever place of the program the
        # collector ran: no lock may be taken. The next ring finds no waiter.
        raise
    except BaseException:
        _leave(full, waiter)
        raise


def _leave(full: Room | None, waiter: Waiter | None) -> None:
    if full is not None and waiter is not None:
        with full.state.lock.anyway:
            waiter.forget()
