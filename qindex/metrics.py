"""Figures as Prometheus has them: its text form, and a collector for prometheus_client.

Two sources: an engine in this process (:func:`engine_families`: gauges, counters since its queues
were opened, histograms), and the files of a store that another one has open
(:func:`store_families`: gauges). The text form is version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from journal.durations import BOUNDS, Durations
from journal.errors import ClosedError
from journal.shown import printable
from qindex.format.settings import QueueSettings
from qindex.queue.stats import ByReason, EngineStats, QueueStats
from qindex.view.reader import MessageStoreSummary, QueueSummary

if TYPE_CHECKING:
    from qindex.engine.engine import Engine

__all__ = [
    "CONTENT_TYPE",
    "Family",
    "Sample",
    "collector",
    "engine_families",
    "exposition",
    "store_families",
]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of :func:`exposition`, for the header of an HTTP response."""

Kind = Literal["gauge", "counter", "histogram"]
One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: ``suffix`` after the family's name, labels, value."""

    suffix: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name. ``help``: its meaning and unit."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample] = field(default_factory=list)


Column = tuple[str, Kind, str, Callable[[One], float | None]]

_BACKLOG: list[Column[QueueSummary | QueueStats]] = [
    ("messages", "gauge", "Messages: ready, delayed and unacked.", lambda one: one.messages),
    ("ready", "gauge", "Messages that wait for a consumer.", lambda one: one.ready),
    ("delayed", "gauge", "Messages that are not due yet.", lambda one: one.delayed),
    ("pending", "gauge", "Messages of open transactions.", lambda one: getattr(one, "pending", 0)),
    ("unacked", "gauge", "Messages with a consumer, not yet settled.", lambda one: one.unacked),
]
"""Files tell no more than the first where a process has the store open; see
:mod:`qindex.view.backlog`."""

_SUMMARY: list[Column[QueueSummary]] = [
    *_BACKLOG,
    (
        "delivered_before",
        "gauge",
        "Messages in the queue that were delivered, once at least.",
        lambda one: one.delivered_before,
    ),
    ("body_bytes", "gauge", "Bytes of the bodies of all messages.", lambda one: one.bytes),
    ("file_bytes", "gauge", "Bytes of journal and segments.", lambda one: one.file_bytes),
    ("journal_bytes", "gauge", "Bytes of the journal.", lambda one: one.journal_bytes),
    ("journal_entries", "gauge", "Records in the journal.", lambda one: one.journal_entries),
    ("segments", "gauge", "Segment files.", lambda one: one.segments),
    ("next_seq_id", "gauge", "The next publish gets it.", lambda one: one.next_seq_id),
]

_STATS: list[Column[QueueStats]] = [
    *_BACKLOG,
    ("segment_bytes", "gauge", "Bytes of the segment files.", lambda one: one.segment_bytes),
    ("journal_bytes", "gauge", "Bytes of the journal.", lambda one: one.journal_bytes),
    ("journal_entries", "gauge", "Actions since the last flush.", lambda one: one.journal_entries),
    ("segments", "gauge", "Segments.", lambda one: one.segments),
    ("next_seq_id", "gauge", "The next publish gets it.", lambda one: one.next_seq_id),
    ("published", "counter", "Messages published.", lambda one: one.published),
    ("delivered", "counter", "Deliveries, repeated ones too.", lambda one: one.delivered),
    ("acked", "counter", "Messages that left, except dead letters.", lambda one: one.acked),
    ("redelivered", "counter", "Deliveries, repeated ones only.", lambda one: one.redelivered),
    ("requeued", "counter", "Deliveries given back.", lambda one: one.requeued),
    ("dropped", "counter", "Messages expired, purged, or damaged.", lambda one: one.dropped),
    ("refused", "counter", "Messages that found the queue full.", lambda one: one.refused),
    ("flushed_bytes", "counter", "Bytes written to segments.", lambda one: one.flushed_bytes),
]

_SETTINGS: list[Column[QueueSettings]] = [
    ("max_length", "gauge", "Messages that may be ready.", lambda one: one.max_length),
    ("max_bytes", "gauge", "Bytes of their bodies.", lambda one: one.max_bytes),
    ("message_ttl_seconds", "gauge", "When messages expire.", lambda one: one.message_ttl),
    ("delivery_limit", "gauge", "Deliveries of a message.", lambda one: one.delivery_limit),
]
"""Of queues that have these set."""

_REASONS: list[tuple[str, str, Callable[[QueueStats], ByReason]]] = [
    ("given_up", "Messages that left without a consumer's ack.", lambda one: one.given_up),
    ("dead_lettered", "Moved to the dead-letter queue.", lambda one: one.dead_letters),
]

_MESSAGE_STORE: list[Column[MessageStoreSummary]] = [
    ("files", "gauge", "Files of the message store.", lambda one: one.files),
    ("bytes", "gauge", "Bytes of its files.", lambda one: one.size),
    ("live_bytes", "gauge", "Bytes of messages that queues hold.", lambda one: one.live),
    ("garbage_bytes", "gauge", "The rest of its bytes.", lambda one: one.garbage),
    ("messages", "gauge", "Messages that queues hold.", lambda one: one.messages),
    ("references", "gauge", "How often queues hold them.", lambda one: one.references),
    ("missing", "gauge", "Messages that queues hold, not there.", lambda one: one.missing),
]


def store_families(
    queues: Sequence[QueueSummary], messages: MessageStoreSummary | None
) -> list[Family]:
    """Return the figures that the files of a store show.

    Args:
        queues: The summaries of the queues.
        messages: The summary of the message store, if there is one.

    Returns:
        The families of samples.
    """
    families = table("qindex_queue_", _SUMMARY, [(_labels(one.name), one) for one in queues])
    families += _settings((one.name, one.settings) for one in queues)
    if messages is not None:
        families += table("qindex_message_store_", _MESSAGE_STORE, [({}, messages)])
    return families


def engine_families(stats: EngineStats) -> list[Family]:
    """Return the figures of an engine. Counters start when a queue is opened.

    Args:
        stats: What ``engine.stats()`` returned.

    Returns:
        The families of samples.
    """
    labelled = [(_labels(one.name), one) for one in stats.queues]
    families = table("qindex_queue_", _STATS, labelled)
    families += _settings((one.name, one.settings) for one in stats.queues)
    for name, text, by_reason in _REASONS:
        samples = [
            Sample("_total", labels | {"reason": reason}, count)
            for labels, one in labelled
            for reason, count in asdict(by_reason(one)).items()
        ]
        families.append(Family(f"qindex_queue_{name}", "counter", text, samples))
    families += _priorities(labelled)
    for name, text, read in (
        ("flush", "Seconds that flushes took.", attrgetter("flush_durations")),
        ("sync", "Seconds that syncs of the journal took.", attrgetter("sync_durations")),
    ):
        samples = [sample for labels, one in labelled for sample in _histogram(labels, read(one))]
        families.append(Family(f"qindex_queue_{name}_seconds", "histogram", text, samples))
    refused = stats.writes_refused is not None
    families.append(_single("qindex_writes_refused", "1 after a failed write or sync.", refused))
    families.append(
        _single("qindex_dirty_bytes", "Memory of unflushed entries.", stats.dirty_bytes)
    )
    store = stats.message_store
    if store is not None:
        for name, text, value in (
            ("files", "Files of the message store.", store.files),
            ("bytes", "Bytes of its files.", store.size),
            ("live_bytes", "Bytes of messages that queues hold.", store.live),
            ("garbage_bytes", "The rest of its bytes.", store.garbage),
            ("messages", "Messages that queues hold.", store.messages),
        ):
            families.append(_single(f"qindex_message_store_{name}", text, value))
        for name, text, total in (
            ("deleted_files", "Files that compaction deleted.", store.compaction.files_deleted),
            ("copied_bytes", "Bytes that compaction copied.", store.compaction.bytes_copied),
            ("reclaimed_bytes", "Bytes of files it deleted.", store.compaction.bytes_deleted),
            ("stalled_seconds", "Seconds that publishers waited.", store.stalled_seconds),
        ):
            full = f"qindex_message_store_{name}"
            families.append(Family(full, "counter", text, [Sample("_total", {}, total)]))
    return families


def _priorities(queues: Sequence[tuple[Mapping[str, str], QueueStats]]) -> list[Family]:
    """Return what waits in each priority, where there are any."""
    samples = [
        Sample("", {**labels, "priority": str(priority)}, count)
        for labels, one in queues
        for priority, count in enumerate(one.ready_by_priority)
    ]
    text = "Messages that wait for a consumer, of each priority."
    return [Family("qindex_queue_ready_by_priority", "gauge", text, samples)] if samples else []


def _settings(queues: Iterable[tuple[str, QueueSettings]]) -> list[Family]:
    """Return the settings of the queues; a setting that no queue has is left out."""
    rows = [(_labels(name), one) for name, one in queues]
    return [one for one in table("qindex_queue_", _SETTINGS, rows) if one.samples]


def _labels(queue: str) -> dict[str, str]:
    # A name may be bytes that are not UTF-8, which the text form has to be.
    return {"queue": "\n".join(map(printable, queue.split("\n")))}  # which the text form escapes


def _single(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, [Sample("", {}, float(value))])


def table(
    prefix: str, columns: list[Column[One]], rows: Sequence[tuple[Mapping[str, str], One]]
) -> list[Family]:
    """Return a family for each column: its name after the prefix, its kind, its help, and what
    reads its value from a row; None is left out. ``rows``: each with its labels."""
    families = []
    for name, kind, text, read in columns:
        suffix = "_total" if kind == "counter" else ""
        found = ((labels, read(one)) for labels, one in rows)
        samples = [Sample(suffix, labels, value) for labels, value in found if value is not None]
        families.append(Family(prefix + name, kind, text, samples))
    return families


def _histogram(labels: Mapping[str, str], taken: Durations) -> Iterator[Sample]:
    bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    for bound, count in zip(bounds, accumulate(taken.counts), strict=True):
        yield Sample("_bucket", {**labels, "le": bound}, count)
    yield Sample("_count", labels, taken.count)
    yield Sample("_sum", labels, taken.seconds)


def exposition(families: Iterable[Family]) -> str:
    """Return figures in Prometheus's text form.

    Args:
        families: The families of samples.

    Returns:
        For each family its help and type, then a line for each sample.
    """
    return "".join(_lines(families))


def _lines(families: Iterable[Family]) -> Iterator[str]:
    for family in families:
        # The text form names a counter with its suffix.
        name = family.name + ("_total" if family.kind == "counter" else "")
        yield f"# HELP {name} {_escaped(family.help)}\n"
        yield f"# TYPE {name} {family.kind}\n"
        for sample in family.samples:
            pairs = ",".join(
                f'{label}="{_escaped(value, quotes=True)}"'
                for label, value in sample.labels.items()
            )
            labels = f"{{{pairs}}}" if pairs else ""
            yield f"{family.name}{sample.suffix}{labels} {sample.value!r}\n"


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


class _Collector:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Any]:
        """Yield the engine's families as prometheus_client's."""
        from prometheus_client.core import Metric

        try:
            stats = self._engine.stats()
        except ClosedError:
            return  # a scrape has other collectors to ask
        for family in engine_families(stats):
            metric = Metric(family.name, family.help, family.kind)
            for sample in family.samples:
                metric.add_sample(family.name + sample.suffix, dict(sample.labels), sample.value)
            yield metric


def collector(engine: Engine) -> _Collector:
    """Return a collector for ``prometheus_client.REGISTRY.register``.

    A scrape after the engine was closed, or in a forked child, finds no figures. Needs the extra
    ``prometheus``.

    Args:
        engine: The engine to ask at each scrape.

    Returns:
        The collector.
    """
    return _Collector(engine)
