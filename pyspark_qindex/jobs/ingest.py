"""``ingest``: the JSON messages of a fleet as tables of a lake, further with each run.

::

    LAKE/lake.json             format, schemas, and short name and identity of each store
    LAKE/messages/             messages of qindex and RabbitMQ that fit the schema
    LAKE/messages_bad/         the others, with the reason; _lake in a table names its checkpoint
    LAKE/records/, records_bad/    the same of RocketMQ
    LAKE/checkpoints/TABLE/    how far each table is

Each table is written by a stream of its own with its own checkpoint, until nothing is left. An
Iceberg table (``LAKE/db/TABLE``) is written by a merge instead, and needs no checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.streaming.query import StreamingQuery

from journal.errors import StoreError, UsageError, storage_errors
from journal.fs.files import REAL, names_in, read_file, read_optional, replace_file
from journal.locks.directory_lock import DirectoryLock
from journal.schema import ListOf, Record, Row, Shape, Text, check
from pyspark_qindex.errors import one_line
from pyspark_qindex.jobs.fleet import find_fleet, store_names, together
from pyspark_qindex.jobs.results import JobOptions, Outcome
from pyspark_qindex.local_session import read
from pyspark_qindex.options import At, Places, flatten
from pyspark_qindex.sources import check_stream
from pyspark_qindex.stores import Store
from qindex.recovery.store_directory import find_marker
from rocketstore.format.delay import SCHEDULE_TOPIC

_OURS: Final = "lake."
_STATE: Final = f"{_OURS}json"
_LOCK: Final = f"{_OURS}lock"
_BAD: Final = "_bad"
_CORRUPT: Final = "_corrupt"
_MARKS: Final = {"parquet": "_spark_metadata", "delta": "_delta_log"}
"""The name that a table of each format has in its directory from its first batch on."""
_WRITER: Final = "_lake"
"""The file in a table that holds the id of its stream; Spark passes over such names."""
_FORMATS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "parquet": ("", {}),
    "delta": (
        "4.2",
        {
            "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    ),
    "iceberg": (
        "4.1",
        {
            "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
            "spark.sql.extensions": (
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
            ),
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
        },
    ),
}
"""For each format the pyspark that can write it, where that is one version, and settings."""
_SAMPLED_STORES: Final = 16
_SAMPLED_BODIES: Final = 1000
"""Bodies of a store that a schema is inferred from, each of at most so many bytes, and levels:"""
_SAMPLED_BYTES: Final = 1 << 16
_SAMPLED_LEVELS: Final = 64
"""Spark hangs, or fails after its schema was kept, where types are nested in some 200 levels."""
_TIMES: Final = (t.DateType, t.TimestampType, t.TimestampNTZType)
_SIMPLE: Final = (t.BinaryType, t.BooleanType, t.NumericType, t.StringType, t.VariantType, *_TIMES)
"""What Spark makes of JSON and writes to a table."""
_TEXT: Final = Text(1 << 20, 1)
_DDL: Final = Shape("a text", lambda value: isinstance(value, str))
"""Names of fields may hold what those of files may not."""
_KEPT: Final = Record(
    {
        "format": _TEXT,
        "schemas": Record({}, {"messages": _DDL, "records": _DDL}),
        "stores": ListOf(Row((_TEXT, _TEXT))),
    },
    {"identities": ListOf(Row((_TEXT, _TEXT)))},
)
_COUNTED_BATCHES: Final = "100000"


@dataclass(frozen=True, slots=True)
class _Kind:
    """The columns of a kind of store in a table: those ``kept`` as they are, of which ``key`` tells
    messages apart, and their ``time``. ``read``: others, which this and ``wanted`` need."""

    source: str
    kept: tuple[str, ...]
    key: tuple[str, ...]
    time: str
    read: tuple[str, ...]
    wanted: str = "true"


_KINDS: Final = {
    "messages": _Kind(
        "qindex",
        ("queue", "priority", "seq_id", "msg_id", "key", "headers", "properties"),
        ("store", "queue", "priority", "seq_id", "msg_id"),
        "timestamp_micros(timestamp div 1000)",
        ("timestamp",),
    ),
    "records": _Kind(
        "rocketstore",
        ("topic", "queue_id", "queue_offset", "offset", "keys", "tags", "properties"),
        ("store", "offset", "time"),
        "timestamp_millis(store_timestamp)",
        ("store_timestamp", "sys_flag"),
        # Neither what an open or undone transaction has put there, nor what the broker puts once
        # more, into its topic, when it is due or committed.
        f"topic is null or (sys_flag & 12) in (0, 8) and topic != '{SCHEDULE_TOPIC}' "
        "and not startswith(upper(topic), 'RMQ_SYS_')",
    ),
}


def lake_conf(kind: str, lake: str) -> dict[str, str]:
    """Return the settings of a session that writes a format. Raises :class:`UsageError` where this
    Spark can't: Delta on 4.3 reports success and leaves what nobody can read."""
    if kind not in _FORMATS:
        raise UsageError(f"--format must be one of {', '.join(_FORMATS)}, not {kind!r}")
    version, conf = _FORMATS[kind]
    if not version:
        check_stream()
    elif not pyspark.__version__.startswith(f"{version}."):
        raise UsageError(
            f"--format {kind} needs pyspark {version}, not {pyspark.__version__}: "
            f'pip install "pyspark=={version}.*"'
        )
    if kind == "iceberg":
        conf = {**conf, "spark.sql.catalog.lake.warehouse": lake}
    return {
        **conf,
        "spark.sql.streaming.numRecentProgressUpdates": _COUNTED_BATCHES,
        # Else Spark reads the stores 001 and 1 back as the number 1.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    }


def ingest(spark: SparkSession, options: JobOptions) -> Outcome:
    """Bring all tables of a lake, ``options.out``, to the present.

    Raises :class:`UsageError`, before any table is written, for a schema that changes a column's
    type, a lake of another format, and a table without its checkpoint or the reverse.
    """
    fleet, unread, identities = _readable(find_fleet(options.paths))
    urls = {
        "messages": [one.url for one in fleet if not one.is_rocket],
        "records": [one.url for one in fleet if one.is_rocket],
    }
    tables = [name for name in _KINDS if urls[name]]
    with storage_errors(options.out, "can't be written to"):
        os.makedirs(options.out, 0o700, exist_ok=True)
        lock = DirectoryLock(REAL, os.path.join(options.out, _LOCK))
    with ExitStack() as stack:
        stack.callback(lock.release)
        state = _State.of(options)
        before: dict[str, Places] = {}
        if options.format != "iceberg":
            for name in tables:
                for table in (name, name + _BAD):
                    _check_checkpoint(options, table)
                    before.setdefault(name, state.check_places(_places(options, table)))
        notes = unread + state.name_stores([one.url for one in fleet], identities)
        for name in tables:
            notes += state.choose_schema(spark, name, urls[name], options.schema)
        state.save()
        runs = [_Run(spark, options, state, name, urls[name]) for name in tables]
        counts = (_merge_all if options.format == "iceberg" else _stream_all)(runs) if runs else {}
        for name in before:
            notes += state.made_again(before[name], _places(options, name))
    for name in tables:
        if counts[name]["unknown"]:
            notes.append(
                f"{name}: {counts[name]['unknown']} messages have fields that the schema lacks, "
                f"such as {counts[name]['example']!r}: add them with --schema"
            )
    good = sum(counts[name]["rows"] for name in tables)
    bad = sum(counts[name + _BAD]["rows"] for name in tables)
    figures = {"stores": len(fleet), "messages": good, "bad": bad}
    return Outcome(figures, {}, found=bad > 0 or bool(unread), notes=notes)


def _readable(fleet: list[Store]) -> tuple[list[Store], list[str], dict[str, str]]:
    """Return the stores whose marker can be read, notes of the others, and the identities."""
    found, notes, identities = [], [], {}
    for one in fleet:
        try:
            marker = None if one.is_rocket else find_marker(one.file_system(), one.path)
            found.append(one)
            if marker is not None and marker.identity:
                identities[one.url] = f"{marker.identity:016x}"
        except StoreError as error:
            notes.append(f"left out: {error}")
    return found, notes, identities


@dataclass(slots=True)
class _State:
    """The file that a lake keeps beside its tables. By path or URL, ``stores``: short names,
    ``identities``: those of stores that have one."""

    path: str
    format: str
    schemas: dict[str, str] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: JobOptions) -> _State:
        """Return what the lake has, or that of a new lake."""
        lake, path = options.out, os.path.join(options.out, _STATE)
        with storage_errors(path, "can't be read"):
            data = read_optional(REAL, path)
            others = [name for name in os.listdir(lake) if not name.startswith(_OURS)]
        if data is None:
            if others:
                raise UsageError(f"{lake}: is not empty, and no lake: it has no {_STATE}")
            return cls(path, options.format)
        try:
            kept = json.loads(data)
            check(kept, _KEPT)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: restore it, it is not as it was written: {error}") from error
        if kept["format"] != options.format:
            raise UsageError(f"{lake}: its tables are {kept['format']}, not {options.format}")
        tables = (dict(kept.get(name, ())) for name in ("stores", "identities"))
        return cls(path, options.format, kept["schemas"], *tables)

    def save(self) -> None:
        """Write it in place of the old one."""
        kept = {
            "format": self.format,
            "schemas": self.schemas,
            "stores": sorted(self.stores.items()),
            "identities": sorted(self.identities.items()),
        }
        data = json.dumps(kept, indent=2, ensure_ascii=False).encode()
        replace_file(REAL, self.path, data + b"\n")

    def check_places(self, places: Places) -> Places:
        """Return the places of a checkpoint. Raises :class:`UsageError` for another lake's."""
        for store in sorted({at[0] for at in places} - self.stores.keys()):
            raise UsageError(
                f"{self.path}: knows no store {store}, which a checkpoint beside it is of: it is "
                "the checkpoint, or the file, of another lake"
            )
        return places

    def name_stores(self, urls: list[str], identities: dict[str, str]) -> list[str]:
        """Name each new store for good; return notes of stores that this run lacks. Raises
        :class:`UsageError` where all stores are others than those of the lake."""
        known = [url for url in identities if url in self.identities]
        others = [url for url in known if identities[url] != self.identities[url]]
        if len(others) > 1 and others == known:
            raise UsageError(
                f"{self.path}: is of another fleet: {', '.join(others[:3])} and all others are "
                "other stores than those that it was filled from. Use a new lake"
            )
        notes = [f"not found: {url}" for url in sorted({*self.stores} - {*urls})]
        notes += [f"{self.stores[url]}: the store was made again" for url in others]
        self.stores = store_names([*self.stores, *urls], self.stores)
        self.identities |= identities
        return notes

    def made_again(self, before: Places, after: Places) -> list[str]:
        """Return notes of queues that are others than before."""
        earlier: dict[tuple[str, ...], At] = {at[:2]: at for at, place in before.items() if place}
        return [
            f"{self.stores[at[0]]}: queue {at[1]!r} was made again: read from its beginning"
            for at in after
            if at not in before and earlier.get(at[:2], at) != at
        ]

    def choose_schema(
        self, spark: SparkSession, table: str, urls: list[str], ddl: str
    ) -> list[str]:
        """Set the schema of a table: the kept one with what ``ddl`` adds, or an inferred one.
        Return a note if it is new."""
        kept = _struct(self.schemas[table]) if table in self.schemas else None
        if ddl:
            given = _struct(ddl)
        elif kept is None:
            given = _inferred(spark, table, urls)
        else:
            return []
        try:
            merged = add_columns(kept or t.StructType(), given)
        except UsageError as error:
            raise error if ddl else UsageError(f"{table}: {error}: give --schema") from error
        self.schemas[table] = merged.toDDL()
        return [] if merged == kept else [f"{table}: schema {self.schemas[table]}"]


def _struct(ddl: str) -> t.StructType:
    try:
        found = t.StructType.fromDDL(ddl)
    except PySparkException as error:
        raise UsageError(f"--schema {ddl!r}: {one_line(str(error))}") from error
    if not isinstance(found, t.StructType) or not found.names:
        raise UsageError(f"--schema {ddl!r}: columns with names and types are needed")
    return found


def _inferred(spark: SparkSession, table: str, urls: list[str]) -> t.StructType:
    some = urls[:: -(-len(urls) // _SAMPLED_STORES)]
    source = _KINDS[table].source
    short = f"octet_length(body) <= {_SAMPLED_BYTES}"
    frames = [
        read(spark, url, ["body"], source=source).where(short).limit(_SAMPLED_BODIES)
        for url in some
    ]
    bodies = [bytes(row[0]) for row in together(frames).collect()]
    texts = [text for text in map(_object, bodies) if text]
    # A message with a field `_corrupt_record` would end the run.
    options = {"mode": "DROPMALFORMED", "columnNameOfCorruptRecord": secrets.token_hex()}
    found = spark.read.options(**options).json(spark.sparkContext.parallelize(texts, 1)).schema
    if not found.fields:
        raise UsageError(
            f"{table}: none of {len(bodies)} messages is a JSON object with fields: give --schema"
        )
    return found


def _object(body: bytes) -> str:
    """Return the text of a JSON object that is not nested too deeply, and of nothing else."""
    try:
        text = body.decode()
        levels = accumulate(1 if one in "[{" else -1 for one in re.findall(r"[\[\]{}]", text))
        flat = max(levels, default=0) <= _SAMPLED_LEVELS
        return text if flat and isinstance(json.loads(text), dict) else ""
    except (ValueError, RecursionError):
        return ""


def add_columns(kept: t.StructType, given: t.StructType, above: str = "") -> t.StructType:
    """Return the ``kept`` columns and those that are new in ``given``. Raises :class:`UsageError`
    for a changed type, and for two names that differ in case alone, which tables can't hold."""
    fields = {one.name: one.dataType for one in kept.fields}
    for one in given.fields:
        place = above + one.name
        old = fields.get(one.name)
        fields[one.name] = _widened(old, one.dataType, place)
    lower = [name.lower() for name in fields]
    for name in fields:
        if lower.count(name.lower()) > 1:
            raise UsageError(
                f"column {above + name} comes twice: names may not differ in case alone"
            )
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


def _widened(kept: t.DataType | None, given: t.DataType, place: str) -> t.DataType:
    if isinstance(given, t.StructType) and given.names and isinstance(kept, t.StructType | None):
        return add_columns(kept or t.StructType(), given, f"{place}.")
    if isinstance(given, t.ArrayType) and isinstance(kept, t.ArrayType | None):
        return t.ArrayType(_widened(kept and kept.elementType, given.elementType, f"{place}[]"))
    if isinstance(given, t.MapType) and isinstance(kept, t.MapType | None):
        key = _widened(kept and kept.keyType, given.keyType, place)
        found = t.MapType(key, _widened(kept and kept.valueType, given.valueType, f"{place}[]"))
        if isinstance(key, t.StringType):
            return found
    if kept is not None and kept != given:
        raise UsageError(
            f"column {place} is {kept.simpleString()}, not {given.simpleString()}: "
            "a column's type can't be changed"
        )
    if not isinstance(given, _SIMPLE):
        raise UsageError(f"column {place}: JSON can't be read as {given.simpleString()}")
    return given


def _check_checkpoint(options: JobOptions, table: str) -> None:
    """Raise :class:`UsageError` for a table that has rows and no checkpoint, and the reverse."""
    place, checkpoint = os.path.join(options.out, table), _checkpoint(options, table)
    # Spark makes directories before it notes the first batch, and files after it.
    if _has_files(place) and not _has_files(os.path.join(checkpoint, "offsets")):
        raise UsageError(
            f"{place}: has rows, but no checkpoint: restore {checkpoint}, "
            "or move the table away, to fill it anew"
        )
    if _has_files(os.path.join(checkpoint, "commits")) and not _is_begun(options, place):
        raise UsageError(
            f"{checkpoint}: is of a table that is not there: restore {place}, "
            "or move the checkpoint away, to fill the table anew"
        )
    written = read_optional(REAL, os.path.join(place, _WRITER))
    if written is not None and written != _stream_id(options, table):
        raise UsageError(
            f"{checkpoint}: is not the checkpoint of {place}: restore the one that belongs to it"
        )


def _is_begun(options: JobOptions, table: str) -> bool:
    """Return whether a table has had a batch."""
    return _has_files(os.path.join(table, _MARKS[options.format]))


def _stream_id(options: JobOptions, table: str) -> bytes:
    """Return the id of the stream that a checkpoint is of; nothing where there is none."""
    data = read_optional(REAL, os.path.join(_checkpoint(options, table), "metadata"))
    found = {} if data is None else json.loads(data)
    return str(found.get("id", "")).encode()


def _checkpoint(options: JobOptions, table: str) -> str:
    return os.path.join(options.out, "checkpoints", table)


def _has_files(directory: str) -> bool:
    """Return whether there is a file at any depth, except hidden ones: checksums, unfinished."""
    return any(not name.startswith(".") for _, _, names in os.walk(directory) for name in names)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table, and its rows: the new ones, or for Iceberg all. ``seen``: figures of a batch."""

    name: str
    rows: DataFrame
    seen: Observation | None


@dataclass(frozen=True, slots=True)
class _Run:
    """The tables of one kind of store."""

    spark: SparkSession
    options: JobOptions
    state: _State
    name: str
    urls: list[str]

    def good(self) -> _Table:
        """Return the table of what fits."""
        known = f.array(*(f.lit(one) for one in self._schema().names))
        new = f.try_element_at(f.array_except(f.json_object_keys("text"), known), f.lit(1))
        good = f.col("reason").isNull()
        rows = self._rows().withColumn("new", f.when(good, new))
        figures = (
            f.count_if(good).alias("rows"),
            f.count_if(~good).alias("bad"),
            f.count("new").alias("unknown"),
            f.max("new").alias("example"),
        )
        text, data = f.col("text").alias("body"), f.col("data")
        return self._table(self.name, rows, good, figures, (text, data))

    def bad(self, until: str = "") -> _Table:
        """Return the table of what does not fit. ``until``: offsets up to which everything fits: it
        gets no rows, and no message is read."""
        bad = f.col("reason").isNotNull()
        figures = (f.count_if(bad).alias("rows"),)
        columns = (f.col("body"), f.col("reason"))
        return self._table(self.name + _BAD, self._rows(until), bad, figures, columns)

    def _table(
        self,
        name: str,
        rows: DataFrame,
        chosen: Column,
        figures: tuple[Column, ...],
        columns: tuple[Column, ...],
    ) -> _Table:
        seen = Observation(name) if self.options.format == "iceberg" else None
        # Spark pushes no filter below what observes, so that each row is parsed once.
        rows = rows.observe(seen or name, *figures).where(chosen)
        day = f.to_date("time").alias("day")
        laid_out = rows.select(day, "store", *_KINDS[self.name].kept, "time", *columns)
        return _Table(name, laid_out, seen)

    def _schema(self) -> t.StructType:
        return _struct(self.state.schemas[self.name])

    def _rows(self, until: str = "") -> DataFrame:
        """Return all rows, with ``text``, ``data``, and the ``reason`` why one does not fit."""
        rows = self._source(until).where(f.lit(False) if until else _KINDS[self.name].wanted)
        text = f.col("text")
        # Spark's parser ignores what follows the first value, and fields that a schema lacks. In an
        # array with a last element that no publisher can guess, the parser gets to that element
        # only if the text before it is exactly one value.
        mark = f"mark_{secrets.token_hex(8)}"
        element = t.StructType([*self._schema().fields, t.StructField(mark, t.BooleanType())])
        outer = [t.StructField(mark, t.ArrayType(element)), t.StructField(_CORRUPT, t.StringType())]
        wrapped = f.concat(f.lit(f'{{"{mark}":['), text, f.lit(f',{{"{mark}":true}}]}}'))
        options = {"columnNameOfCorruptRecord": _CORRUPT}
        values = f.col("parsed").getField(mark)
        data, last = f.get(values, f.lit(0)), f.get(values, f.lit(1))
        fits = (
            f.col(f"parsed.{_CORRUPT}").isNull()
            & data.isNotNull()
            & last.getField(mark).isNotNull()
            & (f.size(values) == 2)
        )
        single = f.json_array_length(f.concat(f.lit("["), text, f.lit(",0]"))) == 2
        return (
            rows.withColumn("text", f.try_validate_utf8(f.col("body").cast("string")))
            .withColumn("parsed", f.from_json(wrapped, t.StructType(outer), options))
            .withColumn("time", f.expr(_KINDS[self.name].time))
            .withColumn("data", data.dropFields(mark))
            .withColumn(
                "reason",
                f.when(f.col("error").isNotNull(), f.col("error"))
                .when(text.isNull(), "the body is not UTF-8")
                .when(f.coalesce(fits, f.lit(False)), None)
                .when(~f.coalesce(single, f.lit(False)), "the body is not JSON")
                .otherwise("the body does not fit the schema"),
            )
        )

    def _source(self, until: str) -> DataFrame:
        """Return the rows of all stores, under their short names."""
        kind = _KINDS[self.name]
        columns = ("store", *kind.kept, *kind.read, "body", "error")
        if self.options.format == "iceberg":
            rows = read(self.spark, self.urls, columns, source=kind.source)
        else:
            options = {
                # A stream's load() takes no list.
                "paths": json.dumps(self.urls),
                "columns": ",".join(columns),
                "maxMessagesPerBatch": str(self.options.batch),
                "endingPosition": until,
                "failOnDataLoss": str(not self.options.accept_loss),
            }
            rows = self.spark.readStream.format(kind.source).options(**options).load()
        pairs = [(url, self.state.stores[url]) for url in self.urls]
        names = self.spark.createDataFrame(pairs, "store string, short string")
        joined = rows.join(f.broadcast(names), "store", "left")
        return joined.withColumn("store", f.col("short")).drop("short")


def _stream_all(runs: Sequence[_Run]) -> dict[str, dict[str, Any]]:
    """Write the tables of what fits, then the others. Where everything fits, the stream of the
    others only moves on: to parse each message twice would double the cost of a run."""
    options = runs[0].options
    level = [_place(options, run.name) == _place(options, run.name + _BAD) for run in runs]
    counts = _stream(options, [run.good() for run in runs])
    others = []
    for run, is_level in zip(runs, level, strict=True):
        clean = is_level and counts[run.name]["bad"] == 0
        others.append(run.bad(_place(options, run.name) if clean else ""))
    return counts | _stream(options, others)


def _places(options: JobOptions, table: str) -> Places:
    return flatten(json.loads(_place(options, table) or "{}"))


def _place(options: JobOptions, table: str) -> str:
    """Return the offsets after the last committed batch of a stream, as JSON, or nothing."""
    checkpoint = _checkpoint(options, table)
    done = names_in(REAL, os.path.join(checkpoint, "commits"))
    last = max((int(name) for name in done if name.isdigit()), default=None)
    if last is None:
        return ""
    return read_file(REAL, os.path.join(checkpoint, "offsets", str(last))).decode().splitlines()[-1]


def _stream(options: JobOptions, tables: Sequence[_Table]) -> dict[str, dict[str, Any]]:
    """Run a stream for each table, all at once, until nothing is left; count what they wrote."""
    queries = []
    try:
        for table in tables:
            queries.append(
                table.rows.writeStream.format(options.format)
                .queryName(table.name)
                .partitionBy("day", "store")
                .option("checkpointLocation", _checkpoint(options, table.name))
                .option("mergeSchema", "true")
                .trigger(availableNow=True)
                .start(os.path.join(options.out, table.name))
            )
        for query in queries:
            query.awaitTermination()
        for name in (table.name for table in tables):
            place = os.path.join(options.out, name)
            if _WRITER not in names_in(REAL, place) and _is_begun(options, place):
                replace_file(REAL, os.path.join(place, _WRITER), _stream_id(options, name))
    finally:
        for query in queries:
            query.stop()
    return {query.name: _sum(query) for query in queries}


def _sum(query: StreamingQuery) -> dict[str, Any]:
    """Add up the figures of all batches. ``bad`` is 1 or more where a batch has none."""
    total: dict[str, Any] = {"rows": 0, "bad": 0, "unknown": 0, "example": None}
    for progress in query.recentProgress:
        seen = progress.observedMetrics.get(query.name)
        if seen is None:
            total["bad"] += progress.numInputRows
            continue
        one = seen.asDict()
        for name in ("rows", "bad", "unknown"):
            total[name] += one.get(name, 0)
        total["example"] = total["example"] or one.get("example")
    return total


def _merge_all(runs: Sequence[_Run]) -> dict[str, dict[str, Any]]:
    """Add to each Iceberg table the rows that it does not have, in one commit; count them."""
    counts: dict[str, dict[str, Any]] = {}
    for one, table in ((run, table) for run in runs for table in (run.good(), run.bad())):
        spark, place = table.rows.sparkSession, f"lake.db.{table.name}"
        if not spark.catalog.tableExists(place):
            empty = spark.createDataFrame([], table.rows.schema)
            empty.writeTo(place).using("iceberg").partitionedBy("day", "store").create()
        for column, kind in _missing(spark.table(place).schema, table.rows.schema):
            spark.sql(f"alter table {place} add columns ({column} {kind.simpleString()})")
        before = spark.table(place).count()
        table.rows.createOrReplaceTempView("ingested")
        key = [*_KINDS[one.name].key, *(["reason"] if table.name.endswith(_BAD) else [])]
        same = " and ".join(f"old.{name} <=> new.{name}" for name in key)
        spark.sql(
            f"merge into {place} as old using ingested as new on {same} "
            "when not matched then insert *"
        )
        assert table.seen is not None
        rows = spark.table(place).count() - before
        counts[table.name] = {**table.seen.get, "rows": rows}
    return counts


def _missing(old: t.DataType, new: t.DataType, above: str = "") -> Iterator[tuple[str, t.DataType]]:
    """Yield the columns of ``new`` that ``old`` lacks, by their paths."""
    if isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        yield from _missing(old.elementType, new.elementType, f"{above}element.")
    if isinstance(old, t.MapType) and isinstance(new, t.MapType):
        yield from _missing(old.valueType, new.valueType, f"{above}value.")
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        for one in new.fields:
            place = f"{above}`{one.name.replace('`', '``')}`"
            if one.name in old.names:
                yield from _missing(old[one.name].dataType, one.dataType, f"{place}.")
            else:
                yield place, one.dataType
