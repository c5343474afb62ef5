"""The audit of a fleet: every store of every kind at once.

>>> import pyspark_qindex                                        # doctest: +SKIP
>>> from pyspark_qindex.jobs import audit
>>> spark = pyspark_qindex.session()
>>> result = audit(spark, ["/srv/fleet"])
>>> result.findings.groupBy("store", "kind").count().show()

Each store is one task, which checks what ``qindex verify`` and ``qindex rocket verify`` check, by
the same code, and beside a writer the way a reader does it. Its parts are held against one another
where they are; joining them across the cluster would only compare different moments of them. A
queue store takes about 150 bytes for each message in the message store.

Only findings and counts reach the driver; what the tasks find is kept by Spark, in memory or on
disk, until :meth:`AuditResult.unpersist`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from journal.errors import DamageError, StoreError
from journal.findings import Finding, Kind
from journal.fs.files import FileSystem
from pyspark_qindex.jobs.findings import FINDINGS, Several, damage, finding_row, grouped
from pyspark_qindex.jobs.fleet import FleetStore, find_fleet
from pyspark_qindex.jobs.tasks import Row, run_tasks, tasks_wanted
from pyspark_qindex.planning import group
from pyspark_qindex.rocket_planning import look_at
from pyspark_qindex.schemas import spark_schema
from pyspark_qindex.stores import Store
from qindex.format import layout
from qindex.index.messages import PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY
from qindex.tools.verify import Verification
from qindex.view.arrow import Table
from qindex.view.reader import StoreReader
from rocketstore.layout import Paths
from rocketstore.verify import check_store

_LEAST_WEIGHT: Final = 1 << 14
_ROCKET: Final = "rocketmq"


Found = Finding | tuple[str, int]
"""What the audit of a store gives; a pair says how many things of a sort were looked at."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A store to be audited. ``queues``: names by directory name, of a queue store. ``weight``:
    bytes."""

    store: Store
    sort: str
    queues: dict[str, str]
    weight: int

    def queue_of(self, finding: Finding) -> str | None:
        """Return the name of the queue whose file a finding names."""
        directory, *parts = self.store.relative(finding.path).split(os.sep)
        if self.sort == _ROCKET:
            return "/".join(parts[:2]) if directory == "consumequeue" and parts[1:] else None
        return self.queues.get(parts[0]) if directory == layout.QUEUES and parts else None


_EVIDENCE: Final[Table] = {"row": "string", **FINDINGS}
"""What a task gives. ``row``: finding; or count (``number`` things of the sort ``what`` were looked
at)."""


@dataclass(slots=True)
class AuditResult:
    """``findings``: a row for each problem (:data:`pyspark_qindex.jobs.findings.FINDINGS`).
    ``counts``: for each ``store``, ``number`` of ``things`` that were looked at. ``stores``: how
    many stores."""

    findings: DataFrame
    counts: DataFrame
    stores: int
    _evidence: DataFrame

    def unpersist(self) -> None:
        """Let Spark forget what the tasks found."""
        self._evidence.unpersist()


def audit(
    spark: SparkSession, paths: Sequence[str], *, storage: dict[str, str] | None = None
) -> AuditResult:
    """Audit all stores at or below ``paths`` (directories, trees of them, or globs).

    Findings are of two causes: ``damage``, and ``crash`` for what the next open repairs without
    asking. A healthy store has neither; one in use is read while it works. ``storage``: the
    options of fsspec for remote paths.

    Raises :class:`UsageError` for a glob without matches, :class:`NotAStoreError` for a path that
    has no store, or whose store is of a newer format. What is wrong with a store that was found in
    a tree is a finding.
    """
    stores = find_fleet(paths, storage)
    items, early = _plan(stores)
    tasks = group(items, tasks_wanted(spark))
    rows = run_tasks(spark, tasks, _audit_item, _EVIDENCE).persist(StorageLevel.MEMORY_AND_DISK)
    found = rows.where("row = 'finding'").select(*FINDINGS)
    if early:
        found = found.unionByName(spark.createDataFrame(early, spark_schema(FINDINGS)))
    counted = rows.where("row = 'count'").groupBy("store", "store_kind", "what").sum("number")
    counts = counted.toDF("store", "store_kind", "things", "number")
    return AuditResult(found, counts, len(stores), rows)


def _plan(stores: list[FleetStore]) -> tuple[list[_Item], list[Row]]:
    items: list[_Item] = []
    early: list[Row] = []
    for one in stores:
        plan = _plan_rocket_store if one.is_rocket else _plan_queue_store
        try:
            items.append(plan(one.store))
        except StoreError as error:
            if one.store.named and not isinstance(error, DamageError):
                raise
            finding = _as_finding(one.store, error)
            early.append(finding_row(one.store, _ROCKET if one.is_rocket else "queues", finding))
    return items, early


def _as_finding(store: Store, error: StoreError) -> Finding:
    lost = "the store could not be audited"
    if isinstance(error, DamageError):
        is_gone = not os.path.exists(error.path)
        kind = Kind.MISSING_FILE if is_gone else Kind.RECORD
        return damage(error.path, error.offset, 0, kind, error.what, lost)
    path = getattr(error, "path", store.path)
    return damage(path, 0, 0, Kind.UNREADABLE, str(error), lost)


def _audit_item(item: _Item) -> Iterator[Row]:
    audit_store = _audit_rocket_store if item.sort == _ROCKET else _audit_queue_store
    for one in grouped(audit_store(item.store)):
        if isinstance(one, Several):
            queue = item.queue_of(one.first)
            yield ("finding", *finding_row(item.store, item.sort, one.told(), queue, one.number))
        else:
            what, number = one
            yield _count_row(item, what=what, number=number)


def _count_row(item: _Item, **values: Any) -> Row:
    values |= {"row": "count", "store": item.store.url, "store_kind": item.sort}
    return tuple(values.get(name) for name in _EVIDENCE)


def _ended(store: Store, error: StoreError) -> Finding:
    path = getattr(error, "path", store.path)
    return damage(path, 0, 0, Kind.UNREADABLE, f"the audit of this store ended here: {error}")


# -- a queue store ---------------------------------------------------------------------------------


def _plan_queue_store(store: Store) -> _Item:
    """Look at a store; nothing is read but names and sizes.

    Raises :class:`StoreError` for a directory that is not a store, has a newer format, or can't be
    listed.
    """
    fs = store.file_system()
    reader = StoreReader(store.path, fs)
    queues = {one.directory: one.name for one in reader.directories()}
    places = [os.path.join(layout.QUEUES, name) for name in queues]
    places += [PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY]
    weight = sum(_bytes_in(fs, os.path.join(store.path, place)) for place in places)
    return _Item(store, reader.kind, queues, weight + _LEAST_WEIGHT)


def _bytes_in(fs: FileSystem, directory: str) -> int:
    total = 0
    try:
        for name in fs.listdir(directory):
            try:
                total += fs.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue  # deleted just now
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return total


def _audit_queue_store(store: Store) -> Iterator[Found]:
    """Audit a store: gives findings, then how many things of each sort were looked at."""
    check = Verification(store.path, store.file_system())
    try:
        yield from check.findings()
    except StoreError as error:
        yield _ended(store, error)
    figures = check.figures
    yield "queues", figures.queues
    yield "entries", figures.entries
    yield "stored messages", figures.records


# -- a RocketMQ store ------------------------------------------------------------------------------


def _plan_rocket_store(store: Store) -> _Item:
    """Look at a store. Raises as :func:`_plan_queue_store`."""
    fs = store.file_system()
    look_at(fs, store)
    return _Item(store, _ROCKET, {}, _bytes_in(fs, Paths(store.path).commitlog) + _LEAST_WEIGHT)


def _audit_rocket_store(store: Store) -> Iterator[Found]:
    """As :func:`_audit_queue_store`."""
    fs = store.file_system()
    try:
        report = check_store(store.path, fs=fs)
    except StoreError as error:
        yield _ended(store, error)
        return
    yield from report.findings
    yield "records", report.records
    yield "units", report.units
    yield "index entries", report.index_entries
