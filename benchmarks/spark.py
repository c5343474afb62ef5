"""Rows a second through Spark, with one core and with two, beside a plain loop in one process over
the same reader.

    python -m benchmarks.spark [--messages 8000000] [--stores 4] [--rounds 3] [--directory DIR]
                               [--json FILE]

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
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

import qindex
from benchmarks.children import module_command
from benchmarks.measure import FLOOR, Bar, Report, Sample

__all__ = ["main"]

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
_WARM_UP = 6
"""Rounds that the virtual machine has for compiling, before a figure that is held to a bar (rates
rise up to the fifth); the others, after these, have one."""


def make_stores(directory: Path, stores: int, messages: int) -> None:
    """Fill stores with equal shares of plain messages, in two queues each, and a smaller one with
    messages of each other kind."""
    share = messages // stores // 2
    for number in range(stores):
        with qindex.open(directory / "plain" / f"store-{number}") as engine:
            for name in ("orders", "audit"):
                for first in range(0, share, _BATCH):
                    engine.queue(name).publish_many([BODY] * min(_BATCH, share - first))
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
    return directory / (kind if kind in ("varied", "headers") else "plain/store-0")


def plain_loop(directory: Path, options: dict[str, str]) -> int:
    """Read all in this process; gives the rows."""
    from pyspark_qindex.options import TABLES, read_options
    from pyspark_qindex.planning import plan_queues
    from pyspark_qindex.qindex_source import read_part

    asked = read_options({"path": str(directory), **options}, TABLES)
    tasks = plan_queues(asked)
    return sum(
        batch.num_rows for task in tasks for part in task for batch in read_part(part, asked)
    )


def serve(directory: Path, master: str) -> None:
    """Run operations by name, from standard input, in a session; print the seconds of each."""
    from pyspark_qindex import session

    spark = session("benchmark", master)
    for line in sys.stdin:
        name = line.strip()
        cpu, start = _cpu_seconds(), time.perf_counter()
        reader = spark.read.format("qindex").options(**OPERATIONS[name])
        frame = reader.load(str(place(directory, name)))
        if name == "states":
            frame.groupBy("state").count().collect()
        else:
            frame.write.format("noop").mode("overwrite").save()
        print(time.perf_counter() - start, _cpu_seconds() - cpu, flush=True)


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


class Session:
    """A process that :func:`serve` runs in."""

    def __init__(self, directory: Path, master: str) -> None:
        self._process = subprocess.Popen(
            module_command("spark", "--serve", master, "--directory", os.path.abspath(directory)),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def sample(self, name: str, count: int) -> Sample:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        wall, cpu = map(float, self._process.stdout.readline().split())
        return Sample(count / wall, cpu / count * 1e6, count)

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def sessions(directory: Path) -> Iterator[dict[str, Session]]:
    with ExitStack() as stack:
        found = {}
        for who, master in MASTERS.items():
            found[who] = Session(directory, master)
            stack.callback(found[who].close)
        yield found


def measure(report: Report, directory: Path, rounds: int) -> None:
    with sessions(directory) as running:
        for name, options in OPERATIONS.items():
            path = place(directory, name)
            count = plain_loop(path, options)
            for who, one in running.items():
                for _ in range(_WARM_UP if name in _JUDGED and who == _JUDGED_WITH else 1):
                    one.sample(name, count)
            samples = []
            for _ in range(rounds):
                cpu, start = time.process_time(), time.perf_counter()
                plain_loop(path, options)
                took, used = time.perf_counter() - start, time.process_time() - cpu
                taken = {FLOOR: Sample(count / took, used / count * 1e6, count)}
                samples.append(
                    taken | {who: one.sample(name, count) for who, one in running.items()}
                )
            report.add(name, samples, unit="rows/s", notes={FLOOR: "plain loop, one process"})


def judge(report: Report) -> list[Bar]:
    bars = []
    for figure, what in _JUDGED.items():
        two = report.find(figure, _JUDGED_WITH)
        assert two is not None
        by_cpu = 2e6 / two.cpu_us_per_op if two.cpu_us_per_op else None
        name = f"entries as Arrow batches on two cores, {what}"
        bar = Bar.at_least(name, two.value, BAR_ENTRIES, "rows/s")
        bars.append(replace(bar, by_cpu=by_cpu, spread=two.spread))
    return bars


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--messages", type=int, default=8_000_000)
    parser.add_argument("--stores", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options: Any = _parser().parse_args(arguments)
    if options.serve is not None:
        serve(options.directory, options.serve)
        return 0
    with ExitStack() as stack:
        lines: TextIO = sys.stdout
        if options.json is not None:
            lines = stack.enter_context(options.json.open("w", encoding="utf-8"))
        console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
        report = Report(lines, console)
        scratch = tempfile.TemporaryDirectory(prefix="sparkbench-", dir=options.directory)
        directory = Path(stack.enter_context(scratch))
        make_stores(directory, options.stores, options.messages)
        os.sync()  # or the disk is busy with the stores while they are read
        measure(report, directory, options.rounds)
        report.judge(judge(report))
        report.print_tables()
    return 0 if all(bar.holds is not False for bar in report.bars) else 1


if __name__ == "__main__":
    sys.exit(main())
