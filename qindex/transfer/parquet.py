"""Parquet: :data:`~qindex.view.message_batches.MESSAGES`, as the Spark source has them.

Needs pyarrow. ``headers`` and ``properties`` are JSON text as ``qindex cat --json`` prints it; the
envelope keeps them without loss, and counts before them. The file's metadata has the version under
``qindex_messages``, and under ``qindex_queues`` the queues with their settings, as JSON; a table
made by others needs no more than ``body``.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from journal.errors import UsageError
from qindex.format.envelope import Moved, moved_of
from qindex.format.settings import settings_values
from qindex.transfer.files import FormatError, Piece, Queues, open_input, queues_of_values
from qindex.transfer.moved import FORMAT_VERSION, from_plain
from qindex.view.arrow import arrow_schema
from qindex.view.message_batches import MESSAGES
from qindex.view.reader import QueueReader
from qindex.view.row_json import json_line

_VERSION_KEY = b"qindex_messages"
_QUEUES_KEY = b"qindex_queues"
_BATCH_ROWS = 1000
_MAX_TOGETHER = 16 << 20
"""Bytes of texts of the rows that are in memory as Python has them."""
_MAX_GROUP = 256 << 20
"""Bytes of a row group, unpacked: it is read as a whole."""
_MAX_ROWS = 1_000_000
_ROWS_A_BYTE = 32
"""Rows that any file may have, and how many more for each byte of it: messages differ."""

PARTS = "arrow"
SCHEMA = arrow_schema(MESSAGES).with_metadata({_VERSION_KEY: str(FORMAT_VERSION)})
_TAKEN = {
    "queue": pa.types.is_string,
    "persistent": pa.types.is_boolean,
    "redelivered": pa.types.is_boolean,
    "expiry": pa.types.is_integer,
    "timestamp": pa.types.is_integer,
    "key": pa.types.is_string,
    "headers": pa.types.is_string,
    "properties": pa.types.is_string,
    "body": pa.types.is_binary,
    "envelope": pa.types.is_binary,
}


_FIXED = (pa.types.is_boolean, pa.types.is_integer)


def pieces(reader: QueueReader, after: Mapping[int | None, int], most: int) -> Iterator[Piece]:
    """Yield batches of a queue's messages. See :class:`FileFormat`."""
    for batch in reader.batches():
        priority = batch["priority"][0].as_py()
        body, seqs = batch["body"], batch["seq_id"]
        damaged = body.null_count
        if damaged or seqs[0].as_py() <= after.get(priority, -1):
            later = pc.greater(seqs, after.get(priority, -1))
            batch = batch.filter(pc.and_(body.is_valid(), later))
            yield Piece(priority, -1, 0, damaged, 0, batch[:0])
        for at in range(0, batch.num_rows, most):
            some = _without_bare(batch[at : at + most])
            last = some["seq_id"][-1].as_py()
            yield Piece(priority, last, some.num_rows, 0, some.nbytes, some)


def _without_bare(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out the envelopes of messages that have nothing but body and timestamp."""
    bare = batch["key"].is_null()
    for name in ("headers", "properties"):
        bare = pc.and_(bare, pc.equal(batch[name], "{}"))
    at = batch.schema.get_field_index("envelope")
    return batch.set_column(at, "envelope", pc.if_else(bare, None, batch["envelope"]))


def write_chunk(file: BinaryIO, data: Sequence[pa.RecordBatch]) -> None:
    """Write batches into a new file, as Arrow has them: they are packed once, in the whole."""
    with pa.ipc.new_stream(file, SCHEMA) as writer:
        for batch in data:
            writer.write_batch(batch)


def merge(whole: BinaryIO, chunks: Iterable[BinaryIO], count: int, queues: Queues) -> None:
    """Write the chunks' tables into one file, one row group for each.

    The file's metadata has the queues; `count` is in its footer.
    """
    kept = {name: settings_values(settings) for name, settings in queues.items()}
    schema = SCHEMA.with_metadata({**SCHEMA.metadata, _QUEUES_KEY: json_line(kept).strip()})
    written = 0
    with pq.ParquetWriter(whole, schema) as writer:
        for chunk in chunks:
            data = mmap.mmap(chunk.fileno(), 0, access=mmap.ACCESS_READ)
            table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
            writer.write_table(table.replace_schema_metadata(schema.metadata))
            written += table.num_rows
    assert written == count


def queues(path: Path) -> Queues:
    """Return the queues that the file's metadata lists. Raises :class:`FormatError`."""
    with _readable(path) as file:
        kept = (file.schema_arrow.metadata or {}).get(_QUEUES_KEY, b"{}")
    try:
        return queues_of_values(path, json.loads(kept))
    except (ValueError, RecursionError) as error:
        raise FormatError(path, 0, f"the list of queues is damaged: {error}") from error


def read(path: Path, start: int = 0) -> Iterator[Moved]:
    """Yield the messages from number ``start`` on. Raises :class:`FormatError`, with the row."""
    with _readable(path) as file:
        _check(path, file.schema_arrow)
        _check_size(path, file.metadata)
        names = [name for name in file.schema_arrow.names if name in _TAKEN]
        texts = [name for name in names if _TAKEN[name] not in _FIXED]
    with _readable(path, texts) as file:
        number = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if number + size <= start:
                number += size
                continue
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
                for values in _rows(batch):
                    number += 1
                    if number > start:
                        yield _moved(path, number, values)


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch, with at most :data:`_MAX_TOGETHER` bytes of texts at a time.

    A text that many rows share is in the batch once, and would be there for each of them.
    """
    longest = 1
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and len(column.dictionary):
            longest += pc.max(pc.binary_length(column.dictionary)).as_py() or 0
    step = max(_MAX_TOGETHER // longest, 1)
    for at in range(0, batch.num_rows, step):
        yield from batch.slice(at, step).to_pylist()


def _check_size(path: Path, metadata: pq.FileMetaData) -> None:
    """Refuse a small file that is made to take much memory or time."""
    size = path.stat().st_size
    if metadata.num_rows > _MAX_ROWS + size * _ROWS_A_BYTE:
        raise FormatError(path, 0, f"has {metadata.num_rows:,} rows in {size:,} bytes")
    for group in range(metadata.num_row_groups):
        unpacked = metadata.row_group(group).total_byte_size
        if unpacked > _MAX_GROUP:
            what = f"row group {group} has {unpacked:,} bytes: at most {_MAX_GROUP:,} are read"
            raise FormatError(path, 0, f"{what}, so write smaller row groups")


@contextmanager
def _readable(path: Path, texts: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, to read each text of the columns `texts` once.

    Raises :class:`FormatError` in place of Arrow's errors.
    """
    try:
        with open_input(path) as opened, pq.ParquetFile(opened, read_dictionary=texts) as file:
            yield file
    except FormatError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        what = f"is not a whole Parquet file: {str(error).splitlines()[0]}"
        raise FormatError(path, 0, what) from error


def _check(path: Path, schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY, b"1")
    if not version.isdigit() or int(version) > FORMAT_VERSION:
        what = f"was written by a newer version (format {version.decode('utf-8', 'replace')})"
        raise FormatError(path, 0, f"{what}, known is {FORMAT_VERSION}")
    if "body" not in schema.names:
        raise FormatError(path, 0, "has no column body: no messages of ours")
    for field in schema:
        is_right = _TAKEN.get(field.name)
        if is_right is not None and not is_right(field.type):
            raise FormatError(path, 0, f"column {field.name} must not be of type {field.type}")


def _moved(path: Path, number: int, values: dict[str, Any]) -> Moved:
    try:
        for name in ("headers", "properties"):
            text = values.get(name)
            if text is None or values.get("envelope") is not None:
                values[name] = None  # the envelope counts before it
            else:
                values[name] = from_plain(json.loads(text))
        return moved_of(values)
    except (UsageError, ValueError) as error:
        raise FormatError(path, number, str(error), "row") from error
    except RecursionError as error:
        raise FormatError(path, number, "is nested too deeply", "row") from error
