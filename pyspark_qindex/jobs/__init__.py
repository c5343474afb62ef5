"""Jobs over fleets of stores: functions over DataFrames, for notebooks and for ``qindex pipeline``.

Importing this needs pyspark and pyarrow, not a running Spark.
"""

from pyspark_qindex.jobs.audit import audit

__all__ = ["audit"]
