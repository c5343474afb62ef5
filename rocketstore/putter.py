"""Single puts: the usual one here, step by step, others by :mod:`rocketstore.put_path`."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Unpack

from journal.call_lock import refuse_twice
from journal.errors import StorageError, StoreError, UsageError
from journal.patience import PatientLock
from journal.poison import Poison
from journal.sync import GroupCommit
from rocketstore.commitlog import CommitLog
from rocketstore.commitlog_format import HEADERS, MESSAGE_MAGIC, START
from rocketstore.crc import crc32
from rocketstore.cut_short import WholeOrNothing
from rocketstore.dispatch import QueueKey
from rocketstore.message import PutResult
from rocketstore.parts import Parts
from rocketstore.pending import PENDING_MAX, Pending
from rocketstore.properties import encode_usual, join_keys
from rocketstore.put_path import PutFields, Route, pack_head, pack_stamp, put_general

__all__ = ["Putter"]

_HEAD_SIZE = HEADERS[0].size
_START_SIZE = START.size
_pack_start = START.pack
_new_tuple = tuple.__new__


class Putter:
    """The single puts of :class:`rocketstore.Store`, which has the rest."""

    # What a put looks at stands in slots: it is found sooner there.
    __slots__ = (
        "_commitlog",
        "_fsync",
        "_full",
        "_group",
        "_last_route",
        "_last_time",
        "_lock",
        "_max_size",
        "_next_tick",
        "_pending",
        "_poison",
        "_refusal",
        "_routes",
        "_stamp",
        "_store_host",
        "_ticks",
        "_wide",
    )

    _commitlog: CommitLog
    _fsync: bool
    _full: bool
    _group: GroupCommit
    _last_route: Route
    _last_time: int
    _lock: PatientLock
    _max_size: int
    _next_tick: int
    _parts: Parts
    _pending: Pending
    _poison: Poison
    _refusal: StoreError | None
    _routes: dict[QueueKey, Route]
    _stamp: bytes
    _store_host: bytes
    _ticks: Callable[[], int]
    _ticks_per_ms: int
    _wide: bool
    path: str

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        unique_key: str | None = None,
        **fields: Unpack[PutFields],
    ) -> PutResult:
        """Store one message; found by queue and key from now on. O(size).

        ``fields`` are what few messages have: ``properties``, ``delay``, ``flag``, ``sys_flag``,
        ``born_timestamp``, ``born_host``, ``store_host``, ``reconsume_times``,
        ``prepared_transaction_offset`` and ``wait``. ``properties`` may also be bytes, which are
        stored as they are. ``delay`` is a level from 1 to 18: the message is delivered to its
        topic after that time. ``wait=False`` (or property WAIT=false) does not wait for the disk
        under ``durability="fsync"``.

        Raises :class:`UsageError` for input over a limit, :class:`StorageError` when the disk is
        full (nothing is stored then), :class:`WritesRefusedError` after an earlier failure.
        """
        if fields or self._wide or body.__class__ is not bytes:
            return put_general(self, topic, body, queue_id, tags, keys, unique_key, **fields)
        route = self._last_route
        if topic is not route.topic or queue_id != route.queue_id:
            route = self._routes.get((topic, queue_id)) or self._route(topic, queue_id)
            self._last_route = route
        tail = route.plain
        if keys or unique_key or tags:
            if keys is not None and not isinstance(keys, str):
                keys = join_keys(keys)
            data = encode_usual(keys, unique_key, tags)
            size = len(data)
            tail = (route.leads.get(size) or route.lead(size)) + data
        length = len(body)
        size = _HEAD_SIZE + length + len(tail)
        crc = crc32(body) & 0x7FFFFFFF
        log, lock, pending = self._commitlog, self._lock, self._pending
        if lock.is_mine() or (self._fsync and self._group.is_mine()):
            refuse_twice()
        try:
            # A ``with`` costs twice as much.
            if not lock.take():
                lock.stand_in_line()
            if self._refusal is not None or self._poison.reason is not None or self._full:
                self._check_writable()
            at = log.at
            if at + size > log.room or size > self._max_size:
                at = self._make_room(size)
            # A callable kept in an attribute is called faster by way of a local name.
            clock = self._ticks
            ticks = clock()
            if ticks >= self._next_tick:
                self._begin_moment(ticks)
            now = self._last_time
            ordinal = route.ordinal
            offset = log.base + at
            end = at + size
            # The start of a record is stored last: see CommitLog.write.
            head = pack_head(0, 0, crc, route.start, ordinal, offset, self._stamp, length)
            start = _pack_start(size, MESSAGE_MAGIC)
            # From here to the last line no signal's handler runs: all of it is done, or nothing.
            log.view[at:end] = head + body + tail  # type: ignore[index]
            log.view[at : at + _START_SIZE] = start  # type: ignore[index]
            log.at = end
            route.ordinal = ordinal + 1
            if route is not pending.route:
                pending.route = route
                pending.queues[offset] = route.key
            offsets = pending.offsets
            offsets.append(offset)
            if len(offsets) >= PENDING_MAX:
                pending.dispatch_quietly()
        except BaseException:
            # A signal's exception can also come while the lock is waited for.
            lock.let_go()
            raise
        lock.release()
        if self._fsync:
            self._group.commit()
        return _new_tuple(PutResult, (offset, size, queue_id, ordinal, now, self._store_host))

    def _route(self, topic: str, queue_id: int) -> Route:
        """The route of a queue, made at its first put; of two threads' one is taken by both."""
        key = (topic, queue_id)
        route = self._routes.get(key)
        if route is None:
            queue = self._parts.queues.get(key)
            made = Route(topic, queue_id, queue.max_offset if queue is not None else 0)
            route = self._routes.setdefault(key, made)
        return route

    def _make_room(self, size: int) -> int:
        """Have room for a record; gives its place in the last file."""
        if size > self._max_size:
            raise UsageError(f"record of {size} bytes: the limit is {self._max_size}")
        log = self._commitlog
        if log.at + size > log.room:
            with WholeOrNothing(self):
                # What waits is in the last file, which may become another one now.
                self._pending.dispatch()
                log.make_room(size)
        return log.at

    def _now(self) -> int:
        """The store time (ms) of a message that is put now: it never runs backwards."""
        ticks = self._ticks()
        if ticks >= self._next_tick:
            self._begin_moment(ticks)
        return self._last_time

    def _begin_moment(self, ticks: int) -> None:
        """The clock shows another millisecond: what its messages share is packed once."""
        now = ticks // self._ticks_per_ms
        self._stamp = pack_stamp(0, now, self._store_host, now, self._store_host, 0, 0)
        self._last_time = now
        self._next_tick = (now + 1) * self._ticks_per_ms

    def _check_writable(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        self._poison.check()
        if self._full:
            cause = OSError(errno.ENOSPC, "the disk is used beyond the retention's full_ratio")
            raise StorageError(self.path, "no more messages are taken", cause)
