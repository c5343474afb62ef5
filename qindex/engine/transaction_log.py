"""The file ``qindex.transactions`` of an open engine (:mod:`qindex.format.transactions`)."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection
from itertools import count

from journal.errors import ClosedError, StorageError
from journal.fs.files import FileSystem, replace_file, unlink_if_there
from journal.locks.call_lock import CallLock
from journal.locks.lock_order import Rank
from journal.poison import Poison
from qindex.engine.frame_file import FrameFile
from qindex.format import layout

_log = logging.getLogger("qindex.transactions")

_EMPTY_FROM = 1 << 16
"""The file is emptied when nothing in it matters, and it has this many bytes."""
_SHORTEN_FROM = 1 << 20
"""It is written anew, with what matters, when it has this many bytes, and half of them do not."""


class TransactionLog:
    """The file. Thread-safe.

    ``unsynced``: it has what power loss may take.
    """

    def __init__(self, fs: FileSystem, directory: str, poison: Poison, *, durable: bool) -> None:
        self._fs = fs
        self._path = os.path.join(directory, layout.TRANSACTIONS)
        self._poison = poison
        self._durable = durable
        self._lock = CallLock()
        self._lock.before_waiting = poison.order.add(Rank.TRANSACTIONS, self._lock.is_mine)
        self._file = FrameFile(fs, self._path, poison, "a transaction", durable=durable)
        self._shorten_at = _SHORTEN_FROM
        # The frames of each transaction that recovery would have to know of.
        self._live: dict[int, list[bytes]] = {}
        self._numbers = count(1)
        self._refused: set[int] = set()
        self.unsynced: bool = False

    def begin(self) -> int:
        """Return the number of a new transaction."""
        number = next(self._numbers)
        self._live[number] = []
        return number

    def refuse(self, number: int) -> None:
        """Take no more frames of a transaction, which is rolled back."""
        with self._lock:
            self._refused.add(number)

    def note(self, number: int, frame: bytes) -> None:
        """Append a frame; durably, where each call is durable. Raises :class:`StorageError`; then
        the frame counts only if writes are refused from now on."""
        with self._lock:
            self._poison.check()
            frames = self._live.get(number)
            if frames is None or number in self._refused:
                raise ClosedError("the transaction is rolled back")
            self._shorten()
            self._file.append(frame)
            frames.append(frame)
            self.unsynced = not self._durable

    def _shorten(self) -> None:
        """Write the file anew, where most of it does not matter. Raises :class:`StorageError`."""
        if self._file.fd is not None and self._file.end >= self._shorten_at:
            data = self._that_matters()
            self._shorten_at = max(_SHORTEN_FROM, 2 * len(data))
            if self._file.end >= self._shorten_at:
                self._replace(data)

    def _that_matters(self) -> bytes:
        # A list: other threads begin transactions meanwhile.
        return b"".join(frame for frames in list(self._live.values()) for frame in frames)

    def _replace(self, data: bytes) -> None:
        """Write the file anew. Raises :class:`StorageError`."""
        self._file.close()
        try:
            replace_file(self._fs, self._path, data)
        except StorageError as error:
            if error.errno != errno.ENOSPC:
                # Which of the two files has the name, and durably, is not known.
                self._poison.set(error)
            raise
        self._file.end = len(data)

    def forget_ended(self) -> None:
        """Keep only what matters, durably: seq_ids of a deleted queue will be given out again.
        Raises :class:`StorageError`."""
        with self._lock:
            if not self._file.end:
                return
            self._poison.check()
            if any(list(self._live.values())):
                self._replace(self._that_matters())
            else:
                self._empty()
        self.sync()

    def end(self, numbers: Collection[int]) -> None:
        """Forget transactions all of whose effects are in the queues."""
        with self._lock:
            for number in numbers:
                self._live.pop(number, None)
                self._refused.discard(number)
            if not self._live and self._file.end >= _EMPTY_FROM:
                self._empty()

    def _empty(self) -> None:
        if self._poison.reason is None and self._file.empty(_log):
            self.unsynced = True

    def sync(self) -> None:
        """Make all that was noted durable. Raises :class:`StorageError`."""
        with self._lock:
            fd = self._file.fd
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
            fd = self._file.fd
            if fd is None:
                return
            is_over = not self._live and self._poison.reason is None
            try:
                if is_over:
                    # An old state of it must not come back, and undo what was committed.
                    fs.truncate(fd, 0)
                    fs.fdatasync(fd)
                    unlink_if_there(fs, self._path)
            except OSError as error:
                raise StorageError(self._path, "can't be removed", error) from error
            finally:
                self._file.close()
