"""The audit of a fleet: every store of every kind at once.

>>> import pyspark_qindex                                        # doctest: +SKIP
>>> from pyspark_qindex.jobs import audit
>>> spark = pyspark_qindex.session()
>>> result = audit(spark, ["/srv/fleet"])
>>> result.findings.groupBy("store", "kind").count().show()

A queue store, ours or a RabbitMQ virtual host's, is one task, which checks what ``qindex verify``
checks. Its entries and its messages are held against one another where they are, in about 150 bytes
for each message in the message store, and beside a writer the way a reader does it; joining them
across the cluster would only compare two different moments of it.

Only findings and counts reach the driver; what the tasks find is kept by Spark, in memory or on
disk, until :meth:`AuditResult.unpersist`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from journal.errors import DamageError, StoreError
from journal.files import FileSystem
from journal.findings import Finding, Kind
from pyspark_qindex.jobs.audit_rocket import (
    Found,
    RocketItem,
    Span,
    audit_rocket_item,
    plan_rocket_store,
)
from pyspark_qindex.jobs.findings import FINDINGS, Several, damage, finding_row, grouped
from pyspark_qindex.jobs.fleet import FleetStore, find_fleet
from pyspark_qindex.jobs.tasks import Row, Rows, run_tasks, tasks_wanted
from pyspark_qindex.planning import group
from pyspark_qindex.schemas import Table, spark_schema
from pyspark_qindex.stores import Store
from qindex.format import layout
from qindex.index.messages import PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY
from qindex.tools.verify import Verification
from qindex.view.reader import StoreReader

_LEAST_WEIGHT: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class QueueStoreItem:
    """A store to be audited. ``queues``: names by directory name. ``weight``: bytes."""

    store: Store
    sort: str
    queues: dict[str, str]
    weight: int

    def queue_of(self, finding: Finding) -> str | None:
        """Give the name of the queue whose file a finding names."""
        parts = self.store.relative(finding.path).split(os.sep)
        return self.queues.get(parts[1]) if parts[0] == layout.QUEUES and len(parts) > 1 else None


_Item = QueueStoreItem | RocketItem

_EVIDENCE: Final[Table] = {"row": "string", **FINDINGS, "first": "bigint", "last": "bigint"}
"""What a task gives. ``row``: finding; or count (``first`` things of the sort ``what`` were looked
at); or span (queue offsets ``first`` to ``last`` that one CommitLog file has of a queue)."""


@dataclass(slots=True)
class AuditResult:
    """``findings``: what is wrong (:data:`pyspark_qindex.jobs.findings.FINDINGS`). ``counts``: for
    each ``store``, ``number`` of ``things`` that were looked at. ``stores``: how many stores."""

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
    asking. A healthy store has neither; one in use is read while it works. ``storage``: what
    fsspec is told about remote paths.

    Raises :class:`UsageError` for a glob without matches, :class:`NotAStoreError` for a path that
    has no store, or whose store is of a newer format. What is wrong with a store that was found in
    a tree is a finding.
    """
    stores = find_fleet(paths, storage)
    items, early = _plan(stores)
    tasks = group(items, tasks_wanted(spark))
    rows = run_tasks(spark, tasks, _audit_item, _EVIDENCE).persist(StorageLevel.MEMORY_AND_DISK)
    found = rows.where("row = 'finding'").select(*FINDINGS).unionByName(_gaps(rows))
    if early:
        found = found.unionByName(spark.createDataFrame(early, spark_schema(FINDINGS)))
    counted = rows.where("row = 'count'").groupBy("store", "store_kind", "what").sum("first")
    counts = counted.toDF("store", "store_kind", "things", "number")
    return AuditResult(found, counts, len(stores), rows)


def _plan(stores: list[FleetStore]) -> tuple[list[_Item], list[Row]]:
    items: list[_Item] = []
    early: list[Row] = []
    for one in stores:
        try:
            if one.is_rocket:
                planned, findings = plan_rocket_store(one.store)
                items += planned
                early += [finding_row(one.store, "rocketmq", finding) for finding in findings]
            else:
                items.append(_plan_queue_store(one.store))
        except StoreError as error:
            if one.store.named and not isinstance(error, DamageError):
                raise
            finding = _as_finding(one.store, error)
            early.append(finding_row(one.store, "rocketmq" if one.is_rocket else "queues", finding))
    return items, early


def _as_finding(store: Store, error: StoreError) -> Finding:
    lost = "the store could not be audited"
    if isinstance(error, DamageError):
        is_gone = not os.path.exists(error.path)
        kind = Kind.MISSING_FILE if is_gone else Kind.RECORD
        return damage(error.path, error.offset, 0, kind, error.what, lost)
    path = getattr(error, "path", store.path)
    return damage(path, 0, 0, Kind.UNREADABLE, str(error), lost)


def _audit_item(item: _Item) -> Rows:
    if isinstance(item, QueueStoreItem):
        return _rows(_audit_queue_store(item), item.store, item.sort, item.queue_of)
    queue = f"{item.topic}/{item.queue_id}" if item.part == "queue" else None
    return _rows(audit_rocket_item(item), item.store, "rocketmq", lambda _: queue)


def _rows(
    found: Iterable[Found], store: Store, sort: str, queue_of: Callable[[Finding], str | None]
) -> Iterator[Row]:
    for one in grouped(found):
        if isinstance(one, Several):
            queue = queue_of(one.first)
            row = finding_row(store, sort, one.told(), queue, one.number)
            yield ("finding", *row, None, None)
        elif isinstance(one, Span):
            yield _row(
                "span",
                store,
                sort,
                queue=f"{one.topic}/{one.queue_id}",
                file=os.path.join("commitlog", f"{one.start:020d}"),
                offset=one.position,
                first=one.first,
                last=one.last,
            )
        else:
            yield _row("count", store, sort, what=one[0], first=one[1])


def _row(row: str, store: Store, store_kind: str, **values: Any) -> Row:
    values |= {"row": row, "store": store.url, "store_kind": store_kind}
    return tuple(values.get(name) for name in _EVIDENCE)


def _gaps(rows: DataFrame) -> DataFrame:
    """Queue offsets that are missing between one CommitLog file and the next that has any: one row
    for all queues of a file."""
    before = f.lag("last").over(Window.partitionBy("store", "queue").orderBy("file"))
    gaps = rows.where("row = 'span'").withColumn("before", before).where("first > before + 1")
    one = f.format_string("queue offset %s of %s follows on %s", "first", "queue", "before")
    places = gaps.withColumn("one", one).groupBy("store", "store_kind", "file")
    several = places.agg(
        f.min_by("queue", "offset").alias("queue"),
        f.min("offset").alias("offset"),
        f.min_by("one", "offset").alias("one"),
        f.count("*").alias("number"),
    )
    more = f.format_string("; so it is in %s queues", "number")
    told = {
        "length": f.lit(0).cast("bigint"),
        "kind": f.lit(Kind.GAP.value),
        "cause": f.lit("damage"),
        "what": f.concat("one", f.when(f.col("number") > 1, more).otherwise("")),
        "consequence": f.lit("messages are missing"),
    }
    return several.withColumns(told).select(*FINDINGS)


# -- a queue store ---------------------------------------------------------------------------------


def _plan_queue_store(store: Store) -> QueueStoreItem:
    """Look at a store; nothing is read but names and sizes.

    Raises :class:`StoreError` for a directory that is no store, of a newer format, or can't be
    listed.
    """
    fs = store.file_system()
    reader = StoreReader(store.path, fs)
    queues = {one.directory: one.name for one in reader.directories()}
    places = [os.path.join(layout.QUEUES, name) for name in queues]
    places += [PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY]
    weight = sum(_bytes_in(fs, os.path.join(store.path, place)) for place in places)
    return QueueStoreItem(store, reader.kind, queues, weight + _LEAST_WEIGHT)


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


def _audit_queue_store(item: QueueStoreItem) -> Iterator[Finding | tuple[str, int]]:
    """Audit a store: gives findings, then how many things of each sort were looked at."""
    check = Verification(item.store.path, item.store.file_system())
    try:
        yield from check.findings()
    except StoreError as error:
        path = getattr(error, "path", item.store.path)
        what = f"the audit of this store ended here: {error}"
        yield damage(path, 0, 0, Kind.UNREADABLE, what)
    figures = check.figures
    yield "queues", figures.queues
    yield "entries", figures.entries
    yield "stored messages", figures.records
