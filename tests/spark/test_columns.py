"""Only what is asked for is read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, LongType, StructType

from pyspark_qindex import read
from pyspark_qindex.options import TABLES, read_options
from pyspark_qindex.reading.read_parts import plan, read_part
from pyspark_qindex.sources import QindexSource, log_all_columns
from tests.effort import by_tier, part
from tests.golden import SCENARIOS, SYNTHETIC_CASES, golden, synthetic
from tests.spark.fleet import make_plain, make_rocket, make_stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_INDEX = ("store", "queue", "seq_id", "msg_id", "persistent", "redelivered", "expiry", "size",
            "location", "priority")  # fmt: skip


def table(store: Path, columns: tuple[str, ...] = (), **given: str) -> list[dict[str, Any]]:
    """Read as the tasks do, without Spark."""
    given |= {"path": str(store), "columns": ",".join(columns)}
    options = read_options(given, TABLES)
    parts = [one for task in plan(options) for one in task]
    rows = [row for one in parts for batch in read_part(one, options) for row in batch.to_pylist()]
    sound = [row for row in rows if row["seq_id"] is not None]
    return sorted(sound, key=lambda row: (row["queue"], row["priority"] or 0, row["seq_id"]))


def test_the_index_has_what_the_messages_have() -> None:
    names = [
        *part(
            (*SCENARIOS, *SYNTHETIC_CASES),
            by_tier(quick=8, all=1, nightly=1),
            "columns of the index",
        )
    ]
    for name in names:
        store = (golden if name in SCENARIOS else synthetic)(name).vhost_dir
        whole = [{name: row[name] for name in IN_INDEX} for row in table(store)]
        assert table(store, IN_INDEX) == whole, name


def test_no_message_is_read_for_columns_of_the_index(tmp_path: Path) -> None:
    for store in (make_plain(tmp_path / "plain"), make_stored(tmp_path / "stored")):
        whole = table(store)
        files = [*store.glob("msg_store_persistent/*.rdq")]
        for file in files:
            file.write_bytes(bytes(file.stat().st_size))
        found = table(store, IN_INDEX, mode="failfast")  # it would fail at a message
        assert found == [{name: row[name] for name in IN_INDEX} for row in whole]
        damaged = [row for row in table(store, (*IN_INDEX, "body")) if row["body"] is None]
        assert len(damaged) == sum(row["location"] == "store" for row in whole)
    assert files
    assert damaged


def test_a_read_of_all_columns_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_all_columns.cache_clear()
    some = StructType().add("seq_id", LongType()).add("body", BinaryType())
    kinds = {"string": "string", "bigint": "long", "binary": "binary", "boolean": "boolean"}
    every = StructType()
    for name, kind in TABLES["messages"].items():
        every.add(name, kinds.get(kind, "integer"))
    for schema, lines in ((some, 0), (every, 1), (every, 1)):
        QindexSource({"path": str(tmp_path)}).reader(schema)
        assert len(caplog.records) == lines
    assert caplog.records[0].levelno == logging.WARNING
    assert "on these messages reads all columns" in caplog.text


def test_read(spark: SparkSession, tmp_path: Path) -> None:
    plain = make_plain(tmp_path / "a/plain")
    chosen = read(spark, tmp_path / "a", ["seq_id", "queue"], queue=["orders"], seq_from=550)
    assert chosen.columns == ["seq_id", "queue"]
    assert chosen.count() == 50
    both = read(spark, [str(plain), make_stored(tmp_path / "b")], ["queue"])
    assert {row.queue for row in both.collect()} == {"orders", "audit/ü", "big", "copy"}
    rocket = make_rocket(tmp_path / "rocket")
    assert read(spark, rocket, ["offset"], source="rocketstore").count() == 700
