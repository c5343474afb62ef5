"""The store: one CommitLog for all topics, ConsumeQueues that point into it, IndexFiles by key.

A put copies its record into the log and notes it; queues and index follow in batches, at the
latest when somebody reads (so a reader sees every put that returned) or when the background
thread comes round. They hold nothing that the log does not tell, so what a crash takes from them
is put again at open.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from journal.beneath import beneath, leave
from journal.call_lock import check_alone
from journal.errors import (
    ClosedError,
    DamageError,
    ForkedError,
    StorageError,
    StoreError,
    UsageError,
)
from journal.files import PathLike, checked_path, make_dirs, read_optional
from journal.patience import PatientLock
from journal.poison import Poison
from journal.sync import GroupCommit
from rocketstore.checkpoint_format import Checkpoint
from rocketstore.columns import make_properties
from rocketstore.commitlog_format import TRANSACTION_MASK, host_bytes
from rocketstore.compose import join_properties, raw_properties
from rocketstore.config_check import check_config, mend_config
from rocketstore.cut_short import WholeOrNothing
from rocketstore.derived import Derived, load_derived
from rocketstore.dispatch import QueueKey
from rocketstore.index_rebuild import rebuild_index
from rocketstore.javahash import topic_seed
from rocketstore.key_columns import keys_of_properties
from rocketstore.layout import Paths, look
from rocketstore.lifecycle import Background, Keeper
from rocketstore.lock import StoreLock
from rocketstore.message import BatchResult
from rocketstore.offsets import ConsumerOffsets
from rocketstore.options import Options, clock_ms
from rocketstore.parts import build_parts
from rocketstore.pending import Pending, append_columns
from rocketstore.properties import DELAY, KEYS, TAGS, UNIQ_KEY
from rocketstore.put_path import NOWHERE, Route
from rocketstore.putter import Putter
from rocketstore.reader import Reader
from rocketstore.rebuild import Rebuilt, recover_full
from rocketstore.recovery import recover_compatible, recover_read_only
from rocketstore.settle import settle_files

__all__ = ["Store", "open_store"]

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def open_store(path: PathLike, **options: Any) -> Store:
    """Open a store directory, made if there is none. Keyword arguments: :class:`Options`.

    Raises :class:`journal.errors.LockedError`, :class:`NotAStoreError`, :class:`DamageError`,
    :class:`StorageError` and, for options that can't be, :class:`UsageError`.
    """
    try:
        chosen = Options(**options)
    except TypeError as error:
        raise UsageError(str(error)) from error
    return Store(checked_path(path), chosen)


class Store(Putter, Reader):
    """An open store; :func:`rocketstore.open` makes one. Thread-safe. A context manager.

    What is durable when a put returns: with ``durability="os"`` the record is in the operating
    system and survives the death of the process; with ``"fsync"`` it is on disk.
    """

    def __init__(self, path: str, options: Options) -> None:
        self._outside = options.fs
        options = replace(options, fs=beneath(options.fs, path, hold=True))
        self.path = path
        self.options = options
        self._paths = paths = Paths(path)
        self._lock = PatientLock(shared=True)
        self._poison = Poison()
        self._refusal: StoreError | None = None
        self._full = False
        self._fsync = options.durability == "fsync"
        self._max_size = options.max_message_size
        self._file_lock: StoreLock | None = None
        self._background: Background | None = None
        look(options.fs, paths, options)
        if not options.read_only:
            self._file_lock = self._take_lock()
        try:
            self._open(options, paths)
        except BaseException as error:
            if self._file_lock is not None:
                self._file_lock.release()
            if isinstance(error, OSError):
                raise StorageError(error.filename or path, "can't be opened", error) from error
            raise
        _open_stores.add(self)
        if options.background and not options.read_only:
            self._background = Background(self._keeper, options)
            self._background.start()

    def _take_lock(self) -> StoreLock:
        try:
            make_dirs(self._outside, self.path)
        except OSError as error:
            raise StorageError(self.path, "can't be created", error) from error
        return StoreLock(self.options.fs, self._paths.lock)

    def _open(self, options: Options, paths: Paths) -> None:
        fs = options.fs
        derived = load_derived(fs, paths.derived)
        crashed = read_optional(fs, paths.abort) is not None
        layout, findings = settle_files(options, paths, derived, crashed=crashed)
        checkpoint = Checkpoint.parse(read_optional(fs, paths.checkpoint))
        self._parts = parts = build_parts(options, paths, layout, checkpoint)
        repairs = options.repair and not options.read_only
        for finding in (*findings, *(mend_config if repairs else check_config)(fs, paths)):
            parts.finding(finding)
        self._keeper = Keeper(self)
        self._offsets = ConsumerOffsets(fs, paths.consumer_offset, writable=not options.read_only)
        self._local = ConsumerOffsets(fs, paths.local_offset, writable=not options.read_only)
        self.recovered = Rebuilt()
        try:
            if options.read_only:
                self.recovered.end = recover_read_only(parts)
            else:
                self._keeper.begin()
                self._recover(derived, crashed)
        except BaseException as error:
            if isinstance(error, DamageError) and not crashed:
                self._keeper.take_back()
            parts.close()
            raise
        self._pending = Pending(parts, self._poison)
        self._routes: dict[QueueKey, Route] = {}
        self._last_route = NOWHERE
        self._store_host = host_bytes(options.store_host)
        self._wide = len(self._store_host) != 8
        # The system's clock is asked in its own unit: most readings need no division then.
        own = options.clock is not clock_ms
        self._ticks, self._ticks_per_ms = (options.clock, 1) if own else (time.time_ns, 1_000_000)
        self._begin_moment(self._newest_time() * self._ticks_per_ms)
        self._commitlog = parts.commitlog
        if options.read_only:
            self._refusal = UsageError(f"{self.path}: is open for reading only")
        else:
            parts.commitlog.begin_writing()
            parts.commitlog.last = self.recovered.last
            if options.recovery == "full":
                self._keeper.checkpoint()
        self._group = GroupCommit(self._keeper.sync_log)

    def _recover(self, derived: Derived | None, crashed: bool) -> None:
        if self.options.recovery == "compatible":
            self.recovered.end = recover_compatible(self._parts, crashed=crashed)
            return
        self.recovered = recover_full(self._parts, derived, crashed=crashed)

    def _newest_time(self) -> int:
        offset, size = self.recovered.last
        if size:
            return max(self._parts.commitlog.store_time(offset, size), 0)
        return max(self._parts.checkpoint.logical, 0)

    # Writing

    def put_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        queue_id: int = 0,
        tags: str | Sequence[str] | None = None,
        keys: str | Sequence[str] | None = None,
        unique_keys: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | bytes | tuple[str, int] | None = None,
        wait: bool = True,
    ) -> BatchResult:
        """Store many messages of one topic and queue, in order, with one copy and one sync.

        ``tags``, ``keys`` and ``unique_keys`` are one text for each message (``tags`` and ``keys``
        also one for all); several keys of a message are separated by a space. The result is what
        as many :meth:`put` would store with one clock reading. Errors as there; all input is
        checked before anything is stored, but a disk that fills up in the middle leaves the first
        messages stored.
        """
        self._check_writable()
        for reserved in (DELAY, TAGS, KEYS, UNIQ_KEY):
            if properties and reserved in properties:
                raise UsageError(f"property {reserved} can't be given to put_many by name")
        bodies = list(bodies)
        columns: dict[str, Any] = dict(properties or {})
        columns.update({TAGS: tags, KEYS: keys, UNIQ_KEY: unique_keys})
        data, key_columns = make_properties(len(bodies), topic, columns)
        return append_columns(
            self, topic, bodies, data, key_columns, queue_id, flag, 0,
            born_timestamp, born_host, None, wait, whole=False,
        )  # fmt: skip

    def put_batch(
        self,
        topic: str,
        messages: Sequence[tuple[int, bytes, Mapping[str, str] | bytes]],
        *,
        queue_id: int = 0,
        properties: Mapping[str, str] | bytes | None = None,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | bytes | tuple[str, int] | None = None,
        store_host: str | bytes | tuple[str, int] | None = None,
        wait: bool = True,
    ) -> BatchResult:
        """Store a batch as RocketMQ's client batches are: ``(flag, body, properties)`` each, all
        in one file, together at most ``max_message_size``; the batch's own properties follow each
        message's. No transactions, no delays.
        """
        self._check_writable()
        if sys_flag & TRANSACTION_MASK:
            raise UsageError("a batch can't be part of a transaction")
        shared = raw_properties(properties or {})
        rows = [raw_properties(own) for _, _, own in messages]
        if shared:
            rows = [join_properties(own, shared) for own in rows]
        bodies = [body for _, body, _ in messages]
        flags = [own_flag for own_flag, _, _ in messages]
        return append_columns(
            self, topic, bodies, rows, keys_of_properties(rows, topic_seed(topic)), queue_id,
            flags, sys_flag, born_timestamp, born_host, store_host, wait, whole=True,
        )  # fmt: skip

    def sync(self) -> None:
        """Make every put that returned durable against power loss. Raises
        :class:`WritesRefusedError` when that failed before, :class:`StorageError` when now."""
        check_alone(self._lock)
        self._check_writable()
        self._group.commit()

    # Consumers

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, broadcast: bool = False
    ) -> None:
        """Note the next offset a group will ask for. Kept in ``config/consumerOffset.json``,
        written by the background thread, :meth:`checkpoint` and :meth:`close`."""
        with self._lock:
            self._check_writable()
            (self._local if broadcast else self._offsets).commit(group, topic, queue_id, offset)

    def fetch_offset(
        self, group: str, topic: str, queue_id: int, *, broadcast: bool = False
    ) -> int:
        """The offset committed last; -1 if there is none."""
        with self._lock:
            self._check_open()
            return (self._local if broadcast else self._offsets).fetch(group, topic, queue_id)

    def consumer_offsets(self) -> dict[str, dict[int, int]]:
        """``topic@group`` to queue id to next offset."""
        with self._lock:
            return {name: dict(offsets) for name, offsets in self._offsets.table.items()}

    # Housekeeping

    def deliver_due(self, now: int | None = None) -> int:
        """Put delayed messages whose time (ms) has come where they belong; gives their number.
        After a crash one may be delivered again, none is lost."""
        self._check_writable()
        return self._keeper.deliver_due(self.options.clock() if now is None else now)

    def clean(self, now: float | None = None) -> int:
        """Delete expired files of the log now, and what of queues and index points to them; gives
        the number of log files. Without a ``retention`` option: RocketMQ's 72 hours."""
        check_alone(self._lock)
        self._check_writable()
        return self._keeper.clean(now, manual=True)

    def rebuild_index(self) -> None:
        """Delete all index files and build them anew from the log. O(bytes of the log)."""
        with self._lock, WholeOrNothing(self):
            self._check_writable()
            self._pending.dispatch()
            log = self._parts.commitlog
            log.settle()
            try:
                rebuild_index(self._parts, 0, max(log.min_offset, 0), 0, log.max_offset)
            except StorageError as error:
                # Half an index must not be vouched for.
                self._pending.broke(error)
                raise
        self._keeper.checkpoint()

    def checkpoint(self) -> None:
        """Sync log, queues and index, and note it, so that the next open starts from here."""
        check_alone(self._lock)
        self._check_writable()
        self._keeper.checkpoint()

    def close(self) -> None:
        """Sync all, write the checkpoint, remove ``abort``, release the lock. Can be repeated."""
        if isinstance(self._refusal, ClosedError):
            if self._file_lock is not None:  # a close before may have been cut short
                self._file_lock.release()
            return
        check_alone(self._lock)
        background, self._background = self._background, None
        if background is not None:
            background.stop()
        with self._keeper.alone(), self._lock:
            if isinstance(self._refusal, ClosedError):
                return
            closed = ClosedError(f"{self.path}: the store is closed")
            try:
                if not self.options.read_only and self._poison.reason is None:
                    self._keeper.finish()
            finally:
                try:
                    self._refusal = closed
                    _open_stores.discard(self)
                    self._parts.close()
                finally:
                    if self._file_lock is not None:
                        self._file_lock.release()
                    leave(self.options.fs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _close_in_child() -> None:
    for store in list(_open_stores):
        store._refusal = ForkedError(f"{store.path}: was opened by the parent process")
        store._background = None
        # The parent may have held it at that moment; nobody here would ever release it.
        store._lock = PatientLock(shared=True)


with contextlib.suppress(AttributeError):
    os.register_at_fork(after_in_child=_close_in_child)
