"""The options of a read, checked.

``.option("columns", "queue,seq_id,body")``; every value is text, as Spark passes it on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql.types import StructType

from journal.errors import UsageError
from pyspark_qindex import schemas
from qindex.view.arrow import Table, choose_columns
from qindex.view.message_batches import MESSAGES

TABLES: Final[dict[str, Table]] = {
    "messages": MESSAGES,
    "entries": schemas.ENTRIES,
    "files": schemas.FILES,
    "stored": schemas.STORED,
}
"""What ``include`` names, of the source ``qindex``; the first is the default."""

ROCKET_TABLES: Final[dict[str, Table]] = {
    "records": schemas.RECORDS,
    "units": schemas.UNITS,
    "index": schemas.INDEX,
}
"""The same of the source ``rocketstore``."""

_MODES: Final = ("permissive", "failfast")
_STARTS: Final = ("earliest", "latest")
_COMMON: Final = frozenset({"path", "paths", "include", "columns", "mode", "partitions"})
_STREAM: Final = frozenset({"startingposition", "endingposition", "maxmessagesperbatch"})
_CHOOSE: Final[dict[str, frozenset[str]]] = {
    "messages": frozenset({"queue", "seq_from", "seq_to", "key"}),
    "entries": frozenset({"queue", "seq_from", "seq_to"}),
    "files": frozenset({"queue"}),
    "stored": frozenset(),
    "records": frozenset({"topic", "queue_id", "key"}),
    "units": frozenset({"topic", "queue_id"}),
    "index": frozenset(),
}
"""The options that choose rows, of each table."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read.

    ``paths``: directories or globs. ``columns``: the part of the table that is wanted.
    ``names``: queues (of RocketMQ: topics), none for all. ``seq_from <= seq_id < seq_to``.
    ``starting``: ``earliest``, ``latest``, or offsets as JSON. ``ending``: offsets as JSON, or
    empty. ``partitions``: tasks, 0: by the machine. ``storage``: the options of fsspec.
    """

    paths: tuple[str, ...]
    include: str
    columns: Table
    permissive: bool = True
    names: tuple[str, ...] = ()
    queue_id: int | None = None
    seq_from: int = 0
    seq_to: int | None = None
    key: str | None = None
    partitions: int = 0
    starting: str = "earliest"
    ending: str = ""
    most_in_batch: int | None = None
    storage: dict[str, str] = field(default_factory=dict)


def read_options(
    options: Mapping[str, str], tables: Mapping[str, Table], *, stream: bool | None = None
) -> ReadOptions:
    """Check the options of a read of one of ``tables``. ``stream``: whether it is one, if that is
    known. Raises :class:`UsageError`, also for an option that would do nothing."""
    given = {name.lower(): value for name, value in options.items()}
    known = _COMMON.union(_STREAM, *(_CHOOSE[name] for name in tables))
    for name in given:
        if name not in known and not name.startswith("storage."):
            raise UsageError(f"no option {name!r}; there are {', '.join(sorted(known))}, storage.*")
    include = _one_of(given, "include", tuple(tables))
    for name in known - _COMMON - _STREAM - _CHOOSE[include]:
        if name in given:
            raise UsageError(f"option {name} chooses nothing of include={include}")
    for name in _STREAM:
        if name in given and stream is False:
            raise UsageError(f"option {name} is of streams: spark.readStream")
    paths = _paths(given)
    if not paths:
        raise UsageError("no path: load(path) or option path is needed")
    columns = choose_columns(tables[include], _names(given.get("columns", "")))
    permissive = _one_of(given, "mode", _MODES) == "permissive"
    names = list_of(given.get("queue", given.get("topic", "")))
    return ReadOptions(
        paths=paths,
        include=include,
        columns=columns if permissive else schemas.without_damage(include, columns),
        permissive=permissive,
        names=names,
        queue_id=_optional(given, "queue_id"),
        seq_from=_optional(given, "seq_from") or 0,
        seq_to=_optional(given, "seq_to"),
        key=given.get("key"),
        partitions=_optional(given, "partitions", at_least=1) or 0,
        starting=_starting(given.get("startingposition", "earliest")),
        ending=_offsets("endingPosition", given.get("endingposition", "")),
        most_in_batch=_optional(given, "maxmessagesperbatch", at_least=1),
        storage={
            name.partition(".")[2]: value
            for name, value in options.items()
            if name.lower().startswith("storage.")
        },
    )


def with_schema(
    options: ReadOptions, schema: StructType, tables: Mapping[str, Table]
) -> ReadOptions:
    """Return the options with the columns that ``.schema(...)`` asks for, which is Spark's word for
    what it expects. Raises :class:`UsageError` for a column that is not of the table, and for one
    of another type."""
    if schema.names == list(options.columns) and schemas.table_of(schema) == options.columns:
        return options
    table = tables[options.include]
    if not options.permissive:
        table = schemas.without_damage(options.include, table)
    if options.columns.keys() != table.keys() and list(options.columns) != schema.names:
        raise UsageError("columns and schema() name different columns: one of them is enough")
    return replace(options, columns=schemas.columns_of(schema, table))


def list_of(text: str) -> tuple[str, ...]:
    """Return names from an option: one name, or a JSON array of names."""
    if not text:
        return ()
    if text.startswith("["):
        return tuple(_json_names(text))
    return (text,)


def number_of(given: Mapping[str, str], name: str, at_least: int = 0) -> int:
    """Return a number from an option. Raises :class:`UsageError`."""
    try:
        value = int(given[name])
    except ValueError as error:
        raise UsageError(f"{name} must be a whole number, not {given[name]!r}") from error
    if value < at_least:
        raise UsageError(f"{name} must be at least {at_least}, not {value}")
    return value


def _optional(given: Mapping[str, str], name: str, at_least: int = 0) -> int | None:
    return number_of(given, name, at_least) if name in given else None


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = given.get(name, allowed[0]).lower()
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def _starting(text: str) -> str:
    if text.lower() in _STARTS:
        return text.lower()
    return _offsets("startingPosition", text, "earliest, latest or ")


def _offsets(name: str, text: str, others: str = "") -> str:
    try:
        offsets = json.loads(text or "{}")
    except ValueError:
        offsets = None
    if not isinstance(offsets, dict):
        raise UsageError(f"{name} must be {others}offsets, not {text!r}")
    return text


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """``load(path)`` gives one, ``load([...])`` a JSON array of them."""
    found = tuple(_json_names(given["paths"])) if given.get("paths") else ()
    return found or ((given["path"],) if given.get("path") else ())


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _json_names(text: str) -> list[str]:
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise UsageError(f"a name, or a JSON array of names, is right, not {text!r}")
    return names
