"""``export`` and ``import``: stores to Parquet and back, without loss.

An export is a directory of tables:

* ``messages``: what the source ``qindex`` gives of each message, with the ``envelope``, in which
  key, headers, properties and timestamp are as they were stored, types and all;
* ``queues``: a row for each queue, empty ones too, with its settings;
* ``records``: CommitLog records of RocketMQ stores, properties as they were stored.

Import makes a new store for each store in the tables: one task a store, for a store has one writer.
A queue store comes back with the same seq_ids, message ids, order, expiry, flags and settings; the
messages of a RabbitMQ virtual host become those of a store of ours, with their records as they
were. A RocketMQ store comes back with the same records but for their place (a log begins at 0).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from journal.errors import DamageError, NotAStoreError, StoreError, UsageError
from journal.files import read_optional
from pyspark_qindex.filesystem import file_system
from pyspark_qindex.jobs.fleet import FleetStore, find_fleet
from pyspark_qindex.jobs.mapping import Origin, RocketRecord
from pyspark_qindex.jobs.naming import STORES, store_names
from pyspark_qindex.jobs.refill import QueueFill, QueueKept, RocketFill, new_store
from pyspark_qindex.jobs.tasks import Row, batches
from pyspark_qindex.schemas import Table, spark_schema
from qindex import layout
from qindex.envelope import open_envelope
from qindex.reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "IMPORTED",
    "ExportResult",
    "ImportResult",
    "export_stores",
    "find_exports",
    "import_stores",
    "origin_of",
    "queues_kept",
]

_TABLES: Final = ("messages", "queues", "records")
QUEUES: Final[Table] = {
    "store": "string",
    "queue": "string",
    "settings": "string",
    "next_seq_id": "bigint",
}
"""``settings``: what the queue's settings file holds, as JSON. ``next_seq_id``: of the next
publish."""
IMPORTED: Final[Table] = {
    "store": "string",
    "target": "string",
    "queue": "string",
    "messages": "bigint",
    "bytes": "bigint",
    "skipped": "bigint",
}
"""What was imported of each queue; ``skipped``: rows without a message (they tell of damage)."""


@dataclass(slots=True)
class ExportResult:
    """``tables``: by name, to be written as Parquet. ``stores``: how many."""

    tables: dict[str, DataFrame]
    stores: int


@dataclass(slots=True)
class ImportResult:
    """``queues``: :data:`IMPORTED`. ``targets``: the new stores, by the store they came from."""

    queues: DataFrame
    targets: dict[str, str]


def export_stores(
    spark: SparkSession, paths: Sequence[str], *, mode: str = "permissive"
) -> ExportResult:
    """Read all that stores at or below ``paths`` hold, as tables. What is damaged is a row with
    ``error``, or, with ``mode`` ``failfast``, ends the read. Raises as
    :func:`pyspark_qindex.jobs.fleet.find_fleet`."""
    fleet = find_fleet(paths)
    queues = [one for one in fleet if not one.is_rocket]
    rockets = [one.store.url for one in fleet if one.is_rocket]
    tables: dict[str, DataFrame] = {}
    if queues:
        read = spark.read.format("qindex").option("mode", mode)
        tables["messages"] = read.load([one.store.url for one in queues])
        rows = [row for one in queues for row in _queue_rows(one)]
        tables["queues"] = _small(spark, rows)
    if rockets:
        tables["records"] = spark.read.format("rocketstore").option("mode", mode).load(rockets)
    return ExportResult(tables, len(fleet))


def _small(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, spark_schema(QUEUES))


def _queue_rows(one: FleetStore) -> Iterator[Row]:
    for kept in queues_kept(one):
        settings = None if kept.settings is None else json.dumps(kept.settings)
        yield (one.store.url, kept.name, settings, kept.next_seq_id)


def queues_kept(one: FleetStore) -> Iterator[QueueKept]:
    """Give what the queues of a store have beside their messages.

    Raises :class:`DamageError` for settings that can't be read."""
    fs = file_system(one.store.place)
    reader = StoreReader(one.store.path, fs)
    for queue in reader.readers():
        summary = queue.summary_if_there()
        if summary is None:
            continue
        path = os.path.join(reader.path_of(queue.directories[0]), layout.SETTINGS)
        data = read_optional(fs, path) if reader.kind == "qindex" else None
        try:
            settings = layout.unpack_checked(data) if data is not None else None
        except ValueError as error:
            raise DamageError(path, 0, f"the settings of the queue: {error}") from error
        yield QueueKept(queue.name, settings, summary.next_seq_id)


def import_stores(spark: SparkSession, paths: Sequence[str], out: str) -> ImportResult:
    """Make stores below ``out``/stores from the tables of exports in ``paths``.

    Raises :class:`NotAStoreError` for a path without tables, :class:`StoreError`.
    """
    tables = _read_tables(spark, paths)
    stores = {
        row[0] for table in tables.values() for row in table.select("store").distinct().collect()
    }
    root = os.path.abspath(os.path.join(out, STORES))
    targets = {store: os.path.join(root, name) for store, name in store_names(list(stores)).items()}
    kept: dict[str, list[QueueKept]] = {}
    if "queues" in tables:
        for row in tables["queues"].collect():
            text = row["settings"]
            one = QueueKept(row["queue"], text and json.loads(text), row["next_seq_id"])
            kept.setdefault(row["store"], []).append(one)
    source = os.path.abspath(paths[0])
    parts: list[DataFrame] = []
    if "messages" in tables or "queues" in tables:
        parts.append(_import_queues(spark, tables, targets, kept, source))
    if "records" in tables:
        parts.append(_import_records(tables["records"], targets, source))
    done = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    rows = [tuple(row) for row in done.collect()]
    return ImportResult(spark.createDataFrame(sorted(rows), spark_schema(IMPORTED)), targets)


def find_exports(paths: Sequence[str]) -> dict[str, list[str]]:
    """Give the places of the tables of exports, by name.

    Raises :class:`UsageError` for no path, :class:`NotAStoreError` for one without tables.
    """
    if not paths:
        raise UsageError("no path is given")
    tables: dict[str, list[str]] = {}
    for path in paths:
        places = {name: os.path.join(path, f"{name}.parquet") for name in _TABLES}
        found = {name: place for name, place in places.items() if os.path.exists(place)}
        if not found:
            raise NotAStoreError(f"{path}: no export: it holds none of {', '.join(_TABLES)}")
        for name, place in found.items():
            tables.setdefault(name, []).append(place)
    return tables


def _read_tables(spark: SparkSession, paths: Sequence[str]) -> dict[str, DataFrame]:
    return {name: spark.read.parquet(*found) for name, found in find_exports(paths).items()}


def in_order(messages: DataFrame) -> DataFrame:
    """One store after the other, its queues one after the other, each in order of delivery; a
    store is never cut."""
    from pyspark.sql import functions as f

    stores = messages.select("store").distinct().count()
    together = messages.repartition(max(1, stores), "store")
    priority = f.coalesce("priority", f.lit(-1)).desc()
    return together.sortWithinPartitions("store", "queue", priority, "seq_id")


def _import_queues(
    spark: SparkSession,
    tables: dict[str, DataFrame],
    targets: dict[str, str],
    kept: dict[str, list[QueueKept]],
    source: str,
) -> DataFrame:
    from pyspark.sql import functions as f

    wanted = ("store", "queue", "seq_id", "msg_id", "persistent", "redelivered", "expiry",
              "priority", "envelope", "body", "error")  # fmt: skip
    # A row for each queue first, so that stores without messages are made, too.
    empty = tables["queues"].select("store", "queue")
    for name in wanted[2:]:
        empty = empty.withColumn(name, f.lit(None))
    rows = empty.unionByName(tables["messages"].select(*wanted)) if "messages" in tables else empty

    def fill(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches(IMPORTED, _fill_queues(_dicts(found), targets, kept, source))

    return in_order(rows).mapInArrow(fill, spark_schema(IMPORTED))


def _dicts(found: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in found:
        yield from batch.to_pylist()


def _fill_queues(
    rows: Iterator[dict[str, Any]],
    targets: dict[str, str],
    kept: dict[str, list[QueueKept]],
    source: str,
) -> Iterator[Row]:
    for store, mine in by_store(rows):
        counts: dict[str, list[int]] = {}
        with new_store(targets[store], source) as path:
            fill = QueueFill(path)
            for one in kept.get(store, ()):
                fill.declare(one)
                counts[one.name] = [0, 0, 0]
            for row in mine:
                count = counts.setdefault(row["queue"], [0, 0, 0])
                if row["envelope"] is None or row["body"] is None:
                    count[2] += row["error"] is not None
                    continue
                fill.put(origin_of(row), open_envelope(row["envelope"], row["body"]))
                count[0] += 1
                count[1] += len(row["body"])
            fill.finish()
        yield from ((store, targets[store], name, *count) for name, count in counts.items())


def by_store(
    rows: Iterator[dict[str, Any]],
) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """Cut rows that come store by store. Each store's must be gone through before the next."""
    from itertools import groupby

    return groupby(rows, key=lambda row: str(row["store"]))


def origin_of(row: dict[str, Any]) -> Origin:
    """Give where a row of ``messages`` stood."""
    return Origin(
        queue=row["queue"],
        seq_id=row["seq_id"],
        msg_id=row["msg_id"],
        persistent=row["persistent"],
        redelivered=row["redelivered"],
        expiry=row["expiry"] or 0,
        priority=row["priority"],
    )


def _import_records(records: DataFrame, targets: dict[str, str], source: str) -> DataFrame:
    stores = records.select("store").distinct().count()
    rows = records.repartition(max(1, stores), "store").sortWithinPartitions("store", "offset")

    def fill(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches(IMPORTED, _fill_records(_dicts(found), targets, source))

    return rows.mapInArrow(fill, spark_schema(IMPORTED))


def _fill_records(
    rows: Iterator[dict[str, Any]], targets: dict[str, str], source: str
) -> Iterator[Row]:
    for store, mine in by_store(rows):
        counts: dict[str, list[int]] = {}
        with new_store(targets[store], source) as path:
            fill = RocketFill(path)
            for row in mine:
                queue = f"{row['topic']}/{row['queue_id']}"
                count = counts.setdefault(queue, [0, 0, 0])
                if row["body"] is None or row["error"] is not None:
                    count[2] += 1
                    continue
                fill.put(record_of(row), row["store_timestamp"])
                count[0] += 1
                count[1] += len(row["body"])
            fill.finish()
        yield from ((store, targets[store], name, *count) for name, count in counts.items())


def record_of(row: dict[str, Any]) -> RocketRecord:
    """Give what a put needs of a row of ``records``."""
    try:
        return RocketRecord(
            topic=row["topic"],
            queue_id=row["queue_id"],
            body=row["body"],
            properties=row["properties_raw"],
            flag=row["flag"],
            sys_flag=row["sys_flag"],
            born_timestamp=row["born_timestamp"],
            born_host=row["born_host"],
            reconsume_times=row["reconsume_times"],
        )
    except KeyError as error:
        raise StoreError(f"the records have no column {error}") from error
