"""Sync the log: callers share a sync (group commit)."""

from __future__ import annotations

from journal.errors import StorageError, WritesRefusedError
from journal.locks.call_lock import CallLock, check_alone, held_or, refuse_twice
from journal.locks.sync import GroupCommit
from rocketstore.state import Place, StoreState


class LogSync:
    """Make the log durable. ``lock`` is held while descriptors are synced, so that no file is
    closed or deleted meanwhile; it is taken before the store's lock."""

    __slots__ = ("_group", "_state", "lock")

    def __init__(self, state: StoreState) -> None:
        self._state = state
        order = state.poison.order
        self._group = GroupCommit(self.sync)
        self._group.before_waiting = order.add(Place.GROUP, self._group.is_mine)
        self.lock: CallLock = CallLock()
        self.lock.before_waiting = order.add(Place.SYNC, self.lock.is_mine)

    def commit(self) -> None:
        """Return when a sync that began after this call has ended. Raises as :meth:`sync`."""
        self._group.commit()

    def check_outside(self) -> None:
        """Raise :class:`UsageError` to a handler in the middle of a commit of its thread, before
        anything is put."""
        if self._group.is_mine():
            refuse_twice()

    def check_alone(self) -> None:
        """Raise :class:`UsageError` in the middle of any sync of the calling thread."""
        self.check_outside()
        check_alone(self.lock)

    @property
    def rounds(self) -> int:
        """Syncs that were made so."""
        return self._group.rounds

    def sync(self) -> None:
        """Make the log durable as it is now. A failure poisons the store.

        Raises :class:`ClosedError`, :class:`WritesRefusedError` and, if another program has taken
        away the file to sync, :class:`DamageError`.
        """
        state = self._state
        fs = state.options.fs
        with held_or(self.lock):
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
                if dirty:
                    damage = state.parts.look_at_log(dirty=True)
                    if damage is not None:
                        state.poison.set(damage)
                        raise damage
                for file, _, wrote in dirty:
                    if file.wrote == wrote:
                        file.dirty = False
                state.close_replaced()
