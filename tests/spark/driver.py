"""A driver in a process of its own, which does what lines on its standard input say.

``python -m tests.spark.driver [MASTER [NAME=VALUE ...]]``, with settings of Spark: prints ``ready``
when its session is up. A line is JSON:

* ``["follow", SOURCE, SINK, CHECKPOINT]``: follow a queue into another one, until it dies, beside
  what the next lines say;
* ``["finish", SOURCE, SINK, CHECKPOINT]``: the same until nothing is left; then it prints ``done``;
* ``["ingest", STORES, LAKE, FORMAT, BATCH]``: bring the tables of a lake to the present; then it
  prints ``done``;
* ``["rows", LAKE, TABLE ...]``: print as JSON the rows of Parquet tables, as Spark reads them;
* ``["hidden", QUEUES, ROCKET, OUT]``: read a store of each kind by sources, streams and jobs; then
  it prints as JSON how each of them ended: a number of rows, or an error;
* ``["jobs", FLEET, ROCKET]``: audit a fleet, and build the index of a store. Prints ``middle`` when
  some tasks of the audit are done and others are not; then what was found, and built, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyspark_qindex import session
from pyspark_qindex.cli import tasks_under_way
from pyspark_qindex.errors import explain
from pyspark_qindex.jobs import audit
from pyspark_qindex.jobs.build_index import build_index
from pyspark_qindex.jobs.ingest import ingest
from pyspark_qindex.jobs.migrate import migrate
from pyspark_qindex.jobs.results import JobOptions
from qindex.view.reader import StoreReader
from tests.spark.lakes import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}


def stream(spark: SparkSession, how: str, source: str, sink: str, checkpoint: str) -> None:
    messages = (
        spark.readStream.format("qindex")
        .option("maxMessagesPerBatch", "60")
        .option("partitions", "4")
        .load(source)
    )
    writer = (
        messages.drop("queue")
        .writeStream.format("qindex")
        .option("queue", "sink")
        .option("checkpointLocation", checkpoint)
    )
    if how == "finish":
        writer = writer.trigger(availableNow=True)
    query = writer.start(sink)
    if how == "finish":
        query.awaitTermination()
        print("done", flush=True)


def announce_middle(spark: SparkSession) -> None:
    while True:
        done, total, _ = tasks_under_way(spark)
        if 0 < done < total:
            break
        time.sleep(0.005)
    print("middle", flush=True)


def jobs(spark: SparkSession, fleet: str, rocket: str) -> None:
    threading.Thread(target=announce_middle, args=(spark,), daemon=True).start()
    result = audit(spark, [fleet])
    columns = ("store", "file", "offset", "kind", "what")
    found = sorted(list(map(str, row)) for row in result["findings"].select(*columns).collect())
    result.finish()
    built = build_index(spark, [rocket])
    files = sorted([row["file"], row["was"]] for row in built["files"].collect())
    print(json.dumps({"found": found, "files": files}), flush=True)


def ways_to_read(spark: SparkSession, queues: str, rocket: str, out: str) -> dict[str, int | str]:
    """Read a store of each kind by sources, streams and jobs; tell how each of them ended: a number
    of rows, or an error."""
    stores = {"qindex": queues, "rocketstore": rocket}

    def follow(source: str) -> int:
        messages = spark.readStream.format(source).option("partitions", "4").load(stores[source])
        query = (
            messages.writeStream.format("memory")
            .queryName(f"from_{source}")
            .trigger(availableNow=True)
            .option("checkpointLocation", os.path.join(out, source))
            .start()
        )
        query.awaitTermination()
        return spark.table(f"from_{source}").count()

    def sink() -> int:
        rows = spark.range(0, 100, 1, 4).selectExpr("encode(cast(id as string), 'utf-8') as body")
        rows.write.format("qindex").option("queue", "new").mode("append").save(queues)
        return StoreReader(queues).queue("new").summary().messages

    ways: dict[str, Callable[[], int]] = {
        **{f"read {source}": spark.read.format(source).load(path).count
           for source, path in stores.items()},
        **{f"stream {source}": partial(follow, source) for source in stores},
        "sink": sink,
        "audit": lambda: audit(spark, [queues, rocket])["findings"].count(),
        "migrate": lambda: migrate(spark, [queues], out)["moves"].count(),
        "build-index": lambda: build_index(spark, [rocket]).summary["messages"],
    }  # fmt: skip
    ended: dict[str, int | str] = {}
    for name, way in ways.items():
        try:
            ended[name] = way()
        except Exception as error:
            ended[name] = explain(error)
    return ended


def main(master: str = "local[2]", *settings: str) -> None:
    conf = CONF | dict(one.split("=", 1) for one in settings)
    spark = session("driver", master, conf, quick=True)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "hidden":
            print(json.dumps(ways_to_read(spark, *arguments)), flush=True)
        elif command == "rows":
            tables = (spark.read.parquet(f"{arguments[0]}/{name}") for name in arguments[1:])
            print(json.dumps([rows_of(table) for table in tables]), flush=True)
        elif command == "jobs":
            jobs(spark, *arguments)
        elif command == "ingest":
            stores, lake, kind, batch = arguments
            ingest(spark, JobOptions([stores], lake, format=kind, batch=int(batch)))
            print("done", flush=True)
        else:
            stream(spark, command, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
