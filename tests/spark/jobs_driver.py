"""A driver that runs two jobs on a cluster.

``python -m tests.spark.jobs_driver MASTER FLEET ROCKET``: prints ``middle`` when some tasks of the
audit are done and others are not; then what the audit found, and what was built, as JSON.
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


def announce_middle(spark: SparkSession) -> None:
    while True:
        done, total, _ = tasks_under_way(spark)
        if 0 < done < total:
            break
        time.sleep(0.005)
    print("middle", flush=True)


def main(master: str, fleet: str, rocket: str) -> None:
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
    }
    spark = session("jobs", master, conf, quick=True)
    threading.Thread(target=announce_middle, args=(spark,), daemon=True).start()
    result = audit(spark, [fleet])
    columns = ("store", "file", "offset", "kind", "what")
    found = sorted(list(map(str, row)) for row in result.findings.select(*columns).collect())
    result.unpersist()
    built = build_index(spark, [rocket])
    files = sorted([row["file"], row["was"]] for row in built.files.collect())
    print(json.dumps({"found": found, "files": files}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
