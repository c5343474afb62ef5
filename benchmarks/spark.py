"""Rows a second through Spark, with one core and with two, beside a plain loop in one process over
the same reader.

``entries`` and ``messages`` are all columns into Spark's sink that keeps nothing; ``entries`` fails
at damage, ``permissive`` is the same with rows for it (and nullable columns); ``numbers``,
``bodies`` and ``states`` read fewer columns, ``states`` into a count by state. ``audit`` is that
job, beside the same checks in a loop; its rows are the index entries. ``entries`` and ``numbers``
read all stores, ``audit`` two, the others the first one; there bodies have 100 bytes. Those of
``varied`` (entries and messages) have 20 to 400, with keys, and ``headers`` are messages with three
headers and two properties besides, no two alike. What is read is in the page cache. A session is
started once; the first rounds of each operation, which pay for its workers and for the JVM's
compiler, are thrown away. The CPU time beside a rate is that of Spark's JVM and all its Python
processes; a bar's "by CPU" is the rate that it would allow two cores with nobody else on them.
"""

from __future__ import annotations

import os
import random
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
from benchmarks.report import FLOOR, Bar, Report
from benchmarks.stopwatch import Found, Sample
from qindex.tools.verify import Verification

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
    "audit": {},
}
MASTERS = {"spark, 1 core": "local[1]", "spark, 2 cores": "local[2]"}
BAR_ENTRIES = 3e6
BODY = b"x" * 100
_STORES = 4
_BATCH = 50_000
_JUDGED = {"entries": "all columns", "numbers": "four columns"}
_JUDGED_WITH = "spark, 2 cores"
_WARM_UP = 6
"""Rounds that the virtual machine has for compiling, before a figure that is held to a bar (rates
rise up to the fifth); the others, after these, have one."""


def make_stores(directory: Path, messages: int) -> None:
    """Fill stores with plain messages, and a smaller one with messages of each other kind."""
    share = messages // _STORES // 2
    for number in range(_STORES):
        with qindex.open(directory / "plain" / f"store-{number:04d}") as engine:
            for name in ("one", "two"):
                for first in range(0, share, _BATCH):
                    engine.queue(name).publish_many([BODY] * min(_BATCH, share - first))
    dice = random.Random(7)
    for kind in ("varied", "headers"):
        with qindex.open(directory / kind) as engine:
            queue = engine.queue("orders")
            for number in range(share // 4):
                more: dict[str, Any] = {}
                if kind == "headers":
                    trace = f"{number * 7919:016x}"
                    more["headers"] = {"kind": "new", "attempt": number % 3, "trace": trace}
                    more["properties"] = {
                        "content_type": "application/json",
                        "message_id": f"m-{number}",
                    }
                body = dice.randbytes(dice.randint(20, 400))
                queue.publish(body, key=f"order-{number}", **more)


def place(directory: Path, name: str) -> Path:
    """Tell what an operation reads: a figure that is held to a bar is of as many rows as pay for
    the start of a job."""
    if name in _JUDGED or name == "audit":
        return directory / "plain"
    kind = name.partition(" ")[0]
    return directory / (kind if kind in ("varied", "headers") else "plain/store-0000")


def audited(path: Path) -> list[str]:
    """Two stores, one for each core: a store is one task."""
    return [str(store) for store in sorted(path.iterdir())[:2]]


def plain_loop(path: Path, name: str) -> int:
    """Do an operation in this process; gives the rows."""
    if name == "audit":
        checks = [Verification(store) for store in audited(path)]
        assert not any(list(check.findings()) for check in checks)
        return sum(check.figures.entries for check in checks)
    from pyspark_qindex.options import TABLES, read_options
    from pyspark_qindex.reading.read_parts import plan, read_part

    asked = read_options({"path": str(path), **OPERATIONS[name]}, TABLES)
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
    path = place(Path(directory), name)
    cpu, start = _cpu_seconds(), time.perf_counter()
    if name == "audit":
        from pyspark_qindex import jobs

        result = jobs.audit(spark, audited(path))
        assert not result["findings"].count()
        result.finish()
    else:
        frame = spark.read.format("qindex").options(**OPERATIONS[name]).load(str(path))
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

        for name in OPERATIONS:
            path = place(directory, name)
            count = plain_loop(path, name)
            for who in MASTERS:
                for _ in range(_WARM_UP if name in _JUDGED and who == _JUDGED_WITH else 1):
                    sample(who, name, count)
            found = Found()
            for _ in range(rounds):
                with found.rate(name, FLOOR, count):
                    plain_loop(path, name)
                for who in MASTERS:
                    found.note(name, who, sample(who, name, count))
            report.add_all(found, unit="rows/s", notes={FLOOR: "plain loop, one process"})


def judge(report: Report) -> None:
    for figure, what in _JUDGED.items():
        two = report.find(figure, _JUDGED_WITH)
        assert two is not None
        by_cpu = 2e6 / two.cpu_us if two.cpu_us else None
        name = f"entries as Arrow batches on two cores, {what}"
        bar = Bar.at_least(name, two.median, BAR_ENTRIES, "rows/s")
        report.judge(replace(bar, by_cpu=by_cpu, spread=two.spread))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common_parser("spark", __doc__, rounds=3)
    parser.add_argument("--messages", type=int, default=8_000_000, help="of all stores (8,000,000)")
    options = parse_common(parser, arguments)
    with reporting(options) as (report, directory):
        make_stores(directory, options.messages)
        os.sync()  # or the disk is busy with the stores while they are read
        measure(report, directory, options.rounds)
        judge(report)
    return 0 if all(bar.holds is not False for bar in report.bars) else 1


if __name__ == "__main__":
    sys.exit(main())
