"""Properties and tables with the type of each header, in values that JSON has."""

from __future__ import annotations

from typing import Any

from qindex.format.rabbitmq.properties_format import Properties
from qindex.format.rabbitmq.table_format import Field, Table, plain_table


def typed(properties: Properties) -> dict[str, Any]:
    """The properties that are present, each header as ``[tag, value]``."""
    view = properties.plain()
    if properties.headers is not None:
        view["headers"] = typed_table(properties.headers)
    return view


def typed_table(fields: Table) -> dict[str, Any]:
    """A table as ``{name: [tag, value]}``, in values that JSON has.

    Bytes that are no text are ``{"hex": ...}``; a decimal is ``[scale, int]``.
    """
    return {name: _typed(one) for name, one in fields}


def _typed(one: Field) -> list[Any]:
    tag, value = one
    if tag == "F":
        return [tag, typed_table(value)]
    if tag == "A":
        return [tag, [_typed(item) for item in value]]
    if tag == "D":
        return [tag, list(value)]
    plain = plain_table((("", one),))[""]
    return [tag, {"hex": plain.hex()} if isinstance(plain, bytes) else plain]
