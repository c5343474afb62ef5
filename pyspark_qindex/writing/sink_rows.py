"""Rows of a DataFrame as messages, and the files they wait in until they are published.

A task writes its rows into a file of Arrow batches in the store's staging directory; the driver
publishes them from there.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from journal.errors import UsageError, storage_errors
from journal.fs.files import REAL, FileSystem, make_dirs
from qindex.format.envelope import open_envelope
from qindex.format.message import Message
from qindex.transfer.moved import from_plain
from qindex.view.message_batches import MESSAGES

_TAKEN: Final = {
    "body": ("binary", "string"),
    "key": ("string",),
    "headers": ("string", "map<string,string>"),
    "properties": ("string", "map<string,string>"),
    "envelope": ("binary",),
    "timestamp": ("bigint", "int"),
    "expiry": ("bigint", "int"),
}
"""The columns of a row that are published. All messages are persistent: transient ones would end
with the publisher, which closes the store after each batch."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish. ``expiry``: microseconds since 1970, 0 = never."""

    message: Message
    expiry: int


def check_columns(schema: StructType) -> list[str]:
    """Return the columns of a DataFrame that are published. Raises :class:`UsageError` for one that
    can't be, and for ``queue``: it would look as if it told where a row goes."""
    chosen = []
    for field in schema.fields:
        if field.name == "queue":
            what = "column 'queue' does not choose where a row goes, option queue does for all"
            raise UsageError(f"{what}: drop it, or write each queue's rows by themselves")
        kinds = _TAKEN.get(field.name)
        if kinds is None:
            if field.name not in MESSAGES:
                names = ", ".join(_TAKEN)
                raise UsageError(f"column {field.name!r} can't be published; there are {names}")
            continue
        kind = field.dataType.simpleString()
        if kind not in kinds:
            raise UsageError(f"column {field.name!r} must be {' or '.join(kinds)}, not {kind}")
        chosen.append(field.name)
    if "body" not in chosen:
        raise UsageError("there is no column 'body' to publish")
    return chosen


def stage(
    path: str, batches: Iterator[pa.RecordBatch], columns: list[str], fs: FileSystem = REAL
) -> int:
    """Write rows into a new file, durable on return; return their number. Without rows there is no
    file. Raises :class:`UsageError` for a row that has no body."""
    rows = 0
    with storage_errors(path, "can't be written"), contextlib.ExitStack() as opened:
        file: BinaryIO | None = None
        for batch in batches:
            chosen = batch.select(columns)
            if chosen.column("body").null_count:
                raise UsageError("a row has no body: filter damaged ones with error IS NULL")
            if not chosen.num_rows:
                continue
            if file is None:
                make_dirs(fs, os.path.dirname(path))
                fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
                file = opened.enter_context(os.fdopen(fd, "wb"))
                writer = opened.enter_context(pa.ipc.new_stream(file, chosen.schema))
            writer.write_batch(chosen)
            rows += chosen.num_rows
        if file is not None:
            writer.close()
            file.flush()
            fs.fdatasync(file.fileno())
            fs.sync_dir(os.path.dirname(path))
    return rows


def read_staged(path: str, skip: int = 0) -> Iterator[Outgoing]:
    """Yield the rows of a staged file as messages, from row ``skip`` on."""
    failing = storage_errors(path, "can't be read")
    with failing, pa.OSFile(path) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            if skip < batch.num_rows:
                yield from map(_outgoing, batch.slice(skip).to_pylist(maps_as_pydicts="strict"))
            skip = max(skip - batch.num_rows, 0)


def _outgoing(row: Mapping[str, Any]) -> Outgoing:
    body = row["body"]
    raw = body.encode() if isinstance(body, str) else body
    envelope = row.get("envelope")
    if envelope is not None:
        message = open_envelope(envelope, raw)
    else:
        message = Message(raw, row.get("key"), _values(row, "headers"), _values(row, "properties"))
    timestamp = row.get("timestamp")
    if timestamp is not None and timestamp != message.timestamp:
        message = replace(message, timestamp=timestamp)
    return Outgoing(message, row.get("expiry") or 0)


def _values(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = from_plain(json.loads(value))
        except ValueError as error:
            raise UsageError(f"{name} is no JSON: {value[:80]!r}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{name} must be a JSON object, not {str(value)[:80]!r}")
    return value
