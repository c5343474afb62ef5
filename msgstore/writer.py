"""Append records: the current file, the roll to the next, the sync of the written bytes.

A record is handed to the operating system at the offset where the last good one ends. If that
fails half-way the file is cut back to there, so that no scan ever meets a torn record with others
after it; if even the cut fails, the store takes no more writes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from journal.errors import StorageError, UsageError, WritesRefusedError, storage_errors
from journal.fs.files import pwrite_all
from journal.locks.lock_order import Rank
from journal.locks.patience import PatientLock
from journal.locks.sync import GroupCommit
from journal.poison import PASSING, was_tried
from msgstore.format import END, FRAME, ID_SIZE, pack_header
from msgstore.handles import Handle
from msgstore.locations import MAX_REFERENCES
from msgstore.state import State

HARMLESS_ERRORS = PASSING | {errno.EFBIG, errno.EINTR}
"""Errors that say nothing about the disk's health: the operation may be tried again later."""

_JOIN_BELOW = 1 << 18
"""Up to this record size (bytes) one copy into a joined buffer is cheaper than three calls."""
_BATCH_BYTES = 1 << 20

_Item = tuple[bytes, Sequence[bytes], int, int]
"""Message id, the record in parts, its bytes, references."""


class Writer:
    """Appends to the current file. ``on_garbage`` is called when a rolled file has garbage."""

    def __init__(
        self,
        state: State,
        *,
        next_file: int,
        file_size_limit: int,
        max_message_bytes: int,
        on_garbage: Callable[[], None],
    ) -> None:
        self._state = state
        self._fs = state.fs
        self._next_file = next_file
        self._limit = file_size_limit
        self._max_record = max_message_bytes
        self._on_garbage = on_garbage
        self._append_lock = PatientLock(shared=True)
        self._handle: Handle | None = None
        self._names_changed = True
        self._group = GroupCommit(self._sync)
        order, appends = state.poison.order, self._append_lock
        appends.before_waiting = order.add(Rank.STORE_APPEND, appends.is_used_here)
        self._group.before_waiting = order.add(Rank.STORE_SYNC, self._group.is_mine)

    def check_item(self, msg_id: bytes, size: int, references: int) -> None:
        """Raise :class:`UsageError` if a record of ``size`` bytes can't be stored."""
        if len(msg_id) != ID_SIZE:
            raise UsageError(f"a message id has {ID_SIZE} bytes, not {len(msg_id)}")
        if size > self._max_record:
            raise UsageError(f"a message of {size} bytes is over the maximum of {self._max_record}")
        if not 1 <= references <= MAX_REFERENCES:
            raise UsageError(f"a message can't have {references} references")

    def write(self, msg_id: bytes, record: bytes, references: int) -> None:
        """Append one record, or count references more if the message is there."""
        self.check_item(msg_id, len(record), references)
        state = self._state
        with self._append_lock:
            self._check()
            with state.lock:
                if state.locations.refer(msg_id, references):
                    return
            size = len(record)
            self._append(((msg_id, (record,), size, references),), size + FRAME)

    def write_new(self, msg_id: bytes, parts: Sequence[bytes], size: int) -> None:
        """Append one record of ``size`` bytes, given in parts, under an id that is new."""
        self.check_item(msg_id, size, 1)
        with self._append_lock:
            self._check()
            self._append(((msg_id, parts, size, 1),), size + FRAME)

    def write_many(self, items: Sequence[tuple[bytes, bytes, int]]) -> None:
        """Append many records; all of them count, or none, whatever reached the file."""
        for msg_id, record, references in items:
            self.check_item(msg_id, len(record), references)
        state = self._state
        with self._append_lock:
            self._check()
            done: list[tuple[bytes, int]] = []
            try:
                batch: list[_Item] = []
                size = 0
                for msg_id, record, references in items:
                    with state.lock:
                        known = state.locations.refer(msg_id, references)
                    if known:
                        done.append((msg_id, references))
                        continue
                    batch.append((msg_id, (record,), len(record), references))
                    size += len(record) + FRAME
                    if size >= _BATCH_BYTES or self._offset() + size >= self._limit:
                        self._append_distinct(batch, size, done)
                        batch, size = [], 0
                if batch:
                    self._append_distinct(batch, size, done)
            except BaseException:
                self._undo(done)
                raise

    def _append_distinct(
        self, batch: list[_Item], size: int, done: list[tuple[bytes, int]]
    ) -> None:
        """Append a batch in which an id may occur twice: only the first of them is written."""
        state = self._state
        first = {item[0]: item for item in reversed(batch)}
        if len(first) < len(batch):
            again = [item for item in batch if first[item[0]] is not item]
            batch = [item for item in batch if first[item[0]] is item]
            size = sum(item[2] + FRAME for item in batch)
        else:
            again = []
        self._append(batch, size)
        done.extend((item[0], item[3]) for item in batch)
        with state.lock:
            for msg_id, _, _, references in again:
                state.locations.refer(msg_id, references)
        done.extend((item[0], item[3]) for item in again)

    def _undo(self, done: list[tuple[bytes, int]]) -> None:
        state = self._state
        with state.lock:
            for msg_id, references in done:
                for _ in range(references):
                    location = state.locations.release(msg_id)
                    if location is not None and not location.references:
                        state.discard(location)
        self._on_garbage()

    def _offset(self) -> int:
        current = self._state.current
        return 0 if current is None else self._state.summary.files[current].size

    def _check(self) -> None:
        state = self._state
        if state.closed or state.poison.reason is not None:
            state.check_open()
            state.poison.check()

    def _append(self, items: Sequence[_Item], size: int) -> None:
        """Append distinct new records, ``size`` bytes with their frames, at the current end."""
        state = self._state
        handle = self._handle or self._start_file()
        entry = state.summary.files[handle.key]
        offset = entry.size
        try:
            self._put(handle.fd, items, offset)
        except BaseException as error:
            self._cut_back(handle, offset, error)
            if isinstance(error, OSError):
                raise StorageError(state.path(handle.key), "can't append", error) from error
            raise
        with state.lock:
            add = state.locations.add
            for msg_id, _, length, references in items:
                total = length + FRAME
                add(msg_id, handle.key, offset, total, references)
                offset += total
            state.summary.append(entry, size)
            state.unsynced.add(handle.key)
        if offset >= self._limit:
            self._roll()

    def _put(self, fd: int, items: Sequence[_Item], offset: int) -> None:
        """Write records one after the other, joined up to a size that is cheap to allocate."""
        joined: list[bytes] = []
        size = 0
        for msg_id, parts, length, _ in items:
            total = length + FRAME
            if joined and size + total > _JOIN_BELOW:
                pwrite_all(self._fs, fd, b"".join(joined), offset)
                offset += size
                joined, size = [], 0
            header = pack_header(msg_id, length)
            if total > _JOIN_BELOW:
                self._put_apart(fd, header, parts, offset)
                offset += total
                continue
            joined += (header, *parts, END)
            size += total
        if joined:
            pwrite_all(self._fs, fd, b"".join(joined), offset)

    def _put_apart(self, fd: int, header: bytes, parts: Sequence[bytes], offset: int) -> None:
        """Write a record without a copy of the last of its parts."""
        *small, large = parts
        for part in (b"".join((header, *small)), large, END):
            pwrite_all(self._fs, fd, part, offset)
            offset += len(part)

    def _cut_back(self, handle: Handle, offset: int, error: BaseException) -> None:
        """Take a part of an append away again; refuse writes when that can't be had."""
        try:
            self._fs.truncate(handle.fd, offset)
        except OSError as second:
            self._state.poison.set(
                StorageError(self._state.path(handle.key), "can't cut a partial append", second)
            )
        if isinstance(error, OSError) and error.errno not in HARMLESS_ERRORS:
            self._state.poison.set(
                StorageError(self._state.path(handle.key), "can't append", error)
            )

    def _start_file(self) -> Handle:
        """Open the current file for appending, or begin the next one."""
        state = self._state
        with state.lock:
            try:
                if state.current is not None:
                    self._handle = state.handles.get(state.current)
                    return self._handle
                key = self._next_file
                handle = state.handles.create(key)
            except OSError as error:
                key = self._next_file if state.current is None else state.current
                raise StorageError(state.path(key), "can't be opened", error) from error
            self._next_file = key + 1
            self._handle = handle
            state.summary.add_file(key)
            state.current = key
            self._names_changed = True
            return handle

    def _roll(self) -> None:
        """Let the current file be; the next append begins a new one."""
        state = self._state
        with state.lock:
            if state.current is None:
                return
            key = state.current
            state.current = None
            self._handle = None
            wanted = state.is_reclaimable(key, state.summary.files[key])
        if wanted:
            self._on_garbage()

    def roll_if_dead(self, key: int, size: int) -> bool:
        """Roll if the current file is ``key``, still ``size`` long, and without a live message."""
        state = self._state
        with self._append_lock:
            with state.lock:
                if state.current != key:
                    return False
                entry = state.summary.files[key]
                if entry.live or entry.size != size:
                    return False
            self._roll()
            return True

    def is_syncing_here(self) -> bool:
        """Return whether the calling thread is in the middle of a sync: it can't make another."""
        return self._group.is_mine()

    def next_key(self) -> int:
        """Reserve a file number, for compaction."""
        with self._append_lock:
            key = self._next_file
            self._next_file += 1
            return key

    @property
    def next_file(self) -> int:
        """The lowest number no file has had."""
        return self._next_file

    def sync(self) -> None:
        """Make every write that returned before this call durable; callers share the work.

        Raises :class:`StorageError`, and the store then takes no more writes, or
        :class:`WritesRefusedError`.
        """
        self._check()
        self._group.commit()

    def _sync(self) -> None:
        state = self._state
        if state.poison.reason is not None:
            raise WritesRefusedError(f"nothing is synced any more: {state.poison.reason}")
        with state.lock:
            keys = sorted(state.unsynced)
        for key in keys:
            self._sync_file(key)
        with state.lock:
            names_changed, self._names_changed = self._names_changed, False
        if names_changed:
            try:
                self._fs.sync_dir(state.directory)
            except OSError as error:
                if was_tried(error):
                    raise self._refuse_writes(state.directory, error) from error
                with state.lock:
                    self._names_changed = True
                raise StorageError(state.directory, "can't be synced", error) from error

    def _sync_file(self, key: int) -> None:
        state = self._state
        path = state.path(key)
        with state.lock:
            if key not in state.unsynced:
                return  # all its messages are gone, and so is the file
            with storage_errors(path, "can't be opened to be synced"):
                handle = state.handles.get(key)
            state.unsynced.remove(key)
        try:
            self._fs.fdatasync(handle.fd)
        except OSError as error:
            raise self._refuse_writes(path, error) from error

    def _refuse_writes(self, path: str, error: OSError) -> StorageError:
        failure = StorageError(path, "can't be synced", error)
        self._state.poison.set(failure)
        return failure

    def close(self) -> None:
        """Let go of all files; every later call raises :class:`ClosedError`."""
        state = self._state
        with self._append_lock, state.lock:
            state.closed = True
            self._handle = None
            state.handles.close()
