"""Work that is cut into tasks: each takes some files, and gives Arrow batches of one schema.

The items go to the executors inside the closure, a few hundred bytes for each; what they make
comes back as a DataFrame, so that nothing but results reaches the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_qindex.schemas import spark_schema
from qindex.view.arrow import Table, arrow_schema

Item = TypeVar("Item")
Row = tuple[Any, ...]
Rows = Iterable[Row]

_TASKS_PER_CORE: Final = 3
_MOST_CORES: Final = 4096
_BATCH_ROWS: Final = 8192
_BATCH_BYTES: Final = 8 << 20
_ROWS_AT_ONCE: Final = 64


def tasks_wanted(spark: SparkSession) -> int:
    """Return the number of tasks to request of :func:`pyspark_qindex.planning.group`: some for each
    core of the cluster, so that a slow one does not hold up all (one costs 10 to 50 ms)."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return _TASKS_PER_CORE * int(context.defaultParallelism)
    # Spark Connect tells nothing of its cluster. A range is cut into that many parts, though.
    part = f.spark_partition_id()
    return _TASKS_PER_CORE * spark.range(_MOST_CORES).select(part).distinct().count()


def batches(table: Table, rows: Rows) -> Iterator[pa.RecordBatch]:
    """Put rows (tuples in the order of the table's columns) into record batches of bounded
    size."""
    schema = arrow_schema(table)
    kept: list[Row] = []
    held = 0
    for row in rows:
        kept.append(row)
        held += sum(len(value) for value in row if isinstance(value, bytes))
        if len(kept) >= _BATCH_ROWS or held >= _BATCH_BYTES:
            yield _batch(schema, kept)
            kept, held = [], 0
    if kept:
        yield _batch(schema, kept)


def _batch(schema: pa.Schema, rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def map_rows(
    frame: DataFrame, work: Callable[[Iterator[dict[str, Any]]], Rows], table: Table
) -> DataFrame:
    """Yield the rows that ``work`` makes of those of ``frame``, once for each of its partitions; it
    takes them by the names of their columns."""

    def run(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches(table, work(_by_name(found)))

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
    groups: Sequence[Sequence[Item]],
    work: Callable[[Item], Rows],
    table: Table,
) -> DataFrame:
    """Call ``work`` for each item, one task a group, and give the rows of all.

    ``work`` must be importable where the executors run (a function of this package), and may be
    called again for the same item: a task that is lost with its executor is run anew.
    """
    dealt = [list(group) for group in groups] or [[]]

    def run(ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ranges:
            for number in batch.column(0).to_pylist():
                rows = (row for item in dealt[number] for row in work(item))
                yield from batches(table, rows)

    count = len(dealt)
    return spark.range(0, count, 1, count).mapInArrow(run, spark_schema(table))
