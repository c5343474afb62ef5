"""The data source ``rocketstore``: RocketMQ's CommitLogs, ConsumeQueues and IndexFiles."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_qindex.options import ROCKET_TABLES
from pyspark_qindex.qindex_source import RefusedStream, TableSource, can_stream
from pyspark_qindex.reading.read_parts import Parts, PartsReader
from pyspark_qindex.reading.read_rocket import read_rocket_part
from pyspark_qindex.rocket_planning import plan_rocket


class RocketSource(TableSource):
    """``spark.read.format("rocketstore").load(paths)``; docs/spark.md has the options."""

    _tables = ROCKET_TABLES

    @classmethod
    def name(cls) -> str:
        """``rocketstore``."""
        return "rocketstore"

    def reader(self, schema: StructType) -> RocketReader:
        """Plan and read."""
        return RocketReader(self._asked(schema, stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Follow CommitLogs; only records can be followed."""
        if not can_stream():
            return RefusedStream()
        from pyspark_qindex.rocket_streaming import LogStream

        return LogStream(self._asked(schema, stream=True))


class RocketReader(PartsReader, DataSourceReader):
    """A read of the files there are when :meth:`partitions` is called."""

    _read_part = staticmethod(read_rocket_part)

    def partitions(self) -> list[Parts]:
        """Plan the read. Raises one-line errors of :mod:`journal.errors` if it can't be read."""
        return [Parts(list(task)) for task in plan_rocket(self.options)]
