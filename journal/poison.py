"""A failed write or sync ends all writes of a store.

A failed fsync leaves pages whose state nobody knows, and the kernel reports it once: a retry that
succeeds proves nothing (the "fsyncgate" of PostgreSQL, 2018). So the failure is a state of the
engine, kept here, and every later write is refused with the first reason. Reading goes on.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread
from typing import Protocol

from journal.errors import StorageError, StoreError, UnopenedError, WritesRefusedError
from journal.locks.lock_order import LockOrder

_NO_HANDLE = frozenset({errno.EMFILE, errno.ENFILE})
PASSING = _NO_HANDLE | {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM}
"""Errors of a file operation (not of a sync) that leave all as it was: it can be tried again."""


def was_tried(error: OSError) -> bool:
    """Return whether a sync that failed had begun: where there was no handle for it (the
    application has used them up), nothing is in doubt, and it can be tried again."""
    return error.errno not in _NO_HANDLE and not isinstance(error, UnopenedError)


def is_passing(error: BaseException) -> bool:
    """Return whether a file operation failed so that it can be tried again as it is."""
    return isinstance(error, StorageError) and error.errno in PASSING


class _Refuser(Protocol):
    def refuse(self) -> None: ...


class Poison:
    """Shared by all files of one engine; ``reason`` is ``None`` while all is well. ``thread``: the
    name of the thread in which the system refused a write or a sync. ``order``: of the locks of all
    that share it."""

    __slots__ = ("_said", "_writers", "order", "reason", "thread")

    def __init__(self) -> None:
        self.order: LockOrder = LockOrder()
        self.reason: str | None = None
        self.thread: str | None = None
        self._said = ""
        self._writers: weakref.WeakSet[_Refuser] = weakref.WeakSet()

    def watch(self, writer: _Refuser) -> None:
        """Call ``writer.refuse()`` when writes are refused: for one whose hot path does not ask."""
        self._writers.add(writer)

    def set(self, error: BaseException) -> None:
        """Refuse writes from now on; the first reason is kept."""
        said = f"an earlier one failed ({error}); close, see to the disk, and open again"
        if self.reason is None:
            self.thread = current_thread().name
        self._set(str(error), said)

    def cut_short(self, error: BaseException) -> None:
        """Refuse writes from now on: a call was cut short in the middle, and not by its own error.
        A signal's handler has raised (Ctrl-C), or memory ran out. Recovery judges what the call had
        done, as after a crash at that point."""
        reason = f"a call was cut short by {type(error).__name__}"
        self._set(reason, f"{reason}; close, and open again")

    @contextmanager
    def whole(self) -> Iterator[None]:
        """See that a block is done whole, or refuse writes from then on."""
        try:
            yield
        except StoreError:
            raise
        except BaseException as error:
            self.cut_short(error)
            raise

    def _set(self, reason: str, said: str) -> None:
        if self.reason is None:
            self.reason, self._said = reason, said
        for writer in list(self._writers):
            writer.refuse()

    def check(self) -> None:
        """Raise :class:`WritesRefusedError` when a write or sync has failed before."""
        if self.reason is not None:
            raise WritesRefusedError(f"no more writes: {self._said}")
