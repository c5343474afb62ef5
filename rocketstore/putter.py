"""Single puts: the usual message, and a message with rare fields."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import TypedDict

from journal.errors import UsageError
from journal.locks.call_lock import refuse_twice
from rocketstore.dispatcher import PENDING_MAX, Dispatcher
from rocketstore.format import words
from rocketstore.format.commitlog_format import (
    COMMIT,
    HEADERS,
    MESSAGE_MAGIC,
    TRANSACTION_MASK,
    body_crc,
    host_bytes,
    with_host_bits,
)
from rocketstore.format.compose import compose
from rocketstore.format.delay import deliver_time
from rocketstore.format.message import PutResult
from rocketstore.format.properties import WAIT, encode_usual, join_keys
from rocketstore.log_sync import LogSync
from rocketstore.queues.route import NOWHERE
from rocketstore.state import Change, StoreState

_HEAD_SIZE = HEADERS[0].size


class PutFields(TypedDict, total=False):
    """The fields of a put that few messages have; see :meth:`rocketstore.Store.put`."""

    properties: Mapping[str, str] | bytes | None
    delay: int | None
    flag: int
    sys_flag: int
    born_timestamp: int | None
    born_host: str | bytes | tuple[str, int] | None
    store_host: str | bytes | tuple[str, int] | None
    reconsume_times: int
    prepared_transaction_offset: int
    wait: bool


class Putter:
    """Store single messages."""

    __slots__ = ("_dispatcher", "_fsync", "_last_route", "_log_sync", "_max_size", "_state")

    def __init__(self, state: StoreState, dispatcher: Dispatcher, log_sync: LogSync) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._log_sync = log_sync
        self._fsync = state.options.durability == "fsync"
        self._max_size = state.options.max_message_size
        self._last_route = NOWHERE

    def put(
        self,
        topic: str,
        body: bytes,
        queue_id: int,
        tags: str | None,
        keys: str | Iterable[str] | None,
        unique_key: str | None,
        fields: PutFields,
    ) -> PutResult:
        """:meth:`rocketstore.Store.put`."""
        state = self._state
        clock = state.clock
        if fields or clock.wide or type(body) is not bytes:
            return self._put_general(topic, body, queue_id, tags, keys, unique_key, **fields)
        route = self._last_route
        if topic is not route.topic or queue_id != route.queue_id:
            route = state.routes.get((topic, queue_id)) or state.route(topic, queue_id)
            self._last_route = route
        properties = b""
        if keys or unique_key or tags:
            if keys is not None and not isinstance(keys, str):
                keys = join_keys(keys)
            properties = encode_usual(keys, unique_key, tags)
        content = body
        field = route.field
        size = _HEAD_SIZE + len(content) + len(field) + 2 + len(properties)
        crc = words.body_sum(content)
        lock = state.lock
        if lock.is_mine():
            refuse_twice()
        if self._fsync:
            self._log_sync.check_outside()
        try:
            state.take()
            if state.changing or state.refused:
                self._dispatcher.begin_put()
            log = state.commitlog
            if log.at + size > log.room or size > self._max_size:
                self._make_room(size)
            at = log.at
            now = clock.read()
            ordinal = route.ordinal
            offset = log.base + at
            view = log.view
            assert view is not None
            state.changing = True
            log.at = words.store_message(
                view, at, crc, route.start, ordinal, offset, clock.stamp, content, field, properties
            )
            route.ordinal = ordinal + 1
            pending = state.pending
            if route is not pending.route:
                pending.route = route
                pending.queues[offset] = route.key
            offsets = pending.offsets
            words.push(offsets, offset)
            if len(offsets) >= PENDING_MAX:
                self._dispatcher.dispatch_quietly()
            state.changing = False
        except BaseException:
            # A signal's exception can also come while the lock is waited for.
            lock.let_go()
            raise
        lock.release()
        if self._fsync:
            self._log_sync.commit()
        made: PutResult = words.new_result(
            PutResult, offset, size, queue_id, ordinal, now, clock.host
        )
        return made

    def _put_general(
        self,
        topic: str,
        body: bytes,
        queue_id: int,
        tags: str | None,
        keys: str | Iterable[str] | None,
        unique_key: str | None,
        *,
        properties: Mapping[str, str] | bytes | None = None,
        delay: int | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | bytes | tuple[str, int] | None = None,
        store_host: str | bytes | tuple[str, int] | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        wait: bool = True,
    ) -> PutResult:
        """Store a message with any field."""
        if not isinstance(body, bytes):
            raise UsageError(f"body is {type(body).__name__}: bytes are right")
        topic, queue_id, data, found, level = compose(
            topic, queue_id, properties, tags, keys, unique_key, delay, sys_flag
        )
        stored_by = self._state.clock.host if store_host is None else host_bytes(store_host)
        born_by = stored_by if born_host is None else host_bytes(born_host)
        synced = wait and self._fsync and found.get(WAIT) != "false"
        if synced:
            self._log_sync.check_outside()
        with self._state.lock:
            result = self.append(
                topic, queue_id, body, data, flag, sys_flag, born_timestamp, born_by, stored_by,
                reconsume_times, prepared_transaction_offset, level,
            )  # fmt: skip
        if synced:
            self._log_sync.commit()
        return result

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_timestamp: int | None,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        level: int,
    ) -> PutResult:
        """Append a message to the log. The caller has the store's lock, and syncs.

        ``born_timestamp``: ``None`` for the store time. ``level``: of delay, 0 for none. Raises as
        :meth:`rocketstore.Store.put`.
        """
        state = self._state
        self._dispatcher.begin_put()
        sys_flag = with_host_bits(sys_flag, born_host, store_host)
        header = HEADERS[(sys_flag >> 4) & 3]
        route = state.route(topic, queue_id)
        tail = route.field + len(properties).to_bytes(2, "big") + properties
        size = header.size + len(body) + len(tail)
        at = self._make_room(size)
        now = state.clock.read()
        # Messages of a transaction that is open or undone are in no queue.
        counted = sys_flag & TRANSACTION_MASK in (0, COMMIT)
        ordinal = route.ordinal if counted else 0
        offset = state.commitlog.base + at
        born = now if born_timestamp is None else born_timestamp
        try:
            head = header.pack(
                size, MESSAGE_MAGIC, body_crc(body), queue_id, flag, ordinal, offset,
                sys_flag, born, born_host, now, store_host, reconsume_times,
                prepared_transaction_offset, len(body),
            )  # fmt: skip
        except struct.error as error:
            raise UsageError(f"a field does not fit into the record: {error}") from error
        with Change(state):
            state.commitlog.write(head + body + tail)
            route.ordinal += counted
            pending = state.pending
            pending.note(offset, route, deliver_time(level, now) if level else 0)
            if len(pending.offsets) >= PENDING_MAX:
                self._dispatcher.dispatch_quietly()
        return PutResult(offset, size, queue_id, ordinal, now, store_host)

    def _make_room(self, size: int) -> int:
        """Make room for a record; return its place in the last file."""
        if size > self._max_size:
            raise UsageError(f"record of {size} bytes: the limit is {self._max_size}")
        state = self._state
        log = state.commitlog
        if log.at + size > log.room:
            if size > log.space_left():
                # The pending messages are in the last file, which becomes another one now.
                self._dispatcher.dispatch()
            with Change(state):
                log.make_room(size)
        return log.at
