"""A file system that counts: what the engine writes, maps and syncs.

Goes through the engine's own file seam, so it needs no privileges and no other program.
"""

from __future__ import annotations

import mmap
import os

from journal.fs.files import PathLike, ReadBuffer, RealFileSystem


class CountingFileSystem(RealFileSystem):
    """The real file system, with counters.

    ``written`` is in bytes, ``write_calls`` and ``syncs`` are calls (``fdatasync``, ``fsync`` and
    directory syncs). Not for several threads that write at once: the counters take no lock.
    """

    def __init__(self) -> None:
        self.written = 0
        self.write_calls = 0
        self.syncs = 0
        self._paths: dict[int, str] = {}
        self._mapped: set[str] = set()

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:  # type: ignore[override]
        fd = os.open(path, flags, mode)
        self._paths[fd] = os.fspath(path)
        return fd

    def write(self, fd: int, data: ReadBuffer, /) -> int:  # type: ignore[override]
        done = os.write(fd, data)
        self.written += done
        self.write_calls += 1
        return done

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:  # type: ignore[override]
        done = os.pwrite(fd, data, offset)
        self.written += done
        self.write_calls += 1
        return done

    def fdatasync(self, fd: int, /) -> None:  # type: ignore[override]
        self.syncs += 1
        os.fdatasync(fd)

    def fsync(self, fd: int, /) -> None:  # type: ignore[override]
        self.syncs += 1
        os.fsync(fd)

    def mmap(self, fd: int, length: int, writable: bool, /) -> mmap.mmap:  # type: ignore[override]
        if writable:
            self._mapped.add(self._paths[fd])
        return RealFileSystem.mmap(fd, length, writable)

    def sync_dir(self, path: PathLike, /) -> None:  # type: ignore[override]
        self.syncs += 1
        RealFileSystem.sync_dir(path)

    def mapped_bytes(self) -> int:
        """Give the bytes that the mapped files hold, without the zeros at their ends."""
        total = 0
        for path in self._mapped:
            try:
                with open(path, "rb") as file:
                    total += len(file.read().rstrip(b"\0"))
            except FileNotFoundError:
                continue  # removed by the store since it was mapped
        return total
