"""Audit of a fleet with Spark, on one core and two, against a plain loop over the same stores.

``python -m benchmarks.spark_scale [--stores 200] [--messages 10000000] [--json FILE]``

Rows (index entries) a second, seconds, and the memory of the driver (resident set of its Python
process, heap of its JVM after a collection). Each way runs in a process of its own, so that none
profits from another's start; the page cache is warm for all of them.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import qindex
from benchmarks.program import child, common_parser, parse_common, reporting
from benchmarks.report import Sample

WAYS = ("loop", "local[1]", "local[2]")
QUEUES = 4
BATCH = 10_000
BODY = 48
SIZES = (2, 10, 50, 200)
"""Stores in the runs that show where Spark begins to pay; the last is the whole fleet."""
UNITS = {
    "seconds": "s",
    "session_seconds": "s",
    "job_seconds": "s",
    "entries": "",
    "findings": "",
    "entries_per_second": "1/s",
    "driver_rss": "MiB",
    "jvm_heap": "MiB",
}


def make_store(path: Path, messages: int) -> None:
    """Small messages in some queues, flushed and closed in order."""
    bodies = [b"%0*d" % (BODY, number) for number in range(BATCH)]
    with qindex.open(path, background=False) as engine:
        for number in range(QUEUES):
            queue = engine.queue(f"queue-{number}")
            left = messages // QUEUES
            while left:
                queue.publish_many(bodies[: min(BATCH, left)])
                left -= min(BATCH, left)
                engine.flush()


def run_loop(paths: list[str]) -> tuple[int, int]:
    """Do the work of the tasks, one store after the other, in this process."""
    from qindex.tools.verify import Verification

    entries = findings = 0
    for path in paths:
        check = Verification(path)
        findings += sum(1 for _ in check.findings())
        entries += check.figures.entries
    return entries, findings


def run_spark(paths: list[str], master: str) -> tuple[int, int, dict[str, Any]]:
    """The job, session and all; ``job_seconds`` are those without the session's start."""
    import pyspark_qindex
    from pyspark_qindex.jobs import audit

    started = time.monotonic()
    spark = pyspark_qindex.session("scale", master, {"spark.sql.shuffle.partitions": "2"})
    session_seconds = time.monotonic() - started
    result = audit(spark, paths)
    findings = result.findings.count()
    rows = result.counts.where("things = 'entries'").agg({"number": "sum"}).collect()
    job_seconds = time.monotonic() - started - session_seconds
    gateway: Any = spark.sparkContext._jvm
    runtime = gateway.java.lang.Runtime.getRuntime()
    runtime.gc()
    heap = runtime.totalMemory() - runtime.freeMemory()
    result.unpersist()
    spark.stop()
    figures = {
        "session_seconds": session_seconds,
        "job_seconds": job_seconds,
        "jvm_heap": heap / 2**20,
    }
    return int(rows[0][0] or 0), findings, figures


def run_way(way: str, root: str, stores: int) -> dict[str, float]:
    """One way over the first ``stores`` of the fleet, in this process."""
    paths = [os.path.join(root, name) for name in sorted(os.listdir(root))[:stores]]
    started = time.monotonic()
    more: dict[str, Any] = {}
    if way == "loop":
        entries, findings = run_loop(paths)
    else:
        entries, findings, more = run_spark(paths, way)
    seconds = time.monotonic() - started
    return {
        "entries": entries,
        "findings": findings,
        "seconds": seconds,
        "entries_per_second": entries / seconds,
        "driver_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **more,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the fleet, and run all."""
    parser = common_parser("spark_scale", __doc__, rounds=1)
    parser.add_argument("--stores", type=int, default=200)
    parser.add_argument("--messages", type=int, default=10_000_000)
    given = parse_common(parser, arguments)
    with reporting(given) as (report, root):
        for number in range(given.stores):
            make_store(root / f"store-{number:04d}", given.messages // given.stores)
        for stores in sorted({min(size, given.stores) for size in SIZES} | {given.stores}):
            found: dict[str, dict[str, Sample]] = {}
            for way in WAYS:
                with child() as worker:
                    figures = worker.call(run_way, way=way, root=root, stores=stores)
                for name, value in figures.items():
                    found.setdefault(name, {})[way] = Sample(value)
            for name, of_ways in found.items():
                better = "high" if name == "entries_per_second" else "low"
                report.add(f"{stores} stores: {name}", [of_ways], unit=UNITS[name], better=better)
    return 0


if __name__ == "__main__":
    sys.exit(main())
