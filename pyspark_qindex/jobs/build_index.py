"""``build-index``: ConsumeQueues and IndexFiles of RocketMQ stores, built anew from the CommitLog.

In parallel, and byte for byte what :mod:`rocketstore` writes when it rebuilds them one after the
other:

1. each CommitLog file is scanned by a task of its own; what its messages ask for is kept by Spark;
2. the driver adds up how many keys come before each batch: so it knows which keys stand in which
   index file;
3. each queue and each index file is written by one task, into a staging directory in the store;
4. the driver installs what was built (:mod:`pyspark_qindex.jobs.build_install`).

The store is locked from the first step to the last. The staging directory has to be reachable under
one path from driver and executors, as the store itself has.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from journal.errors import DamageError, NotAStoreError, StoreError, UsageError
from journal.files import REAL, read_optional
from pyspark_qindex.filesystem import local_path
from pyspark_qindex.jobs.build_install import install_store, keep_expired_queues, last_message
from pyspark_qindex.jobs.build_scan import PIECES, LogFile, ScanItem, scan_log_file, unpack
from pyspark_qindex.jobs.build_write import (
    BUILT,
    IndexPlan,
    StorePlan,
    compare,
    index_place,
    write_index_files,
    write_queues,
)
from pyspark_qindex.jobs.fleet import find_fleet, store_names
from pyspark_qindex.jobs.tasks import Row, map_rows, run_tasks, tasks_wanted
from pyspark_qindex.planning import group
from pyspark_qindex.schemas import Table, spark_schema
from rocketstore.checkpoint_format import Checkpoint
from rocketstore.commitlog_format import file_name
from rocketstore.directory_repair import repair_directory
from rocketstore.dispatch_note import load_note
from rocketstore.index_file import IndexFile
from rocketstore.index_format import IndexHeader, index_name
from rocketstore.layout import Layout, Paths
from rocketstore.lock import StoreLock
from rocketstore.options import Options

STAGING: Final = "build-index.tmp"
"""Where a store's new files stand until they are installed."""

_KEYS: Final[Table] = {
    "store": "string",
    "number": "int",
    "start": "bigint",
    "count": "bigint",
    "first": "binary",
    "second": "binary",
    "third": "binary",
}
"""Keys of one batch that stand in one index file: ``start`` counts the log's keys before them."""


@dataclass(slots=True)
class BuildResult:
    """``files``: what was built (:data:`pyspark_qindex.jobs.build_write.BUILT`). ``stores``: how
    many. ``messages``: in their logs. ``installed``: whether the files are in the stores now; else
    they stand below ``directory``. ``refused``: stores that were left as they are, and why: their
    logs are damaged."""

    files: DataFrame
    stores: int
    messages: int
    installed: bool
    directory: str | None
    refused: dict[str, str]


@dataclass(slots=True)
class _Target:
    """A store whose lock is held."""

    root: str
    layout: Layout
    lock: StoreLock

    @property
    def staging(self) -> str:
        return os.path.join(self.root, STAGING)


def build_index(
    spark: SparkSession, paths: Sequence[str], *, install: bool = True, out: str | None = None
) -> BuildResult:
    """Build ConsumeQueues and IndexFiles of all RocketMQ stores at or below ``paths``.

    With ``install`` they take the place of what a store has, all at once; otherwise they are left
    below ``out`` (one directory for each store), and the stores are not changed. A store whose log
    is damaged (sound records stand behind a place where none is, a file is missing) is left as it
    is, and the others go on.

    Raises :class:`LockedError`, with the pid, when a store is in use: then none is touched;
    :class:`DamageError` when all stores are damaged; :class:`UsageError`, :class:`NotAStoreError`,
    :class:`StorageError`.
    """
    if not install and out is None:
        raise UsageError("where to leave what is built? Without install, out is needed")
    if out is not None:
        out = local_path(out, "out")
    with contextlib.ExitStack() as stack:
        refused: dict[str, StoreError] = {}
        targets = [found for root in _roots(paths) if (found := _try(root, stack, refused))]
        pieces = _scan(spark, targets)
        stack.callback(pieces.unpersist)
        logs = _logs(targets, pieces, refused)
        if refused and not logs:
            raise next(iter(refused.values()))
        sound = pieces.where(pieces["store"].isin(list(logs)))
        plans = _plan([one for one in targets if one.root in logs], logs, sound)
        built = _write(spark, plans, sound)
        built += [row for plan in plans.values() for row in _finish(plan, logs[plan.root])]
        names = store_names(list(plans))
        for plan in plans.values():
            if install:
                install_store(plan, logs[plan.root])
            else:
                assert out is not None
                _leave(plan, os.path.join(out, names[plan.root]))
        counts = sound.where("row = 'queue'").agg({"count": "sum"}).collect()[0][0]
        files = spark.createDataFrame(sorted(built), spark_schema(BUILT))
        where = None if install else out
        why = {root: str(error) for root, error in refused.items()}
        return BuildResult(files, len(plans), int(counts or 0), install, where, why)


def _roots(paths: Sequence[str]) -> list[str]:
    roots = []
    for one in find_fleet(paths):
        if not one.is_rocket:
            if one.store.named:
                raise NotAStoreError(f"{one.store.url}: is no RocketMQ store: it has no commitlog")
            continue
        if one.store.place[0]:
            raise UsageError(f"{one.store.url}: build-index works on local paths alone")
        roots.append(one.store.path)
    if not roots:
        raise NotAStoreError(f"{', '.join(paths)}: no RocketMQ store is there, nor below it")
    return roots


def _try(root: str, stack: contextlib.ExitStack, refused: dict[str, StoreError]) -> _Target | None:
    try:
        return _take(root, stack)
    except DamageError as error:
        refused[root] = error
        return None


def _take(root: str, stack: contextlib.ExitStack) -> _Target:
    """Lock a store, and clear away what a job left that was killed. What an open repairs when it is
    asked to is refused, as an open does that is not."""
    paths = Paths(root)
    lock = StoreLock(REAL, paths.lock)
    stack.callback(lock.release)
    note = load_note(REAL, paths.dispatch_note)
    checkpoint = Checkpoint.parse(read_optional(REAL, paths.checkpoint))
    layout, _ = repair_directory(Options(create=False), paths, note, checkpoint, crashed=False)
    target = _Target(root, layout, lock)
    shutil.rmtree(target.staging, ignore_errors=True)
    stack.callback(shutil.rmtree, target.staging, ignore_errors=True)
    os.makedirs(target.staging, exist_ok=True)
    return target


def _scan(spark: SparkSession, targets: list[_Target]) -> DataFrame:
    items = [
        ScanItem(target.root, target.layout, start, target.layout.commitlog_file_size)
        for target in targets
        for start in target.layout.commitlog
    ]
    tasks = group(items, tasks_wanted(spark))
    return run_tasks(spark, tasks, scan_log_file, PIECES).persist(StorageLevel.MEMORY_AND_DISK)


# -- the plan -------------------------------------------------------------------------------------


def _logs(
    targets: list[_Target], pieces: DataFrame, refused: dict[str, StoreError]
) -> dict[str, list[LogFile]]:
    """Give the files of the logs that are sound."""
    files: dict[str, list[LogFile]] = {target.root: [] for target in targets}
    columns = ("store", "at", "end", "stop", "count", "last_size", "last_time", "fillers")
    for root, *fields in pieces.where("row = 'file'").select(*columns).collect():
        files[root].append(LogFile(*fields))
    logs = {}
    for root, found in files.items():
        try:
            logs[root] = _log_of(root, sorted(found, key=attrgetter("start")))
        except StoreError as error:
            refused[root] = error
    return logs


def _plan(
    targets: list[_Target], logs: dict[str, list[LogFile]], pieces: DataFrame
) -> dict[str, StorePlan]:
    starts: dict[str, dict[int, int]] = {target.root: {} for target in targets}
    totals = dict.fromkeys(starts, 0)
    keys = pieces.where("row = 'keys'").select("store", "at", "count").collect()
    for root, at, count in sorted(map(tuple, keys)):
        starts[root][at] = totals[root]
        totals[root] += count
    plans = {
        target.root: StorePlan(
            root=target.root,
            layout=target.layout,
            staging=target.staging,
            end=logs[target.root][-1].end if logs[target.root] else 0,
            starts=starts[target.root],
            index=[],
            filler_files=tuple(file.start for file in logs[target.root] if file.fillers),
        )
        for target in targets
    }
    return _with_index(plans, pieces)


def _log_of(root: str, files: list[LogFile]) -> list[LogFile]:
    """The files up to the one that the log ends in. Raises :class:`DamageError`."""
    log: list[LogFile] = []
    for file in files:
        if file.unreadable:
            raise StoreError(file.unreadable)
        if log and not log[-1].is_full and not file.is_empty:
            _refuse(root, log[-1])
        if file.is_damaged:
            _refuse(root, file)
        if not log or log[-1].is_full:
            log.append(file)
    return log


def _refuse(root: str, file: LogFile) -> None:
    path = os.path.join(Paths(root).commitlog, file_name(file.start))
    what = "no record stands here, but sound ones do behind it (open with repair=True)"
    raise DamageError(path, file.end - file.start, what)


def _with_index(plans: dict[str, StorePlan], pieces: DataFrame) -> dict[str, StorePlan]:
    """Name the index files, and tell how the one before each ends: offset and time of its last
    key, which is the only thing that two files have to do with one another."""
    cuts = _keys(pieces, plans).select("store", "number", "start", "count", "second", "third")
    edges: dict[str, dict[int, tuple[int, int, IndexHeader]]] = {root: {} for root in plans}
    first_and_last = map_rows(cuts, partial(map, _edge), _EDGES)
    grouped = first_and_last.groupBy("store", "number").agg(
        {"start": "min", "first_time": "min", "last": "max", "last_time": "max"}
    )
    names = ("store", "number", "min(start)", "min(first_time)", "max(last)", "max(last_time)")
    for root, number, start, first_time, last, last_time in grouped.select(*names).collect():
        header = IndexHeader(end_timestamp=last_time, end_offset=last)
        edges[root][number] = (start, first_time, header)
    return {root: replace(plan, index=_index_plans(edges[root])) for root, plan in plans.items()}


_EDGES: Final[Table] = {
    "store": "string",
    "number": "int",
    "start": "bigint",
    "first_time": "bigint",
    "last": "bigint",
    "last_time": "bigint",
}


def _edge(row: dict[str, Any]) -> Row:
    offsets, times = unpack(row["second"]), unpack(row["third"])
    ends = (int(times[0]), int(offsets[-1]), int(times[-1]))
    return (row["store"], row["number"], row["start"], *ends)


def _index_plans(edges: dict[int, tuple[int, int, IndexHeader]]) -> list[IndexPlan]:
    plans: list[IndexPlan] = []
    for number in sorted(edges):
        start, first_time, _ = edges[number]
        previous = edges[number - 1][2] if number else None
        plans.append(IndexPlan(_new_name(plans, first_time), start, previous))
    return plans


def _new_name(before: list[IndexPlan], time: int) -> str:
    """The name of a file whose first message was stored at ``time`` (ms): when the store made it,
    nearly. Names must be new and sort."""
    name = index_name(time)
    if before and int(name) <= int(before[-1].name):
        return str(int(before[-1].name) + 1)
    return name


def _keys(pieces: DataFrame, plans: dict[str, StorePlan]) -> DataFrame:
    """Cut the batches of keys where an index file is full."""
    return map_rows(pieces.where("row = 'keys' and count > 0"), partial(_cut, plans), _KEYS)


def _cut(plans: dict[str, StorePlan], rows: Iterator[dict[str, Any]]) -> Iterator[Row]:
    width = 8
    for row in rows:
        plan = plans[row["store"]]
        start = plan.starts[row["at"]]
        done = 0
        while done < row["count"]:
            number = (start + done) // plan.entries_in_file
            count = min(row["count"] - done, (number + 1) * plan.entries_in_file - start - done)
            part = slice(done * width, (done + count) * width)
            columns = (row[name][part] for name in ("first", "second", "third"))
            yield (plan.root, number, start + done, count, *columns)
            done += count


# -- writing --------------------------------------------------------------------------------------


def _write(spark: SparkSession, plans: dict[str, StorePlan], pieces: DataFrame) -> list[Row]:
    most = tasks_wanted(spark)
    rows = pieces.where("row = 'queue'")
    queues_there = rows.select("store", "topic", "queue_id").distinct().count()
    tasks = max(1, min(most, queues_there))
    by_queue = rows.repartition(tasks, "store", "topic", "queue_id")
    by_queue = by_queue.sortWithinPartitions("store", "topic", "queue_id", "at")
    wanted = by_queue.select(
        "store", "topic", "queue_id", "at", "first", "second", "third", "fourth"
    )
    built = map_rows(wanted, partial(write_queues, plans), BUILT).collect()
    tasks = max(1, min(most, sum(len(plan.index) for plan in plans.values())))
    by_file = _keys(pieces, plans).repartition(tasks, "store", "number")
    by_file = by_file.sortWithinPartitions("store", "number", "start")
    built += map_rows(by_file, partial(write_index_files, plans), BUILT).collect()
    return [tuple(row) for row in built]


def _finish(plan: StorePlan, log: list[LogFile]) -> Iterator[Row]:
    """Write what is left to the driver: the index file that the store begins though it has no key
    yet, and queues whose messages are all expired."""
    os.makedirs(Paths(plan.staging).consumequeue, exist_ok=True)
    os.makedirs(Paths(plan.staging).index, exist_ok=True)
    last = last_message(log)
    if last is not None:
        previous = _last_full_file(plan)
        fresh = not plan.index or (previous is not None and last.offset > previous.end_offset)
        if fresh:
            name = _new_name(plan.index, last.time)
            path = os.path.join(Paths(plan.staging).index, name)
            layout = plan.layout
            IndexFile.create(REAL, path, layout.index_slots, layout.index_entries, previous).close()
            was = compare(path, index_place(plan, len(plan.index)))
            yield plan.root, os.path.join("index", name), 0, os.stat(path).st_size, was
    for file, units, size in keep_expired_queues(plan, log):
        yield (plan.root, file, units, size, "identical")


def _last_full_file(plan: StorePlan) -> IndexHeader | None:
    if not plan.index:
        return None
    path = os.path.join(Paths(plan.staging).index, plan.index[-1].name)
    layout = plan.layout
    file = IndexFile(REAL, path, layout.index_slots, layout.index_entries, writable=False)
    file.load()
    return file.header if file.is_full else None


def _leave(plan: StorePlan, out: str) -> None:
    for name in ("consumequeue", "index"):
        target = os.path.join(out, name)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(os.path.join(plan.staging, name), target)
