"""More IndexFiles than a process may have open, as the tasks of a job read them; without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from journal.findings import Finding
from pyspark_qindex.jobs.audit_rocket import audit_rocket_item, plan_rocket_store
from pyspark_qindex.jobs.fleet import find_fleet
from pyspark_qindex.options import ROCKET_TABLES, read_options
from pyspark_qindex.read_rocket import read_index
from pyspark_qindex.rocket_planning import IndexPart, plan_rocket
from tests.rocketstore.test_many_index_files import FILES, few_handles, make_store


def test_all_are_audited_and_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    (one,) = find_fleet([str(store)])
    counts: dict[str, int] = {}
    with few_handles():
        items, findings = plan_rocket_store(one.store)
        index = [item for item in items if item.part == "index"]
        assert len(index) == FILES
        # A file of the log is held against all index files that point into it: all of these.
        others = [item for item in items if item.part != "index"]
        for found in (found for item in [*others, *index[:3]] for found in audit_rocket_item(item)):
            if isinstance(found, Finding):
                findings.append(found)
            elif isinstance(found, tuple):
                counts[found[0]] = counts.get(found[0], 0) + found[1]
        assert findings == []
        assert counts == {"records": 2 * FILES, "units": 2 * FILES, "index entries": 6}
        options = read_options({"path": str(store), "include": "index"}, ROCKET_TABLES)
        parts = [part for task in plan_rocket(options) for part in task]
        batches = [
            batch
            for part in parts
            if isinstance(part, IndexPart)
            for batch in read_index(part, options)
        ]
        assert len(batches) == FILES
        assert sum(batch.num_rows for batch in batches) == 2 * FILES
