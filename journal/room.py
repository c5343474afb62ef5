"""Room for a journal: blocks are reserved before they are mapped, and some more after the map.

After the map the file has a *reserve*, which only deliver and ack records may use, once the disk
is full: consuming makes room again. It is as large as the delivers and acks of all messages that
the journal can hold, and of one segment; at least a page.
"""

from __future__ import annotations

import errno
import mmap
from contextlib import suppress

from journal.format import ACTION_SIZE
from journal.fs.files import FileSystem
from journal.fs.written_map import map_writable

FIRST_CAPACITY = 12 << 10
"""Bytes that are mapped at first. With the reserve it makes 16 KiB: what an idle queue costs."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MAX_STEP = 8 << 20
_RESERVED_PART = 4
"""A quarter of the journal: a publish record has 62 bytes at least, deliver and ack have 16."""
_MAX_RESERVED = 1 << 20


def whole_pages(size: int) -> int:
    """Round up."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def make_room(
    fs: FileSystem, fd: int, had: int, position: int, room: int, entries: int
) -> tuple[mmap.mmap, int]:
    """Make room for ``room`` bytes after ``position``, and the reserve, in a file of ``had``
    bytes; return a map of all but the reserve, and how many bytes the file has now.

    ``entries``: the reserve is to have room for delivers and acks of this many at least. Raises
    :class:`OSError`.
    """
    step = min(max(position, FIRST_CAPACITY), _MAX_STEP)
    capacity = whole_pages(position + max(room, step))
    part = min(capacity // _RESERVED_PART, _MAX_RESERVED)
    allocated = capacity + whole_pages(max(part, entries * 2 * ACTION_SIZE))
    allocate(fs, fd, had, allocated)
    return map_writable(fs, fd, capacity), allocated


def allocate(fs: FileSystem, fd: int, had: int, size: int) -> None:
    """Extend a file of ``had`` bytes to ``size``, with blocks. Raises :class:`OSError`."""
    try:
        fs.fallocate(fd, 0, size)
    except OSError:
        # Some file systems keep the blocks of a call that fails half-way, and the disk may be full.
        # Blocks that can't be given back stay as zeros past the end.
        with suppress(OSError):
            fs.truncate(fd, had)
        raise
