"""Each source, stream and job once, with whatever Spark runs this: ``python -m tests.spark.smoke``.

For the versions of Spark that the suite itself does not run on (scripts/spark-versions.sh). Prints
a line for each step. Anything that is wrong ends it with a traceback.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark_qindex
from pyspark_qindex.cli import all_jobs
from pyspark_qindex.errors import explain
from pyspark_qindex.jobs.report import data_directory
from pyspark_qindex.jobs.results import JobOptions, claim, write_outcome
from pyspark_qindex.sources import can_stream
from qindex.view.reader import StoreReader
from tests.spark.fleet import make_plain, make_rocket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READY = 580
"""Messages of make_plain's queue orders that are not acknowledged."""


def main(root: Path) -> None:
    """Go through all of it in a new directory."""
    import pyspark

    plain, rocket = make_plain(root / "plain"), make_rocket(root / "rocket")
    spark = pyspark_qindex.session("smoke", "local[2]", quick=True)
    print("pyspark", pyspark.__version__)
    messages = spark.read.format("qindex").load(str(plain))
    records = spark.read.format("rocketstore").load(str(rocket))
    ready = count(plain, "orders") + count(plain, "audit/ü")
    assert ready > _READY == count(plain, "orders")
    assert (messages.count(), records.count()) == (ready, 700)
    chosen = spark.read.format("qindex").option("columns", "queue,seq_id").load(str(plain))
    assert chosen.where("queue = 'orders'").agg({"seq_id": "max"}).collect()[0][0] == 599
    print("batch reads")

    orders = messages.where("queue = 'orders'").drop("queue")
    orders.write.format("qindex").option("queue", "q").mode("append").save(str(root / "sink"))
    assert count(root / "sink", "q") == _READY
    print("batch write")

    if can_stream():
        assert follow(spark, "qindex", plain, root / "a", 100) == 7
        assert count(root / "a", "q") == ready
        assert follow(spark, "rocketstore", rocket, root / "b", 100) == 7
        print("streams")
    else:
        for name, path in (("qindex", plain), ("rocketstore", rocket)):
            print(refused(lambda: follow(spark, name, path, root / "no", 100)))  # noqa: B023

    for name, paths, out in (
        ("audit", [plain, rocket], "audit"),
        ("stats", [plain, rocket], "stats"),
        ("export", [plain, rocket], "export"),
        ("import", [root / "export"], "import"),
        ("build-index", [rocket], "build-index"),
        ("migrate", [rocket], "migrate"),
    ):
        outcome = all_jobs()[name](spark, JobOptions([str(one) for one in paths], str(root / out)))
        assert not outcome.found, (name, outcome.summary)
        print(name, outcome.summary)
    html = str(root / "fleet.html")
    out = data_directory(html)
    claim(out)
    outcome = all_jobs()["report"](spark, JobOptions([str(plain), str(rocket)], out, html=html))
    write_outcome("report", outcome, out)
    outcome.finish()
    assert Path(html).exists()
    print("report", outcome.summary)
    spark.stop()


def follow(spark: SparkSession, name: str, path: Path, sink: Path, most: int) -> int:
    """Stream a store into a queue; return the number of batches that held messages."""
    rows = spark.readStream.format(name).option("maxMessagesPerBatch", most).load(str(path))
    body = rows.select("body")
    query = (
        body.writeStream.format("qindex")
        .option("queue", "q")
        .option("checkpointLocation", f"{sink}-checkpoint")
        .trigger(availableNow=True)
        .start(str(sink))
    )
    query.awaitTermination()
    return sum(1 for one in query.recentProgress if one["numInputRows"])


def refused(call: Callable[[], object]) -> str:
    """Return the one line that says why a call fails."""
    try:
        call()
    except Exception as error:
        line = explain(error)
        assert "4.2" in line, line
        return line
    raise AssertionError("a stream ran, whose batches have no limit")


def count(store: Path, queue: str) -> int:
    """Count the messages of a queue without Spark."""
    return StoreReader(store).queue(queue).summary().messages


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
    sys.exit(0)
