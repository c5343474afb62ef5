"""The work of a store that nobody waits for: it delivers delayed messages, deletes expired files,
syncs, and writes checkpoints."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator

from journal.background import Background
from journal.errors import StorageError, StoreError
from journal.locks.flag import Flag
from journal.poison import is_passing
from rocketstore.checkpointer import Checkpointer
from rocketstore.dispatcher import Dispatcher
from rocketstore.format.consumequeue_format import UNIT
from rocketstore.format.delay import MAX_LEVEL, SCHEDULE_TOPIC, is_due
from rocketstore.format.message import StoredMessage
from rocketstore.format.properties import REAL_QUEUE_ID, REAL_TOPIC
from rocketstore.log_sync import LogSync
from rocketstore.putter import Putter
from rocketstore.queues.offsets import DelayOffsets
from rocketstore.retention import Retention
from rocketstore.state import Change, StoreState

_log = logging.getLogger("qindex.rocketstore")
_CLEAN_SECONDS = 10.0


class Housekeeping:
    """Each part of the work by itself; and a daemon thread that does all of it until it is stopped,
    or until the store takes no writes. ``offsets`` says how far each level of delay is."""

    def __init__(
        self,
        state: StoreState,
        dispatcher: Dispatcher,
        log_sync: LogSync,
        putter: Putter,
        checkpointer: Checkpointer,
        offsets: DelayOffsets,
    ) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._log_sync = log_sync
        self._putter = putter
        self._checkpointer = checkpointer
        self._offsets = offsets
        self._lacks_room = False
        self._stop = Flag()
        self._thread = Background(self._run, "rocketstore")

    # The thread

    def start(self) -> None:
        """Start the thread. Where the system has none left, the store does without, and logs it."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after the round that is under way, and wait for it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        state, options = self._state, self._state.options
        checkpoint_at = clean_at = time.monotonic()
        vouched = -1
        while not self._stop.wait(options.flush_interval):
            if state.refusal is not None or state.poison.reason is not None:
                return
            moment = time.monotonic()
            try:
                if options.retention is not None and moment - clean_at >= _CLEAN_SECONDS:
                    clean_at = moment
                    # First: it makes the room that the others may lack.
                    self.clean(None, manual=False)
                    self.look_at_disk()
                with self._room_or_later():
                    self.deliver_due(options.clock())
                if moment - checkpoint_at >= options.checkpoint_interval:
                    checkpoint_at = moment
                    with state.lock:
                        end = state.commitlog.max_offset
                    if end != vouched or self._offsets.changed:
                        with self._room_or_later():
                            self._checkpointer.checkpoint()
                            vouched = end
                else:
                    self._log_sync.sync()
            except (StoreError, OSError) as error:
                # The store refuses writes from here on; the next call raises this error.
                _log.error("%s: background work failed: %s", state.paths.root, error)
                state.poison.set(error)
                return

    @contextlib.contextmanager
    def _room_or_later(self) -> Iterator[None]:
        """Leave work that has met a full disk to the next round."""
        try:
            yield
        except StorageError as error:
            if not is_passing(error):
                raise
            if not self._lacks_room:
                _log.warning(
                    "%s: background work waits for room: %s", self._state.paths.root, error
                )
            self._lacks_room = True
        else:
            self._lacks_room = False

    # Delayed messages

    def deliver_due(self, now: int) -> int:
        """Put each delayed message that is due (``now`` in ms) where it belongs; return their
        number.

        Raises :class:`ClosedError`, :class:`StorageError` and :class:`WritesRefusedError`.
        """
        delivered = 0
        with self._state.lock:
            self._dispatcher.catch_up()  # the first message of a level makes its queue
        for level in range(1, MAX_LEVEL + 1):
            while self._deliver_next(level, now):
                delivered += 1
        return delivered

    def _deliver_next(self, level: int, now: int) -> bool:
        """Deliver the next message of a level, if it is due."""
        state = self._state
        with state.lock:
            state.begin_read()
            queue = state.parts.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is None:
                return False
            at = max(self._offsets.get(level), queue.min_offset)
            data = queue.read(at, 1)
            if not data:
                return False
            place, size, due = UNIT.unpack(data)
            if not is_due(due, level, now):
                return False
            raw = state.commitlog.read(place, size)
            if raw is not None:
                self._put_where_it_belongs(StoredMessage(raw, place))
            # A crash before this is saved delivers the message again.
            self._offsets.set(level, at + 1)
        return True

    def _put_where_it_belongs(self, message: StoredMessage) -> None:
        """Store a delayed message again, in its own topic; its properties stay as they are."""
        properties = message.properties
        topic = properties.get(REAL_TOPIC)
        queue_id = properties.get(REAL_QUEUE_ID, "")
        if topic is None or not re.fullmatch("[0-9]{1,10}", queue_id):
            _log.warning("offset %d: delayed message without its topic, dropped", message.offset)
            return
        fields = message.fields
        self._putter.append(
            topic, int(queue_id), message.body, message.properties_bytes, message.flag,
            message.sys_flag, message.born_timestamp, fields[9], fields[11],
            message.reconsume_times, 0, 0,
        )  # fmt: skip

    # Retention

    def clean(self, now: float | None, *, manual: bool) -> int:
        """Delete expired log files, then the files of queues and index that point to them; return
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
            self._dispatcher.catch_up_or_less()  # there is room when this has been done
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
