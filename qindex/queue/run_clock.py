"""The clock by which messages expire: it does not jump while the process runs.

A message's expiry is kept as a time of the wall clock, for it has to be right after a restart, too.
But a wall clock is set now and then: when it was wrong for a minute, by an hour ahead say, all
messages with a ttl below that would be dropped for good. So within a run the time is that of
the process's start plus the time passed since, by a clock that is never set. From one run to the
next the wall clock counts.
"""

from __future__ import annotations

import time

from journal.memory import words

# A clock that goes on while the machine sleeps, where the system has one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_ATTEMPTS = 5


def _wall_clock_at_zero() -> int:
    """The time of the wall clock when the other one was zero. The two are read one after
    the other, and the processor may be taken away in between: the nearest of some pairs counts."""
    pairs = []
    for _ in range(_ATTEMPTS):
        before = time.clock_gettime_ns(_CLOCK)
        wall = time.time_ns()
        after = time.clock_gettime_ns(_CLOCK)
        pairs.append((after - before, wall - (before + after) // 2))
    return min(pairs)[1]


_BEGAN = _wall_clock_at_zero()


def time_ns() -> int:
    """Return nanoseconds since 1970, by the wall clock of this run's beginning."""
    return _BEGAN + words.clock_ns(_CLOCK)
