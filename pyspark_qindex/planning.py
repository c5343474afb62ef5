"""Plan a read of queues: which task reads what, and of which moment.

The moment of each queue is the plan's. Every queue is pinned here
(:mod:`qindex.recovery.point_in_time`); a segment file that the journal does not touch is as it was
pinned for as long as it is there, so only the parts of a queue with segments that the journal
touches need the journal. It goes along with the part, or where journals are too many for that
(:data:`SHIPPED_BYTES`) the task pins anew, and leaves out messages published since. A message that
is acknowledged between plan and read, and whose segment was deleted, is not returned.

Remote stores are backups, and do not change. Their queues are only listed here: the tasks fetch the
files that pinning needs, each for its own segments.

Small queues are packed together and large ones split by segments, so that there are two to four
tasks for each core, of about equal size.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import numpy as np

from journal.errors import NotAStoreError, StorageError, StoreError
from journal.fs.files import FileSystem
from journal.locks.directory_lock import LockWatch
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.stores import Store, find_stores, is_queue_store
from qindex.format import layout
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as VERSION2_SUFFIX
from qindex.format.resynchronise import Reading
from qindex.format.segment import SUFFIX, file_number
from qindex.index.messages import PERSISTENT_DIRECTORY
from qindex.recovery import store_directory
from qindex.recovery.delivery_rules import DirectoryRules
from qindex.recovery.point_in_time import Pinned
from qindex.view.queue_view import QueueView
from qindex.view.reader import StoreReader
from qindex.view.stored_messages import StorePlace

SHIPPED_BYTES: Final = 64 << 20
"""Bytes of journals that a plan carries."""
_TASKS_PER_CORE: Final = 3
_TASK_BYTES: Final = 4 << 20
"""A task that reads less is not worth its start."""


@dataclass(frozen=True, slots=True)
class FailedStore:
    """A store that can't be read; ``why`` in one line."""

    store: Store
    why: str
    weight: int = 0


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
    saw in the queue. ``leads``: this part reports damage of the journal. ``weight``: bytes.
    ``entry_count``: seq_ids a segment. ``listed``: of a queue that was only listed the segments
    that have files; the part that leads reads those that the journal alone has, too.
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

    def wants(self, number: int) -> bool:
        """Return whether a segment is this part's."""
        if number in self.numbers:
            return True
        return self.leads and self.listed is not None and number not in self.listed

    def view(self) -> QueueView | None:
        """Look at the queue; ``None`` when it was deleted since the plan.

        Raises as :func:`qindex.recovery.point_in_time.pin_queue`, and
        :class:`~pyspark_qindex.stores.StoreNotHereError`.
        """
        fs = self.store.file_system()
        lock = LockWatch(fs, os.path.join(self.store.path, layout.LOCK))
        try:
            return QueueView(
                fs,
                self.directory,
                self.rules,
                priority=self.priority,
                place=self.place,
                pinned=self.pinned,
                only=None if self.listed is None else self.wants,
                busy=lambda: self.rules.repeats_are_damage or lock.may_be_held(),
            )
        except FileNotFoundError:
            if self.store.is_deleted(self.directory):
                return None
            raise


Part = QueuePart | StorePart | FailedStore


class _Weighted(Protocol):
    @property
    def weight(self) -> int: ...


_W = TypeVar("_W", bound=_Weighted)


def plan_queues(options: ReadOptions) -> list[list[Part]]:
    """Plan a read of index entries or messages: the parts of each task.

    Raises as :func:`pyspark_qindex.stores.find_stores`; of stores found in a tree those that are
    none, or of a newer format, are parts themselves where the read is permissive.
    """
    shipped = [SHIPPED_BYTES]

    def parts(store: Store, fs: FileSystem) -> list[Part]:
        return queue_parts(store, fs, options, None if store.place[0] else shipped)

    found = _each_store(options, parts)
    total = sum(part.weight for part in found)
    most = max(total // tasks_for(total, options.partitions), 1)
    pieces = [piece for part in found for piece in split(part, most)]
    return group(pieces, options.partitions)


def plan_stores(options: ReadOptions, *, by_file: bool) -> list[list[Part]]:
    """Plan a read of files, or (``by_file``) of the message store's records."""

    def parts(store: Store, fs: FileSystem) -> list[Part]:
        store_directory.find_marker(fs, store.path)  # raises where it is none, or newer
        sizes = message_files(fs, store)
        if by_file:
            return [StorePart(store, size, (path,)) for path, size in sizes.items()]
        return [StorePart(store, sum(sizes.values()) + 1)]

    return group(_each_store(options, parts), options.partitions)


def _each_store(
    options: ReadOptions, parts: Callable[[Store, FileSystem], list[Part]]
) -> list[Part]:
    found: list[Part] = []
    for store in find_stores(options.paths, options.storage, is_queue_store):
        try:
            found += parts(store, store.file_system())
        except StoreError as error:
            if store.named or not options.permissive:
                raise
            found.append(FailedStore(store, str(error)))
    if options.names and not any(isinstance(one, QueuePart | FailedStore) for one in found):
        if any(isinstance(one, StorePart) for one in found):
            return found
        names = ", ".join(map(repr, options.names))
        raise NotAStoreError(f"{', '.join(options.paths)}: there is no queue {names}")
    return found


def queue_parts(
    store: Store, fs: FileSystem, options: ReadOptions, shipped: list[int] | None
) -> list[Part]:
    """Plan the queues of a store that are wanted; each is one part.

    They are pinned. ``shipped``: bytes of journals that the plan may still carry, in a list that is
    updated; ``None``: the queues are only listed. Raises :class:`StoreError`.
    """
    reader = StoreReader(store.path, fs)
    parts: list[Part] = []
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
    pinned: Pinned | None = view.pinned
    size = len(view.pinned.reading.data)
    if size > shipped[0]:
        pinned = None
    else:
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


def split(part: Part, most: int) -> list[Part]:
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


def tasks_for(total: int, wanted: int) -> int:
    """Return the number of tasks for ``total`` bytes. ``wanted``: the number that the user set, or
    0."""
    if wanted:
        return wanted
    cores = os.cpu_count() or 1
    return max(1, min(_TASKS_PER_CORE * cores, -(-total // _TASK_BYTES)))


def group(parts: Sequence[_W], wanted: int) -> list[list[_W]]:
    """Share ``parts`` out among tasks of about equal weight: the heaviest first, each to the
    lightest task. The parts of a task keep their order."""
    count = min(tasks_for(sum(part.weight for part in parts), wanted), len(parts))
    tasks: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for at in sorted(range(len(parts)), key=lambda at: -parts[at].weight):
        load, number = heapq.heappop(loads)
        tasks[number].append(at)
        heapq.heappush(loads, (load + parts[at].weight, number))
    return [[parts[at] for at in sorted(task)] for task in tasks if task]
