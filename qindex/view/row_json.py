"""A message as one JSON object: for ``cat --json``, and for export."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from journal.shown import json_safe
from qindex.format.json_value import plain_value
from qindex.view.reader import Row


def json_line(value: Mapping[str, Any]) -> bytes:
    r"""Return one object as one line of UTF-8.

    A byte of a path that is not UTF-8 is written as its escape, ``\udcff`` for 0xff, so that
    :func:`os.fsencode` makes the path of the text that a reader of the JSON gets.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))
    return json_safe(text).encode("utf-8", "backslashreplace") + b"\n"


def row_json(row: Row) -> dict[str, Any]:
    """Return a message as ``cat --json`` prints it.

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
        **message_fields(row.key, row.headers, row.properties),
        "size": row.size,
        "location": row.location,
    }
    if row.priority is not None:
        fields["priority"] = row.priority
    if row.error is not None:
        fields["error"] = row.error
    return fields | body_fields(row.body)


def message_fields(
    key: str | None, headers: Mapping[str, Any], properties: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parts of a message beside its body."""
    return {
        "key": plain_value(key),
        "headers": plain_value(headers),
        "properties": plain_value(properties),
    }


def body_fields(body: bytes | None) -> dict[str, Any]:
    """Return a body in base64, and as text where it is UTF-8."""
    if body is None:
        return {"body_base64": None}
    fields: dict[str, Any] = {"body_base64": base64.b64encode(body).decode()}
    try:
        fields["body"] = body.decode()
    except UnicodeDecodeError:
        return fields
    return fields
