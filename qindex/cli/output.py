"""What the commands print: data on standard output, everything else on standard error.

JSON has no bytes, dates, or other keys than strings. A header or property value that it can't hold
is an object of one key that starts with ``$``:

=========================  ======================================================================
``{"$base64": "AP8="}``    bytes
``{"$decimal": "3.10"}``   a decimal
``{"$float": "nan"}``      a float that is no number (``nan``, ``inf``, ``-inf``)
``{"$time": 1.5}``         a msgpack timestamp, in seconds since 1970
``{"$ext": [5, "AP8="]}``  another msgpack extension: its code, and its data in base64
``{"$map": [[1, "a"]]}``   a map with keys that are no strings, or that start with ``$``
``{"$text": "68e9"}``      text that is no valid Unicode: its bytes in hexadecimal
=========================  ======================================================================
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import msgpack

from journal.findings import Finding
from qindex.delivery import Delivery
from qindex.reader import Row
from qindex.settings import NO_SETTINGS, QueueSettings

__all__ = [
    "delivery_json",
    "flush",
    "json_line",
    "key_text",
    "plain_value",
    "preview",
    "print_findings",
    "print_json",
    "print_line",
    "print_note",
    "row_json",
    "settings_text",
    "write_out",
]

_PREVIEW = 60


def write_out(data: bytes) -> None:
    """Write bytes to standard output, whatever encoding the terminal has."""
    sys.stdout.buffer.write(data)


def flush() -> None:
    """Bring what was printed out of the process. Raises :class:`BrokenPipeError`."""
    sys.stdout.flush()
    sys.stdout.buffer.flush()


def print_line(text: str = "") -> None:
    """Print one line to standard output."""
    write_out(text.encode("utf-8", "backslashreplace") + b"\n")


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object as one line."""
    write_out(json_line(value))


def json_line(value: Mapping[str, Any]) -> bytes:
    """Give one object as one line of UTF-8."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))
    return text.encode() + b"\n"


def print_note(text: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write("qindex: " + text.replace("\n", " ") + "\n")


def print_findings(findings: Iterable[Finding]) -> int:
    """Print one line for each to standard error; gives the exit code, 1 when there was one."""
    code = 0
    for finding in findings:
        print_note(str(finding))
        code = 1
    return code


def plain_value(value: Any) -> Any:
    """Give a value in what JSON has; see the module's text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, bytes | bytearray):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, msgpack.ExtType):
        return {"$ext": [value.code, base64.b64encode(value.data).decode()]}
    if isinstance(value, list | tuple):
        return [plain_value(one) for one in value]
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, msgpack.Timestamp):
        return {"$time": value.to_unix()}
    raise TypeError(f"a {type(value).__name__} in a message")


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$text": value.encode("utf-8", "surrogateescape").hex()}
    return value


def _mapping(value: Mapping[Any, Any]) -> Any:
    names = all(
        isinstance(key, str) and not key.startswith("$") and isinstance(_text(key), str)
        for key in value
    )
    if names:
        return {key: plain_value(one) for key, one in value.items()}
    return {"$map": [[plain_value(key), plain_value(one)] for key, one in value.items()]}


def row_json(row: Row) -> dict[str, Any]:
    """Give a message as ``cat --json`` prints it.

    ``expiry`` is in microseconds since 1970 and ``timestamp`` in nanoseconds, as on disk; both
    ``null`` where there is none. ``priority`` and ``error`` are there only where there is one.
    """
    fields: dict[str, Any] = {
        "seq_id": row.seq_id,
        "msg_id": row.msg_id.hex(),
        "persistent": row.persistent,
        "redelivered": row.redelivered,
        "expiry": row.expiry or None,
        "timestamp": row.timestamp or None,
        **_message(row.key, row.headers, row.properties),
        "size": row.size,
        "location": row.location,
    }
    if row.priority is not None:
        fields["priority"] = row.priority
    if row.error is not None:
        fields["error"] = row.error
    return fields | _body(row.body)


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    """Give a message as ``consume --json`` prints it."""
    message = delivery.message
    return {
        "seq_id": delivery.seq_id,
        "redelivered": delivery.redelivered,
        "timestamp": message.timestamp or None,
        **_message(message.key, message.headers, message.properties),
        "size": len(delivery.body),
        **_body(delivery.body),
    }


def _message(
    key: str | None, headers: Mapping[str, Any], properties: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "key": plain_value(key),
        "headers": plain_value(headers),
        "properties": plain_value(properties),
    }


def _body(body: bytes | None) -> dict[str, Any]:
    if body is None:
        return {"body_base64": None}
    fields: dict[str, Any] = {"body_base64": base64.b64encode(body).decode()}
    try:
        fields["body"] = body.decode()
    except UnicodeDecodeError:
        return fields
    return fields


def settings_text(settings: QueueSettings) -> str:
    """Show the settings that are set in one line, as ``max_length=100 overflow=drop-head``."""
    said = []
    for one in dataclasses.fields(QueueSettings):
        value = getattr(settings, one.name)
        if value != getattr(NO_SETTINGS, one.name):
            shown = key_text(value) if isinstance(value, str) else f"{value}"
            said.append(f"{one.name}={shown}")
    return " ".join(said)


def key_text(key: str | None) -> str:
    """Show a key in one line; ``-`` for none."""
    shown = "-" if key is None else key
    return shown if shown.isprintable() else ascii(shown)


def preview(body: bytes | None) -> str:
    """Show the start of a body in one line that can't disturb a terminal."""
    if body is None:
        return ""
    cut = body[:_PREVIEW]
    try:
        text = cut.decode("utf-8", "ignore" if len(body) > _PREVIEW else "strict")
        shown = text if text.isprintable() else ascii(text)[1:-1]
    except UnicodeDecodeError:
        shown = cut.hex(" ", 4)
    return shown + ("..." if len(body) > _PREVIEW else "")
