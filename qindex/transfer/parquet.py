"""Parquet: :data:`COLUMNS`, which are those of the Spark source's messages, too.

Needs pyarrow. ``headers`` and ``properties`` are JSON text as ``qindex cat --json`` prints it; the
envelope keeps them without loss, and counts before them. The file's metadata has the version under
``qindex_messages``, and under ``qindex_queues`` the queues with their settings, as JSON; a table
made by others needs no more than ``body``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from journal.errors import UsageError
from qindex.format.json_value import plain_value
from qindex.format.settings import settings_values
from qindex.transfer.files import FormatError, NamedRow, Queues, open_input, queues_of_values
from qindex.transfer.moved import FORMAT_VERSION, Moved, envelope_of, from_plain, moved_of
from qindex.view.reader import Row
from qindex.view.row_json import json_line

_VERSION_KEY = b"qindex_messages"
_QUEUES_KEY = b"qindex_queues"
_BATCH_ROWS = 1000

COLUMNS = {
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
"""Names and types, in the words of SQL. ``envelope``: the stored record without its body
(:mod:`qindex.format.envelope`), from which key, headers and properties follow without loss."""
ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
}
SCHEMA = pa.schema(
    [(name, ARROW[kind]) for name, kind in COLUMNS.items()],
    metadata={_VERSION_KEY: str(FORMAT_VERSION)},
)
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


def write_chunk(file: BinaryIO, store: str, rows: Sequence[NamedRow]) -> None:
    """Write rows into a new file."""
    values = [_values(store, queue, row) for queue, row in rows]
    pq.write_table(pa.Table.from_pylist(values, SCHEMA), file)


def _values(store: str, queue: str, row: Row) -> dict[str, Any]:
    return {
        "store": store,
        "queue": _text(queue),
        "seq_id": row.seq_id,
        "msg_id": row.msg_id,
        "persistent": row.persistent,
        "redelivered": row.redelivered,
        "expiry": row.expiry or None,
        "timestamp": row.timestamp or None,
        "key": None if row.key is None else _text(row.key),
        "headers": _json(row.headers),
        "properties": _json(row.properties),
        "size": row.size,
        "body": row.body,
        "location": row.location,
        "priority": row.priority,
        "envelope": envelope_of(row),
        "error": row.error,
    }


def _text(text: str) -> str:
    # A text that is no Unicode is exact in the envelope only.
    return text.encode("utf-8", "backslashreplace").decode()


def _json(value: Any) -> str:
    return json.dumps(plain_value(value), ensure_ascii=True, allow_nan=False)


def merge(whole: BinaryIO, chunks: Iterable[BinaryIO], count: int, queues: Queues) -> None:
    """Write the chunks' tables into one file, one row group for each.

    The file's metadata has the queues; `count` is in its footer.
    """
    kept = {name: settings_values(settings) for name, settings in queues.items()}
    schema = SCHEMA.with_metadata({**SCHEMA.metadata, _QUEUES_KEY: json_line(kept).strip()})
    written = 0
    with pq.ParquetWriter(whole, schema) as writer:
        for chunk in chunks:
            table = pq.read_table(chunk)
            writer.write_table(table.cast(schema))
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
    """Give the messages from number ``start`` on. Raises :class:`FormatError`, with the row."""
    with _readable(path) as file:
        _check(path, file.schema_arrow)
        names = [name for name in file.schema_arrow.names if name in _TAKEN]
        number = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if number + size <= start:
                number += size
                continue
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
                for values in batch.to_pylist():
                    number += 1
                    if number > start:
                        yield _moved(path, number, values)


@contextmanager
def _readable(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file. Raises :class:`FormatError` in place of Arrow's errors."""
    try:
        with open_input(path) as opened, pq.ParquetFile(opened) as file:
            yield file
    except FormatError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        what = f"is no whole Parquet file: {str(error).splitlines()[0]}"
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
