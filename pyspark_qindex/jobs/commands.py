"""The jobs as ``qindex pipeline`` runs them: options in, an outcome out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from pyspark_qindex.jobs.audit import audit
from pyspark_qindex.jobs.build_index import build_index
from pyspark_qindex.jobs.ingest import ingest
from pyspark_qindex.jobs.migrate import migrate
from pyspark_qindex.jobs.outcome import JobOptions, Outcome, Plot, Table
from pyspark_qindex.jobs.report import report
from pyspark_qindex.jobs.stats import stats
from pyspark_qindex.jobs.transfer import export_stores, import_stores

_FEW: Final = 40
"""Findings that are shown one by one."""

Job = Callable[["SparkSession", JobOptions], Outcome]


def run_audit(spark: SparkSession, options: JobOptions) -> Outcome:
    """Check every store; exit status 1 when damage is found."""
    result = audit(spark, options.paths)
    by_cause = dict(_sums(result.findings, "cause", "number"))
    things = {row[0]: row[1] for row in _sums(result.counts, "things", "number")}
    summary = {
        "stores": result.stores,
        "damage": by_cause.get("damage", 0),
        "crash_traces": by_cause.get("crash", 0),
        **{name.replace(" ", "_"): number for name, number in sorted(things.items())},
    }
    by = ("store", "cause", "kind")
    kinds = result.findings.groupBy(*by).sum("number").withColumnRenamed("sum(number)", "number")
    few = result.findings.limit(_FEW + 1).count() <= _FEW
    return Outcome(
        summary,
        {
            "findings": Table(result.findings.orderBy("store", "file", "offset"), title="Findings"),
            "kinds": Table(kinds.orderBy(*by), title="Findings by store and cause"),
            "counts": Table(result.counts.orderBy("store", "things"), title="What was looked at"),
        },
        shown="findings" if few else "kinds",
        plots=[Plot("Findings by store and kind", "kinds", "bars", ("store", "kind"), "number")],
        found=summary["damage"] > 0,
        finish=result.unpersist,
    )


def _sums(rows: DataFrame, by: str, of: str) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in rows.groupBy(by).sum(of).collect()]


def run_stats(spark: SparkSession, options: JobOptions) -> Outcome:
    """Figures by queue, file, key and time."""
    result = stats(spark, options.paths, top=options.top, mode=options.mode)
    total = result.messages.selectExpr("count(*)", "coalesce(sum(size), 0)").collect()[0]
    summary = {
        "stores": result.stores,
        "queues": result.queues.count(),
        "messages": total[0],
        "bytes": total[1],
        "damaged": result.damage.count(),
    }
    tables = {
        "queues": Table(result.queues.orderBy("store", "queue"), title="Queues"),
        "keys": Table(result.keys, title="Keys with the most messages"),
        "growth": Table(result.growth, title="Messages by time of publishing"),
    }
    if summary["damaged"]:
        tables["damage"] = Table(result.damage.orderBy("store", "queue"), title="Not readable")
    name = ("store", "queue")
    plots = [
        Plot("Messages by queue", "queues", "bars", name, "messages"),
        Plot("Bytes by queue", "queues", "bars", name, "bytes"),
        Plot("Oldest message by queue, seconds", "queues", "bars", name, "age_oldest"),
        Plot("Keys with the most messages", "keys", "bars", ("key",), "messages"),
        Plot("Messages by time of publishing", "growth", "line", ("moment",), "messages", 200),
    ]
    if result.files is not None:
        tables["files"] = Table(result.files, title="Garbage by file")
        plots.append(Plot("Garbage by file, bytes", "files", "bars", ("store", "file"), "garbage"))
    if result.lag is not None:
        tables["lag"] = Table(result.lag, title="Consumer groups")
    return Outcome(
        summary,
        tables,
        shown="queues",
        plots=plots,
        found=summary["damaged"] > 0,
        finish=result.unpersist,
    )


def run_report(spark: SparkSession, options: JobOptions) -> Outcome:
    """Make a page of backlog, age, sizes, dead letters and damage, and of what changed."""
    audited = run_audit(spark, options)
    return report(spark, options.paths, options.html, options.out, audited)


JOBS: Final[dict[str, Job]] = {
    "audit": run_audit,
    "stats": run_stats,
    "report": run_report,
    "build-index": lambda spark, given: build_index(
        spark, given.paths, install=given.install, out=given.out
    ),
    "export": lambda spark, given: export_stores(spark, given.paths, given.out, mode=given.mode),
    "import": lambda spark, given: import_stores(spark, given.paths, given.out),
    "migrate": lambda spark, given: migrate(spark, given.paths, given.out, mode=given.mode),
    "ingest": ingest,
}
"""By the name in ``qindex pipeline NAME``."""
