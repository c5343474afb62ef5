"""Memory as tracemalloc counts it, without the interpreter's table of interned strings.

Whoever interns a string can make that table grow, and msgpack interns each key that it reads. In a
process with many strings this is one block of two, four or eight megabytes, at a time that nobody
can tell: nothing that a queue holds.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

__all__ = ["ROOM", "tracing"]

ROOM = 50_000
"""So many strings can be interned within :func:`tracing` before that table grows."""
_LARGE = 1 << 16
"""Bytes that nothing but that table asks for at a time, where strings are made one by one."""


@contextmanager
def tracing() -> Iterator[None]:
    """Trace allocations meanwhile, with room for interned strings made before."""
    tracemalloc.start(1)
    try:
        _make_room()
        tracemalloc.clear_traces()
        yield
    finally:
        tracemalloc.stop()


def _make_room() -> None:
    """Intern strings until their table is made anew, with room for as many as there are; it keeps
    its size when they go. No more than that stay meanwhile: each table would be twice as large as
    the one before."""
    kept = deque((sys.intern(f"room {number}") for number in range(ROOM)), maxlen=ROOM)
    for number in count(ROOM):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        kept.append(sys.intern(f"room {number}"))
        # The peak: the table may be as large as the one before, which was traced, and has gone.
        _, peak = tracemalloc.get_traced_memory()
        if peak - before > _LARGE:
            return
