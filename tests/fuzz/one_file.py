"""A file system in which every name is a file of the same bytes, in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from journal.fs.files import PathLike, RealFileSystem

__all__ = ["OneFile"]


@dataclass
class OneFile(RealFileSystem):
    """For decoders that read through the seam; nothing can be written."""

    data: bytes
    _position: int = 0

    def open(self, _path: PathLike, _flags: int, _mode: int = 0o666, /) -> int:  # type: ignore[override]
        self._position = 0
        return 0

    def close(self, _fd: int, /) -> None:
        self._position = 0

    def read(self, _fd: int, length: int, /) -> bytes:
        piece = self.data[self._position : self._position + length]
        self._position += len(piece)
        return piece

    def pread(self, _fd: int, length: int, offset: int, /) -> bytes:
        return self.data[offset : offset + length]

    def lseek(self, _fd: int, offset: int, whence: int, /) -> int:
        return offset if whence == os.SEEK_DATA else len(self.data)

    def fstat(self, _fd: int, /) -> os.stat_result:
        return os.stat_result((0o100644, 0, 0, 1, 0, 0, len(self.data), 0, 0, 0))

    def stat(self, _path: PathLike, /) -> os.stat_result:  # type: ignore[override]
        return self.fstat(0)
