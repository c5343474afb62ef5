"""Write a job's outcome: Parquet and JSON for programs, a page for people.

::

    DIR/summary.json       figures, and the tables' names
    DIR/NAME.parquet/      each table, as Spark writes it
    DIR/NAME.json          each table that is not as long as the stores have messages: a line a row
    DIR/index.html         the page, complete in itself

Others can't read them: a new DIR has mode 0700, and the files that are not Spark's have 0600.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Final

from pyarrow.parquet import ParquetFile

from journal.errors import StorageError, UsageError
from journal.fs.files import open_private
from pyspark_qindex.jobs.outcome import Outcome
from pyspark_qindex.jobs.page import render_page

_ROWS_ON_PAGE: Final = 200


def claim(directory: str) -> None:
    """Make the output directory, which must not be there or must be empty.

    Raises :class:`UsageError` when it holds something, :class:`StorageError` when it can't be made
    or written to.
    """
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        if os.listdir(directory):
            raise UsageError(f"{directory}: is not empty; give a new directory with --out")
        probe = os.path.join(directory, ".probe")
        with open(probe, "xb"):
            pass
        os.unlink(probe)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{directory}: is a file, not a directory") from error
    except OSError as error:
        raise StorageError(directory, "can't be written to", error) from error


def write_outcome(job: str, outcome: Outcome, directory: str) -> dict[str, list[dict[str, Any]]]:
    """Write all of it; returns the first rows of each table that is shown.

    Raises :class:`StorageError`.
    """
    shown: dict[str, list[dict[str, Any]]] = {}
    try:
        for name, table in outcome.tables.items():
            path = os.path.join(directory, f"{name}.parquet")
            if not table.written:
                table.rows.write.parquet(path)
            if not table.large:
                shown[name] = _write_json(path, os.path.join(directory, f"{name}.json"))
        summary = {"job": job, **outcome.summary, "tables": list(outcome.tables)}
        with open_private(os.path.join(directory, "summary.json")) as file:
            json.dump(summary, file, indent=2, ensure_ascii=False)
            file.write("\n")
        with open_private(os.path.join(directory, "index.html")) as file:
            file.write(render_page(job, outcome, shown, _ROWS_ON_PAGE))
    except OSError as error:
        raise StorageError(error.filename or directory, "can't be written", error) from error
    return shown


def _write_json(parquet: str, path: str) -> list[dict[str, Any]]:
    """Write what Spark has written as JSON, too; returns the first rows. A batch at a time."""
    kept: list[dict[str, Any]] = []
    with open_private(path) as file:
        for row in _rows_of(parquet):
            if len(kept) < _ROWS_ON_PAGE:
                kept.append(row)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return kept


def _rows_of(parquet: str) -> Iterator[dict[str, Any]]:
    # The files' names are in the order of the rows.
    for name in sorted(os.listdir(parquet)):
        if name.endswith(".parquet"):
            for batch in ParquetFile(os.path.join(parquet, name)).iter_batches():
                yield from batch.to_pylist()
