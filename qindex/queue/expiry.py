"""Expiry by a timer: messages whose time is up leave the head of a queue without a consumer.

A message with a ttl, after a message without one, leaves when it gets to the head. While there may
be such messages, or some are with consumers, the timer looks at the head once a second. A queue
without a ttl pays nothing.
"""

from __future__ import annotations

from time import monotonic

from qindex.queue import run_clock
from qindex.queue.dead_letters import DeadLetters
from qindex.queue.delivering import Deliverer
from qindex.queue.flushing import Flusher
from qindex.queue.state import QueueState

_LOOK = 1.0
"""Seconds between two looks at a head that does not expire."""


class Expirer:
    """Drops expired messages at the head of one queue, or lets them go to the dead-letter queue."""

    __slots__ = ("__weakref__", "_deliverer", "_earliest", "_flusher", "_letters", "_state")

    def __init__(
        self,
        state: QueueState,
        flusher: Flusher,
        deliverer: Deliverer,
        letters: DeadLetters,
    ) -> None:
        self._state = state
        self._flusher = flusher
        self._deliverer = deliverer
        self._letters = letters
        # The earliest expiry for which the alarm is set; 0: it is set for none.
        self._earliest: int = 0
        if state.message_ttl is not None and state.index.live:
            self._set(0.0)

    def note(self, expiry: int) -> None:
        """Take note of a message that expires (microseconds since 1970; 0: it does not). The
        queue's lock is held."""
        if expiry and not 0 < self._earliest <= expiry:
            self._earliest = expiry
            self._set(expiry / 1e6 - run_clock.time_ns() / 1e9)

    def _set(self, seconds: float) -> None:
        self._state.alarm.set(self, monotonic() + max(seconds, 0.0))

    def on_alarm(self) -> None:
        """Look at the head. The engine's timer calls it."""
        expiry = 0
        with self._state.lock, self._state as state:
            self._earliest = 0
            try:
                expiry = self._deliverer.expire_head()
                self._flusher.tick()
            finally:
                if expiry:
                    self.note(expiry)
                elif state.index.live or self._flusher.is_due():
                    # What is with a consumer may come back. A flush that runs in another thread
                    # does not include these drops.
                    self._set(_LOOK)
        self._letters.owe()
        self._state.catch_up()
