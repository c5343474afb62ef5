"""Queues: index entries and messages as Arrow batches, at one moment for each queue.

Every queue is pinned by the plan (:mod:`qindex.recovery.point_in_time`), which notes its segments
and where it ends. No data go along with a part: its task pins the queue anew, and leaves out what
was published since. A flush in between moves messages from the journal into segments, where the
task finds them. Messages that were acknowledged in between are not returned.

Remote stores are backups, and do not change: the plan only lists them, and tasks fetch what pinning
their own segments needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from journal.errors import NotAStoreError, StorageError, StoreError
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem
from journal.locks.directory_lock import LockWatch
from pyspark_qindex.errors import one_line
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import (
    FailedStore,
    ReadFailedError,
    lost,
    parts_of_stores,
    tasks_for,
    tell,
)
from pyspark_qindex.stores import QUEUES, Store, StoreNotHereError
from qindex.format import layout
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as VERSION2_SUFFIX
from qindex.format.resynchronise import Reading
from qindex.format.segment import SUFFIX, file_number
from qindex.index.messages import PERSISTENT_DIRECTORY
from qindex.index.pair_scan import Depth
from qindex.index.segment import ACKED, DELIVERED, PUBLISHED
from qindex.recovery import store_directory
from qindex.recovery.columns import Entries
from qindex.recovery.delivery_rules import DirectoryRules
from qindex.recovery.point_in_time import Pinned, PinnedSegment
from qindex.recovery.queue_image import SegmentImage
from qindex.view import arrow
from qindex.view.message_batches import MessageBatches
from qindex.view.queue_view import QueueView, Row
from qindex.view.reader import StoreReader
from qindex.view.stored_messages import StorePlace

_STATES = ("", "published", "delivered", "acked")
_Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StorePart:
    """A store as a whole, or its ``files`` (paths). ``weight``: bytes."""

    store: Store
    weight: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuePart:
    """Segments ``numbers`` of one queue directory, ``low <= seq_id < high``.

    ``head``: above every seq_id that the plan saw; where only its last segment file tells more
    closely, ``tail`` is that file as it was. ``incarnation``: of the queue. ``leads``: this part
    reports damage of the journal. ``missing``: segment files, by number, that the plan found to be
    missing. ``listed``: of a queue that was only listed the segments that have files; the part that
    leads reads those that the journal alone has, too.
    """

    store: Store
    queue: str
    directory: str
    rules: DirectoryRules
    priority: int | None
    place: StorePlace
    weight: int
    numbers: tuple[int, ...] = ()
    head: int = 0
    tail: PinnedSegment | None = None
    incarnation: int = 0
    leads: bool = True
    low: int = 0
    high: int | None = None
    entry_count: int = 0
    missing: tuple[tuple[int, str], ...] = ()
    listed: frozenset[int] | None = None

    def view(self, pinned: Pinned | None = None) -> QueueView | None:
        """Look at the queue, as it is or as it was ``pinned``; ``None`` when it was deleted since
        the plan."""
        fs, listed = self.store.file_system(), self.listed
        lock = LockWatch(fs, os.path.join(self.store.path, layout.LOCK))

        wanted = frozenset(self.numbers)

        def wants(number: int) -> bool:
            rest = self.leads and listed is not None and number not in listed
            return rest or number in wanted

        try:
            view = QueueView(
                fs,
                self.directory,
                self.rules,
                priority=self.priority,
                place=self.place,
                pinned=pinned,
                # Segments of both versions may be numbered by different counts.
                only=wants if self.entry_count == self.rules.entry_count else None,
                busy=lambda: self.rules.repeats_are_damage or lock.may_be_held(),
            )
        except FileNotFoundError:
            if self.store.is_deleted(self.directory):
                return None
            raise
        is_another = self.head and view.pinned.given_out.incarnation != self.incarnation
        return None if is_another and listed is None else view

    def end(self, view: QueueView | None) -> int:
        """Return the seq_id after the last message that the plan saw. ``view``: of the queue."""
        if self.tail is None or view is None:
            return self.head
        # Without what came since: the part of the file that was there, and nothing of a journal.
        nothing = Reading(view.pinned.reading.walk.take(slice(0, 0)), b"")
        segments = view.pinned.segments | {self.tail.number: self.tail}
        then = self.view(replace(view.pinned, segments=segments, reading=nothing))
        for number in reversed(self.numbers):
            found = 0 if then is None else _end_of(then.image.segment(number, Depth.DECODE))
            if found:  # else all of it is damaged, or gone
                return found
        return 0


def plan_queues(options: ReadOptions) -> list[Any]:
    """Return the parts of queues, for a read of index entries or messages. Raises also
    :class:`NotAStoreError` where no queue has a wanted name."""
    found = parts_of_stores(options, QUEUES, queue_parts)
    if options.names and not found:
        names = ", ".join(map(repr, options.names))
        raise NotAStoreError(f"{', '.join(options.paths)}: there is no queue {names}")
    total = sum(part.weight for part in found)
    most = max(total // tasks_for(total, options.partitions), 1)
    return [piece for part in found for piece in split(part, most)]


def plan_files(options: ReadOptions) -> list[Any]:
    """Return stores as parts, for a read of their files; or, for one of the message store's
    records, its files."""
    return parts_of_stores(options, QUEUES, _store_parts)


def _store_parts(store: Store, fs: FileSystem, options: ReadOptions) -> list[StorePart]:
    store_directory.find_marker(fs, store.path)  # raises where it is none, or newer
    sizes = message_files(fs, store)
    if options.include == "stored":
        return [StorePart(store, size, (path,)) for path, size in sizes.items()]
    return [StorePart(store, sum(sizes.values()) + 1)]


def queue_parts(
    store: Store, fs: FileSystem, options: ReadOptions, *, pin: bool = False
) -> list[QueuePart | FailedStore]:
    """Plan the queues of a store that are wanted; each is one part. Those of a remote store are
    only listed, unless they are to be pinned (``pin``)."""
    reader = StoreReader(store.path, fs)
    parts: list[QueuePart | FailedStore] = []
    queues = reader.readers()
    bodies = 0
    if options.include == "messages":
        bodies = sum(message_files(fs, store).values()) // max(len(queues), 1)
    for queue in queues:
        if options.names and queue.name not in options.names:
            continue
        for one in queue.directories:
            try:
                rules = reader.rules(one)
                part = QueuePart(
                    store=store,
                    queue=one.name,
                    directory=reader.path_of(one),
                    rules=rules,
                    priority=one.priority,
                    place=reader.place,
                    weight=bodies,
                    entry_count=rules.entry_count,
                )
                listed = store.place[0] and not pin
                parts.append(_listed(part, fs) if listed else _pinned(part, reader.pin(one)))
            except FileNotFoundError:
                if not store.is_deleted(reader.path_of(one)):
                    raise
    return [*parts, *(FailedStore(store, str(finding)) for finding in reader.findings)]


def _listed(part: QueuePart, fs: FileSystem) -> QueuePart:
    """Return a queue with the segments and the weight that a listing shows."""
    weight = part.weight
    numbers: set[int] = set()
    for name in fs.listdir(part.directory):
        weight += fs.stat(os.path.join(part.directory, name)).st_size
        found = (file_number(name, suffix) for suffix in (SUFFIX, VERSION2_SUFFIX))
        numbers.update(number for number in found if number is not None)
    listed = frozenset(numbers)
    return replace(part, numbers=tuple(sorted(numbers)), weight=weight, listed=listed)


def _pinned(part: QueuePart, view: QueueView) -> QueuePart:
    """Return a queue as it was pinned."""
    last = view.numbers[-1] if view.numbers else -1
    head, tail = view.seen, None
    if view.pinned.pairs:
        head = max(head, _end_of(view.image.segment(last, Depth.COUNT)))
    elif not head:
        head, tail = (last + 1) * view.entry_count, view.pinned.segments.get(last)
    return replace(
        part,
        rules=view.rules,
        numbers=tuple(view.numbers),
        head=head,
        tail=tail,
        incarnation=view.pinned.given_out.incarnation,
        weight=part.weight + view.file_bytes,
        entry_count=view.entry_count,
        missing=tuple(_missing(view.pinned.reading.findings)),
    )


def _end_of(segment: SegmentImage | None) -> int:
    """Return the seq_id after the last entry of a segment; 0 where it has none."""
    sources = [] if segment is None else segment.sources
    return max((int(one.seqs.max()) + 1 for one in sources if len(one.seqs)), default=0)


def _missing(found: Iterable[Finding]) -> Iterator[tuple[int, str]]:
    """Yield the number of each segment file that is missing, and the finding in words; -1 for the
    journal."""
    for one in found:
        if one.kind is Kind.MISSING_FILE and one.cause is Cause.DAMAGE:
            number = file_number(os.path.basename(one.path))
            yield -1 if number is None else number, str(one)


def split(part: QueuePart | FailedStore, most: int) -> list[QueuePart | FailedStore]:
    """Cut a queue into pieces of about ``most`` bytes."""
    if not isinstance(part, QueuePart) or part.weight <= most or len(part.numbers) < 2:
        return [part]
    count = min(-(-part.weight // most), len(part.numbers))
    chosen = [tuple(one.tolist()) for one in np.array_split(np.array(part.numbers), count)]
    return [
        replace(piece, leads=part.leads and piece.numbers == chosen[0])
        for piece in (narrowed(part, numbers) for numbers in chosen)
    ]


def narrowed(part: QueuePart, numbers: tuple[int, ...]) -> QueuePart:
    """Return a part of a part: the segments ``numbers``."""
    weight = part.weight * len(numbers) // max(len(part.numbers), 1)
    tail = part.tail if part.tail is not None and part.tail.number in numbers else None
    return replace(part, numbers=numbers, tail=tail, weight=weight)


def message_files(fs: FileSystem, store: Store) -> dict[str, int]:
    """Return the files of the persistent message store with their sizes. Raises
    :class:`StorageError`."""
    directory = os.path.join(store.path, PERSISTENT_DIRECTORY)
    sizes: dict[str, int] = {}
    try:
        for name in sorted(fs.listdir(directory)):
            if name.endswith((".rdq", ".rdt")):
                path = os.path.join(directory, name)
                sizes[path] = fs.stat(path).st_size
    except FileNotFoundError:
        return sizes
    except OSError as error:
        raise StorageError(directory, "can't be listed", error) from error
    return sizes


assert (PUBLISHED, DELIVERED, ACKED) == (1, 2, 3)


def read_messages(part: QueuePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a part of a queue, in the order of its seq_ids. Memory: one segment,
    and some megabytes at a time of its messages in the message store."""
    on_rows: set[tuple[str, int]] = set()

    def explain(row: Row, path: str, offset: int) -> str:
        """Describe the damage of a message and the place of its index entry."""
        on_rows.add((path, offset))
        where = part.store.shown(path)
        text = one_line(f"{where}: at offset {offset}: seq_id {row.seq_id}: {row.error}")
        if not options.permissive:
            raise ReadFailedError(text)
        return text

    def segment(view: QueueView, number: int, bounds: _Bounds) -> Iterator[pa.RecordBatch]:
        columns = view.columns(number)
        if columns is not None:
            batches = MessageBatches(
                view, options.columns, part.store.url, part.queue, options.key, explain=explain
            )
            yield from batches.of(columns, *bounds)

    return _read_queue(part, options, segment, on_rows)


def read_entries(part: QueuePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a part of a queue, those that are acknowledged too; a segment at a
    time."""

    def segment(view: QueueView, number: int, bounds: _Bounds) -> Iterator[pa.RecordBatch]:
        for entries in view.entries(number):
            batch = _batch(part, options, entries, bounds)
            if batch.num_rows:
                yield batch
            del entries  # and with it the file's bytes, before the next one is read

    return _read_queue(part, options, segment)


def _read_queue(
    part: QueuePart,
    options: ReadOptions,
    segment: Callable[[QueueView, int, _Bounds], Iterator[pa.RecordBatch]],
    told: Container[tuple[str, int]] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of each ``segment`` of a part, then what damage was met; but for that in
    the places ``told`` by then, paths and offsets."""
    found: list[Finding | StoreError] = []
    try:
        view = part.view()
    except StoreNotHereError:
        raise
    except StoreError as error:
        found.append(error)
    else:
        if view is None:
            if options.whole:
                raise lost(part.store, f"{part.store.url}: queue {part.queue!r} was deleted")
            return
        bounds = _seq_bounds(part, options, view)
        try:
            for number in view.numbers if part.listed is not None else part.numbers:
                yield from segment(view, number, bounds)
        finally:
            view.close()
        # Of the parts of a queue one reports damage of the journal, and files that were missing.
        journal = set(view.pinned.reading.findings)
        gone = {what for number, what in _missing(journal) if number in part.numbers}
        found += [
            one
            for one in view.findings
            if (part.leads or one not in journal or str(one) in gone)
            and (one.path, one.offset) not in told
        ]
    yield from tell(part.store, options, found, part.queue)


def _seq_bounds(part: QueuePart, options: ReadOptions, view: QueueView) -> _Bounds:
    """Return the seq_ids that are wanted: from the first up to, and without, the second."""
    high, tail = part.high, part.tail
    if high is None and part.listed is None:
        grew = tail and (view.seen or view.pinned.segments.get(tail.number) != tail)
        high = part.end(view) if grew else part.head
    ends = [end for end in (options.seq_to, high) if end is not None]
    return max(options.seq_from, part.low), min(ends, default=1 << 62)


def _batch(
    part: QueuePart, options: ReadOptions, entries: Entries, bounds: _Bounds
) -> pa.RecordBatch:
    low, high = bounds
    chosen: slice | np.ndarray[tuple[int], np.dtype[np.bool_]] = slice(None)
    if len(entries.seqs) and (low > entries.seqs[0] or high <= entries.seqs[-1]):
        chosen = (entries.seqs >= low) & (entries.seqs < high)
    seqs = entries.seqs[chosen]
    count = len(seqs)
    embedded = entries.embedded[chosen]
    file = part.store.relative(entries.path)
    return arrow.batch_of(
        options.columns,
        count,
        {
            "store": lambda: arrow.constant(part.store.url, count),
            "queue": lambda: arrow.constant(arrow.plain_text(part.queue), count),
            "seq_id": lambda: arrow.numbers(seqs),
            "msg_id": lambda: arrow.fixed_binaries(entries.ids[chosen]),
            "state": lambda: arrow.choices(entries.states[chosen], _STATES),
            "persistent": lambda: arrow.flags(entries.persistent[chosen]),
            "expiry": lambda: arrow.numbers(entries.expiry[chosen].astype(np.int64), absent=0),
            "size": lambda: arrow.numbers(entries.sizes[chosen]),
            "stored": lambda: arrow.flags(embedded == 0),
            "record_size": lambda: arrow.numbers(embedded),
            "file": lambda: arrow.constant(file, count),
            "offset": lambda: arrow.numbers(entries.offsets[chosen]),
            "priority": lambda: arrow.constant(part.priority, count, pa.int32()),
        },
    )
