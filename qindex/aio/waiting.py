"""Wait, in a coroutine, for a bell of a queue: until it rings, time is up, or it is cancelled.

No publish is missed between leaving a listener and looking at the queue once more: a later one
rings it. A ring is for one waiter, so a waiter that is cancelled after its ring rings again.
"""

from __future__ import annotations

import asyncio

from qindex.queue.wake_ups import Bell

_LONGEST_WAIT = 365 * 86_400.0
"""Seconds: a loop's timers do not take all that a caller may ask for."""


class Waiter:
    """A listener of one coroutine, on one bell, for one ring."""

    __slots__ = ("_bell", "_future", "_loop")

    def __init__(self, bell: Bell) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[bool] = self._loop.create_future()
        self._bell = bell

    def listen(self) -> None:
        """Wait for the bell from now on. The bell's lock is held."""
        self._bell.listen(self.ring)

    def forget(self) -> bool:
        """Stop; false when it has rung. The bell's lock is held."""
        return self._bell.forget(self.ring)

    def ring(self) -> bool:
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
