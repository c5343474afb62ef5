"""Damage as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from journal.errors import StoreError
from journal.findings import Cause, Finding
from pyspark_qindex.errors import one_line
from pyspark_qindex.stores import Store
from qindex.view.arrow import Table, batch_of, constant, plain_text


class ReadFailedError(StoreError):
    """Damage met by a read with ``mode=failfast``; the message names file and offset."""


def damage_batch(
    table: Table, store: Store, queue: str | None, texts: Sequence[str]
) -> pa.RecordBatch:
    """Return a row for each text: store, queue (or topic) and error, and nothing else."""
    count = len(texts)
    return batch_of(
        table,
        count,
        {
            "store": lambda: constant(store.url, count),
            "queue": lambda: constant(plain_text(queue), count),
            "topic": lambda: constant(queue, count),
            "error": lambda: pa.array(texts, pa.string()),
        },
    )


def tell(
    table: Table,
    store: Store,
    queue: str | None,
    found: Iterable[Finding | StoreError | str],
    *,
    permissive: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield rows for damage. Traces of a crash, which an open repairs, are not damage.

    Raises :class:`ReadFailedError` with the first where the read is not permissive.
    """
    texts = [
        one_line(str(one).replace(store.path, store.url))
        for one in found
        if not (isinstance(one, Finding) and one.cause is Cause.CRASH)
    ]
    if not texts:
        return
    if not permissive:
        raise ReadFailedError(texts[0])
    yield damage_batch(table, store, queue, texts)
