"""The store time of messages: milliseconds, never running backwards.

The header fields that the usual messages of a millisecond share are packed once.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from rocketstore.commitlog_format import host_bytes
from rocketstore.options import Options, clock_ms

__all__ = ["STAMP_SIZE", "StoreClock"]

_STAMP = struct.Struct(">iq8sq8siq")
STAMP_SIZE = _STAMP.size


class StoreClock:
    """``now`` is the store time (ms) of the last message. ``ticks`` gives the time in the clock's
    own unit; from ``next_tick`` on :meth:`advance` is called with it. ``host`` is the store's
    address as a record has it (``wide``: IPv6). ``stamp`` holds sysFlag, born timestamp and host,
    store timestamp and host, reconsume times and prepared transaction offset of a usual message
    that is put now."""

    __slots__ = ("_ticks_per_ms", "host", "next_tick", "now", "stamp", "ticks", "wide")

    def __init__(self, options: Options, newest: int) -> None:
        self.host: bytes = host_bytes(options.store_host)
        self.wide: bool = len(self.host) != 8
        # The system's clock is asked in its own unit: most readings need no division then.
        own = options.clock is not clock_ms
        self.ticks: Callable[[], int] = options.clock if own else time.time_ns
        self._ticks_per_ms = 1 if own else 1_000_000
        self.now: int = newest
        self.next_tick: int = 0
        self.stamp: bytes = b""
        self.advance(newest * self._ticks_per_ms)

    def advance(self, ticks: int) -> None:
        """Begin another millisecond."""
        now = ticks // self._ticks_per_ms
        self.stamp = _STAMP.pack(0, now, self.host, now, self.host, 0, 0)
        self.now = now
        self.next_tick = (now + 1) * self._ticks_per_ms

    def restart(self, newest: int) -> None:
        """Go on after a call that was cut short, perhaps in :meth:`advance`."""
        self.advance(max(self.now, newest) * self._ticks_per_ms)

    def read(self) -> int:
        """The store time (ms) of a message that is put now."""
        ticks = self.ticks()
        if ticks >= self.next_tick:
            self.advance(ticks)
        return self.now
