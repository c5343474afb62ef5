"""``migrate``: queues of ours or RabbitMQ's into RocketMQ stores, and RocketMQ stores into queues.

Each message has a row of :data:`MOVES`: moved, and where to; or skipped, and why. Each other thing
that is not carried over has a row of :data:`LEFT_BEHIND`. docs/spark.md lists the reasons. How a
message of one side looks on the other: :mod:`pyspark_qindex.jobs.refill`. One task fills one store,
for a store has one writer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import time_ns
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from journal.errors import StoreError, UsageError
from pyspark_qindex.jobs import refill
from pyspark_qindex.jobs.fleet import (
    Row,
    committed_offsets,
    find_fleet,
    map_rows,
    new_stores,
    run_tasks,
    tasks_wanted,
)
from pyspark_qindex.jobs.results import Outcome, Plot, Table
from pyspark_qindex.jobs.transfer import by_delivery, in_order, origin_of, queues_kept
from pyspark_qindex.local_session import read
from pyspark_qindex.schemas import spark_schema, table
from pyspark_qindex.stores import Store
from qindex.format.envelope import open_envelope
from qindex.recovery import store_directory
from qindex.tools.filling import Origin, QueueFill
from qindex.tools.staging import Staging
from rocketstore.format.commitlog_format import COMMIT, TRANSACTION_MASK
from rocketstore.format.delay import SCHEDULE_TOPIC
from rocketstore.format.properties import REAL_QUEUE_ID, REAL_TOPIC, decode_properties
from rocketstore.layout import Paths
from rocketstore.log.filler_format import is_filler
from rocketstore.queues.offsets import int_table, load_json

MOVES: Final = table(
    "store string, queue string, seq_id bigint, status string, reason string, what string, "
    "target string, target_queue string, target_seq_id bigint, size bigint"
)
"""``queue``: of RocketMQ ``TOPIC/QUEUEID``. ``seq_id``: of RocketMQ the physical offset.
``what``: of a skipped one more about why, of a moved one what it lost. ``target_queue``,
``target_seq_id``: where it is in the new store (of RocketMQ the queue offset)."""

LEFT_BEHIND: Final = table("store string, queue string, seq_id bigint, what string, value string")
"""``seq_id``: of the message that it is about, if any. ``what``: the name of a setting, with its
``value`` as JSON; ``damaged settings``, and why; ``deliveries``, how many a message had; ``empty
queue``, and its next seq_id; or ``consumer offset``, of a group."""
_DAMAGED: Final = "damaged settings"

_PLACE: Final = ("store", "queue", "seq_id", "priority")
_MESSAGE_COLUMNS: Final = (*_PLACE, "msg_id", "persistent", "redelivered", "expiry", "envelope",
                           "body", "error", "size", "timestamp")  # fmt: skip
_KEPT_FIELDS: Final = ("flag", "sys_flag", "born_timestamp", "born_host", "store_timestamp",
                       "store_host", "reconsume_times")  # fmt: skip
_RECORD_COLUMNS: Final = ("store", "offset", "record_size", "topic", "queue_id", "queue_offset",
                          *_KEPT_FIELDS, "properties_raw", "body", "error")  # fmt: skip


def migrate(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    to: str | None = None,
    sizes: dict[str, int] | None = None,
    mode: str = "permissive",
) -> Outcome:
    """Fill a new store below ``out``/stores for each store at or below ``paths``.

    ``to``: ``rocketmq`` or ``qindex``; by default, whatever the stores are not. ``sizes``: of the
    files of a RocketMQ store, as :func:`rocketstore.open` takes them. ``mode``: ``permissive``, or
    ``failfast``: damage ends it, and nothing is moved. When this returns all is moved. Tables:
    ``report``, ``moves`` (:data:`MOVES`), ``left_behind`` (:data:`LEFT_BEHIND`).

    Raises :class:`UsageError` for paths with stores of both kinds, and as
    :func:`pyspark_qindex.jobs.fleet.find_fleet`.
    """
    fleet = find_fleet(paths)
    kinds = {one.is_rocket for one in fleet}
    if len(kinds) > 1:
        raise UsageError("stores of both kinds: give the paths of one kind at a time")
    from_rocketmq = kinds.pop()
    wanted = "qindex" if from_rocketmq else "rocketmq"
    if to is not None and to not in ("rocketmq", "qindex"):
        raise UsageError(f"to must be rocketmq or qindex, not {to!r}")
    if to is not None and to != wanted:
        raise UsageError(f"to {to}: the stores are of that kind already")
    urls = [one.url for one in fleet]
    targets = new_stores(out, urls)
    if from_rocketmq:
        records = read(spark, urls, _RECORD_COLUMNS, source="rocketstore", mode=mode)
        rows = in_order(_with_stores(spark, records, targets), "offset")
        put = partial(_put_in_queue, delays={one.url: _delay_offsets(one) for one in fleet})
        moves = _kept(_filled(rows, targets, lambda _, place: QueueFill(place), put))
    else:
        messages = read(spark, urls, _MESSAGE_COLUMNS, mode=mode)
        told = messages.where("seq_id is not null or error is not null")
        rows = by_delivery(_with_stores(spark, told, targets))

        def begin(_store: str, place: Staging) -> refill.RocketFill:
            return refill.RocketFill(place, sizes or {})

        moved = _kept(_filled(rows, targets, begin, _put_in_rocketmq))
        moves = _kept(moved.unionByName(_left_out(spark, messages, fleet, mode)))
        moved.unpersist()
    return _outcome(moves, _kept(left_behind(spark, fleet)), targets)


def _outcome(moves: DataFrame, left: DataFrame, targets: dict[str, str]) -> Outcome:
    by = ("store", "status", "reason")
    figures = (f.count("*").alias("messages"), f.sum("size").alias("bytes"))
    report = moves.groupBy(*by).agg(*figures).orderBy(*by)
    rows = report.collect()
    summary = {
        "stores": len(targets),
        "moved": sum(row["messages"] for row in rows if row["status"] == "moved"),
        "skipped": sum(row["messages"] for row in rows if row["status"] == "skipped"),
        "left_behind": left.count(),
    }
    damaged = any(row["reason"] == "damaged" for row in rows)
    damaged |= left.where(f.col("what") == _DAMAGED).count() > 0

    in_order = left.orderBy("store", "queue", "what", "seq_id")
    return Outcome(
        summary,
        {
            "report": Table(report, title="Messages"),
            "left_behind": Table(in_order, title="Not carried over"),
            "moves": Table(moves, large=True),
        },
        shown="report",
        plots=[Plot("Messages", "report", "bars", by, "messages")],
        found=damaged,
        kept=[moves, left],
        targets=targets,
    )


def _kept(rows: DataFrame) -> DataFrame:
    """Run the tasks now, and keep their rows: the stores are there then."""
    rows.persist(StorageLevel.MEMORY_AND_DISK).count()
    return rows


def _with_stores(spark: SparkSession, rows: DataFrame, targets: dict[str, str]) -> DataFrame:
    """Add a row for each store, so that those without messages are made, too."""
    stores = spark.createDataFrame([(url,) for url in targets], "store string")
    return rows.unionByName(stores, allowMissingColumns=True)


def _filled(
    rows: DataFrame,
    targets: dict[str, str],
    begin: Callable[[str, Staging], Any],
    put: Callable[..., Row | None],
) -> DataFrame:
    put = partial(put, targets=targets)
    fill = partial(refill.fill_stores, targets=targets, source=os.devnull, begin=begin, put=put)
    return map_rows(rows, fill, MOVES)


def _left_out(spark: SparkSession, messages: DataFrame, fleet: list[Store], mode: str) -> DataFrame:
    """Account for index entries without a message in ``messages``, which was read before."""
    # After the messages were read: a message that had expired for that read has expired now, too.
    now = time_ns() // 1000
    columns = (*_PLACE, "state", "persistent", "expiry", "size")
    urls = [one.url for one in fleet]
    entries = read(spark, urls, columns, include="entries", mode=mode)
    alive = entries.where("state in ('published', 'delivered')")
    priority = f.coalesce("priority", f.lit(-1)).alias("priority")
    keys = messages.where("seq_id is not null").select("store", "queue", "seq_id", priority)
    left_out = alive.withColumn("priority", priority).join(keys, list(_PLACE), "left_anti")
    # The stores of RabbitMQ, whose transient messages are not given as messages.
    nodes = [
        store.url
        for store in fleet
        if not store_directory.find_marker(store.file_system(), store.path)
    ]
    reason = (
        f.when(f.coalesce(f.col("expiry") <= now, f.lit(False)), "expired")
        .when(~f.col("persistent") & f.col("store").isin(nodes), "transient")
        .otherwise("later")
    )
    status = f.lit("skipped").alias("status")
    skipped = left_out.select("store", "queue", "seq_id", status, reason.alias("reason"), "size")
    table = spark.createDataFrame([], spark_schema(MOVES))
    return table.unionByName(skipped, allowMissingColumns=True)


def _put_in_rocketmq(
    fill: refill.RocketFill, row: dict[str, Any], targets: dict[str, str]
) -> Row | None:
    if row["queue"] is None and row["error"] is None:
        return None
    if row["envelope"] is None or row["body"] is None:
        return _skipped(row, "damaged", row["error"] or "the message can't be read")
    try:
        message = open_envelope(row["envelope"], row["body"])
    except StoreError as error:
        return _skipped(row, "damaged", str(error))
    try:
        record = refill.to_rocket(origin_of(row), message)
        queue_offset = fill.put(record, (row["timestamp"] or 0) // 1_000_000)
    except UsageError as error:
        return _skipped(row, "too-large", str(error))
    return _moved(row, targets, f"{record.topic}/{record.queue_id}", queue_offset)


def _moved(
    row: dict[str, Any], targets: dict[str, str], queue: str, seq_id: int, what: str | None = None
) -> Row:
    place = (row["store"], row["queue"], row["seq_id"])
    target = targets[row["store"]]
    return (*place, "moved", None, what, target, queue, seq_id, len(row["body"]))


def _skipped(row: dict[str, Any], reason: str, what: str) -> Row:
    place = (row["store"], row["queue"], row["seq_id"])
    return (*place, "skipped", reason, what, None, None, None, row.get("size"))


def _delay_offsets(one: Store) -> dict[int, int]:
    """Return the delivered offset of each queue of delayed messages, by its queue id."""
    fs = one.file_system()
    table = load_json(fs, Paths(one.path).delay_offset).get("offsetTable")
    return {level - 1: at for level, at in int_table(table).items()}


def _put_in_queue(
    fill: QueueFill,
    row: dict[str, Any],
    targets: dict[str, str],
    delays: dict[str, dict[int, int]],
) -> Row | None:
    if row["topic"] is None and row["error"] is None:
        return None
    row |= {"queue": f"{row['topic']}/{row['queue_id']}", "seq_id": row["offset"]}
    row["size"] = len(row["body"] or b"")
    if row["body"] is None or row["error"] is not None:
        return _skipped(row, "damaged", row["error"] or "the record can't be read")
    topic, queue_id, what = row["topic"], row["queue_id"], None
    transaction = row["sys_flag"] & TRANSACTION_MASK
    if is_filler(topic.encode(), row["sys_flag"], row["record_size"]):
        return _skipped(row, "not-a-message", "it fills a place where damage was set aside")
    if transaction not in (0, COMMIT):
        return _skipped(row, "undone", "its transaction was not committed")
    if topic == SCHEDULE_TOPIC:
        if row["queue_offset"] < delays[row["store"]].get(queue_id, 0):
            return _skipped(row, "delivered", "it was put again where it belongs")
        what = f"its delay (level {queue_id + 1}) is not carried over"
        properties = decode_properties(row["properties_raw"])
        topic = properties.get(REAL_TOPIC, topic)
        try:
            queue_id = int(properties.get(REAL_QUEUE_ID, queue_id))
        except ValueError:
            wrong = properties[REAL_QUEUE_ID]
            return _skipped(row, "damaged", f"property {REAL_QUEUE_ID} is {wrong!r}")
    rest = {name: row[name] for name in _KEPT_FIELDS}
    try:
        at, message = refill.from_rocket(topic, queue_id, row["body"], row["properties_raw"], rest)
    except StoreError as error:
        return _skipped(row, "damaged", str(error))
    if not isinstance(at, Origin):
        seq = fill.next_seq(at)
        msg_id = row["offset"].to_bytes(8, "big") + seq.to_bytes(8, "big")
        at = Origin(at, seq, msg_id, True, row["reconsume_times"] > 0, 0)
    seq_id = fill.put(at, message)
    return _moved(row, targets, at.queue, seq_id, what)


# -- what is not carried over ----------------------------------------------------------------------


def left_behind(spark: SparkSession, fleet: list[Store]) -> DataFrame:
    """Look through the stores (all of one kind) for the things that are not carried over."""
    most = tasks_wanted(spark)
    groups = [found for found in (fleet[at::most] for at in range(most)) if found]
    rows = _of_topics if fleet[0].is_rocket else _of_queues
    return run_tasks(spark, groups, rows, LEFT_BEHIND)


def _of_queues(one: Store) -> Iterator[Row]:
    url = one.url
    for kept in queues_kept(one, permissive=True):
        if kept.error is not None:
            yield url, kept.name, None, _DAMAGED, kept.error
        for name, value in (kept.settings or {}).items():
            if value is not None:
                yield url, kept.name, None, name, json.dumps(value)
        for seq_id, count in sorted(kept.deliveries.items()):
            yield url, kept.name, seq_id, "deliveries", str(count)
        if not kept.messages:
            yield url, kept.name, None, "empty queue", str(kept.next_seq_id)


def _of_topics(one: Store) -> Iterator[Row]:
    for queue, consumer_group, offset in committed_offsets(one):
        yield one.url, queue, None, "consumer offset", f"{consumer_group}: {offset}"
