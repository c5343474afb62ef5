"""Values of headers and properties as JSON has them.

JSON has no bytes, dates, or other keys than strings. A header or property value that it can't hold
is an object of one key that starts with ``$``:

=========================  ======================================================================
``{"$base64": "AP8="}``    bytes
``{"$decimal": "3.10"}``   a decimal
``{"$float": "nan"}``      a float that is not a number (``nan``, ``inf``, ``-inf``)
``{"$time": 1.5}``         a msgpack timestamp, in seconds since 1970
``{"$ext": [5, "AP8="]}``  another msgpack extension: its code, and its data in base64
``{"$map": [[1, "a"]]}``   a map with keys that are not strings, or that start with ``$``
``{"$text": "68e9"}``      text that is not valid Unicode: its bytes in hexadecimal
``{"$deep": "list"}``      a list or map below 100 others, which an old message may hold: its kind
=========================  ======================================================================
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgpack

_MAX_LEVELS = 100
"""Levels that are shown: readers of JSON recurse, and so does this."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def plain_json(value: Mapping[str, Any]) -> str:
    """Return headers or properties as JSON, as ``qindex cat --json`` prints them."""
    return _ENCODER.encode(plain_value(value)) if value else "{}"


def plain_value(value: Any, levels: int = _MAX_LEVELS) -> Any:
    """Return a value in what JSON has; see the module's text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, bytes | bytearray):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return _mapping(value, levels) if levels else {"$deep": "map"}
    if isinstance(value, msgpack.ExtType):
        return {"$ext": [value.code, base64.b64encode(value.data).decode()]}
    if isinstance(value, list | tuple):
        if not levels:
            return {"$deep": "list"}
        return [plain_value(one, levels - 1) for one in value]
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


def _mapping(value: Mapping[Any, Any], levels: int) -> Any:
    names = all(
        isinstance(key, str) and not key.startswith("$") and isinstance(_text(key), str)
        for key in value
    )
    if names:
        return {key: plain_value(one, levels - 1) for key, one in value.items()}
    pairs = value.items()
    return {"$map": [[plain_value(key), plain_value(one, levels - 1)] for key, one in pairs]}
