"""Read stores with what Spark itself can't pass on to a Python source: the columns."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def read(
    spark: SparkSession,
    path: Paths,
    columns: Sequence[str] = (),
    *,
    source: str = "qindex",
    **options: str | int | Sequence[str],
) -> DataFrame:
    """Return a DataFrame of stores that reads only `columns`.

    Spark does not tell a Python source which columns a query uses: `.select()` on a DataFrame of
    all columns reads and decodes all of them. The columns of this one are all that is read, so
    name those that the query uses. No message is decoded for columns that are in the index, such
    as `store`, `queue`, `seq_id`, `expiry` and `size`: to count messages, ask for `seq_id`.

    Args:
        spark: A session of any kind.
        path: A store, a directory above stores, a glob, or several of these.
        columns: Names of columns, in the order they shall have. None: all.
        source: `qindex`, or `rocketstore`.
        options: Those that docs/spark.md lists, such as `include`, `queue`, `seq_from` and
            `mode`; `queue` and `topic` may be lists.

    Returns:
        A DataFrame. It shows the moment of its first plan: read anew for each query.

    Raises:
        AnalysisException: An option is wrong, or there is no store. `explain()` returns the reason
            as one line.

    Example:
        >>> read(spark, "/srv/fleet", ["store", "queue", "size"]).groupBy("store").sum("size")
    """
    from pyspark_qindex.local_session import register

    if source != "qindex":  # which Spark finds by itself
        register(spark)
    paths = [path] if isinstance(path, str | os.PathLike) else path
    given = {name: _text(value) for name, value in options.items()}
    if columns:
        given["columns"] = ",".join(columns)
    return spark.read.format(source).options(**given).load([os.fspath(one) for one in paths])


def _text(value: str | int | Sequence[str]) -> str:
    """Return the text of an option: Spark passes nothing else on."""
    return str(value) if isinstance(value, str | int) else json.dumps([*value])
