"""Read the parts of a plan, task by task: what batch and streaming sources share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_qindex.batches import tell
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import FailedStore, Part, QueuePart
from pyspark_qindex.reading.read_entries import read_entries
from pyspark_qindex.reading.read_files import read_files, read_stored
from pyspark_qindex.reading.read_messages import read_messages


def read_part(part: Part, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read one part of a plan."""
    if isinstance(part, FailedStore):
        return tell(options.columns, part.store, None, [part.why], permissive=options.permissive)
    if isinstance(part, QueuePart):
        read = read_messages if options.include == "messages" else read_entries
        return read(part, options)
    return (read_stored if options.include == "stored" else read_files)(part, options)


@dataclass
class Parts(InputPartition):
    """The parts that one task reads."""

    parts: list[Any]


class PartsReader:
    """Reads what a plan gave each task."""

    _read_part: Callable[[Any, ReadOptions], Iterator[pa.RecordBatch]]

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's parts."""
        # Spark asks for one partition with nothing in it where there is none.
        for part in getattr(partition, "parts", ()):
            yield from self._read_part(part, self.options)
