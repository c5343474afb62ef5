"""Figures of a queue and of an engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from journal.durations import NO_DURATIONS, Durations
from msgstore import StoreStats
from qindex.format.settings import NO_SETTINGS, QueueSettings
from qindex.queue.dead_letter import Reason


@dataclass(frozen=True, slots=True)
class ByReason:
    """Messages that left a queue without a consumer's ack, by the reason.

    ``rejected``: ``reject()``; ``expired``: their time was up; ``limit``: they came
    back after ``delivery_limit`` deliveries; ``overflow``: dropped from the head of a full queue.
    """

    rejected: int = 0
    expired: int = 0
    limit: int = 0
    overflow: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.rejected + self.expired + self.limit + self.overflow


def by_reason(counts: Counter[Reason]) -> ByReason:
    """Return counts as the figures have them."""
    return ByReason(
        rejected=counts["rejected"],
        expired=counts["expired"],
        limit=counts["limit"],
        overflow=counts["overflow"],
    )


class Tally:
    """Counts of one queue since it was opened; its lock is held for every change.

    ``again``: deliveries of messages that had been delivered before. ``withheld``: messages
    taken off the queue as if for a delivery, and given to no consumer. ``given_up``: messages that
    left without a consumer's ack; ``moved``: those of them that are in the dead-letter queue.
    ``refused``: messages of publishes that found the queue full.
    """

    __slots__ = ("again", "given_up", "moved", "refused", "withheld")

    def __init__(self) -> None:
        self.again: int = 0
        self.withheld: int = 0
        self.refused: int = 0
        self.given_up: Counter[Reason] = Counter()
        self.moved: Counter[Reason] = Counter()


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue at one moment.

    ``pending``: messages of transactions that are not committed.
    ``ready``: messages that wait for a consumer; ``delayed``: messages not due yet, and
    ``next_due``: when the first of them is, in microseconds since 1970 UTC; ``unacked``: those that
    are with a consumer (:mod:`qindex.view.backlog`); ``segments``: segment files and maps known;
    ``segment_bytes``, ``journal_bytes``: on disk; ``journal_entries``: actions since the last flush
    (dirty_count); ``next_seq_id``: the next publish gets it. Since open:
    ``published``, ``acked`` (messages that left the queue, except dead letters), ``flushes``,
    ``flushed_bytes``, ``journal_syncs``, ``delivered`` (deliveries, those of a message that came
    back included), ``redelivered`` (those alone), ``requeued`` (deliveries given back), ``dropped``
    (expired, purged or damaged, without a delivery; among ``acked``), ``refused`` (messages of
    publishes that raised :class:`~journal.errors.QueueFullError`), ``given_up`` (messages that left
    without a consumer's ack) and ``dead_letters`` (those of them that moved to the dead-letter
    queue), both by reason, and how long flushes and syncs of the journal took. ``settings``: of the
    queue. ``ready_by_priority``: of a priority queue the messages that are ready, of each priority
    from 0 on; empty for any other. ``next_seq_id`` is that of priority 0 then.
    """

    name: str
    ready: int
    unacked: int
    segments: int
    segment_bytes: int
    journal_bytes: int
    journal_entries: int
    next_seq_id: int
    published: int
    acked: int
    flushes: int
    flushed_bytes: int
    journal_syncs: int
    delayed: int = 0
    pending: int = 0
    next_due: int | None = None
    delivered: int = 0
    requeued: int = 0
    dropped: int = 0
    flush_durations: Durations = NO_DURATIONS
    sync_durations: Durations = NO_DURATIONS
    redelivered: int = 0
    refused: int = 0
    given_up: ByReason = ByReason()
    dead_letters: ByReason = ByReason()
    settings: QueueSettings = NO_SETTINGS
    ready_by_priority: tuple[int, ...] = ()

    @property
    def messages(self) -> int:
        """Messages in the queue: ready, delayed and unacked."""
        return self.ready + self.delayed + self.unacked


@dataclass(frozen=True, slots=True)
class EngineStats:
    """All queues of an engine at one moment; ``dirty_bytes``: memory that unflushed entries take.

    ``writes_refused``: why no more writes are taken, or ``None``. ``message_store``: figures of
    the persistent message store, ``None`` where no message needed one.
    ``build``: ``"compiled"`` or ``"interpreted"``, of the code that runs.
    """

    directory: str
    queues: tuple[QueueStats, ...]
    dirty_bytes: int
    writes_refused: str | None
    message_store: StoreStats | None
    build: str
