"""``report``: a page of what a fleet holds, what is wrong, and what changed since the last report.

::

    FLEET.html              the page; each report replaces it
    FLEET.data/MOMENT/      the tables of each report, and its page

The tables are those of ``stats`` and ``audit``, ordered by what needs attention. A report is
complete once its ``summary.json`` is, and compares itself with the newest complete one beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from journal.fs.files import REAL, read_file
from pyspark_qindex.jobs.audit import audit
from pyspark_qindex.jobs.results import JobOptions, Outcome, Plot, Table
from pyspark_qindex.jobs.stats import stats

_MOMENT: Final = "%Y%m%dT%H%M%SZ"
_TOTALS: Final = ("messages", "bytes", "file_bytes", "garbage", "dead_letters", "damage")
_FEW: Final = 30
"""Rows of a table that shows extremes."""
_SEEN: Final = 200
"""Reports that the page shows."""
_NAME: Final = ("store", "queue")


def data_directory(html: str) -> str:
    """Return the directory of a report made now, whose page is ``html``."""
    return os.path.join(_history(html), datetime.now(UTC).strftime(_MOMENT))


def report(spark: SparkSession, options: JobOptions) -> Outcome:
    """Report on all stores, with ``options.html`` as the page and ``out`` as its
    :func:`data_directory`."""
    html, out = options.html, options.out
    audited = audit(spark, options.paths)
    held = stats(spark, options.paths, letters=True)
    moments = list(_earlier(html))
    last = moments[-1]["directory"] if moments else None
    queues = _with_changes(spark, held["queues"], last).persist()
    stores = _by_store(held, queues, audited)
    totals = stores.agg(*(f.coalesce(f.sum(one), f.lit(0)) for one in _TOTALS), f.max("age_oldest"))
    *numbers, oldest = totals.collect()[0]
    summary = {
        **{name: audited.summary[name] for name in ("stores", "damage", "crash_traces")},
        **dict(zip(_TOTALS, numbers, strict=True)),
        "age_oldest": oldest,
    }
    now = datetime.strptime(os.path.basename(out), _MOMENT).replace(tzinfo=UTC).timestamp()
    moments = [*moments, {"moment": now, **summary}][-_SEEN:]
    notes = ["The first report."]
    if last is not None:
        summary["change"] = summary["messages"] - moments[-2]["messages"]
        notes = [f"Changes are since {os.path.basename(last)}."]
    history = spark.createDataFrame(
        [(one["moment"], *(one[name] for name in _TOTALS)) for one in moments],
        f"moment double, {', '.join(f'{name} bigint' for name in _TOTALS)}",
    )
    letters = held["letters"]
    reasons = letters.groupBy("reason").agg(f.sum("messages").alias("messages"))
    oldest_first = queues.where("age_oldest is not null").orderBy(f.desc("age_oldest"), *_NAME)
    changed = queues.where("change != 0").orderBy(f.desc(f.abs("change")), *_NAME)
    tables = {
        "findings": audited.tables["findings"],
        "kinds": audited.tables["kinds"],
        "changed": Table(changed.select(*_NAME, "messages", "change", "bytes", "bytes_change")
                         .limit(_FEW), title="Queues that changed most since the last report"),
        "oldest": Table(oldest_first.select(*_NAME, "messages", "age_oldest", "age_median")
                        .limit(_FEW), title="Queues with the oldest messages"),
        "reasons": Table(reasons.orderBy(f.desc("messages")), title="Dead letters by reason"),
        "letters": Table(letters.orderBy(f.desc("messages"), *_NAME), title="Dead letters"),
        "queues": Table(queues.orderBy(f.desc("messages"), *_NAME), title="Queues"),
        "stores": Table(stores.orderBy(f.desc("file_bytes"), "store"), title="Stores"),
        "growth": held.tables["growth"],
        "history": Table(history.orderBy("moment"), title="Reports"),
    }  # fmt: skip
    plots = [
        Plot("Messages by queue", "queues", "bars", _NAME, "messages", 20),
        Plot("Oldest message by queue", "oldest", "bars", _NAME, "age_oldest", 20),
        Plot("Change since the last report", "changed", "bars", _NAME, "change", 20),
        Plot("Size on disk by store", "stores", "bars", ("store",), "file_bytes", 20),
        Plot("Dead letters by reason", "reasons", "bars", ("reason",), "messages"),
        Plot("Findings by store and kind", "kinds", "bars", ("store", "kind"), "number", 20),
        Plot("Messages, at each report", "history", "line", ("moment",), "messages", _SEEN),
        Plot("Messages by time of publishing", "growth", "line", ("moment",), "messages", 200),
    ]
    if "files" in held.tables:
        tables["files"] = Table(held["files"].where("garbage > 0"), title="Garbage by file")
        plots.insert(4, Plot("Garbage by file", "files", "bars", ("store", "file"), "garbage", 20))
    if "lag" in held.tables:
        tables["lag"] = Table(held["lag"].orderBy(f.desc("behind")), title="Consumer groups")
    kept = [queues, *held.kept, *audited.kept]
    return Outcome(summary, tables, "changed", plots, audited.found, notes, kept, page=html)


def _history(html: str) -> str:
    return os.path.splitext(html)[0] + ".data"


def _earlier(html: str) -> Iterator[dict[str, Any]]:
    """Yield the summaries of complete reports with the same page, the newest last."""
    for directory in sorted(Path(_history(html)).glob("*/")):
        try:
            moment = datetime.strptime(directory.name, _MOMENT).replace(tzinfo=UTC)
            summary = json.loads(read_file(REAL, directory / "summary.json"))
        except (OSError, ValueError):
            continue  # one that was killed, or something else
        if isinstance(summary, dict) and all(isinstance(summary.get(n), int) for n in _TOTALS):
            yield {**summary, "moment": moment.timestamp(), "directory": str(directory)}


def _with_changes(spark: SparkSession, queues: DataFrame, last: str | None) -> DataFrame:
    """Add what changed since the last report, and the queues that are empty since."""
    figures = ("size_median", "size_max", "age_oldest", "age_median", "redelivered")
    if last is None:
        nothing = f.lit(None).cast("bigint")
        queues = queues.withColumns({"change": nothing, "bytes_change": nothing})
    else:
        old = spark.read.parquet(os.path.join(last, "queues.parquet")).where("messages > 0")
        old = old.selectExpr(*_NAME, "messages as old_messages", "bytes as old_bytes")
        queues = queues.join(old, [*_NAME], "full_outer").selectExpr(
            *_NAME, "coalesce(messages, 0) as messages", "coalesce(bytes, 0) as bytes",
            "coalesce(messages, 0) - coalesce(old_messages, 0) as change",
            "coalesce(bytes, 0) - coalesce(old_bytes, 0) as bytes_change", *figures,
        )  # fmt: skip
    return queues.select(*_NAME, "messages", "change", "bytes", "bytes_change", *figures)


def _by_store(held: Outcome, queues: DataFrame, audited: Outcome) -> DataFrame:
    """Return a row for each store, from tables that have rows for what each store holds."""
    findings, counts = audited["findings"], audited["counts"]
    parts = [
        counts.where("things = 'queues'").selectExpr("store", "number as queues"),
        queues.select("store", "messages", "change", "bytes", "age_oldest"),
        held["letters"].selectExpr("store", "messages as dead_letters"),
        findings.where("cause = 'damage'").selectExpr("store", "number as damage"),
    ]
    if "files" in held.tables:
        parts.append(held["files"].selectExpr("store", "size as file_bytes", "garbage"))
    if "lag" in held.tables:
        parts.append(held["lag"].select("store", "behind"))
    rows = reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), parts)
    for missing in {"file_bytes", "garbage"} - {*rows.columns}:
        rows = rows.withColumn(missing, f.lit(None).cast("bigint"))
    sums = ("queues", "messages", "change", "bytes", "file_bytes", "garbage", "dead_letters")
    return rows.groupBy("store").agg(
        *(f.sum(one).alias(one) for one in (*sums, "damage")),
        f.max("age_oldest").alias("age_oldest"),
    )
