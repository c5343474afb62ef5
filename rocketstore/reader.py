"""The half of a store that answers: by queue, by key, by offset, by time."""

from __future__ import annotations

from collections.abc import Iterator

from journal.errors import ClosedError, StoreError, UsageError
from journal.findings import Finding
from journal.patience import PatientLock
from rocketstore import reading
from rocketstore.commitlog_format import ROLLBACK, TRANSACTION_MASK, parse_message_id
from rocketstore.dispatch import QueueKey
from rocketstore.filler_format import is_filler
from rocketstore.get_result import GetResult
from rocketstore.message import StoredMessage
from rocketstore.parts import Parts
from rocketstore.pending import Pending

__all__ = ["Reader"]

_LONG_MAX = (1 << 63) - 1


class Reader:
    """The reading methods of :class:`rocketstore.Store`, which has the rest.

    Every answer holds every put that returned before the question.
    """

    _lock: PatientLock
    _parts: Parts
    _pending: Pending
    _refusal: StoreError | None

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_num: int = 32,
        tags: str | None = None,
        *,
        most: int = reading.MAX_MESSAGES,
        max_bytes: int = reading.MAX_BYTES,
    ) -> GetResult:
        """Messages of a queue from ordinal ``offset`` on, with the status and next offset that
        RocketMQ gives. ``tags`` is ``"A || B"``, matched by hash. ``most`` and ``max_bytes`` are
        RocketMQ's caps on one answer. O(messages)."""
        with self._lock:
            self._catch_up()
            return reading.get_messages(
                self._parts, topic, queue_id, offset, max_num, tags, most=most, max_bytes=max_bytes
            )

    def lookup(self, offset: int | str) -> StoredMessage | None:
        """The message at a physical offset, or with an offset message id; ``None`` if no record
        stands there. What fills a hole in the log is no message. O(1)."""
        if isinstance(offset, str):
            offset = parse_message_id(offset)[1]
        if offset < 0:
            raise UsageError(f"offset {offset}: it must not be negative")
        with self._lock:
            self._check_open()
            raw = self._parts.commitlog.read_record(offset)
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
        max_num: int = 32,
        begin: int = 0,
        end: int = reading.TIME_MAX,
        *,
        exact: bool = True,
    ) -> list[StoredMessage]:
        """Messages by key (one of KEYS, or the UNIQ_KEY) stored from ``begin`` to ``end`` (ms).

        ``exact``: the newest ``max_num`` that really have the key, each once, oldest first.
        Otherwise what RocketMQ answers: at most 64, hash twins and duplicates among them, times
        rounded to seconds. Cost: the length of the key's chain, not the size of the store.
        """
        if not isinstance(key, str) or (exact and not key):
            raise UsageError("the key is empty or no text")
        if max_num < 0:
            raise UsageError(f"max_num {max_num}: it must not be negative")
        if begin < -_LONG_MAX or begin > _LONG_MAX or end > _LONG_MAX or end < -_LONG_MAX:
            raise UsageError(f"times {begin} to {end}: the limit is {_LONG_MAX} ms")
        ask = reading.query_exact if exact else reading.query_message
        with self._lock:
            self._catch_up()
            return ask(self._parts, topic, key, max_num, begin, end) if max_num else []

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, *, as_rocketmq: bool = False
    ) -> int:
        """Ordinal of the queue's first message stored at or after a time (ms), or the queue's end.

        ``as_rocketmq``: what 4.9.3 answers, the nearest unit within one file, which it picks by
        modification time.
        """
        ask = reading.offset_by_time_as_rocketmq if as_rocketmq else reading.offset_by_time
        with self._lock:
            self._catch_up()
            return ask(self._parts, topic, queue_id, timestamp)

    def at(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """The message with an ordinal in a queue; ``None`` if there is none (any more)."""
        with self._lock:
            self._catch_up()
            return reading.message_at(self._parts, topic, queue_id, queue_offset)

    def messages(self, topic: str, queue_id: int, offset: int = 0) -> Iterator[StoredMessage]:
        """All messages of a queue from an ordinal on, those put meanwhile too; changes nothing."""
        while True:
            with self._lock:
                self._catch_up()
                page, after = reading.scan_page(self._parts, topic, queue_id, offset)
            yield from page
            if after <= max(offset, 0):
                return
            offset = after

    def queues(self) -> dict[QueueKey, tuple[int, int]]:
        """``(topic, queue id)`` to its min and max offset, for each queue that has messages."""
        with self._lock:
            self._catch_up()
            return {
                key: (queue.min_offset, queue.max_offset)
                for key, queue in sorted(self._parts.queues.items())
                if queue.max_offset
            }

    @property
    def min_offset(self) -> int:
        """First physical offset of the log; -1 if it is empty."""
        return self._parts.commitlog.min_offset

    @property
    def max_offset(self) -> int:
        """Physical offset after the last record."""
        with self._lock:
            return self._parts.commitlog.max_offset

    @property
    def findings(self) -> list[Finding]:
        """What open found and repaired, or found and reported."""
        return list(self._parts.findings)

    def _check_open(self) -> None:
        if isinstance(self._refusal, ClosedError):
            raise self._refusal

    def _catch_up(self) -> None:
        if self._refusal is not None:
            self._check_open()
        pending = self._pending
        if pending.broken is not None:
            raise pending.broken
        if pending.offsets:
            pending.dispatch()
