"""A driver in a process of its own, which does what lines on its standard input say.

``python -m tests.spark.driver [MASTER]``: prints ``ready`` when its session is up. A line is JSON:

* ``["follow", SOURCE, SINK, CHECKPOINT]``: follow a queue into another one, until it dies;
* ``["finish", SOURCE, SINK, CHECKPOINT]``: the same until nothing is left; then it prints ``done``;
* ``["jobs", FLEET, ROCKET]``: audit a fleet, and build the index of a store. Prints ``middle`` when
  some tasks of the audit are done and others are not; then what was found, and built, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING

from pyspark_qindex import session
from pyspark_qindex.jobs import audit
from pyspark_qindex.jobs.build_index import build_index
from pyspark_qindex.jobs.progress import tasks_under_way

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
        messages.writeStream.format("qindex")
        .option("queue", "sink")
        .option("checkpointLocation", checkpoint)
    )
    if how == "finish":
        writer = writer.trigger(availableNow=True)
    query = writer.start(sink)
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
    found = sorted(list(map(str, row)) for row in result.findings.select(*columns).collect())
    result.unpersist()
    built = build_index(spark, [rocket])
    files = sorted([row["file"], row["was"]] for row in built.files.collect())
    print(json.dumps({"found": found, "files": files}), flush=True)


def main(master: str = "local[2]") -> None:
    spark = session("driver", master, CONF, quick=True)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "jobs":
            jobs(spark, *arguments)
        else:
            stream(spark, command, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
