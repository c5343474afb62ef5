"""A client of Spark Connect, in a process of its own: it has no JVM, and no context.

``python -m tests.spark.connect_driver URL FLEET ROCKET``: reads, audits the fleet and builds the
index of a store through a server; then it prints what came out, as JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark_qindex import session
from pyspark_qindex.jobs import audit
from pyspark_qindex.jobs.build_index import build_index


def main(url: str, fleet: str, rocket: str) -> None:
    spark = session(master=url)
    assert session() is spark
    assert getattr(spark, "sparkContext", None) is None
    rows = spark.read.format("qindex").load(fleet)
    result = audit(spark, [fleet])
    columns = ("store", "kind", "number")
    found = sorted(list(map(str, row)) for row in result["findings"].select(*columns).collect())
    result.finish()
    built = build_index(spark, [rocket])
    said = {
        "queues": {row[0]: row[1] for row in rows.groupBy("queue").count().collect()},
        "found": found,
        "built": built.summary,
    }
    print(json.dumps(said), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
