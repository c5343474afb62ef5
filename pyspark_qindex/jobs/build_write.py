"""The second pass of ``build-index``: ConsumeQueues and IndexFiles, each written by one task.

A task writes into a directory of its own and renames what it made into place when it is whole and
on disk. So a task that is run twice, or lives on after its executor was given up, does no harm:
whoever comes second finds the place taken, by the same bytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from journal.files import REAL, sync_file
from pyspark_qindex.jobs.build_scan import open_parts, unpack
from pyspark_qindex.jobs.tasks import Row
from pyspark_qindex.schemas import Table
from rocketstore.consumequeue import ConsumeQueue, Descriptors
from rocketstore.consumequeue_format import UNIT_SIZE
from rocketstore.filler_format import Fillers
from rocketstore.index_file import IndexFile
from rocketstore.index_format import IndexHeader
from rocketstore.layout import Layout, Paths
from rocketstore.rebuild import QueueRepair
from rocketstore.walk import LogWalk

BUILT: Final[Table] = {
    "store": "string",
    "file": "string",
    "entries": "bigint",
    "bytes": "bigint",
    "was": "string",
}
"""``file``: a queue's directory or an index file, relative to the store. ``entries``: units, or
index entries. ``was``: identical, different or missing."""


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """One index file: its name, the first key (counted in the whole log) that stands in it, and
    how the file before it ends."""

    name: str
    first: int
    previous: IndexHeader | None


@dataclass(frozen=True, slots=True)
class StorePlan:
    """One store. ``staging``: where what is built stands until it is installed. ``end``: of the
    log.
    ``starts``: of each batch of keys (by ``at``), how many keys are before it. ``index``: in order.
    ``filler_files``: log files (starts) with fillers in them."""

    root: str
    layout: Layout
    staging: str
    end: int
    starts: dict[int, int]
    index: list[IndexPlan]
    filler_files: tuple[int, ...]

    @property
    def entries_in_file(self) -> int:
        """Keys that an index file holds: entry 0 is never used."""
        return self.layout.index_entries - 1


def write_queues(plans: dict[str, StorePlan], batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Write the queues whose pieces come in order; gives a row of :data:`BUILT` for each.

    Raises :class:`StorageError`.
    """
    writer: _QueueWriter | None = None
    fillers: dict[str, Fillers] = {}
    for piece in _rows(batches):
        key = (piece["store"], piece["topic"], piece["queue_id"])
        if writer is None or writer.key != key:
            if writer is not None:
                yield writer.finish()
            plan = plans[piece["store"]]
            if plan.root not in fillers:
                fillers[plan.root] = _fillers(plan)
            writer = _QueueWriter(plan, key, fillers[plan.root])
        writer.put(piece)
    if writer is not None:
        yield writer.finish()


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        # Row by row: a batch has thousands of pieces of up to 64 KiB a column.
        for number in range(batch.num_rows):
            yield {name: batch.column(name)[number].as_py() for name in batch.schema.names}


def _fillers(plan: StorePlan) -> Fillers:
    """The fillers of the log, from the files that have any."""
    fillers = Fillers()
    parts = open_parts(plan.root, plan.layout)
    try:
        for start in plan.filler_files:
            limit = start + plan.layout.commitlog_file_size
            walk = LogWalk(parts.commitlog, start, keep_bad_bodies=True, limit=limit)
            for base, records in walk:
                fillers.see(records, base)
    finally:
        parts.close()
    return fillers


class _QueueWriter:
    """One ConsumeQueue, written by what rebuilds one at open: the same rules, the same bytes."""

    def __init__(self, plan: StorePlan, key: tuple[str, str, int], fillers: Fillers) -> None:
        self.key = key
        self._plan = plan
        os.makedirs(plan.staging, exist_ok=True)
        self._own = tempfile.mkdtemp(prefix="queue-", dir=plan.staging)
        self._files = Descriptors(REAL, writable=True)
        _, topic, queue_id = key
        size = plan.layout.consumequeue_file_size
        self._queue = ConsumeQueue(self._files, self._own, topic, queue_id, size)
        from_zero = min(plan.layout.commitlog, default=0) == 0
        self._repair = QueueRepair(self._queue, None, fillers, from_zero=from_zero)

    def put(self, piece: dict[str, Any]) -> None:
        columns = (unpack(piece[name]) for name in ("first", "second", "third", "fourth"))
        self._repair.put(*columns)

    def finish(self) -> Row:
        """Make it durable and put it in place."""
        _, topic, queue_id = self.key
        paths, _ = self._files.take_dirty()
        self._files.close()
        for path in paths:
            sync_file(REAL, path)
        size = len(self._queue.starts) * self._queue.file_size
        units = self._queue.max_offset - (self._queue.starts or [0])[0] // UNIT_SIZE
        target = os.path.join(Paths(self._plan.staging).consumequeue, topic, str(queue_id))
        was = compare(self._queue.directory, self._place(topic, queue_id))
        _put_in_place(self._queue.directory, target)
        shutil.rmtree(self._own, ignore_errors=True)
        file = os.path.join("consumequeue", topic, str(queue_id))
        return (self._plan.root, file, units, size, was)

    def _place(self, topic: str, queue_id: int) -> str:
        return os.path.join(Paths(self._plan.root).consumequeue, topic, str(queue_id))


def write_index_files(
    plans: dict[str, StorePlan], batches: Iterable[pa.RecordBatch]
) -> Iterator[Row]:
    """Write the index files whose keys come in order (columns store, number, start, and keys);
    gives a row of :data:`BUILT` for each. Raises :class:`StorageError`."""
    writer: _IndexWriter | None = None
    for piece in _rows(batches):
        key = (piece["store"], piece["number"])
        if writer is None or writer.key != key:
            if writer is not None:
                yield writer.finish()
            writer = _IndexWriter(plans[piece["store"]], key)
        writer.put(piece)
    if writer is not None:
        yield writer.finish()


class _IndexWriter:
    """One index file."""

    def __init__(self, plan: StorePlan, key: tuple[str, int]) -> None:
        self.key = key
        self._plan = plan
        os.makedirs(plan.staging, exist_ok=True)
        self._own = tempfile.mkdtemp(prefix="index-", dir=plan.staging)
        planned = plan.index[key[1]]
        path = os.path.join(self._own, planned.name)
        layout = plan.layout
        slots, entries = layout.index_slots, layout.index_entries
        self._file = IndexFile.create(REAL, path, slots, entries, planned.previous)

    def put(self, piece: dict[str, Any]) -> None:
        hashes, offsets, times = (unpack(piece[name]) for name in ("first", "second", "third"))
        taken = self._file.put_many(hashes.astype(np.int32), offsets, times)
        if taken != len(hashes):
            raise AssertionError(f"{self._file.path}: {len(hashes) - taken} keys too many")

    def finish(self) -> Row:
        """Make it durable and put it in place."""
        file = self._file
        entries = file.header.count - 1
        size = os.stat(file.path).st_size
        file.close()
        sync_file(REAL, file.path)
        target = os.path.join(Paths(self._plan.staging).index, file.name)
        was = compare(file.path, index_place(self._plan, self.key[1]))
        _put_in_place(file.path, target)
        shutil.rmtree(self._own, ignore_errors=True)
        return (self._plan.root, os.path.join("index", file.name), entries, size, was)


def index_place(plan: StorePlan, number: int) -> str:
    """The store's index file with that number: names are times of creation, and differ."""
    names = sorted(plan.layout.index, key=int)
    return os.path.join(Paths(plan.root).index, names[number] if number < len(names) else "-")


def _put_in_place(made: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(made, target) if os.path.isfile(made) else os.rename(made, target)
    except OSError:
        # Another attempt of the same task was first.
        if not os.path.exists(target):
            raise


def compare(made: str, place: str) -> str:
    """Tell whether a file, or all files of a directory, are those of another place: ``identical``,
    ``different`` or ``missing``."""
    if not os.path.exists(place):
        return "missing"
    if os.path.isfile(made):
        return "identical" if os.path.isfile(place) and _same_bytes(made, place) else "different"
    names = sorted(os.listdir(made))
    if not os.path.isdir(place) or names != sorted(os.listdir(place)):
        return "different"
    pairs = [(os.path.join(made, name), os.path.join(place, name)) for name in names]
    return "identical" if all(_same_bytes(one, other) for one, other in pairs) else "different"


def _same_bytes(one: str, other: str) -> bool:
    if os.stat(one).st_size != os.stat(other).st_size:
        return False
    with open(one, "rb") as left, open(other, "rb") as right:
        while block := left.read(1 << 20):
            if block != right.read(len(block)):
                return False
    return True
