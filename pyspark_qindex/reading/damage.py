"""Damage as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from journal.errors import StoreError
from journal.findings import Cause, Finding
from pyspark_qindex.errors import one_line
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.stores import Store
from qindex.view.arrow import arrow_schema, plain_text


class ReadFailedError(StoreError):
    """Damage met by a read with ``mode=failfast``; the message names file and offset."""


def tell(
    store: Store,
    options: ReadOptions,
    found: Iterable[Finding | StoreError | str],
    queue: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows for damage in a store, or a queue of it: the place and ``error``; none for traces
    of a crash. Raises :class:`ReadFailedError` with the first where the read is not permissive."""
    name = plain_text(queue)
    rows = [
        {
            "store": store.url,
            "queue": name,
            "topic": name,
            "error": one_line(str(one).replace(store.path, store.url)),
        }
        for one in found
        if not (isinstance(one, Finding) and one.cause is Cause.CRASH)
    ]
    if rows and not options.permissive:
        raise ReadFailedError(rows[0]["error"])
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(options.columns))
