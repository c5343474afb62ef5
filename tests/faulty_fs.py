"""A file system that fails on demand.

>>> import errno
>>> fs = FaultyFileSystem()
>>> fs.fail("pwrite", errno.ENOSPC, after=2)  # the third pwrite from now on fails, once
"""

from __future__ import annotations

import mmap as _mmap
import os
from collections import Counter
from dataclasses import dataclass

from journal.files import REAL, PathLike, ReadBuffer

__all__ = ["FaultyFileSystem"]


@dataclass(slots=True)
class _Fault:
    operation: str
    error: int
    after: int
    times: int | None
    path: str
    short: int | None


class FaultyFileSystem:
    """The real file system, with faults. ``calls`` counts the calls of each operation."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._faults: list[_Fault] = []
        self._paths: dict[int, str] = {}

    def fail(
        self,
        operation: str,
        error: int,
        *,
        after: int = 0,
        times: int | None = 1,
        path: str = "",
        short: int | None = None,
    ) -> None:
        """Let an operation fail with ``error`` (an ``errno``) after ``after`` good calls.

        ``times``: how often (``None``: for ever); ``path``: only for paths that contain this;
        ``short``: a write first puts so many bytes in place, as one that meets a full disk does.
        """
        self._faults.append(_Fault(operation, error, after, times, path, short))

    def shorten(self, operation: str, length: int, *, times: int | None = None) -> None:
        """Let a write or read succeed with at most ``length`` bytes."""
        self._faults.append(_Fault(operation, 0, 0, times, "", length))

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def _meet(self, operation: str, path: PathLike) -> _Fault | None:
        """Count the call; the fault it meets, if any."""
        self.calls[operation] += 1
        path = os.fspath(path)
        for fault in list(self._faults):
            if fault.operation != operation or fault.path not in path:
                continue
            if fault.after:
                fault.after -= 1
                continue
            if fault.times is not None:
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
            return fault
        return None

    def _enter(self, operation: str, path: PathLike) -> None:
        fault = self._meet(operation, path)
        if fault is not None and fault.error:
            raise OSError(fault.error, os.strerror(fault.error), os.fspath(path))

    def _enter_fd(self, operation: str, fd: int) -> None:
        self._enter(operation, self._paths.get(fd, ""))

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:
        self._enter("open", path)
        fd = REAL.open(path, flags, mode)
        self._paths[fd] = os.fspath(path)
        return fd

    def close(self, fd: int, /) -> None:
        self._enter_fd("close", fd)
        self._paths.pop(fd, None)
        REAL.close(fd)

    def read(self, fd: int, length: int, /) -> bytes:
        fault = self._meet("read", self._paths.get(fd, ""))
        if fault is not None and fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        short = length if fault is None or fault.short is None else min(length, fault.short)
        return REAL.read(fd, short)

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        fault = self._meet("pread", self._paths.get(fd, ""))
        if fault is not None and fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        short = length if fault is None or fault.short is None else min(length, fault.short)
        return REAL.pread(fd, short, offset)

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        fault = self._meet("write", self._paths.get(fd, ""))
        if fault is None:
            return REAL.write(fd, data)
        done = 0 if fault.short is None else REAL.write(fd, memoryview(data)[: fault.short])
        if fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        return done

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:
        fault = self._meet("pwrite", self._paths.get(fd, ""))
        if fault is None:
            return REAL.pwrite(fd, data, offset)
        part = None if fault.short is None else memoryview(data)[: fault.short]
        done = 0 if part is None else REAL.pwrite(fd, part, offset)
        if fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        return done

    def truncate(self, fd: int, length: int, /) -> None:
        self._enter_fd("truncate", fd)
        REAL.truncate(fd, length)

    def fallocate(self, fd: int, offset: int, length: int, /) -> None:
        self._enter_fd("fallocate", fd)
        REAL.fallocate(fd, offset, length)

    def fdatasync(self, fd: int, /) -> None:
        self._enter_fd("fdatasync", fd)
        REAL.fdatasync(fd)

    def fsync(self, fd: int, /) -> None:
        self._enter_fd("fsync", fd)
        REAL.fsync(fd)

    def mmap(self, fd: int, length: int, writable: bool, /) -> _mmap.mmap:
        self._enter_fd("mmap", fd)
        return REAL.mmap(fd, length, writable)

    def rename(self, source: PathLike, target: PathLike, /) -> None:
        self._enter("rename", source)
        REAL.rename(source, target)

    def unlink(self, path: PathLike, /) -> None:
        self._enter("unlink", path)
        REAL.unlink(path)

    def mkdir(self, path: PathLike, /) -> None:
        self._enter("mkdir", path)
        REAL.mkdir(path)

    def rmdir(self, path: PathLike, /) -> None:
        self._enter("rmdir", path)
        REAL.rmdir(path)

    def listdir(self, path: PathLike, /) -> list[str]:
        self._enter("listdir", path)
        return REAL.listdir(path)

    def stat(self, path: PathLike, /) -> os.stat_result:
        self._enter("stat", path)
        return REAL.stat(path)

    def fstat(self, fd: int, /) -> os.stat_result:
        self._enter_fd("fstat", fd)
        return REAL.fstat(fd)

    def sync_dir(self, path: PathLike, /) -> None:
        self._enter("sync_dir", path)
        REAL.sync_dir(path)

    def lock(self, fd: int, /) -> bool:
        self._enter_fd("lock", fd)
        return REAL.lock(fd)

    def boot_id(self) -> bytes:
        return REAL.boot_id()
