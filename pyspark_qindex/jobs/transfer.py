"""``export`` and ``import``: stores to Parquet and back, without loss.

An export is a directory of tables: ``messages``, with the ``envelope`` in which key, headers,
properties and timestamp are as they were stored; ``queues``, a row for each with its settings; and
``records`` of RocketMQ stores. An import makes a new store for each store in the tables, in one
task: a store has one writer. docs/spark.md says what comes back.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from journal.arguments import listed
from journal.errors import DamageError, NotAStoreError, StoreError, UsageError
from journal.fs.files import read_optional
from pyspark_qindex.errors import explain, one_line
from pyspark_qindex.filesystem import local_path
from pyspark_qindex.jobs import refill
from pyspark_qindex.jobs.fleet import Row, find_fleet, map_rows, new_stores, together
from pyspark_qindex.jobs.results import Outcome, Table
from pyspark_qindex.local_session import read
from pyspark_qindex.schemas import spark_schema, table
from pyspark_qindex.stores import Store
from qindex.format.envelope import open_envelope
from qindex.format.message import Message
from qindex.format.priorities import SHIFT
from qindex.format.settings import NO_SETTINGS, settings_values
from qindex.queue.notes.delivery_counts import FILE_NAME as DELIVERIES
from qindex.queue.notes.delivery_counts import unpack_counts
from qindex.tools.filling import Origin, QueueFill, QueueKept
from qindex.tools.staging import Staging
from qindex.view.arrow import plain_text
from qindex.view.reader import StoreReader

_TABLES: Final = ("messages", "queues", "records")
_ID_BYTES: Final = 16
_NEEDED: Final = {
    "messages": ("store", "queue", "seq_id", "msg_id", "persistent", "redelivered", "expiry",
                 "priority", "envelope", "body", "error"),
    "queues": ("store", "queue", "settings", "next_seq_id"),
    "records": ("store", "offset", "topic", "queue_id", "body", "properties_raw", "flag",
                "sys_flag", "born_timestamp", "born_host", "store_timestamp", "reconsume_times",
                "error"),
}  # fmt: skip
"""Columns that an import reads."""
QUEUES: Final = table(
    "store string, queue string, settings string, next_seq_id bigint, deliveries string, "
    "error string"
)
"""``settings``: what the queue's settings file holds, as JSON. ``next_seq_id``: of the next
publish. ``deliveries``: how often messages were delivered, by seq_id, as JSON, of queues that
count it. ``error``: why the settings can't be read."""
IMPORTED: Final = table(
    "store string, target string, queue string, messages bigint, bytes bigint, skipped bigint"
)
"""What was imported of each queue; ``skipped``: rows without a message (they tell of damage)."""
_PUT: Final = {"store": "string", "queue": "string", "size": "bigint", "skipped": "boolean"}
"""A row of a table that was gone through. ``size``: of the body, where it is a message."""


def export_stores(
    spark: SparkSession, paths: Sequence[str], out: str, *, mode: str = "permissive"
) -> Outcome:
    """Write all that stores at or below ``paths`` hold as tables of Parquet into ``out``.

    What is damaged is a row with ``error``, or, with ``mode`` ``failfast``, ends it. Raises as
    :func:`pyspark_qindex.jobs.fleet.find_fleet`.
    """
    fleet = find_fleet(paths)
    queues = [one for one in fleet if not one.is_rocket]
    rockets = [one.url for one in fleet if one.is_rocket]
    frames: dict[str, DataFrame] = {}
    if queues:
        frames["messages"] = read(spark, [one.url for one in queues], mode=mode)
        permissive = mode == "permissive"
        rows = [
            (
                one.url,
                kept.name,
                json.dumps(kept.settings) if kept.settings else None,
                kept.next_seq_id,
                json.dumps(kept.deliveries) if kept.deliveries else None,
                kept.error,
            )
            for one in queues
            for kept in queues_kept(one, permissive=permissive)
        ]
        frames["queues"] = spark.createDataFrame(rows, spark_schema(QUEUES))
    if rockets:
        frames["records"] = read(spark, rockets, source="rocketstore", mode=mode)
    summary = Counter({"stores": len(fleet), "messages": 0, "bytes": 0, "damaged": 0})
    tables: dict[str, Table] = {}
    for name, frame in frames.items():
        path = os.path.join(out, f"{name}.parquet")
        frame.write.parquet(path)
        written = spark.read.parquet(path)
        tables[name] = Table(written, large=name != "queues", title="Queues", written=True)
        summary["damaged"] += written.where("error is not null").count()
        if name != "queues":
            bodies = written.selectExpr("count(body)", "coalesce(sum(length(body)), 0)")
            messages, size = bodies.collect()[0]
            summary.update(messages=messages, bytes=size)
    shown = "queues" if "queues" in tables else ""
    return Outcome(dict(summary), tables, shown, found=summary["damaged"] > 0)


def queues_kept(one: Store, *, permissive: bool) -> Iterator[QueueKept]:
    """Yield what the queues of a store have beside their messages. Damaged settings are ``error``,
    or raise :class:`DamageError` where the read is not ``permissive``."""
    fs = one.file_system()
    reader = StoreReader(one.path, fs)
    for queue in reader.readers():
        summary = queue.summary_if_there()
        if summary is None:
            continue
        settings, wrong = NO_SETTINGS, None
        try:
            settings = queue.settings()
        except DamageError as error:
            if not permissive:
                raise
            wrong = one_line(str(error))
        counts: dict[int, int] = {}
        for each in queue.directories if reader.kind == "qindex" else ():
            found = read_optional(fs, os.path.join(reader.path_of(each), DELIVERIES)) or b""
            base = (each.priority or 0) << SHIFT
            counts |= {base + seq: count for seq, count in unpack_counts(found).items()}
        yield QueueKept(
            plain_text(queue.name) or "",  # as the table of messages has it
            None if settings == NO_SETTINGS else settings_values(settings),
            summary.next_seq_id,
            counts,
            summary.messages,
            wrong,
        )


def import_stores(spark: SparkSession, paths: Sequence[str], out: str) -> Outcome:
    """Make stores below ``out``/stores from the tables of exports in ``paths``, all local.

    Table ``imported``: :data:`IMPORTED`. Raises :class:`NotAStoreError` for a path without tables,
    or with tables that no export has written.
    """
    tables = _read_tables(spark, paths)
    stores = {
        row[0] for table in tables.values() for row in table.select("store").distinct().collect()
    }
    targets = new_stores(out, list(stores))
    fill = partial(refill.fill_stores, targets=targets, source=local_path(paths[0], "an export"))
    parts: list[DataFrame] = []
    if "queues" in tables:
        begin = partial(_begin_queues, kept=_kept_of(tables["queues"]))
        put = partial(fill, begin=begin, put=_put_message)
        parts.append(map_rows(by_delivery(_rows_of_queues(tables)), put, _PUT))
    if "records" in tables:
        put = partial(fill, begin=lambda _, place: refill.RocketFill(place, {}), put=_put_record)
        parts.append(map_rows(in_order(tables["records"], "offset"), put, _PUT))
    counted = together(parts).groupBy("store", "queue").agg(
        f.count("size"), f.coalesce(f.sum("size"), f.lit(0)), f.count_if("skipped")
    )  # fmt: skip
    rows = counted.orderBy("store", "queue").collect()
    done = [(store, targets[store], *figures) for store, *figures in rows]
    made = spark.createDataFrame(done, spark_schema(IMPORTED))
    summary = {"stores": len(targets)}
    for at, name in enumerate(("messages", "bytes", "skipped"), 3):
        summary[name] = sum(row[at] for row in done)
    tables_ = {"imported": Table(made, title="Queues")}
    return Outcome(summary, tables_, "imported", found=summary["skipped"] > 0, targets=targets)


def _kept_of(queues: DataFrame) -> dict[str, list[QueueKept]]:
    """Return what is kept of the queues of each store beside their messages."""
    kept: dict[str, list[QueueKept]] = {}
    for row in (one.asDict() for one in queues.collect()):
        settings, deliveries = row["settings"], json.loads(row.get("deliveries") or "{}")
        one = QueueKept(
            name=row["queue"],
            settings=settings and json.loads(settings),
            next_seq_id=row["next_seq_id"],
            deliveries={int(seq): count for seq, count in deliveries.items()},
        )
        kept.setdefault(row["store"], []).append(one)
    return kept


def find_exports(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the places of the tables of exports, by name. Raises :class:`NotAStoreError` for a
    path without any."""
    paths = listed(paths, "paths")
    if not paths:
        raise UsageError("no path is given")
    tables: dict[str, list[str]] = {}
    for path in paths:
        path = local_path(path, "an export")
        places = {name: os.path.join(path, f"{name}.parquet") for name in _TABLES}
        found = {name: place for name, place in places.items() if os.path.exists(place)}
        if not found:
            raise NotAStoreError(f"{path}: no export: it holds none of {', '.join(_TABLES)}")
        for name, place in found.items():
            tables.setdefault(name, []).append(place)
    return tables


def _read_tables(spark: SparkSession, paths: Sequence[str]) -> dict[str, DataFrame]:
    """Return the tables of exports; messages without a table of queues get one."""
    tables = {}
    for name, found in find_exports(paths).items():
        try:
            tables[name] = spark.read.parquet(*found)
        except Exception as error:
            raise NotAStoreError(f"{found[0]}: no table of an export: {explain(error)}") from error
        missing = [column for column in _NEEDED[name] if column not in tables[name].columns]
        if missing:
            raise NotAStoreError(f"{found[0]}: no table of an export: no column {missing[0]!r}")
    if "messages" in tables and "queues" not in tables:
        names = tables["messages"].select("store", "queue").where("queue is not null").distinct()
        tables["queues"] = names.selectExpr("*", "null as settings", "0L as next_seq_id")
    return tables


def by_delivery(messages: DataFrame) -> DataFrame:
    """One store after the other, its queues one after the other, each in order of delivery."""
    return in_order(messages, "queue", f.coalesce("priority", f.lit(-1)).desc(), "seq_id")


def in_order(rows: DataFrame, *columns: str | Column) -> DataFrame:
    """One store after the other, each in the order of ``columns``; a store is never cut."""
    stores = rows.select("store").distinct().count()
    return rows.repartition(max(1, stores), "store").sortWithinPartitions("store", *columns)


def _rows_of_queues(tables: dict[str, DataFrame]) -> DataFrame:
    """Return the messages, and a row for each queue: stores without messages are made, too."""
    queues = tables["queues"].select("store", "queue")
    if "messages" not in tables:
        nothing = dict.fromkeys(_NEEDED["messages"][2:], f.lit(None))
        return queues.withColumns(nothing)
    messages = tables["messages"].select(*_NEEDED["messages"])
    return messages.unionByName(queues, allowMissingColumns=True)


def _begin_queues(store: str, place: Staging, kept: dict[str, list[QueueKept]]) -> QueueFill:
    fill = QueueFill(place)
    for one in kept.get(store, ()):
        fill.declare(one)
    return fill


def _put_message(fill: QueueFill, row: dict[str, Any]) -> Row:
    place = (row["store"], row["queue"])
    if row["envelope"] is None or row["body"] is None:
        return (*place, None, row["error"] is not None)
    fill.put(*_message_of(row))
    return (*place, len(row["body"]), False)


def _put_record(fill: refill.RocketFill, row: dict[str, Any]) -> Row:
    place = (row["store"], f"{row['topic']}/{row['queue_id']}")
    if row["body"] is None or row["error"] is not None:
        return (*place, None, True)
    rest = {name: row[name] for name in refill.PUT_FIELDS}
    head = (row["topic"], row["queue_id"], row["body"], row["properties_raw"])
    fill.put(refill.RocketRecord(*head, rest), row["store_timestamp"])
    return (*place, len(row["body"]), False)


def _message_of(row: dict[str, Any]) -> tuple[Origin, Message]:
    """Return the message that an import puts for a row. Raises :class:`StoreError` for a row that
    no export has written: tables pass through many hands."""
    queue, seq_id, msg_id = row["queue"], row["seq_id"], row["msg_id"]
    place = f"{row['store']}: message {seq_id} of queue {queue!r} is none of an export"
    if not queue:
        raise StoreError(f"{place}: it has no queue")
    if seq_id is None or seq_id < 0 or msg_id is None or len(msg_id) != _ID_BYTES:
        raise StoreError(f"{place}: seq_id {seq_id}, msg_id {msg_id!r}")
    try:
        return origin_of(row), open_envelope(row["envelope"], row["body"])
    except (StoreError, ValueError, TypeError) as error:
        raise StoreError(f"{place}: {error}") from error


def origin_of(row: dict[str, Any]) -> Origin:
    """Return where a row of ``messages`` stood."""
    values = {one.name: row[one.name] for one in fields(Origin)}
    return Origin(**values | {"expiry": row["expiry"] or 0})
