"""Index entries as Arrow batches: one for each file, straight from its bytes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import numpy as np
import pyarrow as pa

from journal.errors import StoreError
from journal.findings import Finding
from pyspark_qindex.batches import tell
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import QueuePart
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
from qindex.view.queue_view import QueueView

_STATES = ("", "published", "delivered", "acked")
assert (PUBLISHED, DELIVERED, ACKED) == (1, 2, 3)


def read_entries(part: QueuePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a part of a queue, those that are acknowledged too.

    Raises :class:`pyspark_qindex.batches.ReadFailedError` for damage in a read that is not
    permissive. Memory: one segment at a time.
    """

    def segment(view: QueueView, number: int) -> Iterator[pa.RecordBatch]:
        return _batches(part, options, view.entries(number))

    return read_queue(part, options, segment)


def read_queue(
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
        found += [one for one in _findings(view, part) if (one.path, one.offset) not in told]
    yield from tell(options.columns, part.store, part.queue, found, permissive=options.permissive)


def _findings(view: QueueView, part: QueuePart) -> list[Finding]:
    """Return the findings of the view. Among the parts of a queue each is returned once."""
    if part.leads:
        return view.findings
    journal = set(view.pinned.reading.findings)
    return [one for one in view.findings if one not in journal]


def seq_bounds(part: QueuePart, options: ReadOptions) -> tuple[int, int]:
    """Return the seq_ids that are wanted: from the first up to, and without, the second."""
    ends = [end for end in (options.seq_to, part.high) if end is not None]
    return max(options.seq_from, part.low), min(ends, default=1 << 62)


def _batches(
    part: QueuePart, options: ReadOptions, files: list[Entries]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one segment. Its bytes are let go of after the last batch."""
    for entries in files:
        batch = _batch(part, options, entries)
        if batch.num_rows:
            yield batch


def _batch(part: QueuePart, options: ReadOptions, entries: Entries) -> pa.RecordBatch:
    low, high = seq_bounds(part, options)
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
