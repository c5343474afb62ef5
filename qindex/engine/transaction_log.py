"""The file ``qindex.transactions`` of an open engine (:mod:`qindex.format.transactions`): the one
log of all that spans queues.

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
from journal.fs.files import (
    FileSystem,
    close_quietly,
    read_file,
    replace_file,
    unlink_if_there,
)
from journal.fs.written_map import map_writable
from journal.locks.call_lock import CallLock, refuse_twice
from journal.locks.lock_order import Rank
from journal.memory import words
from journal.poison import Poison
from journal.room import allocate
from qindex.format import layout
from qindex.format.transactions import frames_of

_log = logging.getLogger("qindex.transactions")

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_ROOM = 1 << 16
"""Bytes of room that the file gets at least, when it needs more."""
_MAX_ROOM = 1 << 23
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


class TransactionLog:
    """The file, made by its first frame. Thread-safe.

    ``unsynced``: it has what power loss may take.
    """

    __slots__ = (
        "__weakref__",
        "_durable",
        "_end",
        "_fd",
        "_fs",
        "_limit",
        "_live",
        "_live_size",
        "_lock",
        "_map",
        "_numbers",
        "_path",
        "_poison",
        "unsynced",
    )

    def __init__(self, fs: FileSystem, directory: str, poison: Poison, *, durable: bool) -> None:
        self._fs = fs
        self._path = os.path.join(directory, layout.TRANSACTIONS)
        self._poison = poison
        self._durable: bool = durable
        # Its descriptor, None before the first frame, and the bytes of it that count.
        self._fd: int | None = None
        self._end: int = 0
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
            if self._end + size > self._limit:
                self._make_room(size)
            assert self._map is not None
            words.store_record(self._map, self._end, frame)
            if self._durable:
                self._sync_frame()
            else:
                self.unsynced = True
            self._end += size
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
        if self._end >= _SHORTEN_FROM and 2 * self._live_size <= self._end:
            self._shorten()
        limit = self._end + max(size, min(max(self._end, _ROOM), _MAX_ROOM))
        try:
            fd = self._opened()
            allocate(self._fs, fd, max(self._limit, self._end), limit)
            self._map = map_writable(self._fs, fd, limit)
        except OSError as error:
            raise self._not_noted(error) from error
        self._limit = limit
        if self._poison.reason is not None:
            self.refuse()

    def _opened(self) -> int:
        """Open the file, if it is not, and return its descriptor. Raises :class:`OSError`."""
        fs = self._fs
        if self._fd is None:
            if self._durable and not self._end:
                # First: with a handle of the file, nobody would sync its name again.
                fs.close(fs.open(self._path, _FLAGS))
                fs.sync_dir(os.path.dirname(self._path))
            self._fd = fs.open(self._path, _FLAGS)
        return self._fd

    def _not_noted(self, error: OSError) -> StorageError:
        return StorageError(self._path, "a transaction can't be noted", error)

    def _sync_frame(self) -> None:
        """Make the stored frame durable, or refuse writes. Raises :class:`StorageError`."""
        assert self._fd is not None
        try:
            self._fs.fdatasync(self._fd)
        except OSError as error:
            failure = self._not_noted(error)
            self._poison.set(failure)
            raise failure from error

    def refuse(self) -> None:
        """Take no more frames: writes are refused."""
        self._limit = 0

    def _shorten(self) -> None:
        """Write the file anew, with what matters. Raises :class:`StorageError`."""
        with storage_errors(self._path, "can't be read"):
            data = frames_of(read_file(self._fs, self._path, self._end), self._live)
        self._let_go_of_map()
        self._close_file()
        try:
            replace_file(self._fs, self._path, data)
        except StorageError as error:
            if error.errno != errno.ENOSPC:
                # Which of the two files has the name, and durably, is not known.
                self._poison.set(error)
            raise
        self._end = len(data)

    def _let_go_of_map(self) -> None:
        self._map = None
        self._limit = 0

    def _close_file(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            close_quietly(self._fs, fd, self._path)

    def forget_ended(self) -> None:
        """Keep only what matters, durably: seq_ids of a deleted queue will be given out again.
        Raises :class:`StorageError`."""
        with self._lock:
            if not self._end:
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
            if not self._live and self._end >= _EMPTY_FROM:
                self._empty()

    def _empty(self) -> None:
        """Empty the file. If that fails, what stays is of things that are done: it says nothing
        wrong, and more follows it."""
        if self._poison.reason is not None or self._fd is None:
            return
        # First: no map may be touched past the end of its file.
        self._let_go_of_map()
        try:
            self._fs.truncate(self._fd, 0)
        except OSError as error:
            _log.warning("%s: can't be emptied: %s", self._path, error)
            return
        self._end = 0
        self.unsynced = True

    def sync(self) -> None:
        """Make all that was noted durable. Raises :class:`StorageError`."""
        with self._lock:
            fd = self._fd
            if not self.unsynced or fd is None:
                return
            self._poison.check()
            try:
                self._fs.fdatasync(fd)
            except OSError as error:
                failure = StorageError(self._path, "transactions can't be synced", error)
                self._poison.set(failure)
                raise failure from error
            self.unsynced = False

    def close(self) -> None:
        """Remove the file, durably, if no transaction in it matters. Raises
        :class:`StorageError`."""
        fs = self._fs
        with self._lock:
            fd = self._fd
            if fd is None:
                return
            self._let_go_of_map()
            is_over = not self._live and self._poison.reason is None
            try:
                if is_over:
                    # An old state of it must not come back, and undo a committed transaction.
                    fs.truncate(fd, 0)
                    fs.fdatasync(fd)
                    unlink_if_there(fs, self._path)
            except OSError as error:
                raise StorageError(self._path, "can't be removed", error) from error
            finally:
                self._close_file()
