"""The sink ``qindex``: the rows of a query are published into a queue of one of our stores.

Exactly once for a streaming query, across any number of restarts from its checkpoint; for a batch
write with the option ``jobId`` the same for each id, without it at least once. See
:mod:`pyspark_qindex.writing.publishing` for how.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from journal.errors import UsageError
from pyspark_qindex.filesystem import local_path
from pyspark_qindex.options import number_of
from pyspark_qindex.stores import local_store
from pyspark_qindex.writing import publishing

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_OPTIONS = frozenset({"path", "queue", "locktimeout", "orphanhours"})
_OF_BATCHES = frozenset({"jobid"})
_OF_STREAMS = frozenset({"checkpointlocation"})
"""Spark's own, which it hands on."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to publish. ``lock_timeout``: seconds to wait for the store. ``orphan_age``: seconds
    after which leftovers are removed. ``job``: of a batch write, so that it can be repeated."""

    store: str
    queue: str
    lock_timeout: float
    orphan_age: float
    job: str


@dataclass
class Staged(datasource.WriterCommitMessage):
    """The rows that a task has ready. ``file``: relative to the staging directory; none without
    rows."""

    query: str
    file: str
    rows: int


def sink_options(options: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Check the options of a write. Raises :class:`UsageError`."""
    given = {name.lower(): value for name, value in options.items()}
    known = _OPTIONS | (_OF_STREAMS if stream else _OF_BATCHES)
    for name in given:
        if name not in known:
            raise UsageError(f"no option {name!r}; there are {', '.join(sorted(known))}")
    if not given.get("path"):
        raise UsageError("a local path of a store is needed to publish into")
    store = local_path(given["path"], "a store to publish into")
    if not given.get("queue"):
        raise UsageError("option queue is needed: the name of the queue to publish into")
    timeout = number_of(given, "locktimeout", 60)
    hours = number_of(given, "orphanhours", 24 * 7)
    return SinkOptions(store, given["queue"], timeout, hours * 3600.0, given.get("jobid", ""))


class _Publisher:
    """A write whose tasks stage their rows, to be published beside the driver.

    Nothing is aborted: Spark asks for that also when :meth:`commit` has published, and the staged
    files of a batch that comes again are removed with it.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        self.columns = publishing.check_columns(schema)
        if TaskContext.get() is None:
            publishing.make_store(options.store, options.queue)

    def _stage(self, query: str, batch: int, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        store = self.options.store
        local_store(store).file_system()  # rows staged elsewhere would never be published
        staging = publishing.Staging(store)
        attempt = f"{context.partitionId():05d}-{context.attemptNumber()}-{uuid.uuid4().hex}.arrow"
        path = os.path.join(staging.batch_directory(query, batch), attempt)
        rows = publishing.stage(path, iterator, self.columns, staging.fs)
        return Staged(query, os.path.relpath(path, staging.path), rows)

    def commit(
        self, messages: list[datasource.WriterCommitMessage | None], batchId: int = 0
    ) -> None:
        """Publish what the tasks staged (beside the driver)."""
        staged = [one for one in messages if isinstance(one, Staged)]
        if not staged:
            return  # a batch of no tasks
        publishing.commit_batch(
            self.options.store,
            self.options.queue,
            staged[0].query,
            batchId,
            [(one.file, one.rows) for one in staged if one.rows],
            lock_timeout=self.options.lock_timeout,
            orphan_age=self.options.orphan_age,
        )


class QueueSink(_Publisher, datasource.DataSourceStreamArrowWriter):
    """Publishes the batches of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows (in an executor)."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise UsageError("not a task of a streaming query")
        return self._stage(query, int(batch), iterator)


class QueueWriter(_Publisher, datasource.DataSourceArrowWriter):
    """Publishes a DataFrame."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.query = f"job-{options.job}" if options.job else f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows (in an executor)."""
        return self._stage(self.query, 0, iterator)
