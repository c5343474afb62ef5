"""The jobs as ``qindex pipeline`` runs them: options in, an outcome out."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_qindex.jobs.audit import audit
from pyspark_qindex.jobs.build_index import build_index
from pyspark_qindex.jobs.ingest import ingest
from pyspark_qindex.jobs.migrate import DAMAGED, migrate
from pyspark_qindex.jobs.outcome import JobOptions, Outcome, Plot, Table
from pyspark_qindex.jobs.report import report
from pyspark_qindex.jobs.stats import stats
from pyspark_qindex.jobs.transfer import export_stores, import_stores

_FEW: Final = 40
"""Findings that are shown one by one."""
_FIGURES: Final = ("messages", "bytes", "damaged")

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


def run_build_index(spark: SparkSession, options: JobOptions) -> Outcome:
    """Build ConsumeQueues and IndexFiles anew from the CommitLog."""
    result = build_index(spark, options.paths, install=options.install, out=options.out)
    built = {row[0]: row[1] for row in result.files.groupBy("was").count().collect()}
    summary = {
        "stores": result.stores,
        "messages": result.messages,
        "identical": built.get("identical", 0),
        "different": built.get("different", 0),
        "missing": built.get("missing", 0),
        "refused": len(result.refused),
        "installed": result.installed,
    }
    files = result.files.orderBy("store", "file")
    note = "installed" if result.installed else f"left below {result.directory}"
    tables = {"files": Table(files, title="What was built")}
    if result.refused:
        rows = spark.createDataFrame(sorted(result.refused.items()), "store string, why string")
        tables["refused"] = Table(rows, title="Damaged, and left as they are")
    notes = [note, *(f"left as it is: {why}" for why in result.refused.values())]
    return Outcome(summary, tables, "files", found=bool(result.refused), notes=notes)


def run_export(spark: SparkSession, options: JobOptions) -> Outcome:
    """Write all messages as Parquet."""
    result = export_stores(spark, options.paths, mode=options.mode)
    summary = {"stores": result.stores, "messages": 0, "bytes": 0, "damaged": 0}
    tables: dict[str, Table] = {}
    for name, rows in result.tables.items():
        path = os.path.join(options.out, f"{name}.parquet")
        rows.write.parquet(path)
        written = spark.read.parquet(path)
        tables[name] = Table(written, large=name != "queues", title="Queues", written=True)
        if name == "queues":
            summary["damaged"] += written.where("error is not null").count()
        else:
            figures = written.selectExpr(
                "count_if(body is not null)", "coalesce(sum(length(body)), 0)",
                "count_if(error is not null)",
            )  # fmt: skip
            for figure, number in zip(_FIGURES, figures.collect()[0], strict=True):
                summary[figure] += number
    shown = "queues" if "queues" in tables else ""
    return Outcome(summary, tables, shown, found=summary["damaged"] > 0)


def run_import(spark: SparkSession, options: JobOptions) -> Outcome:
    """Make stores from the Parquet of an export."""
    result = import_stores(spark, options.paths, options.out)
    sums = result.queues.agg({"messages": "sum", "bytes": "sum", "skipped": "sum"}).collect()[0]
    summary = {
        "stores": len(result.targets),
        "messages": sums["sum(messages)"] or 0,
        "bytes": sums["sum(bytes)"] or 0,
        "skipped": sums["sum(skipped)"] or 0,
    }
    tables = {"imported": Table(result.queues.orderBy("store", "queue"), title="Queues")}
    return Outcome(summary, tables, "imported", found=summary["skipped"] > 0)


def run_migrate(spark: SparkSession, options: JobOptions) -> Outcome:
    """Move queues into RocketMQ stores, or RocketMQ stores into queues."""
    result = migrate(spark, options.paths, options.out, mode=options.mode)
    by = ("store", "status", "reason")
    report = result.moves.groupBy(*by).agg(
        f.count("*").alias("messages"), f.sum("size").alias("bytes")
    )
    report = report.orderBy(*by)
    rows = report.collect()
    summary = {
        "stores": len(result.targets),
        "moved": sum(row["messages"] for row in rows if row["status"] == "moved"),
        "skipped": sum(row["messages"] for row in rows if row["status"] == "skipped"),
        "left_behind": result.left_behind.count(),
    }
    damaged = any(row["reason"] == "damaged" for row in rows)
    damaged |= result.left_behind.where(f.col("what") == DAMAGED).count() > 0
    left = result.left_behind.orderBy("store", "queue", "what", "seq_id")
    return Outcome(
        summary,
        {
            "report": Table(report, title="Messages"),
            "left_behind": Table(left, title="Not carried over"),
            "moves": Table(result.moves, large=True),
        },
        shown="report",
        plots=[Plot("Messages", "report", "bars", by, "messages")],
        found=damaged,
        finish=result.unpersist,
    )


JOBS: Final[dict[str, Job]] = {
    "audit": run_audit,
    "stats": run_stats,
    "report": run_report,
    "build-index": run_build_index,
    "export": run_export,
    "import": run_import,
    "migrate": run_migrate,
    "ingest": ingest,
}
"""By the name in ``qindex pipeline NAME``."""
