"""Rows a second through Spark, with one core and with two, beside a plain loop in one process over
the same reader.

    python -m benchmarks.spark [--messages 8000000] [--stores 4] [--rounds 3] [--dir DIR]
                               [--json FILE]
    python -m benchmarks.spark --audit [--messages 10000000] [--stores 200]

JSON lines go to standard output (``--json FILE`` puts them there instead), tables to standard
error. ``entries`` and ``messages`` are all columns into Spark's sink that keeps nothing;
``entries`` fails at damage, ``permissive`` is the same with rows for it (and nullable columns);
``numbers``, ``bodies`` and ``states`` read fewer columns, ``states`` into a count by state.
``entries`` and ``numbers`` read all stores, the others the first one; there bodies have 100 bytes.
Those of ``varied`` (entries and messages) have 20 to 400, with keys, and ``headers`` are messages
with three headers and two properties besides, no two alike. What is read is in the page cache. A
session is started once; the first rounds of each operation, which pay for its workers and for the
JVM's compiler, are thrown away. The CPU time beside a rate is that of Spark's JVM and all its
Python processes; a bar's "by CPU" is the rate that it would allow two cores with nobody else on
them.

With ``--audit`` the audit of a fleet is measured instead, of ``--stores`` stores and of a part of
them: rows (index entries) a second, seconds, and the memory of the driver (resident set of its
Python process, heap of its JVM after a collection). Each way runs in a process of its own, so that
none profits from another's start; the page cache is warm for all of them.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import qindex
from benchmarks.program import child, common_parser, parse_common, reporting
from benchmarks.report import FLOOR, Bar, Report, Round, Sample
from benchmarks.stopwatch import Stopwatch

OPERATIONS: dict[str, dict[str, str]] = {
    "entries": {"include": "entries", "mode": "failfast"},
    "permissive": {"include": "entries"},
    "numbers": {"include": "entries", "columns": "seq_id,msg_id,size,offset"},
    "states": {"include": "entries", "columns": "store,queue,state"},
    "messages": {"include": "messages"},
    "bodies": {"include": "messages", "columns": "queue,seq_id,body"},
    "varied entries": {"include": "entries"},
    "varied": {"include": "messages"},
    "headers": {"include": "messages"},
}
MASTERS = {"spark, 1 core": "local[1]", "spark, 2 cores": "local[2]"}
BAR_ENTRIES = 3e6
BODY = b"x" * 100
_BATCH = 50_000
_JUDGED = {"entries": "all columns", "numbers": "four columns"}
_JUDGED_WITH = "spark, 2 cores"
_AUDITED_STORES = (2, 10, 50, 200)
"""Stores in the runs that show where Spark begins to pay; the last is the whole fleet."""
_AUDITED_QUEUES = 4
_AUDITED_BODY = b"x" * 48
_AUDIT_UNITS = {
    "seconds": ("s", "low"),
    "session_seconds": ("s", "low"),
    "job_seconds": ("s", "low"),
    "entries_per_second": ("1/s", "high"),
    "driver_rss": ("MiB", "low"),
    "jvm_heap": ("MiB", "low"),
}
_WARM_UP = 6
"""Rounds that the virtual machine has for compiling, before a figure that is held to a bar (rates
rise up to the fifth); the others, after these, have one."""


def make_fleet(
    directory: Path, stores: int, queues: int, share: int, body: bytes, *, flush: bool
) -> None:
    """Fill stores with as many plain messages in each queue."""
    for number in range(stores):
        with qindex.open(directory / f"store-{number:04d}") as engine:
            for name in range(queues):
                for first in range(0, share, _BATCH):
                    engine.queue(f"queue-{name}").publish_many([body] * min(_BATCH, share - first))
            if flush:
                engine.flush()


def make_stores(directory: Path, stores: int, messages: int) -> None:
    """Fill stores with plain messages, and a smaller one with messages of each other kind."""
    share = messages // stores // 2
    make_fleet(directory / "plain", stores, 2, share, BODY, flush=False)
    dice = random.Random(7)
    for kind in ("varied", "headers"):
        with qindex.open(directory / kind) as engine:
            queue = engine.queue("orders")
            for number in range(share // 4):
                body = dice.randbytes(dice.randint(20, 400))
                queue.publish(body, key=f"order-{number}", **_tables(kind, number))


def _tables(kind: str, number: int) -> dict[str, Any]:
    if kind == "varied":
        return {}
    return {
        "headers": {"kind": "new", "attempt": number % 3, "trace": f"{number * 7919:016x}"},
        "properties": {"content_type": "application/json", "message_id": f"m-{number}"},
    }


def place(directory: Path, name: str) -> Path:
    """Tell what an operation reads: a figure that is held to a bar is of as many rows as pay for
    the start of a job."""
    if name in _JUDGED:
        return directory / "plain"
    kind = name.partition(" ")[0]
    return directory / (kind if kind in ("varied", "headers") else "plain/store-0000")


def plain_loop(directory: Path, options: dict[str, str]) -> int:
    """Read all in this process; gives the rows."""
    from pyspark_qindex.options import TABLES, read_options
    from pyspark_qindex.reading.read_parts import plan, read_part

    asked = read_options({"path": str(directory), **options}, TABLES)
    tasks = plan(asked)
    return sum(
        batch.num_rows for task in tasks for part in task for batch in read_part(part, asked)
    )


@cache
def _spark(master: str) -> Any:
    from pyspark_qindex import session

    return session("benchmark", master)


def read(directory: str, master: str, name: str) -> tuple[float, float]:
    """Run an operation in a session; return its seconds, and those of CPU."""
    spark = _spark(master)
    cpu, start = _cpu_seconds(), time.perf_counter()
    reader = spark.read.format("qindex").options(**OPERATIONS[name])
    frame = reader.load(str(place(Path(directory), name)))
    if name == "states":
        frame.groupBy("state").count().collect()
    else:
        frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """Give the CPU time of this process and all that descend from it, so far."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks.get(pid, 0) for pid in mine) / os.sysconf("SC_CLK_TCK")


def measure(report: Report, directory: Path, rounds: int) -> None:
    with ExitStack() as stack:
        running = {who: stack.enter_context(child()) for who in MASTERS}

        def sample(who: str, name: str, count: int) -> Sample:
            wall, cpu = running[who].call(read, directory=directory, master=MASTERS[who], name=name)
            return Sample(count / wall, cpu / count * 1e6, count)

        for name, options in OPERATIONS.items():
            path = place(directory, name)
            count = plain_loop(path, options)
            for who in MASTERS:
                for _ in range(_WARM_UP if name in _JUDGED and who == _JUDGED_WITH else 1):
                    sample(who, name, count)
            samples = []
            for _ in range(rounds):
                watch = Stopwatch()
                with watch.running():
                    plain_loop(path, options)
                taken = {FLOOR: watch.rate(count)}
                samples.append(taken | {who: sample(who, name, count) for who in MASTERS})
            report.add(name, samples, unit="rows/s", notes={FLOOR: "plain loop, one process"})


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
    from pyspark_qindex import jobs

    started = time.monotonic()
    spark = pyspark_qindex.session("scale", master, {"spark.sql.shuffle.partitions": "2"})
    session_seconds = time.monotonic() - started
    result = jobs.audit(spark, paths)
    findings = result["findings"].count()
    rows = result["counts"].where("things = 'entries'").agg({"number": "sum"}).collect()
    job_seconds = time.monotonic() - started - session_seconds
    gateway: Any = spark.sparkContext._jvm
    runtime = gateway.java.lang.Runtime.getRuntime()
    runtime.gc()
    heap = runtime.totalMemory() - runtime.freeMemory()
    result.finish()
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


def audit(report: Report, root: Path, stores: int, messages: int) -> None:
    share = messages // stores // _AUDITED_QUEUES
    make_fleet(root, stores, _AUDITED_QUEUES, share, _AUDITED_BODY, flush=True)
    for some in sorted({min(size, stores) for size in _AUDITED_STORES} | {stores}):
        found: dict[str, Round] = {}
        for way in ("loop", *MASTERS.values()):
            with child() as worker:
                figures = worker.call(run_way, way=way, root=root, stores=some)
            for name, value in figures.items():
                found.setdefault(name, {})[way] = Sample(value)
        for name, of_ways in found.items():
            unit, better = _AUDIT_UNITS.get(name, ("", "low"))
            report.add(f"{some} stores: {name}", [of_ways], unit=unit, better=better)


def judge(report: Report) -> None:
    for figure, what in _JUDGED.items():
        two = report.find(figure, _JUDGED_WITH)
        assert two is not None
        by_cpu = 2e6 / two.cpu_us if two.cpu_us else None
        name = f"entries as Arrow batches on two cores, {what}"
        bar = Bar.at_least(name, two.median, BAR_ENTRIES, "rows/s")
        report.judge(replace(bar, by_cpu=by_cpu, spread=two.spread))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common_parser("spark", __doc__)
    parser.add_argument("--audit", action="store_true", help="measure the audit of a fleet")
    parser.add_argument("--messages", type=int, help="8,000,000; 10,000,000 of a fleet")
    parser.add_argument("--stores", type=int, help="4; 200 of a fleet")
    options = parse_common(parser, arguments)
    with reporting(options) as (report, directory):
        if options.audit:
            audit(report, directory, options.stores or 200, options.messages or 10_000_000)
        else:
            make_stores(directory, options.stores or 4, options.messages or 8_000_000)
            os.sync()  # or the disk is busy with the stores while they are read
            measure(report, directory, options.rounds)
            judge(report)
    return 0 if all(bar.holds is not False for bar in report.bars) else 1


if __name__ == "__main__":
    sys.exit(main())
