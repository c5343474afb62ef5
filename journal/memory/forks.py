"""Whether this process is a fork of the one in which an object was made.

Hooks of :func:`os.register_at_fork` run only where Python forks. A server or a library that forks
in C (uWSGI, for one) runs none of them. So each process has a stamp, on a page that the kernel
wipes in every forked child, and what belongs to a process keeps the stamp of its making. To compare
the two costs one read of memory.
"""

from __future__ import annotations

import mmap
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable

_MADV_WIPEONFORK = 18
"""Since Linux 4.14; the module :mod:`mmap` does not name it."""
_PATIENCE = 1.0
"""Seconds to wait for another thread's stamp. That thread may be one of the parent process."""


def _wiped_page() -> memoryview | None:
    if sys.platform != "linux":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_MADV_WIPEONFORK)
    except (OSError, ValueError):
        return None
    return memoryview(page).cast("Q")


PAGE = _wiped_page()
"""Its first word is the stamp, or 0 in a forked child that has made none yet. ``None`` where the
kernel wipes no pages: then the number of the process is its stamp."""
_last = 0
_stamping = allocate_lock()


def stamp() -> int:
    """Return the stamp of this process. In a forked child it differs from those of all processes
    that it descends from."""
    global _last
    if PAGE is None:
        return os.getpid()
    if not PAGE[0]:
        alone = _stamping.acquire(timeout=_PATIENCE)
        try:
            if not PAGE[0]:
                _last += 1
                PAGE[0] = _last
        finally:
            if alone:
                _stamping.release()
    return PAGE[0]


_in_child: list[Callable[[], None]] = []


def in_child(call: Callable[[], None]) -> None:
    """Make a call in each forked child: at the fork where Python forks, and each time a child finds
    that it is one (:func:`noticed`)."""
    os.register_at_fork(after_in_child=call)
    _in_child.append(call)


def noticed() -> None:
    """Take note that this process uses what a parent process of it has made."""
    for call in _in_child:
        call()


stamp()
