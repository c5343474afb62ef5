"""Plan and read the tables of stores, for batch and streaming sources alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import FailedStore, group, tell
from pyspark_qindex.reading.read_files import read_files, read_stored
from pyspark_qindex.reading.read_queues import plan_files, plan_queues, read_entries, read_messages
from pyspark_qindex.reading.read_rocket import plan_rocket, read_index, read_records, read_units

_Plan = Callable[[ReadOptions], list[Any]]
_Read = Callable[[Any, ReadOptions], Iterator[pa.RecordBatch]]
_TABLES: Final[dict[str, tuple[_Plan, _Read]]] = {
    "messages": (plan_queues, read_messages),
    "entries": (plan_queues, read_entries),
    "files": (plan_files, read_files),
    "stored": (plan_files, read_stored),
    "records": (plan_rocket, read_records),
    "units": (plan_rocket, read_units),
    "index": (plan_rocket, read_index),
}
"""How each table is planned and read."""


def plan(options: ReadOptions) -> list[list[Any]]:
    """Plan a read: the parts of each task. Raises as :func:`pyspark_qindex.stores.find_stores`."""
    return group(_TABLES[options.include][0](options), options.partitions)


def read_part(part: Any, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read one part of a plan."""
    if isinstance(part, FailedStore):
        return tell(part.store, options, [part.why])
    return _TABLES[options.include][1](part, options)


@dataclass
class Parts(InputPartition):
    """The parts that one task reads."""

    parts: list[Any]


class PartsReader:
    """Reads what a plan gave each task."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's parts."""
        # Spark asks for one partition with nothing in it where there is none.
        for part in getattr(partition, "parts", ()):
            yield from read_part(part, self.options)


class TableReader(PartsReader, DataSourceReader):
    """A read of one moment: that of :meth:`partitions`."""

    def partitions(self) -> list[Parts]:
        """Plan the read. Raises one-line errors of :mod:`journal.errors` if it can't be read."""
        return [Parts(task) for task in plan(self.options)]
