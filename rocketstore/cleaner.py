"""Delete expired files of the log, and the files of queues and index that point to them."""

from __future__ import annotations

import time

from journal.errors import StorageError
from rocketstore.dispatcher import Dispatcher
from rocketstore.log_sync import LogSync
from rocketstore.retention import Retention
from rocketstore.state import Change, StoreState


class Cleaner:
    """Retention of one store."""

    __slots__ = ("_dispatcher", "_log_sync", "_state")

    def __init__(self, state: StoreState, dispatcher: Dispatcher, log_sync: LogSync) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._log_sync = log_sync

    def clean(self, now: float | None, *, manual: bool) -> int:
        """Delete expired log files, then the files of queues and index that point to them; gives
        the number of log files. ``manual``: at any hour. Raises :class:`StorageError`."""
        try:
            return self._clean(time.time() if now is None else now, manual=manual)
        except OSError as error:
            path = error.filename or self._state.paths.commitlog
            raise StorageError(path, "can't be looked at", error) from error

    def _clean(self, now: float, *, manual: bool) -> int:
        state = self._state
        rules = state.options.retention or Retention()
        used = self.disk_used()
        if not rules.is_due(now, used, manual=manual):
            return 0
        removed = 0
        with self._log_sync.lock, state.lock:
            self._dispatcher.catch_up()
            parts = state.parts
            files = parts.commitlog.files
            with Change(state):
                for start in list(files.files)[:-1]:
                    modified = state.options.fs.stat(files.files[start].path).st_mtime
                    if removed >= rules.most_at_once or not rules.is_expired(now, modified, used):
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
        rules = self._state.options.retention
        self._state.refuse_full(rules is not None and self.disk_used() > rules.full_ratio)

    def disk_used(self) -> float:
        """Share of the log's file system that is used, from 0 to 1. Blocks kept for root count
        neither as used nor as free, as in RocketMQ's UtilAll and in ``df``."""
        info = self._state.options.fs.statvfs(self._state.paths.commitlog)
        used = info.f_blocks - info.f_bfree
        reachable = used + info.f_bavail
        return used / reachable if reachable else 0.0
