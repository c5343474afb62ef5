"""A lake format: ``python -m tests.spark.lakes Delta`` runs the recipe of docs/spark.md twice, and
``qindex pipeline ingest`` over three kills of its driver.

Run with the pyspark that the recipe names (scripts/spark-versions.sh). The format's jar comes from
Maven Central.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import qindex
from pyspark_qindex import session
from pyspark_qindex.jobs.ingest import ingest, lake_conf
from pyspark_qindex.jobs.results import JobOptions
from qindex.view.reader import StoreReader
from tests.spark.cluster import ROOT, Driver
from tests.waiting import WAIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH = 400
"""Messages of a batch, so that each run has several."""
_FEW_TASKS = {"spark.databricks.delta.snapshotPartitions": "2"}
"""Delta reads its log with 50 tasks otherwise, for each batch."""
_WRITER = """
import sys, time, qindex
number = int(sys.argv[2])
with qindex.open(sys.argv[1]) as engine:
    while True:
        bodies = [b'{"n": %d}' % (number + more) for more in range(3)]
        engine.queue("q").publish_many(bodies)
        number += len(bodies)
        print(number, flush=True)
        time.sleep(0.2)
"""
"""Publishes until it is killed, and prints the number after the last one that was published."""
_PIPELINE = Path(__file__).parents[2] / "docs" / "pipeline.md"
_PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def publish(store: Path, *bodies: bytes, queue: str = "q") -> None:
    """Publish into a store that nobody has open."""
    with qindex.open(store, background=False) as engine:
        engine.queue(queue).publish_many(list(bodies))


class Beside:
    """Another query of the drivers that are killed."""

    def begin(self, driver: Driver) -> None:
        """Start it, in a new driver."""

    def has_moved(self) -> bool:
        """Return whether the driver may be killed."""
        return True

    def killed(self) -> None:
        """The driver was killed."""

    def finish(self, driver: Driver) -> None:
        """Run it to its end."""


def ingest_and_kill(
    root: Path, kind: str, kills: int, beside: Beside | None = None
) -> dict[str, list[tuple[str, int]]]:
    """Ingest three stores into ``root``/lake, with drivers that are killed at any moment, while
    more is published, into one by a process that is killed, too; return the rows that each table
    should have, see :func:`rows_of`."""
    chance = random.Random(48)
    returned: set[int] = set()
    beside = beside or Beside()
    lake, published = root / "lake", 0
    expected: dict[str, list[tuple[str, int]]] = {"messages": [], "messages_bad": []}
    conf = _FEW_TASKS | lake_conf(kind, str(lake))
    settings = [f"{name}={value}" for name, value in conf.items()]

    def publish_some() -> None:
        nonlocal published
        some = range(published, published + 200)
        # Runs in which everything fits go another way.
        bad = {n for n in some if n % 5 == 0 and published % 600 == 0}
        for store in ("a", "b"):
            bodies = (b"%d" % n if n in bad else b'{"n": %d}' % n for n in some)
            publish(root / "fleet" / store, *bodies)
            for n in some:
                expected["messages_bad" if n in bad else "messages"].append((store, n))
        published += 200

    def commits() -> int:
        return len([path for path in lake.glob("checkpoints/*/commits/*") if path.name.isdigit()])

    driver, writer = Driver("local[2]", *settings), None
    try:
        for number in range(kills):
            publish_some()
            first = 100_000 * (number + 1)
            writing = [sys.executable, "-c", _WRITER, str(root / "fleet" / "c"), str(first)]
            writer = subprocess.Popen(writing, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            beside.begin(driver)
            done = commits()
            driver.say("ingest", root / "fleet", lake, kind, _BATCH)
            assert writer.stdout is not None
            printed = writer.stdout.readline()
            following = Driver("local[2]", *settings)  # its JVM starts while this one works
            until = time.monotonic() + WAIT
            # A driver's first batch takes seconds: wait for its end, most of the times.
            waits = kind != "iceberg" and number % 4
            while waits and not (beside.has_moved() and commits() > done):
                assert time.monotonic() < until, driver.complaints()
                driver.check()
                time.sleep(0.01)
            publish_some()
            time.sleep(chance.uniform(0.0, 1.0))
            writer.kill()
            time.sleep(chance.uniform(0.0, 1.0))
            driver.check()
            driver.kill()
            beside.killed()
            driver = following
            printed += writer.communicate()[0]
            returned.update(range(first, int(printed.split()[-1])))
        driver.say("ingest", root / "fleet", lake, kind, _BATCH)
        driver.expect("done")
        beside.finish(driver)
    finally:
        driver.kill()
        if writer is not None:
            writer.kill()
    found = StoreReader(root / "fleet" / "c").queue("q").entries()
    written = [json.loads(row.body or b"")["n"] for row in found]
    assert returned <= {*written}
    expected["messages"] += [("c", n) for n in written]
    return {name: sorted(rows) for name, rows in expected.items()}


def rows_of(table: DataFrame) -> list[tuple[str, int]]:
    """Return store and number of each row of a table of :func:`ingest_and_kill`."""
    number = "data.n" if "data" in table.columns else "cast(body as string)"
    return sorted((row[0], row[1]) for row in table.selectExpr("store", f"int({number})").collect())


def try_ingest(kind: str, root: Path, kills: int = 3) -> None:
    """Ingest over kills, then with a column more, and compare what the lake has."""
    expected = ingest_and_kill(root, kind, kills)
    lake = root / "lake"
    spark = session("lakes", "local[2]", _FEW_TASKS | lake_conf(kind, str(lake)), quick=True)

    def table(name: str) -> DataFrame:
        if kind == "iceberg":
            return spark.table(f"lake.db.{name}")
        return spark.read.format(kind).load(str(lake / name))

    for name, rows in expected.items():
        assert rows_of(table(name)) == rows, name
    publish(root / "fleet" / "a", b'{"n": -1, "more": {"x": 1}}')
    wanted = JobOptions([str(root / "fleet")], str(lake), format=kind, schema="more struct<x: int>")
    outcome = ingest(spark, wanted)
    assert outcome.summary == {"stores": 3, "messages": 1, "bad": 0}, outcome
    assert table("messages").where("data.more.x = 1").count() == 1
    assert ingest(spark, wanted).summary == {"stores": 3, "messages": 0, "bad": 0}
    count = table("messages").count()
    if kind == "delta":
        (compact,) = re.findall(r"^```sql\n(.*?)\n```$", _PIPELINE.read_text(), re.M | re.DOTALL)
        # Just after midnight the newest day has one file a store, and nothing to compact.
        day = table("messages").groupBy("day").count().orderBy("count").collect()[-1][0]
        compact = re.sub(r"\d{4}-\d\d-\d\d", str(day), compact.replace("/srv", str(root)))
        assert spark.sql(compact).collect()[0]["metrics"]["numFilesRemoved"] > 0
        assert table("messages").count() == count
    print(f"{kind}: {count} messages ingested, each once, over {kills} kills")
    spark.stop()


def main(title: str, root: Path) -> None:
    """Run the recipe, publish more, run it again, and count what the lake has."""
    section = re.split(r"^##", _PAGE.read_text().partition(f"### {title}\n")[2], flags=re.M)[0]
    (recipe,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    expected = set()
    for run in range(2):
        for store in ("a", "b"):
            with qindex.open(root / "fleet" / store, background=False) as engine:
                bodies = [b"%s %d %d" % (store.encode(), run, number) for number in range(500)]
                engine.queue("q").publish_many(bodies)
                expected.update(bodies)
        names: dict[str, Any] = {}
        exec(recipe.replace("/srv", str(root)), names)
        spark = names["spark"]
        if title == "Delta":
            rows = spark.read.format("delta").load(str(root / "lake" / "messages"))
        else:
            rows = spark.table("lake.db.messages")
        found = [bytes(row["body"]) for row in rows.collect()]
        assert len(found) == len(expected)
        assert set(found) == expected
    print(f"{title}: {len(expected)} messages, each once, in two runs")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(sys.argv[1], Path(place) / "recipe")
        # Delta's over kills only on demand: it takes five minutes, and it failed in two of some
        # twenty runs, once for a reason that was not found. Eight later runs passed. Two causes are
        # possible: just after midnight there was nothing to compact, and on a busy machine Spark
        # gives up a Python process that is not there after ten seconds (docs/pipeline.md).
        if sys.argv[1] == "Iceberg" or sys.argv[2:]:
            try_ingest(sys.argv[1].lower(), Path(place) / "ingest", *map(int, sys.argv[2:]))
