"""The audit of a fleet: every store of every kind at once.

>>> from pyspark_qindex.jobs import audit                        # doctest: +SKIP
>>> result = audit(spark, ["/srv/fleet"])
>>> result["findings"].groupBy("store", "kind").count().show()

Each store is one task, which checks what ``qindex verify`` and ``qindex rocket verify`` check, by
the same code, and beside a writer the way a reader does it. A queue store takes about 150 bytes for
each message in the message store. Only findings and counts reach the driver.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from journal.errors import DamageError, StoreError
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem
from pyspark_qindex.jobs.fleet import Row, find_fleet, run_tasks, tasks_wanted
from pyspark_qindex.jobs.results import Outcome, Plot, Table
from pyspark_qindex.planning import group
from pyspark_qindex.reading.read_rocket import look_at
from pyspark_qindex.schemas import spark_schema, table
from pyspark_qindex.stores import Store
from qindex.format import layout
from qindex.index.messages import PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY
from qindex.tools.verify import Verification
from qindex.view.reader import StoreReader
from rocketstore.verify import check_store

FINDINGS: Final = table(
    "store string, store_kind string, queue string, file string, offset bigint, length bigint, "
    "kind string, cause string, what string, consequence string, number bigint"
)
"""``store``: as it was given; ``file``: relative to it; ``offset``, ``length``: bytes in the file.
``kind``: a word of :class:`journal.findings.Kind`. ``number``: places that the row covers. More
than one if one file has many of a kind."""
_EVIDENCE: Final = {"row": "string", **FINDINGS}
"""What a task gives. ``row``: finding; or count (``number`` things of the sort ``what`` were looked
at)."""
_SHOWN: Final = 8
"""Findings of one kind and cause in one file that have rows of their own."""
_FEW: Final = 40
"""Findings that are shown one by one."""
_LEAST_WEIGHT: Final = 1 << 14
_ROCKET: Final = "rocketmq"


@dataclass(frozen=True, slots=True)
class _Item:
    """A store to be audited. ``kind``: of the store. ``queues``: names by directory name, of a
    queue store. ``weight``: bytes."""

    store: Store
    kind: str
    queues: dict[str, str]
    weight: int

    def queue_of(self, finding: Finding) -> str | None:
        """Return the name of the queue whose file a finding names."""
        directory, *parts = self.store.relative(finding.path).split(os.sep)
        if self.kind == _ROCKET:
            return "/".join(parts[:2]) if directory == "consumequeue" and parts[1:] else None
        return self.queues.get(parts[0]) if directory == layout.QUEUES and parts else None


def audit(
    spark: SparkSession, paths: Sequence[str], *, storage: dict[str, str] | None = None
) -> Outcome:
    """Audit all stores at or below ``paths`` (directories, trees of them, or globs).

    Tables: ``findings``, a row for each problem (:data:`FINDINGS`); ``kinds``, how many of each;
    ``counts``, the ``number`` of ``things`` that were looked at in a store. Findings are of two
    causes: ``damage``, and ``crash`` for what the next open repairs without asking. A healthy store
    has neither; one in use is read while it works. ``storage``: the options of fsspec for remote
    paths.

    Raises :class:`UsageError` for a glob without matches, :class:`NotAStoreError` for a path that
    has no store, or whose store is of a newer format. What is wrong with a store that was found in
    a tree is a finding.
    """
    fleet = find_fleet(paths, storage)
    items: list[_Item] = []
    early: list[Row] = []
    for one in fleet:
        try:
            items.append(_plan(one))
        except StoreError as error:
            if one.named and not isinstance(error, DamageError):
                raise
            kind = _ROCKET if one.is_rocket else "queues"
            finding = _as_finding(one, error, "the store could not be audited")
            early.append(_finding_row(_Item(one, kind, {}, 0), finding))
    tasks = group(items, tasks_wanted(spark))
    rows = run_tasks(spark, tasks, _audit_item, _EVIDENCE).persist(StorageLevel.MEMORY_AND_DISK)
    found = rows.where("row = 'finding'").select(*FINDINGS)
    if early:
        found = found.unionByName(spark.createDataFrame(early, spark_schema(FINDINGS)))
    counted = rows.where("row = 'count'").groupBy("store", "store_kind", "what").sum("number")
    counts = counted.toDF("store", "store_kind", "things", "number")
    causes = found.groupBy("cause").agg(f.sum("number"), f.count("*")).collect()
    by_cause = {row[0]: row[1] for row in causes}
    looked_at = counts.groupBy("things").sum("number").collect()
    by = ("store", "cause", "kind")
    kinds = found.groupBy(*by).agg(f.sum("number").alias("number"))

    return Outcome(
        {
            "stores": len(fleet),
            "damage": by_cause.get("damage", 0),
            "crash_traces": by_cause.get("crash", 0),
            **{name.replace(" ", "_"): number for name, number in sorted(looked_at)},
        },
        {
            "findings": Table(found.orderBy("store", "file", "offset"), title="Findings"),
            "kinds": Table(kinds.orderBy(*by), title="Findings by store and cause"),
            "counts": Table(counts.orderBy("store", "things"), title="What was looked at"),
        },
        shown="findings" if sum(row[2] for row in causes) <= _FEW else "kinds",
        plots=[Plot("Findings by store and kind", "kinds", "bars", ("store", "kind"), "number")],
        found="damage" in by_cause,
        kept=[rows],
    )


def _plan(store: Store) -> _Item:
    """Look at the names and sizes of a store. Raises :class:`StoreError` where it can't be read."""
    fs = store.file_system()
    if store.is_rocket:
        look_at(fs, store)
        kind, queues, places = _ROCKET, {}, ["commitlog"]
    else:
        reader = StoreReader(store.path, fs)
        kind = reader.kind
        queues = {directory.directory: directory.name for directory in reader.directories()}
        places = [os.path.join(layout.QUEUES, name) for name in queues]
        places += [PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY]
    weight = sum(_bytes_in(fs, os.path.join(store.path, place)) for place in places)
    return _Item(store, kind, queues, weight + _LEAST_WEIGHT)


def _bytes_in(fs: FileSystem, directory: str) -> int:
    total = 0
    try:
        for name in fs.listdir(directory):
            try:
                total += fs.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue  # deleted just now
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return total


def _audit_item(item: _Item) -> Iterator[Row]:
    counts: dict[str, int] = {}
    for finding, number in grouped(_found(item, counts)):
        yield ("finding", *_finding_row(item, finding, number))
    for what, number in counts.items():
        values = {"row": "count", "store": item.store.url, "store_kind": item.kind}
        values |= {"what": what, "number": number}  # type: ignore[dict-item]
        yield tuple(values.get(name) for name in _EVIDENCE)


def _found(item: _Item, counts: dict[str, int]) -> Iterator[Finding]:
    """Yield what is wrong with a store, and fill in how many things of each sort were looked at."""
    path, fs = item.store.path, item.store.file_system()
    try:
        if item.kind == _ROCKET:
            report = check_store(path, fs=fs)
            yield from report.findings
            counts["records"], counts["units"] = report.records, report.units
            counts["index entries"] = report.index_entries
        else:
            check = Verification(path, fs)
            try:
                yield from check.findings()
            finally:
                counts["queues"], counts["entries"] = check.figures.queues, check.figures.entries
                counts["stored messages"] = check.figures.records
    except StoreError as error:
        yield _as_finding(item.store, error, "the audit of the store ended here")


def grouped(found: Iterable[Finding]) -> Iterator[tuple[Finding, int]]:
    """Yield findings, and the number of places that each stands for. Of many findings of one kind
    and cause in one file, the first few stand for themselves, and one more for the rest."""
    counts: Counter[tuple[str, str, str]] = Counter()
    rest: dict[tuple[str, str, str], tuple[Finding, Finding]] = {}
    for one in found:
        key = (one.path, str(one.kind), one.cause.value)
        counts[key] += 1
        if counts[key] <= _SHOWN:
            yield one, 1
        else:
            first, _ = rest.get(key, (one, one))
            rest[key] = (first, one)
    for key, (first, last) in rest.items():
        number = counts[key] - _SHOWN
        what = f"{number} more of this kind, up to offset {last.offset}, the first: {first.what}"
        yield (replace(first, what=what) if number > 1 else first), number


def _finding_row(item: _Item, finding: Finding, number: int = 1) -> Row:
    """Return a finding as a row of :data:`FINDINGS`."""
    return (
        item.store.url,
        item.kind,
        item.queue_of(finding),
        item.store.relative(finding.path),
        finding.offset,
        finding.length,
        str(finding.kind),
        finding.cause.value,
        finding.what,
        finding.consequence,
        number,
    )


def _as_finding(store: Store, error: StoreError, lost: str) -> Finding:
    """Return the finding for an error that ended an audit; ``lost`` says what follows from it."""
    if isinstance(error, DamageError):
        kind = Kind.RECORD if os.path.exists(error.path) else Kind.MISSING_FILE
        return Finding(error.path, error.offset, 0, Cause.DAMAGE, error.what, lost, kind)
    path = getattr(error, "path", store.path)
    return Finding(path, 0, 0, Cause.DAMAGE, str(error), lost, Kind.UNREADABLE)
