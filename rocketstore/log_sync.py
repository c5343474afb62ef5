"""Sync the log: callers share a sync (group commit)."""

from __future__ import annotations

import threading

from journal.call_lock import held_or
from journal.errors import StorageError, WritesRefusedError
from journal.sync import GroupCommit
from rocketstore.state import StoreState

__all__ = ["LogSync"]


class LogSync:
    """Make the log durable. ``lock`` is held while descriptors are synced, so that no file is
    closed or deleted meanwhile; it is taken before the store's lock."""

    __slots__ = ("_group", "_state", "lock")

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self._group = GroupCommit(self.sync)
        self.lock = threading.RLock()

    def commit(self) -> None:
        """Return when a sync that began after this call has ended. Raises as :meth:`sync`."""
        self._group.commit()

    @property
    def rounds(self) -> int:
        """Syncs that were made so."""
        return self._group.rounds

    def sync(self) -> None:
        """Make the log durable as it is now. A failure poisons the store.

        Raises :class:`ClosedError` and :class:`WritesRefusedError`.
        """
        state = self._state
        fs = state.options.fs
        with self.lock:
            with held_or(state.lock):
                state.begin_read()  # it may have been closed meanwhile
                state.commitlog.settle()
                files = state.commitlog.files.dirty()
                dirty = [(file, file.fd, file.wrote) for file in files]
            try:
                for _, fd, _ in dirty:
                    fs.fdatasync(fd)
            except OSError as error:
                failure = StorageError(state.paths.commitlog, "can't be synced", error)
                state.poison.set(failure)
                raise WritesRefusedError(str(failure)) from error
            with held_or(state.lock):
                for file, _, wrote in dirty:
                    if file.wrote == wrote:
                        file.dirty = False
                state.close_replaced()
