"""More IndexFiles than a process may have open, as the tasks of a job read them; without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from pyspark_qindex.options import ROCKET_TABLES, read_options
from pyspark_qindex.reading.read_parts import plan
from pyspark_qindex.reading.read_rocket import IndexPart, read_index
from rocketstore.verify import check_store
from tests.rocketstore.test_many_index_files import FILES, few_handles, make_store


def test_all_are_audited_and_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    with few_handles():
        report = check_store(store)
        assert report.findings == []
        assert (report.records, report.units, report.index_entries) == (2 * FILES,) * 3
        options = read_options({"path": str(store), "include": "index"}, ROCKET_TABLES)
        parts = [part for task in plan(options) for part in task]
        batches = [
            batch
            for part in parts
            if isinstance(part, IndexPart)
            for batch in read_index(part, options)
        ]
        assert len(batches) == FILES
        assert sum(batch.num_rows for batch in batches) == 2 * FILES
