"""The jobs as ``qindex pipeline`` runs them: options in, an outcome out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from pyspark_qindex.jobs.audit import audit
from pyspark_qindex.jobs.build_index import build_index
from pyspark_qindex.jobs.ingest import ingest
from pyspark_qindex.jobs.migrate import migrate
from pyspark_qindex.jobs.report import report
from pyspark_qindex.jobs.results import JobOptions, Outcome
from pyspark_qindex.jobs.stats import stats
from pyspark_qindex.jobs.transfer import export_stores, import_stores

JOBS: Final[dict[str, Callable[[SparkSession, JobOptions], Outcome]]] = {
    "audit": lambda spark, given: audit(spark, given.paths),
    "stats": lambda spark, given: stats(spark, given.paths, top=given.top, mode=given.mode),
    "report": report,
    "build-index": lambda spark, given: build_index(
        spark, given.paths, install=given.install, out=given.out
    ),
    "export": lambda spark, given: export_stores(spark, given.paths, given.out, mode=given.mode),
    "import": lambda spark, given: import_stores(spark, given.paths, given.out),
    "migrate": lambda spark, given: migrate(spark, given.paths, given.out, mode=given.mode),
    "ingest": ingest,
}
"""By the name in ``qindex pipeline NAME``."""
