"""Arrow columns made of numpy arrays hold what the plain way of making them gives."""

from __future__ import annotations

import json
import mmap
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import qindex
from pyspark_qindex.schemas import ENTRIES, without_damage
from qindex.format.envelope import open_envelope
from qindex.format.json_tables import json_tables
from qindex.format.json_value import plain_json
from qindex.format.message import Message
from qindex.format.message_record import encode_record, tables_as_json
from qindex.recovery.columns import take_rows
from qindex.view.arrow import (
    _even_bounds,
    arrow_schema,
    batch_of,
    constant,
    fixed_binaries,
    flags,
    numbers,
    slices,
)
from qindex.view.reader import StoreReader
from qindex.view.record_fields import find_fields

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


@pytest.mark.parametrize("first", [5, (1 << 31) + 5])
def test_slices_of_more_bytes_than_bounds_can_tell(first: int) -> None:
    last = (1 << 31) + 70
    with mmap.mmap(-1, (1 << 31) + mmap.PAGESIZE) as data:
        data[first : first + 3] = b"one"
        data[last : last + 3] = b"two"
        found = slices(data, np.array([first, last]), np.array([first + 3, last + 3]))
        assert found.to_pylist() == [b"one", b"two"]
        del found


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


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65535, 65536, 70000])
@pytest.mark.parametrize("key", [None, "", "k", "k" * 31, "k" * 32, "ü" * 200, "k" * 300])
def test_fields_of_plain_records(size: int, key: str | None) -> None:
    body = bytes(index % 251 for index in range(size))
    record = encode_record(Message(body, key, timestamp=1_700_000_000_123_456_789))
    other = encode_record(Message(body, key, {"h": 1}, timestamp=5))
    data = b"\xc0\xc0" + record + other + b"\x83" * 50 + record
    starts = np.array([2, 2 + len(record), 2 + len(record) + len(other), len(data) - len(record)])
    lengths = np.array([len(record), len(other), 50, len(record)])
    sizes = np.array([size, size, 20, size])
    found = find_fields(data, starts, lengths, sizes)
    assert found.rows.tolist() == [0, 1, 3]
    assert found.has_tables.tolist() == [False, True, False]
    headers, bounds, _, _, sound = tables_as_json(data, found.key_ends, found.table_ends)
    assert (headers, bounds.tolist()) == (b'{}{"h": 1}{}', [0, 2, 10, 12])
    assert sound == b"\1\1\1"
    for wrong in (sizes - 1, sizes + 1, sizes * 0 + len(data), sizes * 0 + (1 << 31)):
        assert find_fields(data, starts, lengths, wrong).rows.tolist() == []
    found = take_rows(found, ~found.has_tables)
    for at in range(2):
        assert data[found.body_starts[at] : found.body_ends[at]] == body
        assert data[found.key_starts[at] : found.key_ends[at]].decode() == (key or "")
        assert found.has_key[at] == (key is not None)
        assert found.stamps[at] == 1_700_000_000_123_456_789


VALUES: list[Any] = [
    1,
    -(2**40),
    1.5,
    -0.0,
    5e-324,
    0.1,
    1e16,
    [*range(-40, 40), 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63, 2**64 - 1],
    [-128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63)],
    {str(at): at for at in range(70_000)},
    b"",
    b"a",
    b"abc",
    '\x7f\x1f\b\f\n\r\t\v"\\/',
    "\ud7ff\ue000\uffff\U00010000\U0010ffff",
    "x" * 70_000,
    1e300,
    True,
    None,
    "text",
    "$5",
    'text that looks like a name: "$5": ',
    "ü\u2028\x00",
    b"\xff\x00",
    [1, [b"x", {"a": None}]],
    {"deep": {"deeper": [1, 2]}},
    {"$base64": "it is text"},
    {"deep": {"$x": 1}},
    {1: "a", "b": 2},
    {b"k": 1},
    float("nan"),
    msgpack.ExtType(5, b"ab"),
    msgpack.Timestamp(3, 500_000_000),
]


def test_tables_as_json() -> None:
    """Of each kind of value, what plain_json gives, or nothing where the build does not tell it."""
    pairs: list[tuple[Any, Any]] = [({"v": value, "n": 0}, {"p": value}) for value in VALUES]
    pairs += [(None, None), ({}, {"p": 1}), ({"a": 1}, None)]
    packed = [msgpack.packb(one) + msgpack.packb(other) for one, other in pairs]
    data = b"".join([b"before", *packed, b"behind"])
    ends = np.cumsum([6, *map(len, packed)])
    for build in (tables_as_json, json_tables):
        told = 0
        for found, (one, other) in zip(texts(build, data, ends), pairs, strict=True):
            wanted = [plain_json(table or {}).encode() for table in (one, other)]
            assert found in (wanted, None)
            told += found is not None
        assert told >= len(pairs) - 8


def texts(build: Any, data: bytes, ends: npt.NDArray[np.int64]) -> list[list[bytes] | None]:
    headers, firsts, properties, seconds, sound = build(data, ends[:-1], ends[1:])
    assert len(headers) == firsts[-1]
    assert len(properties) == seconds[-1]
    return [
        [headers[firsts[at] : firsts[at + 1]], properties[seconds[at] : seconds[at + 1]]]
        if right
        else None
        for at, right in enumerate(sound)
    ]


def test_what_is_no_tables() -> None:
    good = msgpack.packb({"a": [1, {"b": "ü"}], "c": b"x", "d": 1.5}) + msgpack.packb({"e": "f"})
    wrong = [b"", b"\xc0", b"\x01\xc0", b"\xc0\x90", good + b"\xc0", b"\xc1\xc0", b"\x81"]
    wrong += [good[:size] for size in range(len(good))]
    bad = (b"\xc0\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80")
    wrong += [b"\x81\xa1a%c%b\xc0" % (0xA0 + len(text), text) for text in (*bad, b"\xff", b"\xc3")]
    dice = random.Random(3)
    flipped = []
    for _ in range(3000):
        some = bytearray(good)
        some[dice.randrange(len(some))] ^= 1 << dice.randrange(8)
        flipped.append(bytes(some))
    for rows in (wrong, flipped):
        ends = np.cumsum([0, *map(len, rows)])
        data = b"".join(rows)
        compiled, interpreted = texts(tables_as_json, data, ends), texts(json_tables, data, ends)
        for number, (one, other) in enumerate(zip(compiled, interpreted, strict=True)):
            assert one is None or other == one or same(one, other), rows[number]
    assert not any(texts(tables_as_json, b"".join(wrong), np.cumsum([0, *map(len, wrong)])))
    for places in ([-1, 2], [0, len(good) + 1], [3, 2]):
        for build in (tables_as_json, json_tables):
            with pytest.raises(IndexError):
                build(good, *(np.array([place]) for place in places))


def same(one: list[bytes], other: list[bytes] | None) -> bool:
    """Of two equal names in a map the last one counts."""
    return other is not None and list(map(json.loads, one)) == list(map(json.loads, other))
