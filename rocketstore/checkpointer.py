"""Checkpoints: sync log, queues and index, and note how far they were synced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from journal.errors import StorageError
from journal.fs.files import replace_file
from journal.locks.call_lock import CallLock, check_alone, held_or
from journal.poison import is_passing
from rocketstore.dispatcher import Dispatcher
from rocketstore.log.dispatch_note import save_note
from rocketstore.log.mapped_files import sync_directories, sync_files
from rocketstore.log_sync import LogSync
from rocketstore.state import Place, StoreState


class _Table(Protocol):
    def save(self) -> None: ...


class Checkpointer:
    """Checkpoints of one store. ``tables`` are saved with each: offsets of consumers and delays.

    A checkpoint has a lock of its own, taken before all others: it is held from the note of the
    files to sync until they are durable. A file that is being synced counts as unsynced until the
    checkpoint has ended, so a checkpoint that is cut short loses nothing.
    """

    __slots__ = ("_directories", "_dispatcher", "_files", "_lock", "_log_sync", "_state", "_tables")

    def __init__(
        self,
        state: StoreState,
        dispatcher: Dispatcher,
        log_sync: LogSync,
        tables: Sequence[_Table],
    ) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._log_sync = log_sync
        self._tables = tables
        self._lock = CallLock()
        self._lock.before_waiting = state.poison.order.add(Place.CHECKPOINT, self._lock.is_mine)
        self._files: set[str] = set()
        self._directories: set[str] = set()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no sync runs, and let none begin. Called before the store's lock is taken."""
        with self._lock, held_or(self._log_sync.lock):
            yield

    def check_outside(self) -> None:
        """Raise :class:`UsageError` in the middle of a sync or checkpoint of the calling thread."""
        check_alone(self._lock)
        self._log_sync.check_alone()

    def checkpoint(self) -> None:
        """Sync log, queues and index, then say so in ``checkpoint`` and our own file.

        Raises :class:`ClosedError`, :class:`StorageError` and :class:`WritesRefusedError`.
        """
        check_alone(self._lock)
        with self._lock:
            self.checkpoint_alone()

    def checkpoint_alone(self, *, closing: bool = False) -> None:
        """:meth:`checkpoint` within :meth:`alone`. ``closing``: the store is closed after it."""
        state = self._state
        fs, paths = state.options.fs, state.paths
        with held_or(state.lock):
            self._dispatcher.catch_up()
            state.poison.check()
            parts = state.parts
            parts.look_at_log()
            if closing:
                parts.look_at_the_rest()
            note = parts.note(parts.commitlog.max_offset, parts.commitlog.last)
            stored = state.clock.now if note.last[1] else 0
            logical = parts.checkpoint.logical
            index_time = parts.index.end_timestamp
            self._take_unsynced()
        self._log_sync.sync()
        try:
            with held_or(self._log_sync.lock):
                sync_files(fs, sorted(self._files))
                sync_directories(fs, sorted(self._directories))
        except StorageError as error:
            state.poison.set(error)
            raise
        try:
            with held_or(state.lock):
                for table in self._tables:
                    table.save()
            if state.options.recovery == "full":
                save_note(fs, paths.dispatch_note, note)
            parts.checkpoint.physical = stored or parts.checkpoint.physical
            parts.checkpoint.logical = logical
            parts.checkpoint.index = index_time
            replace_file(fs, paths.checkpoint, parts.checkpoint.to_bytes())
        except StorageError as error:
            # A file that is replaced is written anew, all of it, by the next checkpoint.
            if not is_passing(error):
                state.poison.set(error)
            raise
        self._files.clear()
        self._directories.clear()

    def _take_unsynced(self) -> None:
        """Take over what queues and index have not synced. First it is noted here, then forgotten
        there."""
        parts = self._state.parts
        files, directories = parts.descriptors.dirty()
        self._files.update(files)
        self._directories.update(directories)
        parts.descriptors.take_dirty()
        index_files = parts.index.dirty()
        self._files.update([file.path for file in index_files])
        for file in index_files:
            file.dirty = False
        if parts.index.names_changed:
            self._directories.add(self._state.paths.index)
            parts.index.names_changed = False
