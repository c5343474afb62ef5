"""Stores in Spark: data sources over many of them at once, streams, and jobs.

>>> import pyspark_qindex                                        # doctest: +SKIP
>>> spark = pyspark_qindex.session()
>>> backlog = pyspark_qindex.read(spark, "/srv/fleet", columns=["store", "queue"])
>>> backlog.groupBy("store", "queue").count().show()

Spark finds the sources ``qindex`` and (once they are registered, which :func:`session` does)
``rocketstore`` in a package of this name. Importing this needs neither pyspark nor Java; the first
use of what does gives a :class:`SparkMissingError` that says what to install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_qindex.errors import SparkMissingError, explain
from pyspark_qindex.local_session import read, register, session

if TYPE_CHECKING:
    from pyspark_qindex.sources import QindexSource as DefaultSource

__all__ = ["DefaultSource", "SparkMissingError", "explain", "read", "register", "session"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pyspark_qindex.sources import QindexSource
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow"):
            raise
        raise SparkMissingError(
            f"{error.name} is not installed: pip install qindex[spark]"
        ) from error
    return QindexSource
