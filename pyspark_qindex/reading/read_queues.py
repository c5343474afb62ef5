"""Index entries and messages as Arrow batches: one for each file, straight from its bytes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import numpy as np
import pyarrow as pa

from journal.errors import StoreError
from journal.findings import Finding
from pyspark_qindex.errors import one_line
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.queue_planning import QueuePart
from pyspark_qindex.reading.damage import ReadFailedError, tell
from pyspark_qindex.stores import StoreNotHereError
from qindex.index.segment import ACKED, DELIVERED, PUBLISHED
from qindex.recovery.columns import Entries
from qindex.view.arrow import (
    batch_of,
    choices,
    constant,
    fixed_binaries,
    flags,
    numbers,
    plain_text,
)
from qindex.view.message_batches import MessageBatches
from qindex.view.queue_view import QueueView, Row

_STATES = ("", "published", "delivered", "acked")
assert (PUBLISHED, DELIVERED, ACKED) == (1, 2, 3)


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
            yield from batches.of(columns, *_seq_bounds(part, options))

    return _read_queue(part, options, segment, on_rows)


def read_entries(part: QueuePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a part of a queue, those that are acknowledged too.

    Raises as :func:`read_messages`. Memory: one segment at a time.
    """

    def segment(view: QueueView, number: int) -> Iterator[pa.RecordBatch]:
        for entries in view.entries(number):
            batch = _batch(part, options, entries)
            if batch.num_rows:
                yield batch
            del entries  # and with it the file's bytes, before the next one is read

    return _read_queue(part, options, segment)


def _read_queue(
    part: QueuePart,
    options: ReadOptions,
    segment: Callable[[QueueView, int], Iterator[pa.RecordBatch]],
    told: Container[tuple[str, int]] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of each ``segment`` of a part, then what damage was met; but for that in
    the places ``told`` by then, paths and offsets."""
    found: list[Finding | StoreError] = []
    try:
        view = part.view()
    except StoreNotHereError:
        raise
    except StoreError as error:
        found.append(error)
    else:
        if view is None:
            return
        try:
            for number in view.numbers if part.listed is not None else part.numbers:
                yield from segment(view, number)
        finally:
            view.close()
        # Of the parts of a queue one reports damage of the journal.
        journal = () if part.leads else set(view.pinned.reading.findings)
        found += [
            one
            for one in view.findings
            if one not in journal and (one.path, one.offset) not in told
        ]
    yield from tell(part.store, options, found, part.queue)


def _seq_bounds(part: QueuePart, options: ReadOptions) -> tuple[int, int]:
    """Return the seq_ids that are wanted: from the first up to, and without, the second."""
    ends = [end for end in (options.seq_to, part.high) if end is not None]
    return max(options.seq_from, part.low), min(ends, default=1 << 62)


def _batch(part: QueuePart, options: ReadOptions, entries: Entries) -> pa.RecordBatch:
    low, high = _seq_bounds(part, options)
    chosen: slice | np.ndarray[tuple[int], np.dtype[np.bool_]] = slice(None)
    if len(entries.seqs) and (low > entries.seqs[0] or high <= entries.seqs[-1]):
        chosen = (entries.seqs >= low) & (entries.seqs < high)
    seqs = entries.seqs[chosen]
    count = len(seqs)
    embedded = entries.embedded[chosen]
    file = part.store.relative(entries.path)
    return batch_of(
        options.columns,
        count,
        {
            "store": lambda: constant(part.store.url, count),
            "queue": lambda: constant(plain_text(part.queue), count),
            "seq_id": lambda: numbers(seqs),
            "msg_id": lambda: fixed_binaries(entries.ids[chosen]),
            "state": lambda: choices(entries.states[chosen], _STATES),
            "persistent": lambda: flags(entries.persistent[chosen]),
            "expiry": lambda: numbers(entries.expiry[chosen].astype(np.int64), absent=0),
            "size": lambda: numbers(entries.sizes[chosen]),
            "stored": lambda: flags(embedded == 0),
            "record_size": lambda: numbers(embedded),
            "file": lambda: constant(file, count),
            "offset": lambda: numbers(entries.offsets[chosen]),
            "priority": lambda: constant(part.priority, count, pa.int32()),
        },
    )
