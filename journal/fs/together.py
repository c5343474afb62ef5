"""Sync many files at a time. A file system lets concurrent syncs share their writes.

Of 3,000 small files, one after the other took 6.8 s and 32 at a time 0.8 s.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from journal.fs.beneath import BeneathFileSystem
from journal.fs.files import FileSystem, RealFileSystem

_T = TypeVar("_T")

_MOST = 32
"""Threads that wait for the disk at a time."""


def together(fs: FileSystem, sync: Callable[[_T], object], items: Iterable[_T]) -> None:
    """Call ``sync`` with each item, in up to 32 threads; the caller is one of them.

    After the first error no further item is begun, and it is raised once all threads have ended.
    Where the system has no thread left, fewer do it. A file system of the tests sees one call after
    the other.
    """
    left = deque(items)
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                item = left.popleft()
            except IndexError:
                return
            try:
                sync(item)
            except BaseException as error:
                errors.append(error)

    threads = []
    if isinstance(fs, RealFileSystem | BeneathFileSystem):
        for _ in range(min(_MOST, len(left)) - 1):
            thread = threading.Thread(target=work, name="qindex-sync", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                break
            threads.append(thread)
    try:
        work()
        for thread in threads:
            thread.join()
    except BaseException as error:  # a signal's handler
        errors.append(error)
        for thread in threads:
            thread.join()
        raise
    if errors:
        raise errors[0]
