"""The stores that a job is given, the tasks over them, and the names of the stores it makes. Items
of tasks go to the executors inside the closure; nothing but results reaches the driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from journal.arguments import listed
from journal.errors import UsageError
from pyspark_qindex.filesystem import local_path
from pyspark_qindex.schemas import spark_schema
from pyspark_qindex.stores import Store, find_stores
from qindex.recovery import store_directory
from qindex.view.arrow import Table, arrow_schema
from rocketstore.layout import Paths
from rocketstore.queues.offsets import ConsumerOffsets

Row = tuple[Any, ...]

_TASKS_PER_CORE: Final = 3
_MOST_CORES: Final = 4096
_BATCH_ROWS: Final = 8192
_BATCH_BYTES: Final = 8 << 20
_ROWS_AT_ONCE: Final = 64
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark names a partition without a value."""


def tasks_wanted(spark: SparkSession) -> int:
    """Return the number of tasks to request of :func:`pyspark_qindex.planning.group`: some for each
    core of the cluster, so that a slow one does not hold up all (one costs 10 to 50 ms)."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return _TASKS_PER_CORE * int(context.defaultParallelism)
    # Spark Connect tells nothing of its cluster. A range is cut into that many parts, though.
    part = f.spark_partition_id()
    return _TASKS_PER_CORE * spark.range(_MOST_CORES).select(part).distinct().count()


def map_rows(
    frame: DataFrame, work: Callable[[Iterator[dict[str, Any]]], Iterable[Row]], table: Table
) -> DataFrame:
    """Return the rows (tuples in the order of the table's columns) that ``work`` makes of those of
    ``frame``, once for each of its partitions; it takes them by the names of their columns."""
    schema = arrow_schema(table)

    def batch(rows: list[Row]) -> pa.RecordBatch:
        columns = zip(zip(*rows, strict=True), schema, strict=True)
        arrays = [pa.array(column, field.type) for column, field in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def run(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept: list[Row] = []
        held = 0
        for row in work(_by_name(found)):
            kept.append(row)
            held += sum(len(value) for value in row if isinstance(value, bytes))
            if len(kept) >= _BATCH_ROWS or held >= _BATCH_BYTES:
                yield batch(kept)
                kept, held = [], 0
        if kept:
            yield batch(kept)

    return frame.mapInArrow(run, spark_schema(table))


def together(parts: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of frames with the same columns."""
    return reduce(DataFrame.unionByName, parts)


def _by_name(found: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in found:
        # Some at a time: a row may have columns of 64 KiB.
        for at in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield from batch.slice(at, _ROWS_AT_ONCE).to_pylist()


def run_tasks(
    spark: SparkSession,
    groups: Sequence[Sequence[Any]],
    work: Callable[[Any], Iterable[Row]],
    table: Table,
) -> DataFrame:
    """Call ``work`` for each item, one task a group, and return the rows of all. The work for an
    item is repeated if its executor is lost."""
    dealt = [list(group) for group in groups] or [[]]

    def run(ranges: Iterator[dict[str, Any]]) -> Iterator[Row]:
        return (row for one in ranges for item in dealt[one["id"]] for row in work(item))

    return map_rows(spark.range(0, len(dealt), 1, len(dealt)), run, table)


def find_fleet(paths: Sequence[str], storage: dict[str, str] | None = None) -> list[Store]:
    """Return all stores at or below ``paths``, sorted within each. Raises also
    :class:`NotAStoreError` for a path whose store has a newer format."""
    paths = listed(paths, "paths")
    if not paths:
        raise UsageError("no path is given")
    fleet = find_stores(paths, storage or {})
    for store in fleet:
        if store.named and not store.is_rocket:
            store_directory.find_marker(store.file_system(), store.path)
    return fleet


def committed_offsets(store: Store) -> Iterator[tuple[str, str, int]]:
    """Yield queue (``TOPIC/QUEUEID``), consumer group, and the queue offset it asks for next."""
    fs = store.file_system()
    offsets = ConsumerOffsets(fs, Paths(store.path).consumer_offset, writable=False)
    for name, table in offsets.table.items():
        topic, _, consumer_group = name.partition("@")
        for queue_id, at in table.items():
            yield f"{topic}/{queue_id}", consumer_group, at


def new_stores(out: str, stores: Sequence[str]) -> dict[str, str]:
    """Return the place, below ``out``, of the store that a job makes for each store."""
    root = os.path.join(local_path(out, "out"), "stores")
    return {store: os.path.join(root, name) for store, name in store_names(stores).items()}


def store_names(stores: Sequence[str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a directory name for each store: its path below what all have in common, with ``~``,
    or the ``known`` one.

    >>> store_names(["/srv/fleet/a/orders", "/srv/fleet/b/orders"])
    {'/srv/fleet/a/orders': 'a~orders', '/srv/fleet/b/orders': 'b~orders'}
    """
    parts = {store: store.replace("://", "/").strip("/").split("/") for store in set(stores)}
    shared = [len(set(names)) == 1 for names in zip(*parts.values(), strict=False)]
    common = [*shared, False].index(False) if len(parts) > 1 else -1
    names = dict(known or {})
    for store in sorted(parts.keys() - names):
        name = "~".join(parts[store][common:]) or "store"
        while name in names.values() or name == _NULL:
            name += "~"
        names[store] = name
    return names
