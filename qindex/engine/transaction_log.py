"""The file ``qindex.transactions`` of an open engine (:mod:`qindex.format.transactions`).

It is extended ahead of need and mapped, and a frame is stored into the map, as a record is into a
journal (:mod:`journal.journal`): that costs a tenth of a ``write``.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Collection
from itertools import count

from journal.errors import ClosedError, StorageError, storage_errors
from journal.fs.files import FileSystem, read_file, replace_file, unlink_if_there
from journal.fs.written_map import map_writable
from journal.locks.call_lock import CallLock, refuse_twice
from journal.locks.lock_order import Rank
from journal.memory import words
from journal.poison import Poison
from journal.room import allocate
from qindex.engine.frame_file import FrameFile
from qindex.format import layout
from qindex.format.transactions import frames_of

_log = logging.getLogger("qindex.transactions")

_ROOM = 1 << 16
"""Bytes of room that the file gets at least, when it needs more."""
_MOST_ROOM = 1 << 23
_EMPTY_FROM = 1 << 18
"""The file is emptied when nothing in it matters, and it has this many bytes."""
_SHORTEN_FROM = 1 << 20
"""It is written anew, with what matters, when it needs room, has this many bytes, and half of them
do not matter."""


class Noted:
    """One transaction in the file: ``size`` bytes. ``is_over``: it takes no more."""

    __slots__ = ("is_over", "number", "size")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.size: int = 0
        self.is_over: bool = False


class TransactionLog(FrameFile):
    """The file. Thread-safe.

    ``unsynced``: it has what power loss may take.
    """

    __slots__ = (
        "__weakref__",
        "_limit",
        "_live",
        "_live_size",
        "_lock",
        "_map",
        "_numbers",
        "unsynced",
    )

    def __init__(self, fs: FileSystem, directory: str, poison: Poison, *, durable: bool) -> None:
        path = os.path.join(directory, layout.TRANSACTIONS)
        super().__init__(fs, path, poison, "a transaction", durable=durable)
        self._lock = CallLock()
        self._lock.before_waiting = poison.order.add(Rank.TRANSACTIONS, self._lock._is_owned)
        self._map: mmap.mmap | None = None
        # Frames may be stored up to here.
        self._limit: int = 0
        # The transactions that recovery would have to know of, and the bytes of their frames.
        self._live: dict[int, Noted] = {}
        self._live_size: int = 0
        self._numbers = count(1)
        self.unsynced: bool = False
        poison.watch(self)

    def begin(self) -> Noted:
        """Return a new transaction, of which nothing is noted."""
        return Noted(next(self._numbers))

    def end_one(self, noted: Noted) -> None:
        """Take no more frames of a transaction, which is rolled back."""
        with self._lock:
            noted.is_over = True

    def note(self, noted: Noted, frame: bytes) -> None:
        """Append a frame; durably, where each call is durable. Raises :class:`StorageError`; then
        the frame counts only if writes are refused from now on."""
        lock, size = self._lock, len(frame)
        if lock.is_mine():
            refuse_twice()
        try:
            if not lock.acquire(False):
                lock.wait_for_it()
            if noted.is_over:
                raise ClosedError("the transaction is rolled back")
            if self.end + size > self._limit:
                self._make_room(size)
            assert self._map is not None
            words.store_record(self._map, self.end, frame)
            if self._durable:
                self.sync_frame()
            else:
                self.unsynced = True
            self.end += size
            if not noted.size:
                self._live[noted.number] = noted
            noted.size += size
            self._live_size += size
            lock.release()
        except BaseException:
            lock.let_go()
            raise

    def _make_room(self, size: int) -> None:
        """Make room for ``size`` more bytes. Raises :class:`StorageError`; nothing has changed
        then."""
        self._poison.check()
        if self.end >= _SHORTEN_FROM and 2 * self._live_size <= self.end:
            self._shorten()
        limit = self.end + max(size, min(max(self.end, _ROOM), _MOST_ROOM))
        try:
            fd = self.opened()
            allocate(self._fs, fd, max(self._limit, self.end), limit)
            self._map = map_writable(self._fs, fd, limit)
        except OSError as error:
            raise self.not_noted(error) from error
        self._limit = limit
        if self._poison.reason is not None:
            self.refuse()

    def refuse(self) -> None:
        """Take no more frames: writes are refused."""
        self._limit = 0

    def _shorten(self) -> None:
        """Write the file anew, with what matters. Raises :class:`StorageError`."""
        with storage_errors(self.path, "can't be read"):
            data = frames_of(read_file(self._fs, self.path, self.end), self._live)
        self._let_go_of_map()
        self.close_file()
        try:
            replace_file(self._fs, self.path, data)
        except StorageError as error:
            if error.errno != errno.ENOSPC:
                # Which of the two files has the name, and durably, is not known.
                self._poison.set(error)
            raise
        self.end: int = len(data)

    def _let_go_of_map(self) -> None:
        self._map = None
        self._limit = 0

    def forget_ended(self) -> None:
        """Keep only what matters, durably: seq_ids of a deleted queue will be given out again.
        Raises :class:`StorageError`."""
        with self._lock:
            if not self.end:
                return
            self._poison.check()
            if self._live_size:
                self._shorten()
            else:
                self._empty()
        self.sync()

    def end_all(self, ended: Collection[Noted]) -> None:
        """Forget transactions all of whose effects are in the queues."""
        with self._lock:
            for noted in ended:
                self._live.pop(noted.number, None)
                self._live_size -= noted.size
                noted.size = 0
            if not self._live and self.end >= _EMPTY_FROM:
                self._empty()

    def _empty(self) -> None:
        if self._poison.reason is None:
            # First: no map may be touched past the end of its file.
            self._let_go_of_map()
            if self.empty(_log):
                self.unsynced = True

    def sync(self) -> None:
        """Make all that was noted durable. Raises :class:`StorageError`."""
        with self._lock:
            fd = self.fd
            if not self.unsynced or fd is None:
                return
            self._poison.check()
            try:
                self._fs.fdatasync(fd)
            except OSError as error:
                failure = StorageError(self.path, "transactions can't be synced", error)
                self._poison.set(failure)
                raise failure from error
            self.unsynced = False

    def close(self) -> None:
        """Remove the file, durably, if no transaction in it matters. Raises
        :class:`StorageError`."""
        fs = self._fs
        with self._lock:
            fd = self.fd
            if fd is None:
                return
            self._let_go_of_map()
            is_over = not self._live and self._poison.reason is None
            try:
                if is_over:
                    # An old state of it must not come back, and undo what was committed.
                    fs.truncate(fd, 0)
                    fs.fdatasync(fd)
                    unlink_if_there(fs, self.path)
            except OSError as error:
                raise StorageError(self.path, "can't be removed", error) from error
            finally:
                self.close_file()
