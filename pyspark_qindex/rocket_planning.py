"""Plan a read of RocketMQ stores: a part for each file.

A CommitLog is read up to where it ends when the task reads it: what a writer has appended by then
is a beginning of what it will have. A stream names the offset where its batch ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from journal.errors import StoreError
from journal.files import FileSystem
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import FailedStore, group
from pyspark_qindex.stores import Store, find_stores, is_rocket_store
from rocketstore.commitlog_format import file_name
from rocketstore.layout import Layout, Paths, look
from rocketstore.options import Options

__all__ = ["IndexPart", "LogPart", "RocketPart", "UnitsPart", "look_at", "plan_rocket"]


@dataclass(frozen=True, slots=True)
class LogPart:
    """A CommitLog file. ``start``: its first offset. Records from offset ``low`` on, and up to
    ``high`` if that is known, are wanted. ``last``: the log may end in this file."""

    store: Store
    file_size: int
    start: int
    low: int
    high: int | None
    last: bool
    weight: int


@dataclass(frozen=True, slots=True)
class UnitsPart:
    """A ConsumeQueue file; ``start``: its first byte in the queue."""

    store: Store
    topic: str
    queue_id: int
    path: str
    start: int
    weight: int


@dataclass(frozen=True, slots=True)
class IndexPart:
    """An IndexFile."""

    store: Store
    path: str
    slots: int
    entries: int
    weight: int


RocketPart = LogPart | UnitsPart | IndexPart | FailedStore


def plan_rocket(options: ReadOptions) -> list[list[RocketPart]]:
    """Plan a read: the parts of each task.

    Raises as :func:`pyspark_qindex.stores.find_stores`; stores found in a tree that can't be read
    are parts themselves where the read is permissive.
    """
    found: list[RocketPart] = []
    for store in find_stores(options.paths, options.storage, is_rocket_store):
        fs = store.file_system()
        try:
            layout = look_at(fs, store)
        except StoreError as error:
            if store.named or not options.permissive:
                raise
            found.append(FailedStore(store, str(error)))
            continue
        found += _parts(fs, store, layout, options)
        found += [
            FailedStore(store, f"{one.path}: {one.what}")
            for one in layout.strangers
            if os.path.basename(one.path).isdigit()  # another name is another program's
        ]
        if options.include == "records":
            found += [
                FailedStore(store, f"{_log_path(store, start)}: this file of the log is missing")
                for gap in layout.missing
                for start in gap
            ]
    return group(found, options.partitions)


def look_at(fs: FileSystem, store: Store) -> Layout:
    """List a store's files. Raises :class:`StoreError`."""
    return look(fs, Paths(store.path), Options(read_only=True))


def _parts(
    fs: FileSystem, store: Store, layout: Layout, options: ReadOptions
) -> Iterator[RocketPart]:
    paths = Paths(store.path)
    if options.include == "records":
        for start in layout.commitlog:
            weight = _bytes(fs, _log_path(store, start))
            last = start == layout.commitlog[-1]
            yield LogPart(store, layout.commitlog_file_size, start, start, None, last, weight)
    elif options.include == "units":
        for (topic, queue_id), starts in sorted(layout.queues.items()):
            if options.names and topic not in options.names:
                continue
            if options.queue_id not in (None, queue_id):
                continue
            directory = os.path.join(paths.consumequeue, topic, str(queue_id))
            for start in starts:
                path = os.path.join(directory, file_name(start))
                yield UnitsPart(store, topic, queue_id, path, start, _bytes(fs, path))
    else:
        for name in layout.index:
            path = os.path.join(paths.index, name)
            yield IndexPart(store, path, layout.index_slots, layout.index_entries, _bytes(fs, path))


def _log_path(store: Store, start: int) -> str:
    return os.path.join(Paths(store.path).commitlog, file_name(start))


def _bytes(fs: FileSystem, path: str) -> int:
    """Give the bytes a sparse file takes."""
    info = fs.stat(path)
    blocks = getattr(info, "st_blocks", None)
    return min(info.st_size, info.st_size if blocks is None else blocks * 512) or 1
