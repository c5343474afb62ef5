"""Answers of a store: by queue, by key, by offset, by time."""

from __future__ import annotations

from collections.abc import Iterator

from journal.call_lock import refuse_twice
from journal.errors import UsageError
from rocketstore import reading
from rocketstore.commitlog_format import ROLLBACK, TRANSACTION_MASK, parse_message_id
from rocketstore.dispatch import QueueKey
from rocketstore.dispatcher import Dispatcher
from rocketstore.filler_format import is_filler
from rocketstore.get_result import GetResult
from rocketstore.message import StoredMessage
from rocketstore.reading import get_messages, query_exact
from rocketstore.state import StoreState

_LONG_MAX = (1 << 63) - 1


class Reader:
    """The reading methods of :class:`rocketstore.Store`.

    Every answer holds every put that returned before the question.
    """

    __slots__ = ("_dispatcher", "_state")

    def __init__(self, state: StoreState, dispatcher: Dispatcher) -> None:
        self._state = state
        self._dispatcher = dispatcher

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_num: int,
        tags: str | None,
        most: int,
        max_bytes: int,
    ) -> GetResult:
        """:meth:`rocketstore.Store.get`."""
        state = self._state
        if state.lock.is_mine():
            refuse_twice()
        try:
            state.take()
            self._dispatcher.catch_up()
            found = get_messages(
                state.parts, topic, queue_id, offset, max_num, tags, most, max_bytes
            )
        except BaseException:
            state.lock.let_go()
            raise
        state.lock.release()
        return found

    def lookup(self, offset: int | str) -> StoredMessage | None:
        """:meth:`rocketstore.Store.lookup`."""
        if isinstance(offset, str):
            offset = parse_message_id(offset)[1]
        if offset < 0:
            raise UsageError(f"offset {offset}: it must not be negative")
        if offset > _LONG_MAX:
            return None
        state = self._state
        with state.lock:
            if state.changing or state.refusal is not None:
                state.begin_read()
            raw = state.commitlog.read_record(offset)
        if raw is None or int.from_bytes(raw[28:36], "big") != offset:
            return None
        message = StoredMessage(raw, offset)
        if raw[39] & TRANSACTION_MASK == ROLLBACK and is_filler(
            message.topic.encode(), ROLLBACK, len(raw)
        ):
            return None
        return message

    def query(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin: int,
        end: int,
        exact: bool,
    ) -> list[StoredMessage]:
        """:meth:`rocketstore.Store.query`."""
        if not isinstance(key, str) or (exact and not key):
            raise UsageError("the key is empty or no text")
        if max_num < 0:
            raise UsageError(f"max_num {max_num}: it must not be negative")
        if begin < -_LONG_MAX or begin > _LONG_MAX or end > _LONG_MAX or end < -_LONG_MAX:
            raise UsageError(f"times {begin} to {end}: the limit is {_LONG_MAX} ms")
        state = self._state
        found: list[StoredMessage] = []
        if state.lock.is_mine():
            refuse_twice()
        try:
            state.take()
            self._dispatcher.catch_up()
            if exact and max_num:
                found = query_exact(state.parts, topic, key, max_num, begin, end)
            elif max_num:
                found = reading.query_message(state.parts, topic, key, max_num, begin, end)
        except BaseException:
            state.lock.let_go()
            raise
        state.lock.release()
        return found

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, *, as_rocketmq: bool
    ) -> int:
        """:meth:`rocketstore.Store.offset_by_time`."""
        ask = reading.offset_by_time_as_rocketmq if as_rocketmq else reading.offset_by_time
        with self._state.lock:
            self._dispatcher.catch_up()
            return ask(self._state.parts, topic, queue_id, timestamp)

    def at(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """:meth:`rocketstore.Store.at`."""
        with self._state.lock:
            self._dispatcher.catch_up()
            return reading.message_at(self._state.parts, topic, queue_id, queue_offset)

    def messages(self, topic: str, queue_id: int, offset: int) -> Iterator[StoredMessage]:
        """:meth:`rocketstore.Store.messages`."""
        while True:
            with self._state.lock:
                self._dispatcher.catch_up()
                page, after = reading.scan_page(self._state.parts, topic, queue_id, offset)
            yield from page
            if after <= max(offset, 0):
                return
            offset = after

    def queues(self) -> dict[QueueKey, tuple[int, int]]:
        """:meth:`rocketstore.Store.queues`."""
        with self._state.lock:
            self._dispatcher.catch_up()
            return {
                key: (queue.min_offset, queue.max_offset)
                for key, queue in sorted(self._state.parts.queues.items())
                if queue.max_offset
            }

    def max_offset(self) -> int:
        """Physical offset after the last record."""
        state = self._state
        with state.lock:
            if state.changing and state.refusal is None:
                state.read_again()
            return state.commitlog.max_offset
