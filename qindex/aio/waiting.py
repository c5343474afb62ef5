"""Wait, in a coroutine, for a bell of a queue: until it rings, time is up, or it is cancelled.

No publish is missed between leaving a listener and looking at the queue once more: a later one
rings it. A ring is for one waiter, so a waiter that has no use for its ring, as it was cancelled
for example, rings again.

Publishers of a queue with ``overflow="block"`` wait so for room. A call on a loop's thread, or in
the helper's, waits for nothing: it says which queue is full. The coroutine leaves a listener there
and tries again, once at once, for there may have been room made in between, and then each time it
is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

from qindex.aio.threads import Helper
from qindex.queue.room import WouldWaitError
from qindex.queue.state import QueueState
from qindex.queue.wake_ups import Bell, deadline_after, time_left

T = TypeVar("T")

_LONGEST_WAIT = 365 * 86_400.0
"""Seconds: a loop's timers do not take all that a caller may ask for."""


class Waiter:
    """A listener of one coroutine, on one bell of a queue, for one ring; it listens within its
    ``with`` block. Entering it raises as the queue's calls do.

    ``content``: it has no use for its ring.
    """

    __slots__ = ("_bell", "_future", "_loop", "_state", "content")

    def __init__(self, state: QueueState, bell: Bell) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[bool] = self._loop.create_future()
        self._state = state
        self._bell = bell
        self.content: bool = False

    def __enter__(self) -> Self:
        with self._state.lock, self._state:
            self._bell.listen(self._ring)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_ended: object) -> None:
        if kind is GeneratorExit:
            # The loop has ended and dropped this coroutine, at whatever place of the program the
            # collector ran: no lock may be taken. The next ring finds no waiter.
            return
        with self._state.lock.anyway:
            rung = not self._bell.forget(self._ring)
            if rung and (self.content or kind is not None):
                self._bell.notify()

    def _ring(self) -> bool:
        """Wake the coroutine, from any thread; false when its loop is closed."""
        try:
            if asyncio._get_running_loop() is self._loop:
                self._wake(True)
            else:
                self._loop.call_soon_threadsafe(self._wake, True)
        except RuntimeError:
            return False
        return True

    def _wake(self, rung: bool) -> None:
        if not self._future.done():
            self._future.set_result(rung)

    async def wait(self, seconds: float | None) -> bool:
        """Sleep until the ring; false when ``seconds`` have passed without one."""
        if seconds is None:
            return await self._future
        timer = self._loop.call_later(min(seconds, _LONGEST_WAIT), self._wake, False)
        try:
            return await self._future
        finally:
            timer.cancel()


async def first_ring(waiters: Sequence[Waiter], seconds: float | None) -> None:
    """Sleep until the first of these has its ring, or ``seconds`` have passed."""
    wait = None if seconds is None else min(max(seconds, 0), _LONGEST_WAIT)
    futures = [one._future for one in waiters]
    await asyncio.wait(futures, timeout=wait, return_when=asyncio.FIRST_COMPLETED)


async def with_room(
    publish: Callable[[], Awaitable[T]], timeout: float | None, helper: Helper
) -> T:
    """Await ``publish()`` until it finds room, for up to ``timeout`` seconds (``None``: for ever).

    Raises :class:`QueueFullError` when the time is up. Cancelled while it waits, nothing is
    published.
    """
    deadline = deadline_after(timeout)
    while True:
        try:
            return await publish()
        except WouldWaitError as error:
            full = error.room
            if error.is_stuck:
                if not await helper.run(full.free_head):
                    full.count_refusal(error.count)
                    raise
                continue
            _time_left(error, deadline)
        with Waiter(full.state, full.state.room) as waiter:
            try:
                return await publish()
            except WouldWaitError as error:
                is_full = error.room is full and not error.is_stuck
                left = _time_left(error, deadline) if is_full else None
            if is_full:
                await waiter.wait(left)


def _time_left(error: WouldWaitError, deadline: float | None) -> float | None:
    """Return the seconds left to wait for room. Raises ``error`` where there are none."""
    left = time_left(deadline)
    if left is not None and left <= 0:
        error.room.count_refusal(error.count)
        raise error
    return left
