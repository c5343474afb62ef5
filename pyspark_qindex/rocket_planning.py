"""Plan a read of RocketMQ stores: a part for each file.

The plan says where a CommitLog ends: what a writer appends later is not read. Of a file whose end
was cut off, the rest is read. Remote logs are backups, and end where they end when a task reads
them: to find that out here, much would have to be fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from journal.fs.files import FileSystem, is_there
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import FailedStore, parts_of_stores
from pyspark_qindex.stores import ROCKET, Store
from rocketstore.format.commitlog_format import file_name
from rocketstore.layout import Layout, Paths, look
from rocketstore.log.commitlog import CommitLog
from rocketstore.log.log_end import log_end
from rocketstore.options import Options


@dataclass(frozen=True, slots=True)
class LogPart:
    """A CommitLog file. ``start``: its first offset. Records from offset ``low`` on, and up to
    ``high`` if that is known, are wanted. ``ends``: the log ends there, or may end in this file.
    ``held``: bytes that are left of it, where its end was cut off."""

    store: Store
    file_size: int
    start: int
    low: int
    high: int | None
    ends: bool
    weight: int
    held: int | None = None


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


def plan_rocket(options: ReadOptions) -> list[Any]:
    """Return the parts of RocketMQ stores."""
    return parts_of_stores(options, ROCKET, _store_parts)


def _store_parts(store: Store, fs: FileSystem, options: ReadOptions) -> Iterator[Any]:
    layout = look_at(fs, store)
    yield from _file_parts(store, fs, layout, options)
    left = {_log_path(store, start) for start in layout.short}  # their reads tell of them
    for one in layout.strangers:
        # Another name is another program's.
        if os.path.basename(one.path).isdigit() and not (
            options.include == "records" and one.path in left
        ):
            yield FailedStore(store, f"{one.path}: {one.what}")
    if options.include == "records":
        for start in layout.lost():
            yield lost_file(store, start)


def lost_file(store: Store, start: int) -> FailedStore:
    """Say that a file of a log is missing between others."""
    return FailedStore(store, f"{_log_path(store, start)}: this file of the log is missing")


def look_at(fs: FileSystem, store: Store) -> Layout:
    """List a store's files. Raises :class:`StoreError`."""
    return look(fs, Paths(store.path), Options(read_only=True))


def open_log(store: Store, file_size: int, starts: list[int], short: dict[int, int]) -> CommitLog:
    """Open files of a CommitLog to read; nothing is changed. ``short``: bytes of those whose end
    was cut off, by start. Raises as :meth:`~pyspark_qindex.stores.Store.file_system`."""
    log = CommitLog(store.file_system(), Paths(store.path).commitlog, file_size, writable=False)
    log.files.load(starts, short)
    return log


def end_of_log(store: Store, layout: Layout, known: int = 0) -> int:
    """Return the offset after the last record, as it is now; it is at least ``known``. Raises
    :class:`StoreError`."""
    log = open_log(store, layout.commitlog_file_size, layout.readable, layout.short)
    try:
        return log_end(log, known)
    finally:
        log.files.close()


def is_in_use(store: Store) -> bool:
    """Return whether a store is open for writing, or was left so by a crash."""
    return is_there(store.file_system(), Paths(store.path).abort)


def _file_parts(
    store: Store, fs: FileSystem, layout: Layout, options: ReadOptions
) -> Iterator[LogPart | UnitsPart | IndexPart]:
    paths = Paths(store.path)
    if options.include == "records":
        size = layout.commitlog_file_size
        end = None if store.place[0] else end_of_log(store, layout)
        for start in layout.readable:
            if end is not None and start > end:
                break
            ends = end is None or end <= start + size
            weight = _bytes(fs, _log_path(store, start))
            yield LogPart(store, size, start, start, end, ends, weight, layout.short.get(start))
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
    """Return the bytes a sparse file takes."""
    info = fs.stat(path)
    blocks = getattr(info, "st_blocks", None)
    return min(info.st_size, info.st_size if blocks is None else blocks * 512) or 1
