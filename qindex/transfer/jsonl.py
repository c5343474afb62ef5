"""JSON Lines: one message a line, as ``qindex cat --json`` prints it, after a line about the file.

::

    {"qindex_messages": 1, "count": 2, "queues": {"orders": {"message_ttl": 60.0}}}
    {"queue": "orders", "seq_id": 0, "msg_id": "…", "persistent": true, "redelivered": false,
     "expiry": null, "timestamp": 1700000000000000000, "key": "o-17", "headers": {"kind": "new"},
     "properties": {}, "size": 5, "location": "journal", "body_base64": "aGVsbG8=",
     "body": "hello", "envelope_base64": "…"}

``body`` is there where it is text. Of ``headers`` and ``properties`` what JSON has no words for is
written as :mod:`qindex.cli.output` tells; ``envelope_base64`` keeps all of it, and counts before
them. ``queues`` lists all exported queues, those without messages also, with their settings.
Lines made by others need no first line, and no more than ``body`` or ``body_base64``. Fields of
other names are ignored, unless they look misspelt.
"""

from __future__ import annotations

import base64
import binascii
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from journal.errors import UsageError
from qindex.format.envelope import Moved, moved_of
from qindex.format.settings import settings_values
from qindex.transfer.files import FormatError, Piece, Queues, open_input, queues_of_values
from qindex.transfer.moved import FORMAT_VERSION, envelope_of, from_plain
from qindex.view.reader import QueueReader, Row
from qindex.view.row_json import json_line, row_json

PARTS = "jsonl"
_HEADER = "qindex_messages"
_TOO_DEEP = "is nested too deeply"
_READ = ["queue", "body", "body_base64", "envelope_base64", "key", "headers", "properties"]
_READ += ["priority", "timestamp", "expiry", "redelivered", "persistent"]
_WRITTEN = {*_READ, "seq_id", "msg_id", "size", "location", "error"}


def pieces(reader: QueueReader, after: Mapping[int | None, int], most: int) -> Iterator[Piece]:
    """Yield the lines of a queue's messages, one at a time. See :class:`FileFormat`."""
    for row in reader.entries():
        if row.body is None:
            yield Piece(row.priority, row.seq_id, 0, 1, 0, b"")
        elif row.seq_id > after.get(row.priority, -1):
            line = _line(reader.name, row)
            yield Piece(row.priority, row.seq_id, 1, 0, len(line), line)


def write_chunk(file: BinaryIO, data: Sequence[bytes]) -> None:
    """Write lines into a new file."""
    file.writelines(data)


def _line(queue: str, row: Row) -> bytes:
    values = {"queue": queue} | row_json(row)
    envelope = envelope_of(row)
    if envelope is not None:
        values["envelope_base64"] = base64.b64encode(envelope).decode()
    return json_line(values)


def merge(whole: BinaryIO, chunks: Iterable[BinaryIO], count: int, queues: Queues) -> None:
    """Write the line about the file, then the chunks."""
    kept = {name: settings_values(settings) for name, settings in queues.items()}
    whole.write(json_line({_HEADER: FORMAT_VERSION, "count": count, "queues": kept}))
    for chunk in chunks:
        shutil.copyfileobj(chunk, whole, 1 << 20)


def queues(path: Path) -> Queues:
    """Return the queues that the line about the file lists. Raises :class:`FormatError`."""
    with open_input(path) as file:
        line = file.readline()
    values = _parse(path, 1, line) if line.strip() else {}
    return queues_of_values(path, values.get("queues", {}) if _HEADER in values else {})


def read(path: Path, start: int = 0) -> Iterator[Moved]:
    """Yield the messages from number ``start`` on. Raises :class:`FormatError`, with the line.

    The last line needs no line break where it is whole: editors leave it out."""
    expected: int | None = None
    count = number = 0
    with open_input(path) as file:
        for number, line in enumerate(file, 1):
            values = _parse(path, number, line)
            if number == 1 and _HEADER in values:
                expected = _check_header(path, values)
                continue
            count += 1
            if count > start:
                yield _moved(path, number, values)
    if not number:
        raise FormatError(path, 0, "the file is empty: an export has one line at least")
    if expected is not None and count != expected:
        what = f"the file is cut: it has {count} messages of {expected}"
        raise FormatError(path, 0, what)


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:  # also for bad UTF-8
        cut = "" if line.endswith(b"\n") else "the file is cut here: the line has no end, and "
        raise FormatError(path, number, f"{cut}is not JSON: {error}") from error
    except RecursionError as error:
        raise FormatError(path, number, _TOO_DEEP) from error
    if not isinstance(values, dict):
        raise FormatError(path, number, f"is a {type(values).__name__}, not an object")
    return values


def _check_header(path: Path, values: dict[str, Any]) -> int:
    version, count = values[_HEADER], values.get("count")
    if type(version) is not int or type(count) is not int or version < 1 or count < 0:
        raise FormatError(path, 1, f"the line about the file is damaged: {values}")
    if version > FORMAT_VERSION:
        what = f"was written by a newer version (format {version}, known is {FORMAT_VERSION})"
        raise FormatError(path, 1, what)
    return count


def _moved(path: Path, number: int, values: dict[str, Any]) -> Moved:
    try:
        given = dict(values)
        given["envelope"] = _bytes(values, "envelope_base64")
        for name in ("key", "headers", "properties"):
            # The envelope counts before these, which may leave out values nested too deep.
            given[name] = from_plain(given.get(name)) if given["envelope"] is None else None
        body = _bytes(values, "body_base64")
        if body is None:
            text = values.get("body")
            if text is None:
                raise UsageError("has neither body nor body_base64: no message of ours")
            if not isinstance(text, str):
                raise UsageError(f"body must be text, not {type(text).__name__}")
            body = text.encode()
        given["body"] = body
        for name in values.keys() - _WRITTEN:
            _refuse_misspelt(name)
        return moved_of(given)
    except (UsageError, UnicodeEncodeError) as error:
        raise FormatError(path, number, str(error)) from error
    except RecursionError as error:
        raise FormatError(path, number, _TOO_DEEP) from error


@lru_cache(1000)
def _refuse_misspelt(name: str) -> None:
    """Raise :class:`UsageError` for a field that looks like one of ours. Each name is compared
    once, however many lines have it."""
    similar = get_close_matches(name, _READ, 1)
    if similar:
        raise UsageError(f"has a field {name!r}: {similar[0]!r} is meant?")


def _bytes(values: dict[str, Any], name: str) -> bytes | None:
    text = values.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise UsageError(f"{name} must be text, not {type(text).__name__}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"{name} is not base64: {error}") from error
