"""What a store does besides answering: syncs, checkpoints, delayed messages, deletion, shutdown."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from zlib import crc32

from journal import background as thread
from journal.call_lock import CallLock, check_alone, held_or
from journal.errors import StorageError, StoreError, WritesRefusedError
from journal.files import close_quietly, make_dirs, replace_file
from rocketstore.compose import Delivered
from rocketstore.consumequeue import ConsumeQueue
from rocketstore.consumequeue_format import UNIT
from rocketstore.cut_short import WholeOrNothing
from rocketstore.delay import MAX_LEVEL, SCHEDULE_TOPIC
from rocketstore.derived import Derived, save_derived
from rocketstore.lock_places import Place
from rocketstore.message import StoredMessage
from rocketstore.offsets import int_table, load_json, save_json
from rocketstore.options import Options
from rocketstore.properties import REAL_QUEUE_ID, REAL_TOPIC
from rocketstore.put_path import put_general
from rocketstore.retention import Retention

if TYPE_CHECKING:
    from rocketstore.store import Store

__all__ = ["Background", "Keeper"]

_log = logging.getLogger("qindex.rocketstore")
_CLEAN_SECONDS = 10.0


class Keeper:
    """Housekeeping of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fs = store.options.fs
        self._paths = store._paths
        order = store._poison.order
        self._checkpoints = CallLock()
        """Held from taking note of what is to be synced until it is vouched for: what one takes
        the next one would not find. Taken before the next lock, and that before the store's."""
        self._sync_lock = CallLock()
        """Held while descriptors are synced, so that no file is closed or deleted meanwhile."""
        for lock, place in ((self._checkpoints, Place.CHECKPOINT), (self._sync_lock, Place.SYNC)):
            lock.before_waiting = order.add(place, lock.is_mine)
        content = load_json(self._fs, self._paths.delay_offset)
        self._delay_offsets = int_table(content.get("offsetTable"))
        self._delay_changed = False

    # Start and end

    def begin(self) -> None:
        """Make the directories and ``abort``, durably. Raises :class:`StorageError`."""
        paths = self._paths
        try:
            for directory in (paths.commitlog, paths.consumequeue, paths.index, paths.config):
                make_dirs(self._fs, directory)
            fd = self._fs.open(paths.abort, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
            self._fs.close(fd)
            self._fs.sync_dir(paths.root)
        except OSError as error:
            raise StorageError(paths.abort, "can't be made", error) from error

    def take_back(self) -> None:
        """Remove ``abort`` again: open refused, and the next one must not think of a crash that
        would explain what it was refused for."""
        with contextlib.suppress(OSError):
            self._fs.unlink(self._paths.abort)
            self._fs.sync_dir(self._paths.root)

    def check_outside(self) -> None:
        """Raise :class:`UsageError` in the middle of a sync or checkpoint of the calling thread."""
        check_alone(self._checkpoints)
        check_alone(self._sync_lock)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody syncs, and let nobody begin to; for who then takes the store's lock."""
        with self._checkpoints, held_or(self._sync_lock):
            yield

    def finish(self) -> None:
        """Make all durable and remove ``abort``. Raises :class:`StorageError` and
        :class:`WritesRefusedError`; ``abort`` then stays."""
        # Cut short behind the unlink, nothing may be put that no ``abort`` stands for.
        with WholeOrNothing(self._store):
            self._checkpoint()
            try:
                self._fs.unlink(self._paths.abort)
                self._fs.sync_dir(self._paths.root)
            except OSError as error:
                raise StorageError(self._paths.abort, "can't be removed", error) from error

    # Syncing

    def sync_log(self) -> None:
        """Make the log durable as it is now. A failure poisons the store."""
        store = self._store
        files = store._parts.commitlog.files
        with held_or(self._sync_lock):
            with held_or(store._lock):
                store._check_open()  # it may have been closed meanwhile, here and below
                store._parts.commitlog.settle()
                dirty = [(file, file.fd, file.wrote) for file in files.dirty()]
            try:
                for _, fd, _ in dirty:
                    self._fs.fdatasync(fd)
                files.sync_names()
            except OSError as error:
                failure = StorageError(self._paths.commitlog, "can't be synced", error)
                store._poison.set(failure)
                raise WritesRefusedError(str(failure)) from error
            with held_or(store._lock):
                for file, _, wrote in dirty:
                    if file.wrote == wrote:
                        file.dirty = False

    def checkpoint(self) -> None:
        """Sync log, queues and index, then say so in ``checkpoint`` and our own file."""
        check_alone(self._checkpoints)
        with self._checkpoints, WholeOrNothing(self._store):
            self._checkpoint()

    def _checkpoint(self) -> None:
        store = self._store
        parts = store._parts
        with held_or(store._lock):
            store._check_open()
            store._pending.dispatch()
            store._poison.check()
            derived = self._derived()
            stored = store._last_time if derived.last[1] else 0
            logical = parts.checkpoint.logical
            index_time = parts.index.end_timestamp
            queue_paths, directories = parts.descriptors.take_dirty()
            index_files = parts.index.dirty()
            for file in index_files:
                file.dirty = False
            index_changed, parts.index.names_changed = parts.index.names_changed, False
        self.sync_log()
        paths = queue_paths + [file.path for file in index_files]
        if index_changed:
            directories.append(self._paths.index)
        try:
            self._sync_paths(paths, directories)
            self._save_offsets()
            if store.options.recovery == "full":
                save_derived(self._fs, self._paths.derived, derived)
            parts.checkpoint.physical = max(parts.checkpoint.physical, stored)
            parts.checkpoint.logical = logical
            parts.checkpoint.index = index_time
            replace_file(self._fs, self._paths.checkpoint, parts.checkpoint.to_bytes())
        except StorageError as error:
            store._poison.set(error)
            raise

    def _sync_paths(self, paths: list[str], directories: list[str]) -> None:
        """Sync files by name: a descriptor of their own can't be closed under the sync."""
        with held_or(self._sync_lock):
            for path in paths:
                try:
                    fd = self._fs.open(path, os.O_RDWR | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise StorageError(path, "can't be opened", error) from error
                try:
                    self._fs.fdatasync(fd)
                except OSError as error:
                    raise StorageError(path, "can't be synced", error) from error
                finally:
                    close_quietly(self._fs, fd, path)
            for directory in directories:
                try:
                    self._fs.sync_dir(directory)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise StorageError(directory, "can't be synced", error) from error

    def _derived(self) -> Derived:
        parts = self._store._parts
        commitlog = parts.commitlog
        offset, size = commitlog.last
        data = commitlog.read(offset, size) if size else None
        return Derived(
            offset=commitlog.max_offset,
            boot=self._fs.boot_id().decode(errors="replace"),
            last=(offset, size, crc32(data)) if data else (0, 0, 0),
            queues={
                key: (queue.min_logic, queue.max_offset)
                for key, queue in parts.queues.items()
                if queue.max_offset
            },
            index=[
                (
                    file.name,
                    file.header.begin_timestamp,
                    file.header.end_timestamp,
                    file.header.begin_offset,
                    file.header.end_offset,
                    file.header.used_slots,
                    file.header.count,
                )
                for file in parts.index.files
            ],
            sizes=(
                commitlog.file_size,
                parts.consumequeue_file_size,
                parts.index.slots,
                parts.index.entries,
            ),
        )

    def _save_offsets(self) -> None:
        store = self._store
        with held_or(store._lock):
            store._offsets.save()
            store._local.save()
            if self._delay_changed:
                table = {str(level): at for level, at in sorted(self._delay_offsets.items())}
                save_json(self._fs, self._paths.delay_offset, {"offsetTable": table})
                self._delay_changed = False

    # Delayed messages

    def deliver_due(self, now: int) -> int:
        """Put each delayed message that is due where it belongs; gives their number."""
        store = self._store
        delivered = 0
        with store._lock:
            store._check_open()
            store._pending.dispatch()  # the first message of a level makes its queue
        for level in range(1, MAX_LEVEL + 1):
            queue = store._parts.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is None:
                continue
            with store._lock:
                at = max(self._delay_offsets.get(level, 0), queue.min_offset)
            while self._deliver(queue, level, at, now):
                delivered += 1
                at += 1
        return delivered

    def _deliver(self, queue: ConsumeQueue, level: int, at: int, now: int) -> bool:
        store = self._store
        with store._lock, WholeOrNothing(store):
            store._check_open()
            data = queue.read(at, 1)
            if not data:
                return False
            place, size, due = UNIT.unpack(data)
            if due > now:
                return False
            raw = store._parts.commitlog.read(place, size)
            if raw is not None:
                self._put_back(StoredMessage(raw, place))
            self._delay_offsets[level] = at + 1
            self._delay_changed = True
        return True

    def _put_back(self, message: StoredMessage) -> None:
        """Store a delayed message again, in its own topic; its properties stay as they are."""
        properties = message.properties
        topic = properties.get(REAL_TOPIC)
        queue_id = properties.get(REAL_QUEUE_ID, "")
        if topic is None or not re.fullmatch("[0-9]{1,10}", queue_id):
            _log.warning("offset %d: delayed message without its topic, dropped", message.offset)
            return
        fields = message.fields
        put_general(
            self._store,
            topic,
            message.body,
            int(queue_id),
            None,
            None,
            None,
            properties=Delivered(message.properties_bytes),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=fields[9],
            store_host=fields[11],
            reconsume_times=message.reconsume_times,
            wait=False,
            held=True,
        )

    # Deletion

    def clean(self, now: float | None, *, manual: bool) -> int:
        """Delete expired log files, then what of queues and index points to them; gives the
        number of log files. Raises :class:`StorageError`."""
        try:
            return self._clean(now, manual=manual)
        except OSError as error:
            path = error.filename or self._paths.commitlog
            raise StorageError(path, "can't be looked at", error) from error

    def _clean(self, now: float | None, *, manual: bool) -> int:
        store = self._store
        rules = store.options.retention or Retention()
        moment = time.time() if now is None else now
        used = self.disk_used()
        if not rules.is_due(moment, used, manual=manual):
            return 0
        parts = store._parts
        files = parts.commitlog.files
        removed = 0
        with self._sync_lock, store._lock, WholeOrNothing(store):
            store._check_open()
            store._pending.dispatch()
            for start in list(files.files)[:-1]:
                modified = self._fs.stat(files.files[start].path).st_mtime
                if removed >= rules.most_at_once or not rules.is_expired(moment, modified, used):
                    break
                files.remove(start)
                removed += 1
            if removed:
                minimum = parts.commitlog.min_offset
                for queue in parts.queues.values():
                    queue.delete_expired(minimum)
                    queue.correct_min(minimum)
                parts.index.delete_expired(minimum)
        return removed

    def look_at_disk(self) -> None:
        """Refuse puts while the disk is used beyond the retention's ``full_ratio``."""
        rules = self._store.options.retention
        self._store._full = rules is not None and self.disk_used() > rules.full_ratio

    def disk_used(self) -> float:
        """Share of the log's file system that is used, from 0 to 1."""
        info = self._fs.statvfs(self._paths.commitlog)
        return 1 - info.f_bavail / info.f_blocks if info.f_blocks else 0.0


class Background:
    """A daemon thread that syncs, delivers, cleans and checkpoints until it is stopped."""

    def __init__(self, keeper: Keeper, options: Options) -> None:
        self._keeper = keeper
        self._options = options
        self._stop = threading.Event()
        self._thread = thread.Background(self._run, "rocketstore")

    def start(self) -> None:
        """Begin. Where the system has no thread left it says so, and the store does without."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the round that is under way."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        store = self._keeper._store
        checkpoint_at = clean_at = time.monotonic()
        done = -1
        while not self._stop.wait(self._options.flush_interval):
            if store._refusal is not None or store._poison.reason is not None:
                return
            try:
                self._keeper.deliver_due(self._options.clock())
                moment = time.monotonic()
                if self._options.retention is not None and moment - clean_at >= _CLEAN_SECONDS:
                    clean_at = moment
                    self._keeper.clean(None, manual=False)
                    self._keeper.look_at_disk()
                if moment - checkpoint_at >= self._options.checkpoint_interval:
                    checkpoint_at = moment
                    end = store.max_offset
                    if end != done or self._delay_changed():
                        self._keeper.checkpoint()
                        done = end
                else:
                    with store._lock:
                        store._pending.dispatch()
                    self._keeper.sync_log()
            except (StoreError, OSError) as error:
                # The store refuses writes from here on; the next caller is told why.
                _log.error("%s: background work failed: %s", store.path, error)
                store._poison.set(error)
                return

    def _delay_changed(self) -> bool:
        return self._keeper._delay_changed
