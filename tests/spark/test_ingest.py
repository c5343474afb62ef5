"""``ingest``: each message is in a table of the lake once, typed, or in another with the reason."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

import qindex
import rocketstore
from journal.errors import LockedError, UsageError
from journal.fs.files import REAL
from journal.locks.directory_lock import DirectoryLock
from pyspark_qindex.jobs import ingest as ingesting
from pyspark_qindex.jobs.fleet import store_names
from pyspark_qindex.jobs.ingest import add_columns, ingest
from pyspark_qindex.jobs.results import JobOptions
from tests.cli.support import run
from tests.spark.lakes import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD = {
    b'{"a": 1, "b": {"c": "x"}}': (1, "x"),
    b'{"a": 2}': (2, None),
    b' {"a": 3} \n': (3, None),
    b'{"a": null, "b": {}}': (None, None),
    b"{}": (None, None),
    '{"b": {"c": "ü\\u0000}] {"}}'.encode(): (None, "ü\0}] {"),
}
FITS_NOT, IS_NOT_JSON = "the body does not fit the schema", "the body is not JSON"
BAD = {
    b'{"a": "x"}': FITS_NOT,
    b'{"a": 1.5}': FITS_NOT,
    b'{"a": 9223372036854775808}': FITS_NOT,
    b'{"b": 5}': FITS_NOT,
    b'{"b": {"c": "x"}, "a": [1]}': FITS_NOT,
    b"null": FITS_NOT,
    b"5": FITS_NOT,
    b'[{"a": 1}]': FITS_NOT,
    b'{"a": 1}{"a": 2}': IS_NOT_JSON,
    b'{"a": 1},{"a": 2}': IS_NOT_JSON,
    b'{"a": 1},"data":{"a": 2}': IS_NOT_JSON,
    b'{"a": 1} x': IS_NOT_JSON,
    b'{"a": 1}}': IS_NOT_JSON,
    b'{"a": 1}]}': IS_NOT_JSON,
    b'{"a": 1}],"data":[{"a": 2}': IS_NOT_JSON,
    b'{"a": 1},null': IS_NOT_JSON,
    b'{"a": 1': IS_NOT_JSON,
    b"": IS_NOT_JSON,
    b"\xff": "the body is not UTF-8",
}
DDL = "a bigint, b struct<c: string>"


def table(spark: SparkSession, lake: Path, name: str = "messages") -> list[dict[str, Any]]:
    frame = spark.read.option("mergeSchema", "true").parquet(str(lake / name))
    return [row.asDict(recursive=True) for row in frame.orderBy("store", "seq_id").collect()]


def test_what_fits_and_what_does_not(spark: SparkSession, tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", tmp_path / "lake"
    publish(fleet / "a" / "orders", *GOOD, *BAD)
    publish(fleet / "b" / "orders", b'{"a": 7, "new": 1}')
    publish(fleet / "damaged" / "orders", b'{"a": 41}', b'{"a": 42}')
    (journal,) = (fleet / "damaged").rglob("journal.jif")
    journal.write_bytes(journal.read_bytes().replace(b'{"a": 41}', b'{"b": 77}'))
    outcome = ingest(spark, JobOptions([str(fleet)], str(lake), schema=DDL))
    assert outcome.summary == {"stores": 3, "messages": len(GOOD) + 2, "bad": len(BAD) + 1}
    assert outcome.found
    assert outcome.notes == [
        "messages: schema a BIGINT,b STRUCT<c: STRING>",
        "messages: 1 messages have fields that the schema lacks, such as 'new': "
        "add them with --schema",
    ]
    rows = table(spark, lake)
    typed = {row["body"]: row["data"] for row in rows}
    for body, (a, c) in GOOD.items():
        found = typed[body.decode()]
        assert (found["a"], found["b"] and found["b"]["c"]) == (a, c), body
    assert typed['{"a": 7, "new": 1}']["a"] == 7
    assert {row["store"] for row in rows} == {"a~orders", "b~orders", "damaged~orders"}
    assert all(row["day"] == row["time"].date() for row in rows)
    days = [path.name for path in (lake / "messages").glob("day=*/*")]
    assert sorted(days) == ["store=a~orders", "store=b~orders", "store=damaged~orders"]
    bad = {row["body"]: row for row in table(spark, lake, "messages_bad")}
    damaged = bad.pop(None)
    assert {bytes(body): row["reason"] for body, row in bad.items()} == BAD
    assert "journal.jif" in damaged["reason"]
    assert (damaged["day"], damaged["store"]) == (None, "damaged~orders")

    # Stores come and go; names stay.
    shutil.rmtree(fleet / "a")
    publish(fleet / "c" / "deep" / "orders", b'{"a": 8}')
    publish(fleet / "b" / "orders", b'{"a": 9}', queue="other")
    (fleet / "other").mkdir()
    (fleet / "other" / "qindex.store").write_bytes(b"junk")
    outcome = ingest(spark, JobOptions([str(fleet)], str(lake)))
    assert outcome.summary == {"stores": 3, "messages": 2, "bad": 0}
    assert outcome.found
    assert outcome.notes == [
        f"left out: {fleet / 'other' / 'qindex.store'}: not the marker of a qindex store",
        f"not found: {fleet / 'a' / 'orders'}",
    ]
    shutil.rmtree(fleet / "other")
    new = [row["store"] for row in table(spark, lake) if row["data"]["a"] in (8, 9)]
    assert new == ["b~orders", "c~deep~orders"]
    assert len(table(spark, lake)) == len(rows) + 2

    # All of that fitted. What does not is found although the other table's stream was only moved.
    publish(fleet / "b" / "orders", b"neither")
    assert ingest(spark, JobOptions([str(fleet)], str(lake))).summary["bad"] == 1
    assert len(table(spark, lake, "messages_bad")) == len(BAD) + 2


def test_records_of_rocketmq(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with rocketstore.open(tmp_path / "r", background=False) as store:
        for number in range(6):
            store.put("t", b'{"n": %d}' % number, sys_flag={4: 4, 5: 12}.get(number, 0))
        # The broker puts these once more, into their topic.
        store.put("t", b'{"n": 6}', delay=3)
        store.put("RMQ_SYS_TRANS_HALF_TOPIC", b'{"n": 7}')
    publish(tmp_path / "q", b"plain text")
    outcome = ingest(spark, JobOptions([str(tmp_path / "r")], str(lake)))
    assert outcome.summary == {"stores": 1, "messages": 4, "bad": 0}
    found = spark.read.parquet(str(lake / "records")).orderBy("offset").collect()
    assert [(row["topic"], row["data"]["n"], row["store"]) for row in found] == [
        ("t", number, "r") for number in range(4)
    ]
    with pytest.raises(UsageError, match=r"none of 1 messages is a JSON object .*give --schema"):
        ingest(spark, JobOptions([str(tmp_path / "q")], str(lake)))


def test_schemas(spark: SparkSession, tmp_path: Path) -> None:
    store, lake = tmp_path / "s", tmp_path / "lake"
    publish(store, b'{"id": 1, "tags": [{"k": "x"}]}', b'{"id": 2, "price": 1.5}', b"[1]")
    odd = (
        b'{"o": {"a": 1, "A": 1}}',
        b'{"\\u0000": 1}',
        b'{"_corrupt_record": 1}',
        b'{"\\ud800": 1}',
    )
    deep = b'{"deep": ' * 200 + b"1" + b"}" * 200
    publish(store, *odd[1:], deep, queue="odd")
    wanted = JobOptions([str(store)], str(lake))
    publish(tmp_path / "clash", odd[0])
    with pytest.raises(UsageError, match=r"messages: column o\.A comes twice: .*: give --schema"):
        ingest(spark, JobOptions([str(tmp_path / "clash")], str(lake)))
    assert ingest(spark, wanted).summary == {"stores": 1, "messages": 6, "bad": 1}
    kept = json.loads((lake / "lake.json").read_text())
    columns = (
        "`\0` BIGINT,_corrupt_record BIGINT,id BIGINT,price DOUBLE,tags ARRAY<STRUCT<k: STRING>>"
    )
    assert kept["schemas"] == {"messages": columns}
    before = sorted(lake.rglob("*"))
    for changed, complaint in (
        ("id string", "column id is bigint, not string"),
        ("tags array<struct<k: int>>", r"column tags\[\].k is string, not int"),
        ("price struct<x: int>", "column price is double, not struct<x:int>"),
        ("ID bigint", "column id comes twice"),
        (" ", "--schema ' ': columns with names and types are needed"),
    ):
        with pytest.raises(UsageError, match=complaint):
            ingest(spark, JobOptions([str(store)], str(lake), schema=changed))
    assert sorted(lake.rglob("*")) == before
    publish(store, b'{"id": 3, "tags": [{"k": "y", "v": 5}], "new": true}')
    ddl = "new boolean, tags array<struct<v: int>>"
    outcome = ingest(spark, JobOptions([str(store)], str(lake), schema=ddl))
    assert outcome.summary == {"stores": 1, "messages": 1, "bad": 0}
    first, *_, last = (row["data"] for row in table(spark, lake) if row["queue"] == "q")
    assert (first["new"], first["tags"]) == (None, [{"k": "x", "v": None}])
    assert (last["id"], last["tags"], last["new"]) == (3, [{"k": "y", "v": 5}], True)


def test_a_store_is_not_named_as_spark_names_null() -> None:
    assert store_names(["/s/a", "/s/__HIVE_DEFAULT_PARTITION__"]) == {
        "/s/a": "a",
        "/s/__HIVE_DEFAULT_PARTITION__": "__HIVE_DEFAULT_PARTITION__~",
    }


@pytest.mark.usefixtures("spark")
def test_columns_are_added_at_every_depth() -> None:
    def merged(kept: str, given: str) -> str:
        old, new = StructType.fromDDL(kept), StructType.fromDDL(given)
        assert isinstance(old, StructType)
        assert isinstance(new, StructType)
        return add_columns(old, new).simpleString()

    assert merged("a int", "b int not null, a int") == "struct<a:int,b:int>"
    assert merged("a map<string,struct<x:int>>", "a map<string,struct<y:int>>") == (
        "struct<a:map<string,struct<x:int,y:int>>>"
    )
    for given, complaint in (
        ("a map<int,int>", r"column a is string, not int"),
        ("a map<string,string>", r"column a\[\] is int, not string"),
        ("a array<int>", r"column a is map<string,int>, not array<int>"),
    ):
        with pytest.raises(UsageError, match=complaint):
            merged("a map<string,int>", given)
    # A lake that had kept these would fail in each run.
    for kind in (
        "interval",
        "char(3)",
        "varchar(3)",
        "time(6)",
        "void",
        "map<int,int>",
        "struct<>",
    ):
        with pytest.raises(UsageError) as caught:
            merged("a array<int>", f"b array<{kind}>")
        assert str(caught.value) == f"column b[]: JSON can't be read as {kind}"


def test_a_lake_that_is_not_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lake = tmp_path / "s", tmp_path / "lake"
    wanted = JobOptions([str(store)], str(lake), schema="a int")
    publish(store, b'{"a": 1}')
    ingest(spark, wanted)
    # What did not fit is found by the run after one that ended between two tables, although all of
    # its new messages fit.
    publish(store, b"neither")
    with monkeypatch.context() as patched:
        patched.setattr(ingesting._Run, "bad", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            ingest(spark, wanted)
    publish(store, b'{"a": 2}')
    assert ingest(spark, wanted).summary == {"stores": 1, "messages": 1, "bad": 1}
    publish(store, b'{"a": 3}')
    for missing, complaint in (
        ("checkpoints", r"lake/messages: has rows, but no checkpoint: restore .*/messages, or"),
        ("checkpoints/messages_bad", "lake/messages_bad: has rows, but no checkpoint"),
        ("messages", "checkpoints/messages: is of a table that is not there: restore"),
        ("messages/_spark_metadata", "checkpoints/messages: is of a table that is not there"),
        ("lake.json", "lake: is not empty, and no lake: it has no lake.json"),
    ):
        (lake / missing).rename(tmp_path / "away")
        with pytest.raises(UsageError, match=complaint):
            ingest(spark, wanted)
        (tmp_path / "away").rename(lake / missing)
    with pytest.raises(UsageError, match="lake: its tables are parquet, not delta"):
        ingest(spark, JobOptions([str(store)], str(lake), format="delta"))
    lock = DirectoryLock(REAL, lake / "lake.lock")
    with pytest.raises(LockedError):
        ingest(spark, wanted)
    lock.release()
    assert [row["data"]["a"] for row in table(spark, lake)] == [1, 2]
    assert ingest(spark, wanted).summary == {"stores": 1, "messages": 1, "bad": 0}
    (lake / "lake.json").write_text("{")
    with pytest.raises(UsageError, match=r"lake\.json: restore it, it is not as it was written: "):
        ingest(spark, wanted)


def test_what_is_another_one_is_told_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    fleet, lake, other = tmp_path / "fleet", tmp_path / "lake", tmp_path / "other"
    wanted = JobOptions([str(fleet)], str(lake), schema="a int")
    for number, name in enumerate(("001", "b")):
        publish(fleet / name, b'{"a": %d}' % number, b'{"a": 5}')
    (fleet / "link").symlink_to(fleet / "b")
    assert ingest(spark, wanted).summary == {"stores": 2, "messages": 4, "bad": 0}
    with qindex.open(fleet / "b") as engine:
        engine.delete_queue("q")
    publish(fleet / "b", b'{"a": 7}', b'{"a": 8}', b'{"a": 9}')
    outcome = ingest(spark, wanted)
    assert outcome.summary["messages"] == 3
    assert outcome.notes == ["b: queue 'q' was made again: read from its beginning"]
    shutil.rmtree(fleet / "b")
    publish(fleet / "b", b'{"a": 10}')
    outcome = ingest(spark, wanted)
    assert outcome.summary["messages"] == 1
    assert outcome.notes[0] == "b: the store was made again"
    assert sorted(row["data"]["a"] for row in table(spark, lake)) == [0, 1, 5, 5, 7, 8, 9, 10]

    publish(tmp_path / "x", b'{"a": 1}')
    ingest(spark, JobOptions([str(tmp_path / "x")], str(other), schema="a int"))
    for name in ("messages", "checkpoints"):
        (lake / name).rename(tmp_path / "away")
        shutil.copytree(other / name, lake / name)
        with pytest.raises(UsageError, match=r"is not the checkpoint of .*lake/messages: restore"):
            ingest(spark, wanted)
        if name == "checkpoints":  # of a lake that an earlier version filled
            for mark in lake.glob("*/_lake"):
                mark.unlink()
            with pytest.raises(UsageError, match=r"no store .*/x, which a checkpoint beside it is"):
                ingest(spark, wanted)
        shutil.rmtree(lake / name)
        (tmp_path / "away").rename(lake / name)
    shutil.rmtree(fleet)
    for name in ("001", "b"):
        publish(fleet / name, b'{"a": 11}')
    with pytest.raises(UsageError, match=r"is of another fleet: .*fleet/001, .*fleet/b and all"):
        ingest(spark, wanted)


def test_the_command(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = tmp_path / "s", tmp_path / "lake"
    publish(store, b'{"a": 1}', b"x")
    asked = ("pipeline", "ingest", store, "--to", lake)
    for wrong, complaint in (
        (("--format", "delta"), "--format delta needs pyspark 4.2, not 4.3."),
        (("--format", "iceberg"), "--format iceberg needs pyspark 4.1, not 4.3."),
        (("--format", "csv"), "--format must be one of parquet, delta, iceberg, not 'csv'"),
        (("--every", "15"), "--every must be a time such as 30s, 15min or 1h, not '15'"),
        (("--every", "1h", "--once"), "--once and --every exclude each other"),
        (("--master", "sc://127.0.0.1"), "sc://127.0.0.1: ingest needs a session of its own"),
    ):
        result = run(*asked, *wrong)
        assert result.code == 2
        (line,) = result.complaints
        assert complaint in line
        assert not lake.exists()
    result = run(*asked, "--schema", "a bigint,")
    assert (result.code, len(result.complaints)) == (2, 1)
    assert "--schema 'a bigint,': " in result.complaints[0]
    result = run(*asked, "--once", "--json")
    assert result.code == 1
    assert result.rows == [
        {"job": "ingest", "stores": 1, "messages": 1, "bad": 1, "out": str(lake)}
    ]

    def interrupt(seconds: float, sleep: Any = time.sleep) -> None:
        if seconds < 1000:  # of others
            sleep(seconds)
        elif table(spark, lake)[-1]["data"]["a"] == 2:
            raise KeyboardInterrupt
        else:
            publish(store, b'{"a": 2}')

    monkeypatch.setattr(time, "sleep", interrupt)
    result = run(*asked, "--every", "2h", "--json")
    assert [row["messages"] for row in result.rows] == [0, 1]
    assert result.code == 130
