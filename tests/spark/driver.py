"""A driver that follows a queue into another one, until it is killed.

``python -m tests.spark.driver SOURCE SINK CHECKPOINT [MASTER]``: prints ``ready`` when its session
is up; for the line ``follow`` it runs until it dies, for ``finish`` until nothing is left, and
prints ``done``.
"""

from __future__ import annotations

import sys

from pyspark_qindex import session


def main(source: str, sink: str, checkpoint: str, master: str = "local[2]") -> None:
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
    }
    spark = session("driver", master, conf, quick=True)
    print("ready", flush=True)
    how = sys.stdin.readline().strip()
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


if __name__ == "__main__":
    main(*sys.argv[1:])
