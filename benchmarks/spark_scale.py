"""Audit of a fleet with Spark, on one core and two, against a plain loop over the same stores.

``python -m benchmarks.spark_scale [--stores 200] [--messages 10000000] [--out FILE]``

Prints a table and one JSON line for each figure: rows (index entries) a second, seconds, and the
memory of the driver (resident set of its Python process, heap of its JVM after a collection). Each
way runs in a process of its own, so that none profits from another's start; the page cache is warm
for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import qindex
from benchmarks.children import module_command

WAYS = ("loop", "local[1]", "local[2]")
QUEUES = 4
BATCH = 10_000
BODY = 48
SIZES = (2, 10, 50, 200)
"""Stores in the runs that show where Spark begins to pay; the last is the whole fleet."""
ROOT = Path(__file__).parents[1]


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
        "jvm_heap_mib": heap / 2**20,
    }
    return int(rows[0][0] or 0), findings, figures


def run_way(way: str, paths: list[str]) -> dict[str, Any]:
    """One way, in this process."""
    started = time.monotonic()
    more: dict[str, Any] = {}
    if way == "loop":
        entries, findings = run_loop(paths)
    else:
        entries, findings, more = run_spark(paths, way)
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "way": way,
        "stores": len(paths),
        "entries": entries,
        "findings": findings,
        "seconds": seconds,
        "entries_per_second": entries / seconds,
        "driver_rss_mib": peak,
        **more,
    }


def measure(root: Path, stores: int) -> Iterator[dict[str, Any]]:
    """Every way over the first ``stores`` of the fleet, each in a fresh process."""
    for way in WAYS:
        place = os.path.abspath(root)
        words = ["--way", way, "--stores", str(stores), "--root", place]
        command = module_command("spark_scale", *words)
        done = subprocess.run(command, cwd="/", stdout=subprocess.PIPE, check=True, text=True)
        yield json.loads(done.stdout.splitlines()[-1])


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    print(
        f"{row['way']:9} {row['stores']:6} {row['entries']:10,} {row['seconds']:8.1f} s "
        f"{row['entries_per_second']:12,.0f}/s  session {row.get('session_seconds', 0):5.1f} s  "
        f"driver {row['driver_rss_mib']:6.0f} MiB  heap {row.get('jvm_heap_mib', 0):5.0f} MiB  "
        f"findings {row['findings']}",
        flush=True,
    )


def main() -> None:
    """Make the fleet, run all, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=int, default=200)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--root", type=Path, help="where the fleet is, or is to be made")
    parser.add_argument("--out", type=Path, help="a file for the JSON lines")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        names = sorted(os.listdir(given.root))[: given.stores]
        print(json.dumps(run_way(given.way, [str(given.root / name) for name in names])))
        return
    root = given.root or Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        started = time.monotonic()
        for number in range(given.stores):
            path = root / f"store-{number:04d}"
            if not path.exists():
                make_store(path, given.messages // given.stores)
        print(f"fleet: {given.stores} stores in {time.monotonic() - started:.1f} s", flush=True)
        rows = []
        for stores in sorted({min(size, given.stores) for size in SIZES} | {given.stores}):
            for row in measure(root, stores):
                rows.append(row)
                show(row)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        print(lines, end="")
        if given.out is not None:
            given.out.write_text(lines)
    finally:
        if given.root is None:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
