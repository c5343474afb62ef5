"""The data sources: ``qindex`` for queues of our stores and of RabbitMQ's virtual hosts, and
``rocketstore`` for RocketMQ's CommitLogs, ConsumeQueues and IndexFiles."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Mapping
from typing import NoReturn

import pyspark
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from journal.errors import UsageError
from pyspark_qindex.options import ROCKET_TABLES, TABLES, ReadOptions, read_options, with_schema
from pyspark_qindex.reading.read_parts import TableReader
from pyspark_qindex.schemas import spark_schema
from qindex.view.arrow import Table

_LOG = logging.getLogger("pyspark_qindex")


def can_stream() -> bool:
    """Return whether this Spark keeps the limit of a batch: it does from 4.2 on."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def check_stream() -> None:
    """Raise :class:`UsageError` if Spark is too old for a stream."""
    if not can_stream():
        raise UsageError(
            f"streams need pyspark 4.2 or newer, not {pyspark.__version__}: it would ignore "
            f"maxMessagesPerBatch and read a whole backlog at once"
        )


class RefusedStream(datasource.DataSourceStreamReader):
    """The stream of a Spark that is too old: 4.1 hides an error that is raised before it has a
    reader."""

    def _refuse(self, *_given: object) -> NoReturn:
        check_stream()
        raise AssertionError("this Spark can stream")

    initialOffset = latestOffset = read = _refuse  # type: ignore[assignment]


@functools.cache
def log_all_columns(include: str) -> None:
    """Log, once a process, that queries read columns that they do not use."""
    _LOG.warning(
        "each query on these %s reads all columns, also those that it does not use: "
        "name some (pyspark_qindex.read(spark, path, columns=[...]), or the option columns)",
        include,
    )


class TableSource(datasource.DataSource):
    """A source of tables, the first of which can be followed."""

    _tables: Mapping[str, Table]

    def schema(self) -> str:
        """The columns that are wanted of the table that is included."""
        return spark_schema(read_options(self.options, self._tables).columns)

    def _asked(self, schema: StructType, *, stream: bool) -> ReadOptions:
        options = read_options(self.options, self._tables, stream=stream)
        followed = next(iter(self._tables))
        if stream and options.include != followed:
            raise UsageError(f"a stream has {followed}: no option include")
        asked = with_schema(options, schema, self._tables)
        if len(asked.columns) == len(self._tables[asked.include]):
            log_all_columns(asked.include)
        return asked

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Plan and read at one moment."""
        return TableReader(self._asked(schema, stream=False))

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        """Follow queues or logs; only messages or records can be followed."""
        if not can_stream():
            return RefusedStream()
        from pyspark_qindex.streaming import Stream

        return Stream(self._asked(schema, stream=True))


class QindexSource(TableSource):
    """``spark.read.format("qindex").load(paths)``; docs/spark.md has the options."""

    _tables = TABLES

    @classmethod
    def name(cls) -> str:
        """``qindex``."""
        return "qindex"

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> datasource.DataSourceStreamWriter:
        """Publish each batch into a queue, once."""
        check_stream()
        from pyspark_qindex.writing.sink import QueueSink, sink_options

        return QueueSink(sink_options(self.options, stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """Publish a DataFrame into a queue."""
        from pyspark_qindex.writing.sink import QueueWriter, sink_options

        if overwrite:
            raise UsageError("a queue can't be overwritten: mode append is right")
        return QueueWriter(sink_options(self.options, stream=False), schema)


class RocketSource(TableSource):
    """``spark.read.format("rocketstore").load(paths)``; docs/spark.md has the options."""

    _tables = ROCKET_TABLES

    @classmethod
    def name(cls) -> str:
        """``rocketstore``."""
        return "rocketstore"
