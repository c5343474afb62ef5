"""The batch sources: the same rows as the reader's, by every option, from every kind of place."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import qindex
from pyspark_qindex import explain
from pyspark_qindex.options import TABLES, read_options
from pyspark_qindex.planning import ReadFailedError
from pyspark_qindex.reading.read_parts import plan, read_part
from qindex.view.reader import StoreReader
from qindex.view.row_json import row_json
from tests.effort import by_tier
from tests.effort import part as slice_of
from tests.golden import SCENARIOS, golden, rocket_golden
from tests.qindex.support import queue_directory
from tests.spark.test_options import newer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
LARGE = b"\x00large\xff" * 3000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores in a tree: small segments, every kind of message, some of them done with."""
    root = tmp_path_factory.mktemp("fleet")
    for number, name in enumerate(("a", "deep/er/b")):
        store = root / name
        with qindex.open(store, background=False, segment_entry_count=64) as engine:
            mixed = engine.queue("mixed")
            for at in range(300):
                mixed.publish(
                    b"m" * (at % 40),
                    key=None if at % 3 else f"k{at % 7}",
                    headers={"n": at, "raw": b"\xff", "deep": {"x": [1.5, None]}}
                    if at % 11 == 0
                    else None,
                    ttl=3600.0 if at % 5 == 0 else None,
                    persistent=at % 4 != 0,
                )
                if at % 50 == 0:
                    mixed.publish(LARGE + bytes([number, at]), key="large")
            engine.queue("plain").publish_many([b"x" * 100] * 500)
            engine.queue("empty")
            engine.flush()
            batch = mixed.get_many(100)
            mixed.ack_many(batch[:70])
            engine.flush()
            engine.queue("plain").publish(b"in the journal")
            crashed = root / f"{name}-crashed"
            if number == 0:
                import shutil

                shutil.copytree(store, crashed)
    return root


def load(spark: SparkSession, path: object, source: str = "qindex", **options: object) -> DataFrame:
    reader = spark.read.format(source)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(path))


def rows(frame: DataFrame) -> list[Row]:
    found: list[Row] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: tuple(str(row.get(n)) for n in ("store", "queue")) + (
        row.get("priority") or 0, row.get("seq_id") or 0,
    ))  # fmt: skip


def as_cat(row: Row) -> Row:
    """A row in the words of ``qindex cat --json``."""
    shown = dict(row)
    shown["msg_id"] = row["msg_id"].hex()
    shown["headers"] = json.loads(row["headers"])
    shown["properties"] = json.loads(row["properties"])
    return shown


def test_messages_are_those_of_cat(spark: SparkSession, fleet: Path) -> None:
    found = rows(load(spark, fleet))
    expected = []
    for store in ("a", "a-crashed", "deep/er/b"):
        reader = StoreReader(fleet / store)
        for queue in reader.readers():
            for row in queue.entries():
                cat = row_json(row)
                cat.pop("body_base64")
                expected.append(cat | {"store": str(fleet / store), "queue": queue.name,
                                       "body": row.body})  # fmt: skip
    assert len(found) == len(expected) > 2000
    places = set()
    for got, wanted in zip(found, expected, strict=True):
        shown = as_cat(got)
        assert {name: shown[name] for name in wanted} == wanted
        assert (got["error"], got["priority"]) == (None, None)
        places.add(got["location"])
    assert places == {"journal", "segment", "store"}


def test_envelopes_give_the_messages_back(spark: SparkSession, fleet: Path) -> None:
    from qindex.format.envelope import open_envelope

    found = rows(load(spark, fleet / "a", queue="mixed"))
    expected = list(StoreReader(fleet / "a").queue("mixed").entries())
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        opened = open_envelope(got["envelope"], got["body"])
        assert opened.body == wanted.body
        assert (opened.key, opened.headers) == (wanted.key, wanted.headers)
        assert (opened.properties, opened.timestamp) == (wanted.properties, wanted.timestamp)


def test_options_choose(spark: SparkSession, fleet: Path) -> None:
    every = rows(load(spark, fleet / "a", queue="mixed"))
    assert rows(load(spark, fleet / "a", queue='["mixed", "empty"]')) == every
    part = rows(load(spark, fleet / "a", queue="mixed", seq_from=90, seq_to=200))
    assert part == [row for row in every if 90 <= row["seq_id"] < 200]
    keyed = rows(load(spark, fleet / "a", queue="mixed", key="k3"))
    assert keyed == [row for row in every if row["key"] == "k3"]
    assert len(keyed) > 5
    few = load(spark, fleet / "a", queue="mixed", columns="body, seq_id")
    assert few.columns == ["body", "seq_id"]
    pairs = [{"body": row["body"], "seq_id": row["seq_id"]} for row in every]
    assert rows(few) == pairs
    for mode in ("permissive", "failfast"):
        reader = spark.read.format("qindex").option("queue", "mixed").option("mode", mode)
        asked = reader.schema("body binary, seq_id bigint").load(str(fleet / "a"))
        assert (asked.columns, rows(asked)) == (["body", "seq_id"], pairs)
        wrong = reader.schema("body string").load(str(fleet / "a"))
        with pytest.raises(Exception) as caught:  # noqa: PT011
            wrong.collect()
        assert explain(caught.value) == "column 'body' is binary, not string"
    assert load(spark, fleet / "a", queue="empty").count() == 0
    split = load(spark, fleet / "a", queue="mixed", partitions=3)
    assert split.rdd.getNumPartitions() == 3
    assert rows(split) == every


def test_entries_have_every_state(spark: SparkSession, fleet: Path) -> None:
    found = rows(load(spark, fleet / "a-crashed", queue="mixed", include="entries"))
    expected = {
        row.seq_id: row for row in StoreReader(fleet / "a-crashed").queue("mixed").entries()
    }
    # 70 are acknowledged: all of the first segment, which is deleted, and some of the second.
    by_state: dict[str, set[int]] = {}
    for row in found:
        by_state.setdefault(row["state"], set()).add(row["seq_id"])
        message = expected.get(row["seq_id"])
        if message is not None:
            assert row["msg_id"] == message.msg_id
            assert (row["size"], row["persistent"]) == (message.size, message.persistent)
            assert row["stored"] == (message.location == "store")
            assert (row["expiry"] or 0) == message.expiry
        record = (fleet / "a-crashed" / row["file"]).read_bytes()
        head = 2 if row["file"].endswith(".idx") else 8
        assert record[row["offset"] + head :][:16] == row["msg_id"]
    assert by_state["acked"] == set(range(64, 70))
    assert by_state["delivered"] == set(range(70, 100))
    assert by_state["published"] == {seq for seq in expected if seq >= 100}


def test_files_add_up(spark: SparkSession, fleet: Path) -> None:
    found = load(spark, fleet, include="files").toArrow().to_pylist()
    for row in found:
        assert row["error"] is None
        assert row["size"] == (Path(row["store"]) / row["file"]).stat().st_size
        assert row["live"] + row["garbage"] == row["size"]
    for store in ("a", "a-crashed", "deep/er/b"):
        mine = [row for row in found if row["store"] == str(fleet / store)]
        on_disk = {
            str(path.relative_to(fleet / store))
            for pattern in ("queues/*/*.idx", "queues/*/journal.jif", "msg_store_*/*.rdq")
            for path in (fleet / store).glob(pattern)
            if path.stat().st_size
        }
        assert {row["file"] for row in mine} == on_disk
        live = sum(row["live_records"] for row in mine if row["kind"] != "messages")
        assert live == sum(len(list(one.entries())) for one in StoreReader(fleet / store).readers())
    summary = StoreReader(fleet / "a").message_store()
    assert summary is not None
    (stored,) = [
        row for row in found if row["kind"] == "messages" and row["store"] == str(fleet / "a")
    ]
    assert (stored["size"], stored["live"]) == (summary.size, summary.live)
    assert (stored["records"], stored["live_records"]) == (6, summary.messages) == (6, 4)


def test_stored_records(spark: SparkSession, fleet: Path) -> None:
    found = load(spark, fleet / "a", include="stored").toArrow().to_pylist()
    data = (fleet / "a" / "msg_store_persistent" / "0.rdq").read_bytes()
    assert len(found) == 6
    for row in found:
        assert (row["file"], row["error"]) == ("msg_store_persistent/0.rdq", None)
        record = data[row["offset"] : row["offset"] + row["record_size"]]
        assert record[8:24] == row["msg_id"]
        assert record[-1:] == b"\xff"


def test_a_glob_and_a_node_directory(spark: SparkSession, fleet: Path, tmp_path: Path) -> None:
    both = load(spark, f"{fleet}/a*", columns="store").distinct().collect()
    assert sorted(row.store for row in both) == [str(fleet / "a"), str(fleet / "a-crashed")]
    node = tmp_path / "rabbit@host" / "msg_stores" / "vhosts"
    node.mkdir(parents=True)
    (node / "X").symlink_to(golden("a").vhost_dir)
    shown = load(spark, tmp_path, columns="store,queue").distinct().collect()
    assert {row.store for row in shown} == {str(node / "X")}
    assert len(shown) == sum(bool(queue.delivered) for queue in golden("a").truth.queues.values())


@pytest.mark.parametrize("include", ["messages", "entries"])
def test_a_read_that_fails_at_damage_gives_the_same(
    spark: SparkSession, fleet: Path, include: str
) -> None:
    """What every row has is not nullable then: Spark does not look whether it is there."""
    permissive = load(spark, fleet, include=include)
    strict = load(spark, fleet, include=include, mode="failfast")
    assert all(field.nullable for field in permissive.schema)
    filled = {field.name for field in strict.schema if not field.nullable}
    assert {"store", "queue", "seq_id", "msg_id", "size"} <= filled
    assert not filled & {"expiry", "priority", "error", "key", "body"}
    assert strict.columns == permissive.columns
    assert rows(strict) == rows(permissive)
    counts = {name: strict.where(f"{name} is null").count() for name in ("seq_id", "expiry")}
    assert counts["seq_id"] == 0
    assert counts["expiry"] == permissive.where("expiry is null").count() > 0


@pytest.mark.parametrize(
    "scenario", slice_of(SCENARIOS, by_tier(quick=4, all=1, nightly=1), "rows of a node")
)
@pytest.mark.parametrize("include", ["messages", "entries"])
def test_what_every_row_of_a_node_has(scenario: str, include: str) -> None:
    """In the directories of real nodes; a column that lacks a value is refused (test_batches)."""
    found = []
    for mode in ("permissive", "failfast"):
        options = {"path": str(golden(scenario).vhost_dir), "include": include, "mode": mode}
        asked = read_options(options, TABLES)
        parts = [part for task in plan(asked) for part in task]
        found.append(
            [row for part in parts for one in read_part(part, asked) for row in one.to_pylist()]
        )
    assert found[0] == found[1]


def test_a_remote_place_gives_the_same(spark: SparkSession, fleet: Path) -> None:
    here = rows(load(spark, fleet / "a"))
    remote = rows(load(spark, f"local://{fleet}/a"))
    assert {row["store"] for row in remote} == {f"local://{fleet}/a"}
    assert [row | {"store": ""} for row in remote] == [row | {"store": ""} for row in here]
    files = load(spark, f"local://{fleet}/a*", include="files").count()
    assert files == load(spark, f"{fleet}/a*", include="files").count() > 10
    store = rocket_golden("gen") / "store"
    logs = load(spark, f"local://{store}", "rocketstore").count()
    assert logs == load(spark, store, "rocketstore").count() > 100


def test_rocket_options(spark: SparkSession) -> None:
    store = rocket_golden("gen") / "store"
    every = load(spark, store, "rocketstore").toArrow().to_pylist()
    topic = every[0]["topic"]
    some = load(spark, store, "rocketstore", topic=topic, queue_id=0).toArrow().to_pylist()
    assert some == [row for row in every if row["topic"] == topic and row["queue_id"] == 0]
    key = next(row["unique_key"] for row in every if row["unique_key"])
    keyed = load(spark, store, "rocketstore", key=key).toArrow().to_pylist()
    assert keyed
    assert keyed == [
        row for row in every if key in (row["unique_key"], *(row["keys"] or "").split(" "))
    ]


def spoil(path: Path, place: bytes) -> None:
    """Change bytes where ``place`` stands, beyond what a checksum could put right."""
    data = path.read_bytes()
    assert data.count(place) == 1
    path.write_bytes(data.replace(place, bytes(byte ^ 0x55 for byte in place)))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    store = tmp_path / "damaged"
    with qindex.open(store, background=False, segment_entry_count=64) as engine:
        engine.queue("q").publish_many([b"body %03d" % at for at in range(200)])
        engine.queue("big").publish(LARGE + b"the middle" + LARGE)
        engine.queue("sound").publish(b"sound")
        engine.flush()
    spoil(queue_directory(store, "q") / "1.idx", b"body 100")
    spoil(store / "msg_store_persistent" / "0.rdq", b"the middle")
    return store


def test_damage_costs_what_it_damaged_and_is_told(spark: SparkSession, damaged: Path) -> None:
    found = rows(load(spark, damaged))
    sound = [row for row in found if row["error"] is None]
    assert len([row for row in sound if row["queue"] == "q"]) == 199
    assert [row["body"] for row in sound if row["queue"] == "sound"] == [b"sound"]
    wrong = [row for row in found if row["error"]]
    files = {row["queue"]: row["error"] for row in wrong}
    assert set(files) == {"q", "big"}
    assert "/1.idx: at offset " in files["q"]
    assert "at offset " in files["big"]
    lost = [row for row in wrong if row["seq_id"] is not None]
    assert [(row["queue"], row["seq_id"], row["body"]) for row in lost] == [("big", 0, None)]
    stored = load(spark, damaged, include="stored").toArrow().to_pylist()
    assert any("0.rdq: at offset 0" in (row["error"] or "") for row in stored)


def test_failfast_fails_in_one_line(spark: SparkSession, damaged: Path) -> None:
    for include in ("messages", "entries", "stored", "files"):
        options = {"path": str(damaged), "include": include, "mode": "failfast"}
        asked = read_options(options, TABLES)
        parts = [part for task in plan(asked) for part in task]
        with pytest.raises(ReadFailedError, match="at offset") as failed:
            list(chain.from_iterable(read_part(part, asked) for part in parts))
        assert str(damaged) in str(failed.value)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own class, which is no API
        load(spark, damaged, mode="failfast").collect()
    text = explain(caught.value)
    assert text.startswith(str(damaged))
    assert "\n" not in text


def test_one_bad_store_of_a_fleet_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("good", "new"):
        with qindex.open(tmp_path / name) as engine:
            engine.queue("q").publish(b"x")
    newer(tmp_path / "new")
    found = rows(load(spark, tmp_path))
    assert [(row["store"], row["body"]) for row in found] == [
        (str(tmp_path / "good"), b"x"),
        (str(tmp_path / "new"), None),
    ]
    assert "version 3; this program knows 2" in found[1]["error"]
    with pytest.raises(Exception, match="version 3"):
        load(spark, tmp_path, mode="failfast").collect()


def test_wrong_use_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """The errors themselves: test_options."""
    reader = spark.read.format("qindex")
    for options, wanted in (
        ({}, "missing: no such directory"),
        ({"startingPosition": "latest"}, "option startingposition is of streams"),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            reader.options(**options).load(str(tmp_path / "missing")).collect()
        text = explain(caught.value)
        assert wanted in text
        assert "\n" not in text
        assert "Exception" not in text
        assert "Traceback" not in text


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[Path, list[int]]]:
    """A store with a thread at work on it: it publishes 0, 1, 2 ... and consumes the oldest."""
    store = tmp_path / "busy"
    stop = threading.Event()
    log = [0, 0]
    pause = 0.002  # what it does without one only takes the processor from the reader
    with qindex.open(store, max_journal_entries=2000, segment_entry_count=512) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%08d" % at for at in range(5000)])

        def work() -> None:
            at = 5000
            while not stop.wait(pause):
                for _ in range(50):
                    queue.publish(b"%08d" % at)
                    at += 1
                if at % 1000 == 0:
                    batch = queue.get_many(200)
                    queue.ack_many(batch)
                    log[1] += 200
                log[0] = at

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield store, log
        finally:
            stop.set()
            thread.join()
            assert engine.findings == []


def test_a_store_that_is_written_gives_one_moment_of_each_queue(
    spark: SparkSession, busy: tuple[Path, list[int]]
) -> None:
    store, log = busy
    for _ in range(3):
        published, acked = log
        found = rows(load(spark, store, partitions=4, columns="queue,seq_id,body,error"))
        assert not any(row["error"] for row in found)
        seqs = [row["seq_id"] for row in found]
        assert [row["body"] for row in found] == [b"%08d" % seq for seq in seqs]
        # All of one moment, however many tasks have read it, but for what was acknowledged, and
        # deleted with its segment, before its task came to it.
        missing = set(range(acked, seqs[-1] + 1)) - set(seqs)
        assert len(seqs) == len(set(seqs))
        assert not missing or max(missing) < log[1] + 200
        assert published - 1 <= seqs[-1]
