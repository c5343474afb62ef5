"""The second pass of ``build-index``: ConsumeQueues and IndexFiles, each written by one task.

A task writes into a directory of its own and renames what it made into place when it is whole and
on disk. So a task that is run twice, or lives on after its executor was given up, does no harm:
whoever comes second finds the place taken, by the same bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np

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

Piece = dict[str, Any]
"""A row of :data:`pyspark_qindex.jobs.build_scan.PIECES`, or of the keys of an index file."""


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


def write_queues(plans: dict[str, StorePlan], pieces: Iterator[Piece]) -> Iterator[Row]:
    """Write the queues whose pieces come in order; gives a row of :data:`BUILT` for each.

    Raises :class:`StorageError`.
    """
    fillers: dict[str, Fillers] = {}
    for (store, topic, queue_id), mine in groupby(pieces, itemgetter("store", "topic", "queue_id")):
        if store not in fillers:
            fillers[store] = _fillers(plans[store])
        yield _write_queue(plans[store], topic, queue_id, mine, fillers[store])


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


def _write_queue(
    plan: StorePlan, topic: str, queue_id: int, pieces: Iterator[Piece], fillers: Fillers
) -> Row:
    """Write one ConsumeQueue with what rebuilds one at open: the same rules, the same bytes."""
    with _own_directory(plan) as own:
        files = Descriptors(REAL, writable=True)
        queue = ConsumeQueue(files, own, topic, queue_id, plan.layout.consumequeue_file_size)
        from_zero = min(plan.layout.commitlog, default=0) == 0
        repair = QueueRepair(queue, None, fillers, from_zero=from_zero)
        for piece in pieces:
            repair.put(*(unpack(piece[name]) for name in ("first", "second", "third", "fourth")))
        paths, _ = files.take_dirty()
        files.close()
        for path in paths:
            sync_file(REAL, path)
        place = os.path.join("consumequeue", topic, str(queue_id))
        was = compare(queue.directory, os.path.join(plan.root, place))
        _put_in_place(queue.directory, os.path.join(plan.staging, place))
        return (plan.root, place, *units_and_bytes(queue), was)


def units_and_bytes(queue: ConsumeQueue) -> tuple[int, int]:
    """Give the units of a queue, and the bytes of its files."""
    units = queue.max_offset - (queue.starts or [0])[0] // UNIT_SIZE
    return units, len(queue.starts) * queue.file_size


def write_index_files(plans: dict[str, StorePlan], pieces: Iterator[Piece]) -> Iterator[Row]:
    """Write the index files whose keys come in order (columns store, number, start, and keys);
    gives a row of :data:`BUILT` for each. Raises :class:`StorageError`."""
    for (store, number), mine in groupby(pieces, itemgetter("store", "number")):
        yield _write_index_file(plans[store], number, mine)


def _write_index_file(plan: StorePlan, number: int, pieces: Iterator[Piece]) -> Row:
    planned, layout = plan.index[number], plan.layout
    with _own_directory(plan) as own:
        path = os.path.join(own, planned.name)
        slots, entries = layout.index_slots, layout.index_entries
        file = IndexFile.create(REAL, path, slots, entries, planned.previous)
        for piece in pieces:
            hashes, offsets, times = (unpack(piece[name]) for name in ("first", "second", "third"))
            taken = file.put_many(hashes.astype(np.int32), offsets, times)
            if taken != len(hashes):
                raise AssertionError(f"{path}: {len(hashes) - taken} keys too many")
        keys = file.header.count - 1
        file.close()
        sync_file(REAL, path)
        place = os.path.join("index", planned.name)
        size, was = os.stat(path).st_size, compare(path, index_place(plan, number))
        _put_in_place(path, os.path.join(plan.staging, place))
        return (plan.root, place, keys, size, was)


def _own_directory(plan: StorePlan) -> tempfile.TemporaryDirectory[str]:
    os.makedirs(plan.staging, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=plan.staging, ignore_cleanup_errors=True)


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
