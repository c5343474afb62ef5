"""The options of a read, checked.

``.option("columns", "queue,seq_id,body")``; every value is text, as Spark passes it on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from pyspark.sql.types import StructType

from journal.errors import UsageError
from pyspark_qindex import schemas
from qindex.view.arrow import NOT_NULL, Table, choose_columns
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

_D = TypeVar("_D", int, None)
At = tuple[str, str, str]
"""A store, a queue and its incarnation. A CommitLog has no queue, an older queue no incarnation."""
Places = dict[At, int]
_MODES: Final = ("permissive", "failfast")
_STARTS: Final = ("earliest", "latest")
_COMMON: Final = frozenset({"path", "paths", "include", "columns", "mode", "partitions"})
_STREAM: Final = frozenset(
    {"startingposition", "endingposition", "maxmessagesperbatch", "failondataloss"}
)
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
    """The options of a read. ``paths``: directories or globs. ``names``: queues (of RocketMQ:
    topics), none for all. ``seq_from <= seq_id < seq_to``. ``starting``: ``earliest``, ``latest``,
    or places. ``partitions``: tasks, 0: by the machine. ``whole``: what can't be read ends the
    read, for it may be there again later. ``storage``: the options of fsspec."""

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
    starting: str | Places = "earliest"
    ending: Places | None = None
    most_in_batch: int | None = None
    whole: bool = False
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
    # load([...]) gives paths, load(path) a path.
    paths = _json_names(given["paths"]) if given.get("paths") else ()
    paths = paths or tuple(filter(None, [given.get("path")]))
    if not paths:
        raise UsageError("no path: load(path) or option path is needed")
    wanted = [name.strip() for name in given.get("columns", "").split(",") if name.strip()]
    columns = choose_columns(tables[include], wanted)
    permissive = _one_of(given, "mode", _MODES) == "permissive"
    ending = given.get("endingposition")
    return ReadOptions(
        paths=paths,
        include=include,
        columns=columns if permissive else schemas.without_damage(include, columns),
        permissive=permissive,
        names=_names(given.get("queue", given.get("topic", ""))),
        queue_id=number_of(given, "queue_id", None),
        seq_from=number_of(given, "seq_from", 0),
        seq_to=number_of(given, "seq_to", None),
        key=given.get("key"),
        partitions=number_of(given, "partitions", 0, at_least=1),
        starting=_starting(given.get("startingposition", "earliest")),
        ending=_offsets("endingPosition", ending) if ending else None,
        most_in_batch=number_of(given, "maxmessagesperbatch", None, at_least=1),
        whole=bool(stream) and _one_of(given, "failondataloss", ("true", "false")) == "true",
        storage={
            name.partition(".")[2]: value
            for name, value in options.items()
            if name.lower().startswith("storage.")
        },
    )


def with_schema(
    options: ReadOptions, schema: StructType, tables: Mapping[str, Table]
) -> ReadOptions:
    """Return the options with the columns that ``.schema(...)`` asks for. Raises
    :class:`UsageError` for a column that the table has not, or has with another type."""
    asked = schemas.table_of(schema)
    if schema.names == list(options.columns) and asked == options.columns:
        return options
    table = tables[options.include]
    if not options.permissive:
        table = schemas.without_damage(options.include, table)
    if options.columns.keys() != table.keys() and list(options.columns) != schema.names:
        raise UsageError("columns and schema() name different columns: one of them is enough")
    for name, has in choose_columns(table, schema.names).items():
        bare, bare_asked = has.removesuffix(NOT_NULL), asked[name].removesuffix(NOT_NULL)
        if bare_asked != bare:
            raise UsageError(f"column {name!r} is {bare}, not {bare_asked}")
        if asked[name] != bare and has == bare:
            raise UsageError(f"column {name!r} can be null")
    return replace(options, columns=asked)


def flatten(offsets: Mapping[str, object]) -> Places:
    """Return places from offsets as Spark keeps them: ``{store: {queue: {incarnation: seq_id}}}``,
    ``{store: {queue: seq_id}}``, or ``{store: physical offset}``. Raises :class:`UsageError`."""
    places: Places = {}
    for store, value in offsets.items():
        for queue, inner in (value if isinstance(value, dict) else {"": value}).items():
            for incarnation, place in (inner if isinstance(inner, dict) else {"": inner}).items():
                if not isinstance(place, int) or isinstance(place, bool) or place < 0:
                    text = json.dumps(dict(offsets))[:200]
                    raise UsageError(f"offsets must be numbers by store and queue, not {text}")
                places[store, queue, incarnation] = place
    return places


def number_of(given: Mapping[str, str], name: str, default: _D, at_least: int = 0) -> int | _D:
    """Return a number from an option. Raises :class:`UsageError`."""
    if name not in given:
        return default
    try:
        value = int(given[name])
    except ValueError as error:
        raise UsageError(f"{name} must be a whole number, not {given[name]!r}") from error
    if value < at_least:
        raise UsageError(f"{name} must be at least {at_least}, not {value}")
    return value


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = given.get(name, allowed[0]).lower()
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def _starting(text: str) -> str | Places:
    if text.lower() in _STARTS:
        return text.lower()
    return _offsets("startingPosition", text, "earliest, latest or ")


def _offsets(name: str, text: str, others: str = "") -> Places:
    offsets = _json(text)
    if not isinstance(offsets, dict):
        raise UsageError(f"{name} must be {others}offsets, not {text!r}")
    return flatten(offsets)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _names(text: str) -> tuple[str, ...]:
    """Return names from an option: one name, or a JSON array of names."""
    return _json_names(text) if text.startswith("[") else tuple(filter(None, [text]))


def _json_names(text: str) -> tuple[str, ...]:
    names = _json(text)
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise UsageError(f"a name, or a JSON array of names, is right, not {text!r}")
    return tuple(names)
