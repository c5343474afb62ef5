"""Messages as Arrow batches (:mod:`qindex.view.message_batches`), part by part."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pyspark_qindex.batches import ReadFailedError
from pyspark_qindex.errors import one_line
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import QueuePart
from pyspark_qindex.reading.read_entries import read_queue, seq_bounds
from qindex.view.message_batches import MessageBatches
from qindex.view.queue_view import QueueView, Row


def read_messages(part: QueuePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a part of a queue, in the order of its seq_ids.

    Raises :class:`ReadFailedError` for damage in a read that is not permissive. Memory: one
    segment, and some megabytes at a time of its messages in the message store.
    """
    on_rows: set[tuple[str, int]] = set()

    def explain(row: Row, path: str, offset: int) -> str:
        """Describe the damage of a message and the place of its index entry."""
        on_rows.add((path, offset))
        where = part.store.shown(path)
        text = one_line(f"{where}: at offset {offset}: seq_id {row.seq_id}: {row.error}")
        if not options.permissive:
            raise ReadFailedError(text)
        return text

    def segment(view: QueueView, number: int) -> Iterator[pa.RecordBatch]:
        columns = view.columns(number)
        if columns is not None:
            batches = MessageBatches(
                view, options.columns, part.store.url, part.queue, options.key, explain=explain
            )
            yield from batches.of(columns, *seq_bounds(part, options))

    return read_queue(part, options, segment, on_rows)
