"""The store time of messages, in milliseconds: the clock's, as RocketMQ's is.

It waits where the clock goes back by less than a second. Beyond that it follows the clock: if
somebody has set that right, messages must not be dated in the future ever after.

The header fields that the usual messages of a millisecond share are packed once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rocketstore.format import words
from rocketstore.format.commitlog_format import STAMP, host_bytes
from rocketstore.options import Options, clock_ms

_log = logging.getLogger("qindex.rocketstore")
_NEVER = (1 << 63) - 1
_PATIENCE_MS = 1000


class StoreClock:
    """``now`` is the store time (ms) of the last message. It changes from ``next_tick`` on, in the
    clock's own unit, and up to ``first_tick``.

    ``host`` is the store's address as a record has it (``wide``: IPv6). ``stamp`` holds sysFlag,
    born timestamp and host, store timestamp and host, reconsume times and prepared transaction
    offset of a usual message that is put now.
    """

    __slots__ = (
        "_own", "_ticks_per_ms", "first_tick", "host", "next_tick", "now", "stamp", "wide",
    )  # fmt: skip

    def __init__(self, options: Options, newest: int) -> None:
        self.host: bytes = host_bytes(options.store_host)
        self.wide: bool = len(self.host) != 8
        # Read the system's clock in its own unit: most readings need no division then.
        self._own: Callable[[], int] | None = options.clock
        self._ticks_per_ms = 1
        if options.clock is clock_ms:
            self._own = None
            self._ticks_per_ms = 1_000_000
        self.now: int = newest
        self.first_tick: int = 0
        self.next_tick: int = 0
        self.stamp: bytes = b""
        self.advance(newest * self._ticks_per_ms)

    def advance(self, ticks: int) -> None:
        """Begin another millisecond."""
        now = ticks // self._ticks_per_ms
        self.stamp = STAMP.pack(0, now, self.host, now, self.host, 0, 0)
        self.now = now
        # A damaged record may have any time, even a time that no clock will ever show.
        self.next_tick = min((now + 1) * self._ticks_per_ms, _NEVER)
        self.first_tick = min((now - _PATIENCE_MS) * self._ticks_per_ms, _NEVER)

    def restart(self, newest: int) -> None:
        """Go on after a call that was cut short, perhaps in :meth:`advance`."""
        self.advance(max(self.now, newest) * self._ticks_per_ms)

    def read(self) -> int:
        """The store time (ms) of a message that is put now."""
        # Not in one expression: the number would be made an object.
        if self._own is None:
            ticks = words.now_ns()
        else:
            ticks = self._own()
        if ticks >= self.next_tick:
            self.advance(ticks)
        elif ticks <= self.first_tick:
            before = self.now
            self.advance(ticks)
            _log.warning(
                "the clock went back by %.3f s: the last message was stored at %d ms, the next is "
                "stored at %d ms", (before - self.now) / 1000, before, self.now,
            )  # fmt: skip
        return self.now
