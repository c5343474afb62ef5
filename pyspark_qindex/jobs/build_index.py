"""``build-index``: ConsumeQueues and IndexFiles of RocketMQ stores, built anew from the CommitLog.

Each store is one task, which calls :mod:`rocketstore.repair.derived_files`. The task writes the
bytes that :mod:`rocketstore` writes when it recovers from nothing but the log.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from pyspark.sql import SparkSession

from journal.errors import DamageError, LockedError, NotAStoreError, StoreError, UsageError
from journal.fs.beneath import beneath
from journal.fs.files import REAL
from pyspark_qindex.filesystem import local_path
from pyspark_qindex.jobs.fleet import Row, find_fleet, run_tasks, store_names
from pyspark_qindex.jobs.results import Outcome, Table
from pyspark_qindex.schemas import spark_schema, table
from pyspark_qindex.stores import StoreNotHereError, local_store
from rocketstore.layout import Paths
from rocketstore.lock import StoreLock
from rocketstore.repair.derived_files import RebuildResult, rebuild, rebuild_in_place

BUILT: Final = table("store string, file string, entries bigint, bytes bigint, was string")
"""``file``: a queue's directory or an index file, relative to the store. ``entries``: units, or
index entries. ``was``: identical, different or missing."""

_DONE: Final = {"row": "string", **BUILT, "why": "string"}
"""Rows of a task. ``row``: ``file``; ``store`` (``entries``: messages); or ``refused``, where the
log is damaged (``was``: the error, of which ``file``, ``bytes`` and ``why`` are the parts)."""


def build_index(
    spark: SparkSession, paths: Sequence[str], *, install: bool = True, out: str | None = None
) -> Outcome:
    """Build ConsumeQueues and IndexFiles of all RocketMQ stores at or below ``paths``.

    With ``install`` they replace the files of the store; otherwise they are left below ``out``. A
    store whose log is damaged is left as it is, and the others go on. Tables: ``files``
    (:data:`BUILT`), and ``refused``, with the reason, if any was.

    Raises :class:`LockedError`, with the pid, when a store is in use: then none is touched; and
    :class:`DamageError` when all stores are damaged.
    """
    if not install and out is None:
        raise UsageError("where to leave what is built? Without install, out is needed")
    left = None if install or out is None else local_path(out, "out")
    roots = _roots(paths)
    for root in roots:
        StoreLock(beneath(REAL, root), Paths(root).lock).release()
    names = store_names(roots)
    items = [(root, left and os.path.join(left, names[root])) for root in roots]
    rows = run_tasks(spark, [[item] for item in items], _build, _DONE).collect()
    failed = [row for row in rows if row["row"] == "refused"]
    if len(failed) == len(items):
        _, _, path, _, offset, _, why = failed[0]
        raise StoreError(why) if path is None else DamageError(path, offset, why)
    refused = sorted((row["store"], row["was"]) for row in failed)
    built = Counter(row["was"] for row in rows if row["row"] == "file")
    summary = {
        "stores": len(items) - len(failed),
        "messages": sum(row["entries"] for row in rows if row["row"] == "store"),
        **{was: built[was] for was in ("identical", "different", "missing")},
        "refused": len(refused),
        "installed": install,
    }
    files = sorted(tuple(row)[1:-1] for row in rows if row["row"] == "file")
    made = spark.createDataFrame(files, spark_schema(BUILT))
    tables = {"files": Table(made, title="What was built")}
    if refused:
        why = spark.createDataFrame(refused, "store string, why string")
        tables["refused"] = Table(why, title="Damaged, and left as they are")
    notes = ["installed" if install else f"left below {left}"]
    notes += [f"left as it is: {why}" for _, why in refused]
    return Outcome(summary, tables, "files", found=bool(refused), notes=notes)


def _roots(paths: Sequence[str]) -> list[str]:
    roots = []
    for store in find_fleet(paths):
        if store.is_rocket and store.place[0]:
            raise UsageError(f"{store.url}: build-index works on local paths alone")
        if store.is_rocket:
            roots.append(store.path)
        elif store.named:
            raise NotAStoreError(f"{store.url}: is no RocketMQ store: it has no commitlog")
    if not roots:
        raise NotAStoreError(f"{', '.join(paths)}: no RocketMQ store is there, nor below it")
    return roots


def _build(item: tuple[str, str | None]) -> Iterator[Row]:
    """Build one store, into a directory or else in place; yield rows of :data:`_DONE`."""
    root, out = item
    local_store(root).file_system()
    try:
        built = rebuild_in_place(root) if out is None else _leave(root, out)
    except (LockedError, StoreNotHereError):
        raise
    except DamageError as error:
        yield ("refused", root, error.path, None, error.offset, str(error), error.what)
    except StoreError as error:
        yield ("refused", root, None, None, None, str(error), str(error))
    else:
        for file in built.files:
            yield ("file", root, file.name, file.entries, file.size, file.was, None)
        yield ("store", root, None, built.messages, None, None, None)


def _leave(root: str, out: str) -> RebuildResult:
    """Build a store's files in a directory of this task's own, then move them to ``out``: another
    attempt of the task may have been killed in the middle, or still run."""
    os.makedirs(out, 0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, ignore_cleanup_errors=True) as own:
        built = rebuild(root, own)
        for name in ("consumequeue", "index"):
            target = os.path.join(out, name)
            shutil.rmtree(target, ignore_errors=True)
            os.rename(os.path.join(own, name), target)
    return built
