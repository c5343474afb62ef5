"""The audit of a fleet: every store of every kind at once.

>>> import pyspark_qindex                                        # doctest: +SKIP
>>> from pyspark_qindex.jobs import audit
>>> spark = pyspark_qindex.session()
>>> result = audit(spark, ["/srv/fleet"])
>>> result.findings.groupBy("store", "kind").count().show()

Only findings and counts reach the driver; what the tasks find is kept by Spark, in memory or on
disk, until :meth:`AuditResult.unpersist`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from journal.errors import DamageError, StoreError
from journal.findings import Finding, Kind
from pyspark_qindex.jobs.audit_queues import QueueStoreItem, audit_queue_store, plan_queue_store
from pyspark_qindex.jobs.audit_rocket import RocketItem, Span, audit_rocket_item, plan_rocket_store
from pyspark_qindex.jobs.findings import FINDINGS, Several, damage, finding_row, grouped
from pyspark_qindex.jobs.fleet import FleetStore, find_fleet
from pyspark_qindex.jobs.tasks import Row, Rows, run_tasks, tasks_wanted
from pyspark_qindex.planning import group
from pyspark_qindex.schemas import Table, spark_schema
from pyspark_qindex.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    from pyspark import StorageLevel

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
                items.append(plan_queue_store(one.store))
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
    return _queue_rows(item) if isinstance(item, QueueStoreItem) else _rocket_rows(item)


def _queue_rows(item: QueueStoreItem) -> Iterator[Row]:
    for found in grouped(audit_queue_store(item)):
        if isinstance(found, Several):
            yield _told(found, item.store, item.sort, item.queue_of(found.first))
        else:
            yield _row("count", item.store, item.sort, what=found[0], first=found[1])


def _told(found: Several, store: Store, sort: str, queue: str | None) -> Row:
    return ("finding", *finding_row(store, sort, found.told(), queue, found.number), None, None)


def _rocket_rows(item: RocketItem) -> Iterator[Row]:
    for found in grouped(audit_rocket_item(item)):
        if isinstance(found, Several):
            queue = f"{item.topic}/{item.queue_id}" if item.part == "queue" else None
            yield _told(found, item.store, "rocketmq", queue)
        elif isinstance(found, Span):
            yield _row(
                "span",
                item.store,
                "rocketmq",
                queue=f"{found.topic}/{found.queue_id}",
                file=os.path.join("commitlog", f"{found.start:020d}"),
                offset=found.position,
                first=found.first,
                last=found.last,
            )
        else:
            yield _row("count", item.store, "rocketmq", what=found[0], first=found[1])


def _row(row: str, store: Store, store_kind: str, **values: Any) -> Row:
    values |= {"row": row, "store": store.url, "store_kind": store_kind}
    return tuple(values.get(name) for name in _EVIDENCE)


def _gaps(rows: DataFrame) -> DataFrame:
    """Queue offsets that are missing between one CommitLog file and the next that has any: one row
    for all queues of a file."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

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
