"""Live figures of a store, from its files, again and again: for ``qindex top``.

Nothing is written and no lock is taken. An unchanged queue is not read again, nor is an unchanged
segment file that the journal does not mention. So a look costs about the journals of busy queues,
the new segments, and a dozen system calls for each other queue.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from time import monotonic, time

from journal.beneath import beneath
from journal.errors import UsageError
from journal.files import REAL, FileSystem, PathLike, checked_path, names_in
from qindex.index.segment import segment_numbers
from qindex.view.backlog import ready_and_unacked
from qindex.view.columns import Columns
from qindex.view.point_in_time import BusyError
from qindex.view.queue_view import QueueView
from qindex.view.rabbitmq_vhost import QueueDirectory
from qindex.view.reader import QueueReader, StoreReader
from qindex.view.store_tail import StoreTail
from qindex.view.unchanged import Stillness, seq_mark


@dataclass(frozen=True, slots=True)
class SegmentLook:
    """One segment: ``held``, messages not acknowledged, of ``entries``; ``has_file``: or else it
    is in the journal only. ``stored``: ids of its messages that are in the message store."""

    number: int
    entries: int
    held: int
    delivered: int
    body_bytes: int
    end: int
    has_file: bool
    stored: frozenset[bytes] = frozenset()

    @property
    def share(self) -> float:
        """Share of its entries that is not acknowledged, 0 to 1."""
        return self.held / self.entries


@dataclass(frozen=True, slots=True)
class Rates:
    """A second, since the look before: published, delivered (for the first time), acknowledged."""

    published: float
    delivered: float
    acked: float


@dataclass(frozen=True, slots=True)
class QueueLook:
    """One queue. ``messages``, ``ready``, ``unacked``, ``delivered_before``: as in
    :class:`~qindex.view.reader.QueueSummary`; ``age``: seconds since the oldest message was
    published, ``None`` for none (or one whose time the index does not keep); ``rates``: ``None``
    in a first look."""

    name: str
    messages: int
    ready: int | None
    unacked: int | None
    delivered_before: int | None
    body_bytes: int
    journal_entries: int
    journal_bytes: int
    next_seq_id: int
    segments: tuple[SegmentLook, ...]
    age: float | None
    rates: Rates | None = None

    @property
    def delivered(self) -> int:
        """Messages that were delivered once at least, of all that ever were published."""
        return self.acked + (self.delivered_before or 0)

    @property
    def acked(self) -> int:
        """Messages that are done with, of all that ever were published."""
        return self.next_seq_id - self.messages


@dataclass(frozen=True, slots=True)
class FileLook:
    """One file of the message store; sizes in bytes. ``garbage``: of messages no queue holds."""

    name: str
    size: int
    garbage: int


@dataclass(frozen=True, slots=True)
class Look:
    """A store at one moment. ``at``: seconds of :func:`time.monotonic`. ``compacting``: files
    that compaction is writing now; ``came``, ``went``: files of the message store since the last
    look. ``busy``: queues whose files did not keep still; they are shown as they were."""

    directory: str
    kind: str
    at: float
    queues: tuple[QueueLook, ...]
    files: tuple[FileLook, ...]
    compacting: tuple[str, ...]
    came: int
    went: int
    busy: int = 0


@dataclass(slots=True)
class _Known:
    """One queue directory as it was: its segments, by inode and size, and what was found;
    ``look``, of the whole queue at ``at``, holds as long as ``still`` does."""

    segments: dict[int, tuple[tuple[int, int], SegmentLook]] = field(default_factory=dict)
    still: Stillness | None = None
    look: QueueLook | None = None
    at: float = 0.0

    def again(self, fs: FileSystem, path: str, at: float) -> QueueLook | None:
        """Give the look again, if nothing was done to the queue since."""
        look = self.look
        if look is None or self.still is None or not self.still.holds(fs, path):
            return None
        return look if look.age is None else replace(look, age=look.age + at - self.at)


class Looker:
    """Looks at the store in ``directory``; the first look is made by :meth:`look`, too."""

    def __init__(self, directory: PathLike, fs: FileSystem = REAL) -> None:
        self._directory = os.path.abspath(checked_path(directory))
        self._fs = beneath(fs, self._directory)
        self._known: dict[str, _Known] = {}
        self._store: StoreTail | None = None
        self._last: Look | None = None

    def look(self) -> Look:
        """Look once. O(queues + journals and segments that changed + what is new in the message
        store).

        Raises :class:`NotAStoreError` when the store is not there (any more),
        :class:`StorageError`.
        """
        store = StoreReader(self._directory, self._fs)
        before = {one.name: one for one in self._last.queues} if self._last is not None else {}
        at = monotonic()
        found = []
        busy = 0
        readers = store.readers()
        for reader in readers:
            try:
                look = self._queue(store, reader, at)
            except (UsageError, FileNotFoundError):
                continue  # it was deleted just now
            except BusyError:
                busy += 1
                if reader.name in before:
                    found.append(before[reader.name])
                continue
            found.append(self._with_rates(look, before.get(reader.name), at))
        # Once, behind the look at all files.
        in_use = any(one.delivered_before != 0 for one in found) and store.in_use()
        queues = [_counted(one, in_use) for one in found]
        there = {one.directory for reader in readers for one in reader.directories}
        self._known = {name: one for name, one in self._known.items() if name in there}
        files, compacting = self._files(store, queues)
        names = {one.name for one in files}
        old = {one.name for one in self._last.files} if self._last is not None else names
        self._last = Look(
            self._directory,
            store.kind,
            at,
            tuple(queues),
            files,
            compacting,
            len(names - old),
            len(old - names),
            busy,
        )
        return self._last

    def _with_rates(self, now: QueueLook, then: QueueLook | None, at: float) -> QueueLook:
        if then is None or self._last is None or now.next_seq_id < then.next_seq_id:
            return now
        seconds = max(at - self._last.at, 1e-6)
        rates = Rates(
            (now.next_seq_id - then.next_seq_id) / seconds,
            max(now.delivered - then.delivered, 0) / seconds,
            max(now.acked - then.acked, 0) / seconds,
        )
        return replace(now, rates=rates)

    def _queue(self, store: StoreReader, reader: QueueReader, at: float) -> QueueLook:
        if store.kind != "qindex":
            return self._read(store, reader)[0]
        (one,) = reader.directories
        known = self._known.setdefault(one.directory, _Known())
        path = store.path_of(one)
        again = known.again(self._fs, path, at)
        if again is not None:
            return again
        mark = seq_mark(self._fs, path)
        look, view = self._read(store, reader)
        known.still, known.look, known.at = Stillness.of(view.pinned, mark, view.form), look, at
        return look

    def _read(self, store: StoreReader, reader: QueueReader) -> tuple[QueueLook, QueueView]:
        """Look at all of a queue; gives the view of its last directory, too."""
        segments: list[SegmentLook] = []
        ages = []
        known = True
        entries = size = next_seq = 0
        for one in reader.directories:
            view = store.pin(one)
            rules = store.rules(one)
            known &= rules.delivered_known
            mine = self._segments(one, view)
            segments += mine
            entries += view.journal_entries
            size += view.journal_bytes
            seen = max((segment.end for segment in mine), default=0)
            next_seq = max(next_seq, store.next_seq(one, rules, max(seen, view.seen)))
            ages += [age for age in [_age(view, mine)] if age is not None]
        held = sum(one.held for one in segments)
        delivered = sum(one.delivered for one in segments)
        look = QueueLook(
            reader.name,
            held,
            None,
            None,
            delivered if known else None,
            sum(one.body_bytes for one in segments),
            entries,
            size,
            next_seq,
            tuple(segments),
            max(ages, default=None),
        )
        return look, view

    def _segments(self, one: QueueDirectory, view: QueueView) -> list[SegmentLook]:
        known = self._known.setdefault(one.directory, _Known())
        count = view.entry_count
        pinned = view.pinned.segments
        touched = set(segment_numbers(view.pinned.reading.walk.seqs, count))
        if view.pinned.pairs or not view.form.rereads:
            touched = set(view.numbers)  # their entries change in place
        kept: dict[int, tuple[tuple[int, int], SegmentLook]] = {}
        found = []
        for number in view.numbers:
            mark = (pinned[number].inode, pinned[number].size) if number in pinned else (0, 0)
            old = known.segments.get(number)
            if old is not None and old[0] == mark and number not in touched:
                look = old[1]
            else:
                has_file = number in pinned or number in view.pinned.pairs
                look = _segment(view, number, count, has_file)
            if number not in touched:
                kept[number] = mark, look
            found.append(look)
        known.segments = kept
        return found

    def _files(
        self, store: StoreReader, queues: Iterable[QueueLook]
    ) -> tuple[tuple[FileLook, ...], tuple[str, ...]]:
        directory = store.place.directory
        if self._store is None:
            self._store = StoreTail(self._fs, directory)
        live = {msg_id for queue in queues for one in queue.segments for msg_id in one.stored}
        found = []
        for name, places in self._store.files().items():
            size = sum(total for _, total in places.values())
            held = sum(total for msg_id, (_, total) in places.items() if msg_id in live)
            found.append(FileLook(name, size, size - held))
        names = sorted(names_in(self._fs, directory))
        return tuple(found), tuple(name for name in names if name.endswith(".rdq.tmp"))


def _counted(look: QueueLook, in_use: bool) -> QueueLook:
    ready, unacked = ready_and_unacked(look.messages, look.delivered_before, lambda: in_use)
    return replace(look, ready=ready, unacked=unacked)


def _segment(view: QueueView, number: int, count: int, has_file: bool) -> SegmentLook:
    columns = view.columns(number)
    if columns is None:
        return SegmentLook(number, count, 0, 0, 0, 0, has_file)
    return SegmentLook(
        number,
        count,
        len(columns.seqs),
        int(view.redelivered(columns).sum()),
        int(columns.sizes.sum()),
        int(columns.seqs[-1]) + 1,
        has_file,
        frozenset(_stored(columns)),
    )


def _stored(columns: Columns) -> list[bytes]:
    found: list[bytes] = []
    for which, source in enumerate(columns.sources):
        rows = columns.row_of[columns.source_of == which]
        if len(rows):
            heads = source.heads_of(rows)
            found += heads["id"][heads["embedded"] == 0].tolist()
    return found


def _age(view: QueueView, segments: Iterable[SegmentLook]) -> float | None:
    """Give the age of the oldest message, if the index holds it."""
    first = next((one.number for one in segments if one.held), None)
    columns = None if first is None else view.columns(first)
    if columns is None or not len(columns.seqs):
        return None
    source = columns.sources[int(columns.source_of[0])]
    entry = view.read_entry(source, int(columns.row_of[0]), int(columns.seqs[0]))
    if entry.message is None or not entry.message.timestamp:
        return None
    return max(time() - entry.message.timestamp / 1e9, 0.0)
