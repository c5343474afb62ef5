"""Messages as Arrow batches: for the plain reader, an export and Spark. Needs pyarrow.

qindex's messages go straight from the bytes of their records into Arrow
(:mod:`qindex.view.record_fields`, :mod:`qindex.format.json_tables`); those of the message store are
read one by one. RabbitMQ's messages and damaged ones are decoded as ``qindex cat`` does. If all
wanted columns are in the index, no message is decoded, and the message store is not opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from journal.format import PAYLOAD_SIZE
from journal.memory.arrays import I64
from qindex.format.envelope import make_envelope
from qindex.format.json_value import plain_json
from qindex.format.message import Message
from qindex.format.message_record import tables_as_json
from qindex.format.resynchronise import Data
from qindex.recovery.columns import Columns, Source, take_rows
from qindex.view.arrow import (
    Maker,
    Table,
    batch_of,
    choices,
    constant,
    fixed_binaries,
    numbers,
    plain_text,
    slices,
    texts_of,
)
from qindex.view.queue_view import QueueView, Row
from qindex.view.record_fields import RecordFields, find_fields

MESSAGES: Final[Table] = {
    "store": "string",
    "queue": "string",
    "seq_id": "bigint",
    "msg_id": "binary",
    "persistent": "boolean",
    "redelivered": "boolean",
    "expiry": "bigint",
    "timestamp": "bigint",
    "key": "string",
    "headers": "string",
    "properties": "string",
    "size": "bigint",
    "body": "binary",
    "location": "string",
    "priority": "int",
    "envelope": "binary",
    "error": "string",
}
"""Messages that would be delivered. ``headers`` and ``properties``: JSON, as ``qindex cat --json``
prints it. ``envelope``: the stored record without its body (:mod:`qindex.format.envelope`), from
which key, headers and properties follow without loss. ``error``: why ``body`` is null."""

_ROWS_AT_ONCE = 16384
_STORED_AT_ONCE = 1024
"""Messages of the message store in a batch: beside its body, each may have 1 MiB of headers."""
_BYTES_AT_ONCE = 8 << 20
_TABLES = frozenset({"headers", "properties"})
_IN_RECORDS = _TABLES | {"timestamp", "key", "body", "envelope", "error"}
"""The columns for which the records of messages must be read; the index has the others."""


@dataclass(slots=True)
class MessageBatches:
    """Makes batches of the messages that a view shows.

    ``table``: the columns that are wanted, of :data:`MESSAGES`. ``store``, ``queue``: what these
    columns say. ``key``: only messages with it. ``base``: added to each seq_id. ``explain`` gives
    the error of a damaged message, whose index entry is at an offset of a path.
    """

    view: QueueView
    table: Table
    store: str
    queue: str
    key: str | None = None
    base: int = 0
    explain: Callable[[Row, str, int], str | None] = lambda row, _path, _offset: row.error

    def of(self, columns: Columns, low: int = 0, high: int = 1 << 62) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a segment with ``low <= seq_id < high`` in order, some at a time.

        Memory: some megabytes of their messages in the message store."""
        return _Segment(self, columns).batches(low, high)


@dataclass(slots=True)
class _Segment:
    """The messages of one segment."""

    wanted: MessageBatches
    columns: Columns

    def batches(self, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Yield them in order, some at a time."""
        seqs = self.columns.seqs
        wanted = np.flatnonzero((seqs >= low) & (seqs < high))
        filled = np.arange(len(wanted)) // _ROWS_AT_ONCE
        if not self._by_index:
            filled += np.cumsum(self.columns.stored[wanted]) // _STORED_AT_ONCE
            filled += np.cumsum(self.columns.sizes[wanted]) // _BYTES_AT_ONCE
        for chosen in np.split(wanted, np.flatnonzero(np.diff(filled)) + 1):
            batch = self._batch(chosen)
            if batch is not None and batch.num_rows:
                yield batch

    @property
    def _by_index(self) -> bool:
        """Return whether the index has all wanted columns."""
        return self.wanted.key is None and not _IN_RECORDS & self.wanted.table.keys()

    def _batch(self, chosen: I64) -> pa.RecordBatch | None:
        pieces: list[tuple[I64, pa.RecordBatch]] = []
        slow = [chosen[:0]]
        for which, source in enumerate(self.columns.sources):
            mine = chosen[self.columns.source_of[chosen] == which]
            if not len(mine):
                continue
            if self._by_index and source.heads is None:  # ids of version 2 are in its records
                batch = batch_of(self.wanted.table, len(mine), self._in_index(source, mine))
                pieces.append((self.columns.seqs[mine], batch))
                continue
            stored = self.columns.stored[mine]
            for some, records in ((mine[~stored], self._embedded), (mine[stored], self._stored)):
                if not len(some):
                    continue
                quick, rest = self._quick(source, some, *records(source, some))
                slow.append(rest)
                if quick is not None:
                    pieces.append(quick)
        rest = np.sort(np.concatenate(slow))
        if len(rest):
            pieces.append(self._slow(rest))
        if len(pieces) < 2:
            return pieces[0][1] if pieces else None
        order = np.argsort(np.concatenate([seqs for seqs, _ in pieces]), kind="stable")
        table = pa.Table.from_batches([batch for _, batch in pieces]).take(pa.array(order))
        batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
        return batches[0] if batches else None

    def _embedded(self, source: Source, mine: I64) -> tuple[Data, I64, I64]:
        """Return the bytes with the records of some messages, where they begin, and their
        lengths."""
        rows = self.columns.row_of[mine]
        starts = source.offsets[rows] + source.head_size + PAYLOAD_SIZE
        return source.data, starts, source.heads_of(rows)["embedded"].astype(np.int64)

    def _stored(self, _source: Source, mine: I64) -> tuple[Data, I64, I64]:
        """Return the same of the message store. Those of RabbitMQ are read once, to be decoded."""
        view = self.wanted.view
        if view.rules.of_node:
            return b"", np.zeros_like(mine), np.zeros_like(mine)
        ids = self.columns.ids[mine].view("V16").ravel().tolist()
        records = [view.stored_record(msg_id) for msg_id in ids]
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        return b"".join(records), np.cumsum(lengths) - lengths, lengths

    def _quick(
        self, source: Source, mine: I64, data: Data, starts: I64, lengths: I64
    ) -> tuple[tuple[I64, pa.RecordBatch] | None, I64]:
        """Return a batch of the messages that need no decoding, their seq_ids, and the others."""
        columns = self.columns
        found = find_fields(data, starts, lengths, columns.sizes[mine])
        tables: list[pa.Array] = []
        if found.has_tables.any() and _TABLES & self.wanted.table.keys():
            found_texts = tables_as_json(data, found.key_ends, found.table_ends)
            headers, header_bounds, properties, property_bounds, right = found_texts
            tables = [texts_of(headers, header_bounds), texts_of(properties, property_bounds)]
            sound = np.frombuffer(right, np.bool_)
            if not sound.all():
                found = take_rows(found, sound)
                tables = [column.filter(pa.array(sound)) for column in tables]
        if not len(found.rows):
            return None, mine
        others = np.delete(mine, found.rows)
        mine, starts = mine[found.rows], starts[found.rows]
        keys = None
        if self.wanted.key is not None or "key" in self.wanted.table:
            try:
                keys = _keys(data, found)
            except pa.ArrowInvalid:
                # A key that is not UTF-8.
                return None, np.sort(np.concatenate((mine, others)))
        seqs = columns.seqs[mine]
        batch = self._plain_batch(source, mine, data, starts, found, keys, tables)
        if self.wanted.key is not None:
            wanted = pc.fill_null(pc.equal(keys, self.wanted.key), False)
            batch = batch.filter(wanted)
            seqs = seqs[np.asarray(wanted)]
        return (seqs, batch), others

    def _plain_batch(
        self,
        source: Source,
        mine: I64,
        data: Data,
        starts: I64,
        found: RecordFields,
        keys: pa.Array | None,
        tables: list[pa.Array],
    ) -> pa.RecordBatch:
        count = len(mine)
        return batch_of(
            self.wanted.table,
            count,
            {
                **self._in_index(source, mine),
                "timestamp": lambda: numbers(found.stamps, absent=0),
                "key": lambda: keys,
                "headers": lambda: tables[0] if tables else constant("{}", count),
                "properties": lambda: tables[1] if tables else constant("{}", count),
                "body": lambda: _slices(data, found.body_starts, found.body_ends),
                "envelope": lambda: _slices(data, starts, found.body_starts),
            },
        )

    def _in_index(self, source: Source, mine: I64) -> dict[str, Maker]:
        columns = self.columns
        return {
            **self._common(len(mine)),
            "seq_id": lambda: numbers(columns.seqs[mine] + self.wanted.base),
            "msg_id": lambda: fixed_binaries(columns.ids[mine]),
            "persistent": lambda: pa.array(columns.persistent[mine]),
            "redelivered": lambda: pa.array(columns.redelivered[mine]),
            "expiry": lambda: numbers(columns.expiry[mine].astype(np.int64), absent=0),
            "size": lambda: numbers(columns.sizes[mine]),
            "location": lambda: choices(
                columns.stored[mine].astype(np.uint8), (source.location, "store")
            ),
        }

    def _slow(self, mine: I64) -> tuple[I64, pa.RecordBatch]:
        """Decode one by one. Messages that were acknowledged meanwhile are left out."""
        rows = [
            row
            for row in self.wanted.view.rows_of(self.columns, mine)
            if self.wanted.key is None or row.key == self.wanted.key
        ]
        errors = [self._error(row) for row in rows]
        seqs = np.array([row.seq_id for row in rows], np.int64)
        return seqs, batch_of(
            self.wanted.table,
            len(rows),
            {
                **self._common(len(rows)),
                "seq_id": lambda: numbers(seqs + self.wanted.base),
                "msg_id": lambda: pa.array([row.msg_id for row in rows], pa.binary()),
                "persistent": lambda: pa.array([row.persistent for row in rows], pa.bool_()),
                "redelivered": lambda: pa.array([row.redelivered for row in rows], pa.bool_()),
                "expiry": lambda: pa.array([row.expiry or None for row in rows], pa.int64()),
                "timestamp": lambda: pa.array([row.timestamp or None for row in rows], pa.int64()),
                "key": lambda: pa.array([plain_text(row.key) for row in rows], pa.string()),
                "headers": lambda: _json_column(rows, [row.headers for row in rows]),
                "properties": lambda: _json_column(rows, [row.properties for row in rows]),
                "size": lambda: pa.array([row.size for row in rows], pa.int64()),
                "body": lambda: pa.array([row.body for row in rows], pa.binary()),
                "location": lambda: pa.array([row.location for row in rows], pa.string()),
                "envelope": lambda: pa.array([_envelope(row) for row in rows], pa.binary()),
                "error": lambda: pa.array(errors, pa.string()),
            },
        )

    def _common(self, count: int) -> dict[str, Maker]:
        wanted = self.wanted
        return {
            "store": lambda: constant(plain_text(wanted.store), count),
            "queue": lambda: constant(plain_text(wanted.queue), count),
            "priority": lambda: constant(wanted.view.priority, count, pa.int32()),
        }

    def _error(self, row: Row) -> str | None:
        if row.error is None:
            return None
        columns = self.columns
        at = int(np.searchsorted(columns.seqs, row.seq_id))
        source = columns.sources[columns.source_of[at]]
        return self.wanted.explain(row, source.path, int(source.offsets[columns.row_of[at]]))


def _keys(data: Data, found: RecordFields) -> pa.Array:
    """Return the keys as text. Raises :class:`pa.ArrowInvalid` for bytes that are none."""
    if not found.has_key.any():
        return pa.nulls(len(found.rows), pa.string())
    keys = _slices(data, found.key_starts, found.key_ends).cast(pa.string())
    return pc.if_else(pa.array(found.has_key), keys, None)


def _slices(data: Data, starts: I64, ends: I64) -> pa.Array:
    """:func:`slices`, in the order of ``starts``, whatever that is."""
    if len(starts) < 2 or (np.diff(starts) > 0).all():
        return slices(data, starts, ends)
    order = np.argsort(starts, kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return slices(data, starts[order], ends[order]).take(pa.array(back))


def _json_column(rows: Sequence[Row], values: Sequence[Mapping[str, Any]]) -> pa.Array:
    texts = [
        None if row.body is None else plain_json(value)
        for row, value in zip(rows, values, strict=True)
    ]
    return pa.array(texts, pa.string())


def _envelope(row: Row) -> bytes | None:
    if row.body is None:
        return None
    return make_envelope(Message(row.body, row.key, row.headers, row.properties, row.timestamp))
