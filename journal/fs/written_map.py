"""A map whose stores are writes, for file systems on which a store into a mapped page may fail.

A store into a map can't report an error: the process dies (``SIGBUS``) where the page needs a block
and there is none. On most file systems a block that was reserved once is the page's own. Those that
copy on write (btrfs, bcachefs, ZFS) give a page that is changed again a new block each time it has
been written out, and on a full disk there is none, whatever was reserved. There the map is
memory beside the file: each store is a ``pwrite`` first, whose error is a
:class:`journal.errors.StorageError`, and nothing has changed then in memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from typing import Any, Final

from journal.errors import storage_errors
from journal.fs.beneath import BeneathFileSystem
from journal.fs.files import FileSystem, RealFileSystem, duplicate, pread_all

_COPY_ON_WRITE: Final = frozenset((0x9123683E, 0x2FC12FC1, 0xCA451A4E))
"""``f_type`` of btrfs, ZFS and bcachefs."""
_STATFS_SIZE: Final = 256
"""Bytes, more than any system's ``struct statfs``; the first word is ``f_type``."""
_PIECE: Final = 1 << 20


class WrittenMap(mmap.mmap):
    """Memory that replaces the map of a file: read it as that map, store by slices only."""

    _fd = -1
    _path = ""

    def keep(self, fd: int) -> None:
        """Write each store also to the file that is open as ``fd``, which may be closed."""
        self._path = _path_of(fd)
        self._fd = duplicate(fd)

    def __setitem__(self, key: Any, value: Any, /) -> None:
        start = (key.start or 0) if isinstance(key, slice) else key
        data = value if isinstance(key, slice) else bytes((value,))
        with storage_errors(self._path, "can't be appended to"), memoryview(data) as view:
            done = 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], start + done)
        super().__setitem__(key, value)

    def close(self) -> None:
        """Let go of memory and file."""
        super().close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def map_writable(fs: FileSystem, fd: int, length: int) -> mmap.mmap:
    """Map the first ``length`` bytes of a file to store into. Raises :class:`OSError`."""
    if type(fs) not in (RealFileSystem, BeneathFileSystem) or not copies_on_write(fd):
        return fs.mmap(fd, length, True)
    mapped = WrittenMap(-1, length)
    at = 0
    while at < length and (data := pread_all(fs, fd, min(_PIECE, length - at), at)):
        mmap.mmap.__setitem__(mapped, slice(at, at + len(data)), data)
        at += len(data)
    mapped.keep(fd)
    return mapped


def copies_on_write(fd: int) -> bool:
    """Return whether the file is on a file system that copies changed blocks."""
    if _fstatfs is None:
        return False
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    if _fstatfs(fd, buffer):
        return False
    (kind,) = struct.unpack_from("l", buffer)
    return kind & 0xFFFF_FFFF in _COPY_ON_WRITE


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return "a mapped file"


_fstatfs: Any = None
if sys.platform.startswith("linux"):
    _fstatfs = ctypes.CDLL(None).fstatfs
    _fstatfs.argtypes = (ctypes.c_int, ctypes.c_char_p)
