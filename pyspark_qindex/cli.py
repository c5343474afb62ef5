"""``qindex pipeline JOB PATH... --out DIR``: run a job over many stores with Spark.

Exit status: 0 done, 1 damage or differences were found (they are in the results), 2 wrong use, or
the system refused (no such path, a store in use, no Java, a master that does not answer). An error
is one line on standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from journal.errors import DamageError, StoreError, UsageError
from journal.shown import printable
from pyspark_qindex.errors import SparkMissingError, explain
from pyspark_qindex.filesystem import local_path
from pyspark_qindex.local_session import CONNECT, active_session, session
from qindex.cli.output import flush, print_json, print_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_qindex.jobs.results import JobOptions, Outcome

JOB_NAMES: Final = ("audit", "stats", "report", "build-index", "export", "import", "migrate",
                    "ingest")  # fmt: skip
_ANSWERS: Final = re.compile(r"(?:spark|sc)://([^/]+)(?:/.*)?")
_CONNECT_PORT: Final = "15002"
_HADOOP: Final = frozenset({"HADOOP_CONF_DIR", "YARN_CONF_DIR"})
"""Say where YARN is; without, its client asks this machine for a quarter of an hour."""
_CONNECT_SECONDS: Final = 5.0
_ROWS_SHOWN: Final = 40
_WIDE: Final = 240
"""Columns of a table that is not for a terminal."""
_PERIOD: Final = re.compile(r"(\d{1,6})(s|min|h)")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600}
_OUT: Final = "A new directory for the results; of ingest: the lake, which runs go on with."
_SCHEMA: Final = (
    "ingest: columns of the bodies, 'id bigint, tags array<string>'. They are kept; without, they "
    "are inferred from a sample."
)
_DAMAGE: Final = re.compile(r"\b(?:journal\.errors\.DamageError|ReadFailedError):")


class _JobDamageError(DamageError):
    """Damage that ended a job."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)


def pipeline_command(
    job: Annotated[str, typer.Argument(help=", ".join(JOB_NAMES), show_default=False)],
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Stores, directory trees with stores, or globs; of import: exports.",
            show_default=False,
        ),
    ],
    out: Annotated[str | None, typer.Option("--out", "-o", "--to", help=_OUT)] = None,
    html: Annotated[
        str | None, typer.Option(help="report: the page; its data are beside it.")
    ] = None,
    master: Annotated[
        str, typer.Option(help="Spark master: local[N], spark://HOST:PORT, sc://HOST, ...")
    ] = "local[*]",
    install: Annotated[
        bool,
        typer.Option(help="build-index: put the files into the stores, or leave them in --out."),
    ] = True,
    failfast: Annotated[
        bool, typer.Option("--failfast", help="stats, export, migrate: end at the first damage.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="stats: keys that are shown.")] = 20,
    kind: Annotated[
        str, typer.Option("--format", help="ingest: parquet, delta or iceberg.")
    ] = "parquet",
    schema: Annotated[str | None, typer.Option(help=_SCHEMA)] = None,
    batch: Annotated[int, typer.Option(min=1, help="ingest: messages of a batch.")] = 1_000_000,
    once: Annotated[
        bool, typer.Option("--once", help="ingest: what there is now, and end (default).")
    ] = False,
    every: Annotated[
        str | None, typer.Option(help="ingest: again after this time, 15min for instance.")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="ingest: go on without what can't be read.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Run a job over many stores at once with Spark.

    audit: check everything. stats: figures by queue, file, key and time. report: a page of
    backlog, age, sizes, dead letters and damage, and of what changed since the last one.
    build-index: RocketMQ's ConsumeQueues and IndexFiles anew from the CommitLog. export, import:
    Parquet, without loss. migrate: queues into RocketMQ stores, or RocketMQ stores into queues.
    ingest: JSON messages into the tables of a lake.

    Results are Parquet, JSON and a page (index.html) in --out; of a report, beside its page.
    """
    if job not in JOB_NAMES:
        raise UsageError(f"no job {job!r}; there are {', '.join(JOB_NAMES)}")
    for name in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(name) is None:
            raise SparkMissingError(f"{name} is not installed: pip install qindex[spark]")
    from pyspark_qindex.jobs.fleet import find_fleet
    from pyspark_qindex.jobs.ingest import lake_conf
    from pyspark_qindex.jobs.report import data_directory
    from pyspark_qindex.jobs.results import JobOptions, claim, write_outcome
    from pyspark_qindex.jobs.transfer import find_exports

    wanted = {"report": "--html", "ingest": "--to"}.get(job, "--out")
    given = html if job == "report" else out
    if given is None or (out is None) == (html is None):
        raise UsageError(f"{job} needs {wanted}, and nothing else to write to")
    if not all([*paths, given]):
        raise UsageError("a path is empty")
    # What can be wrong without Spark is said before it starts, which takes seconds.
    out, page = local_path(given, wanted), ""
    if job == "report":
        if os.path.exists(out) and not os.path.isfile(out):  # a device would be replaced, too
            raise UsageError(f"--html {out}: is not a regular file")
        out, page = data_directory(out), out
    paths = [path if "://" in path else os.path.abspath(os.path.expanduser(path)) for path in paths]
    if job == "import":
        find_exports(paths)
    else:
        find_fleet(paths)
    mode = "failfast" if failfast else "permissive"
    options = JobOptions(
        paths, out, install, mode, top, kind, schema or "", batch, page, accept_loss
    )
    conf = {}
    period = _period(every)
    if job == "ingest":
        if master.startswith(CONNECT):
            raise UsageError(f"--master {master}: ingest needs a session of its own")
        if once and period:
            raise UsageError("--once and --every exclude each other")
        conf = lake_conf(kind, out)
    _check_master(master)
    if job != "ingest":
        claim(out)
    with _in_one_line(), _without_chatter():
        running = active_session() is not None
        spark = session(app_name=f"qindex {job}", master=master, conf=conf)
        try:
            while True:
                began = time.monotonic()
                with show_progress(spark, job):
                    outcome = all_jobs()[job](spark, options)
                    shown = write_outcome(job, outcome, out) if outcome.tables else {}
                    outcome.finish()
                _print(job, outcome, shown, out, page or os.path.join(out, "index.html"), as_json)
                if job != "ingest" or not period:
                    break
                flush()
                time.sleep(max(0.0, began + period - time.monotonic()))
        finally:
            if not running:
                # A session that broke down can't always be stopped; what broke it was said.
                with contextlib.suppress(Exception):
                    spark.stop()
    return 1 if outcome.found else 0


def all_jobs() -> dict[str, Callable[[SparkSession, JobOptions], Outcome]]:
    """Return the jobs by their names, :data:`JOB_NAMES`."""
    from pyspark_qindex.jobs.audit import audit
    from pyspark_qindex.jobs.build_index import build_index
    from pyspark_qindex.jobs.ingest import ingest
    from pyspark_qindex.jobs.migrate import migrate
    from pyspark_qindex.jobs.report import report
    from pyspark_qindex.jobs.stats import stats
    from pyspark_qindex.jobs.transfer import export_stores, import_stores

    return {
        "audit": lambda spark, given: audit(spark, given.paths),
        "stats": lambda spark, given: stats(spark, given.paths, top=given.top, mode=given.mode),
        "report": report,
        "build-index": lambda spark, given: build_index(
            spark, given.paths, install=given.install, out=given.out
        ),
        "export": lambda spark, given: export_stores(
            spark, given.paths, given.out, mode=given.mode
        ),
        "import": lambda spark, given: import_stores(spark, given.paths, given.out),
        "migrate": lambda spark, given: migrate(spark, given.paths, given.out, mode=given.mode),
        "ingest": ingest,
    }


def _period(text: str | None) -> int:
    """Return seconds; none for no text."""
    if text is None:
        return 0
    found = _PERIOD.fullmatch(text)
    if found is None or not int(found[1]):
        raise UsageError(f"--every must be a time such as 30s, 15min or 1h, not {text!r}")
    return int(found[1]) * _SECONDS[found[2]]


def _check_master(master: str) -> None:
    """See whether a standalone master, or a Spark Connect server, answers: Spark itself would try
    for a minute and more."""
    found = _ANSWERS.fullmatch(master)
    if found is None:
        if not re.match(r"(local(\[|$|-cluster)|yarn$|k8s://)", master):
            known = "local[N], spark://HOST:PORT, sc://HOST:PORT, yarn or k8s://..."
            raise UsageError(f"--master {master!r}: {known}")
        if master == "yarn" and not (_HADOOP & os.environ.keys()):
            raise UsageError(f"--master yarn: none of {', '.join(sorted(_HADOOP))} is set")
        return
    failure: object = "no host is given"
    for one in found.group(1).split(","):
        if master.startswith(CONNECT) and ":" not in one:
            one += f":{_CONNECT_PORT}"
        host, _, port = one.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            failure = error
        else:
            return
    raise UsageError(f"--master {master}: does not answer: {failure}")


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Keep what Java and Spark's processes write to standard error away from the terminal: what is
    wrong is raised here as well. ``QINDEX_DEBUG=1`` lets all of it through."""
    if os.environ.get("QINDEX_DEBUG"):
        yield
        return
    before = sys.stderr
    before.flush()
    logging.disable()  # pyspark logs some errors, with all that Java says
    saved = os.dup(2)
    try:
        with (
            tempfile.TemporaryFile() as chatter,
            open(os.dup(saved), "w", encoding=before.encoding, errors="backslashreplace") as ours,
        ):
            os.dup2(chatter.fileno(), 2)
            sys.stderr = ours
            try:
                yield
            finally:
                ours.flush()
                sys.stderr = before
                os.dup2(saved, 2)
    finally:
        os.close(saved)
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    """Turn whatever Spark raises into one of our errors."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        if os.environ.get("QINDEX_DEBUG"):
            raise
        if _DAMAGE.search(str(error)):
            raise _JobDamageError(explain(error)) from error
        raise StoreError(explain(error)) from error


@contextlib.contextmanager
def show_progress(spark: SparkSession, job: str) -> Iterator[None]:
    """Show a bar on standard error while the block runs, if that is a terminal (Spark Connect has
    a bar of its own)."""
    if not sys.stderr.isatty() or getattr(spark, "sparkContext", None) is None:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    class Following(Progress):
        def get_renderables(self) -> Iterable[Any]:
            # A session that broke down tells nothing any more.
            with contextlib.suppress(Exception):
                done, total, stage = tasks_under_way(spark)
                if total:
                    text = f"{job}: stage {stage}"
                    self.update(bar, completed=done, total=total, description=text)
            return super().get_renderables()

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    progress = Following(*columns, console=Console(stderr=True), transient=True)
    bar = progress.add_task(job, total=None)
    with progress:
        yield


def tasks_under_way(spark: SparkSession) -> tuple[int, int, int]:
    """Return tasks done and tasks in all of the active stages, and the number of the newest."""
    tracker = spark.sparkContext.statusTracker()
    stages = tracker.getActiveStageIds()
    infos = [info for info in map(tracker.getStageInfo, stages) if info is not None]
    done = sum(info.numCompletedTasks for info in infos)
    return done, sum(info.numTasks for info in infos), max(stages, default=0)


def _print(
    job: str,
    outcome: Outcome,
    shown: dict[str, list[dict[str, Any]]],
    out: str,
    page: str,
    as_json: bool,
) -> None:
    if as_json:
        print_json({"job": job, **outcome.summary, "out": out})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    rows = shown.get(outcome.shown, [])
    if rows:
        table = Table(box=None, pad_edge=False)
        for name in rows[0]:
            number = any(isinstance(row[name], int | float) for row in rows)
            table.add_column(name, justify="right" if number else "left", overflow="fold")
        for row in rows[:_ROWS_SHOWN]:
            # Names may hold codes for a terminal, and what rich takes for its markup.
            table.add_row(*(Text(printable(_text(value))) for value in row.values()))
        console.print(table)
        if len(rows) > _ROWS_SHOWN:
            print_line(f"... the others are in {os.path.join(out, outcome.shown)}.json")
    figures = ", ".join(f"{name} {_text(value)}" for name, value in outcome.summary.items())
    print_line(f"{job}: {figures}")
    for note in outcome.notes:
        print_line(printable(note))
    if outcome.tables:
        print_line(f"results: {page}")


def _text(value: Any) -> str:
    return "" if value is None else f"{value:,.1f}" if isinstance(value, float) else str(value)
