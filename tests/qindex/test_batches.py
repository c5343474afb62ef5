"""Arrow columns made of numpy arrays hold what the plain way of making them gives."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa

import qindex
from pyspark_qindex.schemas import ENTRIES, without_damage
from qindex.format.envelope import open_envelope
from qindex.format.json_value import plain_json
from qindex.view.arrow import (
    _even_bounds,
    arrow_schema,
    batch_of,
    constant,
    fixed_binaries,
    flags,
    numbers,
)
from qindex.view.reader import StoreReader

COUNTS = [0, 1, 7, 8, 9, 63, 64, 65, 255, 256, 257, 512, 1000]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("value", ["", "x", "0.idx", "\0", "Grüße, 世界", None])
def test_text_repeated(value: str | None, count: int) -> None:
    found = constant(value, count)
    found.validate(full=True)
    assert found.type == pa.string()
    assert found.to_pylist() == [value] * count


@pytest.mark.parametrize("value", [0, 7, None])
def test_numbers_repeated(value: int | None) -> None:
    found = constant(value, 9, pa.int32())
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (pa.int32(), [value] * 9)


def test_text_that_is_none() -> None:
    with pytest.raises(UnicodeEncodeError):
        constant("\udcff", 3)


def test_columns_of_equal_length_have_their_own_values() -> None:
    columns = [constant(value, 300) for value in ("1.idx", "2.idx", "3.idx")]
    assert [column.unique().to_pylist() for column in columns] == [["1.idx"], ["2.idx"], ["3.idx"]]


@pytest.mark.parametrize("count", COUNTS)
def test_booleans(count: int) -> None:
    values = np.random.default_rng(count).random(count) < 0.5
    found = flags(values)
    found.validate(full=True)
    assert found.equals(pa.array(values))
    assert flags(values[::-2]).equals(pa.array(values[::-2].copy()))


@pytest.mark.parametrize("kind", [np.int64, np.int32])
@pytest.mark.parametrize(
    "values", [[], [0], [5], [0, 0, 0], [1, 2, 3], [0, 4, 0, 5, 0, 0, 0, 0, 9]]
)
def test_numbers_of_which_some_are_absent(values: list[int], kind: type[np.int64]) -> None:
    column = np.array(values, kind)
    wanted = pa.array([value or None for value in values], pa.from_numpy_dtype(kind))
    found = numbers(column, absent=0)
    found.validate(full=True)
    assert found.equals(wanted)
    assert numbers(column).equals(pa.array(values, pa.from_numpy_dtype(kind)))


def test_numbers_that_do_not_stand_together() -> None:
    column = np.arange(20)
    assert numbers(column[::3]).to_pylist() == list(range(0, 20, 3))
    assert numbers(column[::3], absent=0).to_pylist() == [None, *range(3, 20, 3)]


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_binaries_of_one_length(count: int) -> None:
    table = np.arange(count * 20, dtype=np.uint32).astype(np.uint8).reshape(count, 20)
    for rows in (table, table[:, 2:18], table[::2, :1]):
        found = fixed_binaries(rows)
        found.validate(full=True)
        assert found.to_pylist() == [row.tobytes() for row in rows]


@pytest.mark.parametrize("count", [0, 1, 9])
def test_columns_without_a_maker_are_null(count: int) -> None:
    batch = batch_of(ENTRIES, count, {"seq_id": lambda: numbers(np.arange(count))})
    batch.validate(full=True)
    assert batch.schema == arrow_schema(ENTRIES)
    assert batch.num_rows == count
    assert all(one.null_count == count for one in batch.columns if one.type != pa.int64())
    assert batch.column("seq_id").null_count == 0


def test_a_null_where_none_can_be_is_refused() -> None:
    """Spark reads it as a value."""
    table = without_damage("entries", {"seq_id": "bigint", "expiry": "bigint"})
    good = batch_of(table, 2, {"seq_id": lambda: numbers(np.arange(2))})
    assert [field.nullable for field in good.schema] == [False, True]
    with pytest.raises(ValueError, match="column seq_id has 1 nulls"):
        batch_of(table, 2, {"seq_id": lambda: numbers(np.arange(2), absent=0)})
    with pytest.raises(ValueError, match="column seq_id has 3 nulls"):
        batch_of(table, 3, {})


def test_more_bytes_than_a_column_can_hold() -> None:
    with pytest.raises(OverflowError, match="268435456 values of 8 bytes are too many"):
        _even_bounds(1 << 28, 8)


def test_the_batches_of_a_queue_are_its_entries(tmp_path: Path) -> None:
    with qindex.open(tmp_path, segment_entry_count=16, embed_below=200) as engine:
        queue = engine.queue("jobs", max_priority=3)
        for number in range(60):
            headers = {"n": number, "raw": b"\xff", "text": 'ü"\n'} if number % 3 else {}
            key = f"k{number}" if number % 2 else None
            queue.publish(b"x" * number * 5, key=key, headers=headers, priority=number % 4)
        engine.flush()
        reader = StoreReader(tmp_path).queue("jobs")
        rows = [row for batch in reader.batches() for row in batch.to_pylist()]
        entries = list(reader.entries())
    assert len(rows) == len(entries) == 60
    for row, entry in zip(rows, entries, strict=True):
        for name in ("seq_id", "msg_id", "persistent", "key", "size", "body", "priority"):
            assert row[name] == getattr(entry, name)
        assert (row["timestamp"], row["location"]) == (entry.timestamp, entry.location)
        assert row["headers"] == plain_json(entry.headers)
        opened = open_envelope(row["envelope"], row["body"])
        assert (opened.key, opened.headers) == (entry.key, entry.headers)
    assert {entry.location for entry in entries} == {"segment", "store"}
    assert next(reader.batches(["key", "seq_id"])).schema.names == ["key", "seq_id"]
    with pytest.raises(qindex.UsageError, match="no column 'seq'"):
        list(reader.batches(["seq"]))
