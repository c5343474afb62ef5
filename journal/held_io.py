"""Reads and writes of little that do not wait keep the interpreter's lock.

Python's own let go of it for each, and a thread that wants it takes it then: with messages of some
KiB, eight threads handed it on at each message, and each of them stood at the others' locks
meanwhile. What is in memory is copied in microseconds; nobody gains by the lock for so long.

* A read asks for what is in memory (``RWF_NOWAIT`` of Linux's ``preadv2``). Where that is not all
  of it, it is left to :func:`os.pread`.
* A write goes to memory, too, but may have to wait there for the disk, when too much is unwritten.
  Then those after it are left to :func:`os.pwrite`, some hundreds of them.

Errors, too, are left to the functions of :mod:`os`, which do it once more.
"""

from __future__ import annotations

import os
from typing import Final

from journal.compiled import load

__all__ = ["LONGEST", "MOST_BYTES", "PAUSE_AFTER", "pread", "pwrite"]

MOST_BYTES: Final = 128 << 10
"""What is larger lets go of the lock: it takes tens of microseconds."""
LONGEST: Final = 2_000_000
"""Nanoseconds of a write that has waited."""
PAUSE_AFTER: Final = 256
"""Writes after that one that let go of the lock."""

_COMPILED: Final = load("journal")

pread = os.pread
pwrite = os.pwrite
if _COMPILED is not None:
    _COMPILED.use(os.pread, os.pwrite, MOST_BYTES, LONGEST, PAUSE_AFTER)
    pread, pwrite = _COMPILED.pread, _COMPILED.pwrite
