"""``stats``: what a fleet holds, as tables.

Each function takes DataFrames and gives one, so that a notebook can put its own filter before it:

>>> messages = common(spark.read.format("qindex").load("/srv/fleet"))   # doctest: +SKIP
>>> hot_keys(messages.where("queue = 'orders'")).show()
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_qindex.jobs.fleet import committed_offsets, find_fleet, together
from pyspark_qindex.jobs.results import Outcome, Plot, Table
from pyspark_qindex.local_session import read
from pyspark_qindex.schemas import spark_schema, table

_MESSAGE_COLUMNS: Final = ("store", "queue", "seq_id", "size", "timestamp", "redelivered", "key",
                           "error")  # fmt: skip
_LETTER_COLUMNS: Final = ("store", "queue", "size", "headers")
_RECORD_COLUMNS: Final = ("store", "topic", "queue_id", "queue_offset", "record_size",
                          "store_timestamp", "reconsume_times", "keys", "sys_flag",
                          "error")  # fmt: skip
_OFFSETS: Final = table("store string, queue string, consumer_group string, committed bigint")
_BUCKETS: Final = (1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
"""Seconds."""
_MAX_BUCKETS: Final = 200


def stats(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    top: int = 20,
    mode: str = "permissive",
    letters: bool = False,
) -> Outcome:
    """Read all stores at or below ``paths`` once, and make tables of what they hold.

    ``queues``, ``keys``, ``growth``, ``files`` and ``lag``: see the functions of (about) those
    names; ``damage``: what could not be read; ``letters``: dead letters, if asked for. ``mode``:
    ``permissive``, or ``failfast``: damage ends it.
    """
    fleet = find_fleet(paths)
    queues = [one.url for one in fleet if not one.is_rocket]
    rockets = [one for one in fleet if one.is_rocket]
    parts: list[DataFrame] = []
    dead: list[DataFrame] = []
    damage: list[DataFrame] = []
    kept: list[DataFrame] = []
    tables: dict[str, Table] = {}
    plots: list[Plot] = []
    if queues:
        found = read(spark, queues, _MESSAGE_COLUMNS, mode=mode)
        kept.append(found.persist(StorageLevel.MEMORY_AND_DISK))
        parts.append(common(found))
        damage.append(found.where("error is not null").select("store", "queue", "error"))
        dead.append(dead_letters(read(spark, queues, _LETTER_COLUMNS, mode=mode)))
        files = file_garbage(read(spark, queues, include="files", mode=mode))
        tables["files"] = Table(files, title="Garbage by file")
        plots.append(Plot("Garbage by file, bytes", "files", "bars", ("store", "file"), "garbage"))
    if rockets:
        urls = [store.url for store in rockets]
        found = read(spark, urls, _RECORD_COLUMNS, source="rocketstore", mode=mode)
        kept.append(found.persist(StorageLevel.MEMORY_AND_DISK))
        parts.append(common_records(found))
        dead.append(dead_records(parts[-1]))
        place = "concat_ws('/', topic, queue_id) as queue"
        damage.append(found.where("error is not null").selectExpr("store", place, "error"))
    messages = together(parts)
    if rockets:
        offsets = [(store.url, *found) for store in rockets for found in committed_offsets(store)]
        lag = consumer_lag(messages, spark.createDataFrame(offsets, spark_schema(_OFFSETS)))
        tables["lag"] = Table(lag, title="Consumer groups")
    if letters:
        tables["letters"] = Table(together(dead), title="Dead letters")
    name = ("store", "queue")
    figures, lost = queue_stats(messages), together(damage)
    total = messages.selectExpr("count(*)", "coalesce(sum(size), 0)").collect()[0]
    summary = {
        "stores": len(fleet),
        "queues": figures.count(),
        "messages": total[0],
        "bytes": total[1],
        "damaged": lost.count(),
    }
    if summary["damaged"]:
        tables["damage"] = Table(lost.orderBy(*name), title="Not readable")
    tables = {
        "queues": Table(figures.orderBy(*name), title="Queues"),
        "keys": Table(hot_keys(messages, top), title="Keys with the most messages"),
        "growth": Table(growth(messages), title="Messages by time of publishing"),
        **tables,
    }
    plots = [
        Plot("Messages by queue", "queues", "bars", name, "messages"),
        Plot("Bytes by queue", "queues", "bars", name, "bytes"),
        Plot("Oldest message by queue, seconds", "queues", "bars", name, "age_oldest"),
        Plot("Keys with the most messages", "keys", "bars", ("key",), "messages"),
        Plot("Messages by time of publishing", "growth", "line", ("moment",), "messages", 200),
        *plots,
    ]

    return Outcome(summary, tables, "queues", plots, summary["damaged"] > 0, kept=kept)


def common(messages: DataFrame) -> DataFrame:
    """Messages of the source ``qindex`` in the columns that the functions here take: ``store``,
    ``queue``, ``number`` (seq_id), ``size`` (of the body, bytes), ``moment`` (of publishing,
    seconds since 1970, null where the record keeps none), ``redelivered``, ``keys``."""
    return messages.where("seq_id is not null").select(
        "store",
        "queue",
        f.col("seq_id").alias("number"),
        "size",
        (f.col("timestamp") / 1e9).alias("moment"),
        "redelivered",
        f.when(f.col("key").isNotNull(), f.array("key")).alias("keys"),
    )


def common_records(records: DataFrame) -> DataFrame:
    """The same of records of the source ``rocketstore``: ``queue`` is ``TOPIC/QUEUEID``, ``number``
    the queue offset, ``size`` that of the record, ``moment`` that of storing; redelivered is what
    was sent back. Open and undone transactions are left out."""
    visible = records.where("topic is not null and (sys_flag & 12) in (0, 8)")
    return visible.select(
        "store",
        f.concat_ws("/", "topic", "queue_id").alias("queue"),
        f.col("queue_offset").alias("number"),
        f.col("record_size").alias("size"),
        (f.col("store_timestamp") / 1e3).alias("moment"),
        (f.col("reconsume_times") > 0).alias("redelivered"),
        f.when(f.length("keys") > 0, f.split("keys", " ")).alias("keys"),
    )


def queue_stats(messages: DataFrame, now: float | None = None) -> DataFrame:
    """For each queue: messages, bytes, redelivered ones, sizes (bytes), ages (seconds before
    ``now``, by default this moment)."""
    age = f.lit(time() if now is None else now) - f.col("moment")
    return messages.groupBy("store", "queue").agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.count_if("redelivered").alias("redelivered"),
        f.expr("percentile_approx(size, 0.5)").alias("size_median"),
        f.expr("percentile_approx(size, 0.99)").alias("size_99"),
        f.max("size").alias("size_max"),
        f.max(age).alias("age_oldest"),
        f.percentile_approx(age, 0.5).alias("age_median"),
        f.min(age).alias("age_newest"),
    )


def dead_letters(messages: DataFrame) -> DataFrame:
    """Dead letters of the source ``qindex`` by the queue where they last died and why: how many,
    their bytes, and the ``moment`` of the latest death."""
    latest = f.get_json_object("headers", "$.x-death[0]")
    death = f.from_json(latest, "queue string, reason string, time bigint")
    dead = messages.where(f.contains("headers", f.lit('"x-death"'))).withColumn("death", death)
    by = ("store", "queue", f.col("death.queue").alias("died_in"), f.col("death.reason"))
    figures = (f.count("*").alias("messages"), f.sum("size").alias("bytes"))
    return dead.groupBy(*by).agg(*figures, f.max("death.time").cast("double").alias("moment"))


def dead_records(records: DataFrame) -> DataFrame:
    """The same of :func:`common_records`: a consumer group's dead letters are those that it did not
    take however often they were delivered."""
    dead = records.where("startswith(queue, '%DLQ%')")
    by = ("store", "queue", f.lit(None).cast("string").alias("died_in"), f.lit("limit"))
    figures = (f.count("*").alias("messages"), f.sum("size").alias("bytes"), f.max("moment"))
    names = ("store", "queue", "died_in", "reason", "messages", "bytes", "moment")
    return dead.groupBy(*by).agg(*figures).toDF(*names)


def hot_keys(messages: DataFrame, top: int = 20) -> DataFrame:
    """The ``top`` keys with the most messages: how many, their bytes, and in how many queues."""
    keys = messages.where("keys is not null").select(
        "store", "queue", "size", f.explode("keys").alias("key")
    )
    counted = keys.where("key != ''").groupBy("key").agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.count_distinct("store", "queue").alias("queues"),
    )  # fmt: skip
    return counted.orderBy(f.desc("messages"), "key").limit(top)


def growth(messages: DataFrame, bucket: int | None = None) -> DataFrame:
    """Messages and bytes by time: ``moment`` is the start of a bucket of that many seconds; by
    default one is chosen that gives some two hundred at most. Acknowledged messages are not there
    any more, so these are the messages left of each moment."""
    dated = messages.where("moment is not null and moment > 0")
    if bucket is None:
        ends = dated.agg(f.min("moment"), f.max("moment")).collect()[0]
        span = (ends[1] or 0) - (ends[0] or 0)
        fitting = [one for one in _BUCKETS if span / one <= _MAX_BUCKETS]
        bucket = fitting[0] if fitting else _BUCKETS[-1]
    start = (f.floor(f.col("moment") / bucket) * bucket).alias("moment")
    counted = dated.groupBy(start).agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
    return counted.withColumn("bucket", f.lit(bucket)).orderBy("moment")


def file_garbage(files: DataFrame) -> DataFrame:
    """Files of the source ``qindex`` with garbage in them, most first."""
    share = f.when(f.col("size") > 0, f.col("garbage") / f.col("size")).otherwise(0.0)
    columns = ("store", "queue", "file", "kind", "size", "live", "garbage")
    told = files.where("file is not null").select(*columns, share.alias("share"))
    return told.orderBy(f.desc("garbage"), "store", "file")


def consumer_lag(messages: DataFrame, committed: DataFrame) -> DataFrame:
    """Return the distance of each consumer group from each queue's end. ``committed``: store,
    queue, consumer_group, committed (the next queue offset it asks for)."""
    ends = messages.groupBy("store", "queue").agg((f.max("number") + 1).alias("end"))
    behind = f.greatest(f.col("end") - f.col("committed"), f.lit(0)).alias("behind")
    return committed.join(ends, ["store", "queue"], "left").select(
        *committed.columns, "end", behind
    )
