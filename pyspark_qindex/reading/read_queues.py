"""Queues: index entries and messages as Arrow batches, at one moment for each queue.

Every queue is pinned by the plan (:mod:`qindex.recovery.point_in_time`). A segment file that the
journal does not touch stays as it was pinned, so only parts with segments that it touches need the
journal. It goes along with the part. Where journals are too many for that (:data:`SHIPPED_BYTES`)
the task pins anew, and leaves out messages published since. A message that is acknowledged between
plan and read, and whose segment was deleted, is not returned.

Remote stores are backups, and do not change: the plan only lists them, and tasks fetch what pinning
their own segments needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from journal.errors import NotAStoreError, StorageError, StoreError
from journal.findings import Finding
from journal.fs.files import FileSystem
from journal.locks.directory_lock import LockWatch
from pyspark_qindex.errors import one_line
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import FailedStore, ReadFailedError, parts_of_stores, tasks_for, tell
from pyspark_qindex.stores import QUEUES, Store, StoreNotHereError
from qindex.format import layout
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as VERSION2_SUFFIX
from qindex.format.resynchronise import Reading
from qindex.format.segment import SUFFIX, file_number
from qindex.index.messages import PERSISTENT_DIRECTORY
from qindex.index.segment import ACKED, DELIVERED, PUBLISHED
from qindex.recovery import store_directory
from qindex.recovery.columns import Entries
from qindex.recovery.delivery_rules import DirectoryRules
from qindex.recovery.point_in_time import Pinned
from qindex.view import arrow
from qindex.view.message_batches import MessageBatches
from qindex.view.queue_view import QueueView, Row
from qindex.view.reader import StoreReader
from qindex.view.stored_messages import StorePlace

SHIPPED_BYTES: Final = 64 << 20
"""Bytes of journals that a plan carries."""
_STATES = ("", "published", "delivered", "acked")


@dataclass(frozen=True, slots=True)
class StorePart:
    """A store as a whole, or its ``files`` (paths). ``weight``: bytes."""

    store: Store
    weight: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuePart:
    """Segments ``numbers`` of one queue directory, ``low <= seq_id < high``.

    ``pinned``: the moment to show; ``None``: pin anew. ``head``: above every seq_id that the plan
    saw. ``leads``: this part reports damage of the journal. ``listed``: of a queue that was only
    listed the segments that have files; the part that leads reads those that the journal alone has,
    too.
    """

    store: Store
    queue: str
    directory: str
    rules: DirectoryRules
    priority: int | None
    place: StorePlace
    weight: int
    numbers: tuple[int, ...] = ()
    pinned: Pinned | None = None
    head: int = 0
    leads: bool = True
    low: int = 0
    high: int | None = None
    entry_count: int = 0
    listed: frozenset[int] | None = None

    def view(self) -> QueueView | None:
        """Look at the queue; ``None`` when it was deleted since the plan."""
        fs, listed = self.store.file_system(), self.listed
        lock = LockWatch(fs, os.path.join(self.store.path, layout.LOCK))

        def wants(number: int) -> bool:
            rest = self.leads and listed is not None and number not in listed
            return rest or number in self.numbers

        try:
            return QueueView(
                fs,
                self.directory,
                self.rules,
                priority=self.priority,
                place=self.place,
                pinned=self.pinned,
                only=None if listed is None else wants,
                busy=lambda: self.rules.of_node or lock.may_be_held(),
            )
        except FileNotFoundError:
            if self.store.is_deleted(self.directory):
                return None
            raise


def plan_queues(options: ReadOptions) -> list[Any]:
    """Return the parts of queues, for a read of index entries or messages. Raises also
    :class:`NotAStoreError` where no queue has a wanted name."""
    shipped = [SHIPPED_BYTES]

    def parts(store: Store, fs: FileSystem, options: ReadOptions) -> list[QueuePart | FailedStore]:
        return queue_parts(store, fs, options, None if store.place[0] else shipped)

    found = parts_of_stores(options, QUEUES, parts)
    if options.names and not found:
        names = ", ".join(map(repr, options.names))
        raise NotAStoreError(f"{', '.join(options.paths)}: there is no queue {names}")
    total = sum(part.weight for part in found)
    most = max(total // tasks_for(total, options.partitions), 1)
    return carried(piece for part in found for piece in split(part, most))


def carried(parts: Iterable[Any]) -> list[Any]:
    """Return the parts of a plan with no more journals than it may carry, one for each part that a
    journal touches. The others pin anew."""
    left, found = SHIPPED_BYTES, []
    for part in parts:
        pinned = part.pinned if isinstance(part, QueuePart) else None
        size = 0 if pinned is None else len(pinned.reading.data)
        if size > left:
            part = replace(part, pinned=None, high=part.head if part.high is None else part.high)
        else:
            left -= size
        found.append(part)
    return found


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
    store: Store, fs: FileSystem, options: ReadOptions, shipped: list[int] | None
) -> list[QueuePart | FailedStore]:
    """Plan the queues of a store that are wanted; each is one part. ``shipped``: bytes of journals
    that the plan may still carry, in a list that is updated; ``None``: the queues are only
    listed."""
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
                if shipped is None:
                    parts.append(_listed(part, fs))
                else:
                    parts.append(_pinned(part, reader.pin(one), shipped))
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


def _pinned(part: QueuePart, view: QueueView, shipped: list[int]) -> QueuePart:
    """Return a queue as it was pinned."""
    size = len(view.pinned.reading.data)
    pinned = view.pinned if size <= shipped[0] else None
    if pinned is not None:
        shipped[0] -= size
    last = view.numbers[-1] + 1 if view.numbers else 0
    head = view.seen or last * view.entry_count
    if view.pinned.pairs:
        head = max(head, last * view.entry_count)
    return replace(
        part,
        rules=view.rules,
        numbers=tuple(view.numbers),
        pinned=pinned,
        head=head,
        weight=part.weight + view.file_bytes,
        high=None if pinned is not None else head,
        entry_count=view.entry_count,
    )


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
    """Return a part of a part: the segments ``numbers``, with the files of its moment they need."""
    weight = part.weight * len(numbers) // max(len(part.numbers), 1)
    return replace(part, numbers=numbers, pinned=_narrowed(part, numbers), weight=weight)


def _narrowed(part: QueuePart, numbers: tuple[int, ...]) -> Pinned | None:
    """Return the files of the moment that a piece needs: its segments, and the journal if it
    touches them."""
    pinned = part.pinned
    if pinned is None or pinned.pairs:
        return pinned
    segments = {number: pinned.segments[number] for number in numbers if number in pinned.segments}
    reading = pinned.reading
    inside = np.isin(reading.walk.seqs // part.rules.entry_count, numbers)
    if not inside.any():
        reading = Reading(reading.walk.take(slice(0, 0)), b"")
    return replace(pinned, segments=segments, reading=reading)


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

    def segment(view: QueueView, number: int) -> Iterator[pa.RecordBatch]:
        columns = view.columns(number)
        if columns is not None:
            batches = MessageBatches(
                view, options.columns, part.store.url, part.queue, options.key, explain=explain
            )
            yield from batches.of(columns, *_seq_bounds(part, options))

    return _read_queue(part, options, segment, on_rows)


def read_entries(part: QueuePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a part of a queue, those that are acknowledged too; a segment at a
    time."""

    def segment(view: QueueView, number: int) -> Iterator[pa.RecordBatch]:
        for entries in view.entries(number):
            batch = _batch(part, options, entries)
            if batch.num_rows:
                yield batch
            del entries  # and with it the file's bytes, before the next one is read

    return _read_queue(part, options, segment)


def _read_queue(
    part: QueuePart,
    options: ReadOptions,
    segment: Callable[[QueueView, int], Iterator[pa.RecordBatch]],
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
            return
        try:
            for number in view.numbers if part.listed is not None else part.numbers:
                yield from segment(view, number)
        finally:
            view.close()
        # Of the parts of a queue one reports damage of the journal.
        journal = () if part.leads else set(view.pinned.reading.findings)
        found += [
            one
            for one in view.findings
            if one not in journal and (one.path, one.offset) not in told
        ]
    yield from tell(part.store, options, found, part.queue)


def _seq_bounds(part: QueuePart, options: ReadOptions) -> tuple[int, int]:
    """Return the seq_ids that are wanted: from the first up to, and without, the second."""
    ends = [end for end in (options.seq_to, part.high) if end is not None]
    return max(options.seq_from, part.low), min(ends, default=1 << 62)


def _batch(part: QueuePart, options: ReadOptions, entries: Entries) -> pa.RecordBatch:
    low, high = _seq_bounds(part, options)
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
