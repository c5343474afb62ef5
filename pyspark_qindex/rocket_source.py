"""The data source ``rocketstore``: RocketMQ's CommitLogs, ConsumeQueues and IndexFiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from journal.errors import UsageError
from pyspark_qindex.options import ROCKET_TABLES, ReadOptions, read_options, with_schema
from pyspark_qindex.qindex_source import Parts
from pyspark_qindex.read_rocket import read_rocket_part
from pyspark_qindex.rocket_planning import RocketPart, plan_rocket
from pyspark_qindex.schemas import spark_schema


class RocketSource(DataSource):
    """``spark.read.format("rocketstore").load(paths)``; docs/spark.md has the options."""

    @classmethod
    def name(cls) -> str:
        """``rocketstore``."""
        return "rocketstore"

    def schema(self) -> StructType:
        """The columns that are wanted of the table that is included."""
        return spark_schema(self._options().columns)

    def reader(self, schema: StructType) -> RocketReader:
        """Plan and read."""
        return RocketReader(self._options(schema, stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Follow CommitLogs; only records can be followed."""
        from pyspark_qindex.rocket_streaming import LogStream

        options = self._options(schema, stream=True)
        if options.include != "records":
            raise UsageError("a stream has records: no option include")
        return LogStream(options)

    def _options(
        self, schema: StructType | None = None, *, stream: bool | None = None
    ) -> ReadOptions:
        options = read_options(self.options, ROCKET_TABLES, stream=stream)
        return options if schema is None else with_schema(options, schema, ROCKET_TABLES)


class RocketReader(DataSourceReader):
    """A read of the files there are when :meth:`partitions` is called."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[Parts]:
        """Plan; raises one-line errors of :mod:`journal.errors` for what can't be read."""
        return [Parts(list(task)) for task in plan_rocket(self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's parts."""
        for part in getattr(partition, "parts", ()):
            yield from read_rocket_part(cast(RocketPart, part), self.options)
