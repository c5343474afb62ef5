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

from journal.fs.files import REAL, FileSystem, PathLike, ReadBuffer

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
    """A file system (the real one) with faults. ``calls`` counts the calls of each operation."""

    def __init__(self, base: FileSystem = REAL) -> None:
        self._base = base
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
        """Let an operation ("": any) fail with ``error`` (an ``errno``) after ``after`` good calls.

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
            if fault.operation not in ("", operation) or fault.path not in path:
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
        fd = self._base.open(path, flags, mode)
        self._paths[fd] = os.fspath(path)
        return fd

    def close(self, fd: int, /) -> None:
        path = self._paths.pop(fd, "")
        # On Linux a close that fails has closed the file all the same.
        self._base.close(fd)
        self._enter("close", path)

    def read(self, fd: int, length: int, /) -> bytes:
        fault = self._meet("read", self._paths.get(fd, ""))
        if fault is not None and fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        short = length if fault is None or fault.short is None else min(length, fault.short)
        return self._base.read(fd, short)

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        fault = self._meet("pread", self._paths.get(fd, ""))
        if fault is not None and fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        short = length if fault is None or fault.short is None else min(length, fault.short)
        return self._base.pread(fd, short, offset)

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        fault = self._meet("write", self._paths.get(fd, ""))
        if fault is None:
            return self._base.write(fd, data)
        done = 0 if fault.short is None else self._base.write(fd, memoryview(data)[: fault.short])
        if fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        return done

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:
        fault = self._meet("pwrite", self._paths.get(fd, ""))
        if fault is None:
            return self._base.pwrite(fd, data, offset)
        part = None if fault.short is None else memoryview(data)[: fault.short]
        done = 0 if part is None else self._base.pwrite(fd, part, offset)
        if fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        return done

    def truncate(self, fd: int, length: int, /) -> None:
        self._enter_fd("truncate", fd)
        self._base.truncate(fd, length)

    def lseek(self, fd: int, offset: int, whence: int, /) -> int:
        self._enter_fd("lseek", fd)
        return self._base.lseek(fd, offset, whence)

    def fallocate(self, fd: int, offset: int, length: int, /) -> None:
        self._enter_fd("fallocate", fd)
        self._base.fallocate(fd, offset, length)

    def fdatasync(self, fd: int, /) -> None:
        self._enter_fd("fdatasync", fd)
        self._base.fdatasync(fd)

    def fsync(self, fd: int, /) -> None:
        self._enter_fd("fsync", fd)
        self._base.fsync(fd)

    def mmap(self, fd: int, length: int, writable: bool, /) -> _mmap.mmap:
        self._enter_fd("mmap", fd)
        return self._base.mmap(fd, length, writable)

    def rename(self, source: PathLike, target: PathLike, /) -> None:
        self._enter("rename", source)
        self._base.rename(source, target)

    def unlink(self, path: PathLike, /) -> None:
        self._enter("unlink", path)
        self._base.unlink(path)

    def mkdir(self, path: PathLike, /) -> None:
        self._enter("mkdir", path)
        self._base.mkdir(path)

    def rmdir(self, path: PathLike, /) -> None:
        self._enter("rmdir", path)
        self._base.rmdir(path)

    def listdir(self, path: PathLike, /) -> list[str]:
        self._enter("listdir", path)
        return self._base.listdir(path)

    def stat(self, path: PathLike, /) -> os.stat_result:
        self._enter("stat", path)
        return self._base.stat(path)

    def statvfs(self, path: PathLike, /) -> os.statvfs_result:
        self._enter("statvfs", path)
        return self._base.statvfs(path)

    def fstat(self, fd: int, /) -> os.stat_result:
        self._enter_fd("fstat", fd)
        return self._base.fstat(fd)

    def sync_dir(self, path: PathLike, /) -> None:
        self._enter("sync_dir", path)
        self._base.sync_dir(path)

    def lock(self, fd: int, /) -> bool:
        self._enter_fd("lock", fd)
        return self._base.lock(fd)

    def lock_shared(self, fd: int, /) -> bool:
        self._enter_fd("lock_shared", fd)
        return self._base.lock_shared(fd)

    def unlock(self, fd: int, /) -> None:
        self._enter_fd("unlock", fd)
        self._base.unlock(fd)

    def lock_byte(self, fd: int, /) -> bool:
        self._enter_fd("lock_byte", fd)
        return self._base.lock_byte(fd)

    def byte_holder(self, fd: int, /) -> int | None:
        self._enter_fd("byte_holder", fd)
        return self._base.byte_holder(fd)

    def boot_id(self) -> bytes:
        return self._base.boot_id()
