"""Export and import, migrate and back: what comes back is what went in."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import qindex
import rocketstore
from journal.errors import DamageError, NotAStoreError, StoreError, UsageError
from pyspark_qindex.jobs import transfer
from pyspark_qindex.jobs.fleet import find_fleet, store_names
from pyspark_qindex.jobs.migrate import migrate
from pyspark_qindex.jobs.refill import decode_name, encode_name
from pyspark_qindex.jobs.stats import stats
from pyspark_qindex.jobs.transfer import export_stores, import_stores, queues_kept
from qindex.format.envelope import make_envelope
from qindex.format.message import Message
from qindex.queue.notes.delivery_counts import FILE_NAME as DELIVERIES
from qindex.queue.notes.delivery_counts import unpack_counts
from qindex.view.reader import StoreReader
from qindex.view.row_json import row_json
from tests.cli.support import run
from tests.golden import golden
from tests.qindex.support import queue_directory
from tests.rocketstore.support import store_files
from tests.spark.fleet import LARGE, make_plain, make_rocket, make_stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = ("a", "b", "d1", "e1", "f1", "g1")
Rows = dict[str, list[dict[str, Any]]]


def cat(store: Path | str, *, renumbered: bool = False) -> Rows:
    """What ``qindex cat`` prints of each queue. Where a message lies (journal, segment) is not
    the message's. In a store of ours the seq_ids of a priority queue name the priority, too."""
    left_out = {"location"}
    shown: Rows = {}
    for queue in StoreReader(store).readers():
        rows = [row_json(row) for row in queue.entries()]
        renumber = {"seq_id"} if renumbered and "prio" in queue.name else set()
        shown[queue.name] = [
            {name: value for name, value in row.items() if name not in left_out | renumber}
            for row in rows
        ]
    return shown


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ours (one as a running engine has it, with transient messages) and RabbitMQ's."""
    root = tmp_path_factory.mktemp("stores")
    found = {"plain": make_plain(root / "plain"), "stored": make_stored(root / "stored")}
    for name in GOLDEN:
        found[name] = root / name
        shutil.copytree(golden(name).vhost_dir, found[name])
    live = root.parent / "live"
    with qindex.open(live, background=False) as engine:
        queue = engine.queue("mixed/1 $", message_ttl=9999.5, delivery_limit=9)
        for number in range(20):
            size = LARGE if number % 6 == 0 else 5
            queue.publish(b"t" * size, key="", persistent=number % 2 == 0, ttl=5000.0 + number)
        for delivery in queue.get_many(7)[:3]:
            delivery.nack()
        queue.get_many(2)
        engine.queue("nothing in it", message_ttl=1.0)
        shutil.copytree(live, root / "live")
    found["live"] = root / "live"
    found["first"] = root / "first"
    with qindex.open(found["first"]) as engine:
        jobs = engine.queue("jobs", max_priority=5, delivery_limit=9)
        for number in range(40):
            jobs.publish(b"j" * (LARGE if number % 6 == 0 else 5), key="", priority=number % 4)
        for delivery in [jobs.get(), jobs.get()]:
            delivery.nack()
    return found


def counts_in(store: Path) -> dict[int, int]:
    """How often messages of the queue that counts it were delivered."""
    return unpack_counts((queue_directory(store, "mixed/1 $") / DELIVERIES).read_bytes())


def test_export_and_import_lose_nothing(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    root = stores["plain"].parent
    outcome = export_stores(spark, [str(root)], str(tmp_path / "export"))
    outcome["queues"].write.parquet(str(tmp_path / "export" / "q"))
    shutil.rmtree(tmp_path / "export" / "queues.parquet")
    (tmp_path / "export" / "q").rename(tmp_path / "export" / "queues.parquet")
    wanted = {name: cat(path, renumbered=True) for name, path in stores.items()}
    total = sum(len(rows) for store in wanted.values() for rows in store.values())
    assert outcome.summary["messages"] == total > 6000
    assert outcome.summary["damaged"] == 0
    assert not outcome.found
    result = import_stores(spark, [str(tmp_path / "export")], str(tmp_path))
    assert result.summary["messages"] == total
    for name, path in stores.items():
        made = result.targets[str(path)]
        assert cat(made, renumbered=True) == wanted[name], name
        if name != "live":  # whose transient messages an open drops
            assert qindex.verify(made).findings == []
    assert Path(result.targets[str(stores["plain"])]) == tmp_path / "stores" / "plain"
    with qindex.open(result.targets[str(stores["plain"])]) as engine:
        assert engine.queue("audit/ü").settings.message_ttl == 86_400.0
        assert engine.queue("orders").publish(b"next") == 600
    with qindex.open(result.targets[str(stores["first"])]) as engine:
        jobs = engine.queue("jobs")
        assert jobs.settings.max_priority == 5
        assert jobs.publish(b"next") == 10
        assert [one.delivery_count for one in jobs.get_many(3)] == [2, 2, 1]
    with qindex.open(result.targets[str(stores["live"])]) as engine:
        assert engine.queue_names() == ["mixed/1 $", "nothing in it"]
        assert engine.queue("nothing in it").settings.message_ttl == 1.0
        mixed = engine.queue("mixed/1 $")
        assert len(mixed) == 10
        # How often each was delivered came along: it goes on from there.
        assert counts_in(stores["live"]) == {0: 2, 1: 2}
        found = mixed.get_many(2)
        assert [one.seq_id for one in found] == [0, 2]
        assert found[0].delivery_count == 3
    # A clean close counts no delivery.
    assert counts_in(Path(result.targets[str(stores["live"])]))[0] == 2


def test_a_rocketmq_store_comes_back_with_the_same_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = make_rocket(tmp_path / "rocket")
    outcome = export_stores(spark, [str(store)], str(tmp_path / "export"))
    assert outcome.summary["messages"] == 700
    result = import_stores(spark, [str(tmp_path / "export")], str(tmp_path))
    made = Path(result.targets[str(store)])
    with (
        rocketstore.open(store, read_only=True) as one,
        rocketstore.open(made, read_only=True) as other,
    ):
        assert one.queues() == other.queues()
        for topic, queue_id in one.queues():
            pairs = zip(one.messages(topic, queue_id), other.messages(topic, queue_id), strict=True)
            for first, second in pairs:
                assert first.raw[4:28] == second.raw[4:28]
                assert first.raw[36:] == second.raw[36:]
    assert sum(name.startswith("index") for name, _ in store_files(made)) == 1


def test_into_rocketmq_and_back(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    root = str(stores["plain"].parent)
    there = migrate(spark, [root], str(tmp_path / "there"))
    rows = [row.asDict() for row in there["moves"].collect()]
    mine = there["left_behind"].where(f"store in ('{stores['live']}', '{stores['plain']}')")
    left = [(row.queue, row.seq_id, row.what, row.value) for row in mine.collect()]
    there.finish()
    assert sorted(left, key=str) == [
        ("audit/ü", None, "message_ttl", "86400.0"),
        ("mixed/1 $", 0, "deliveries", "2"),
        ("mixed/1 $", 1, "deliveries", "2"),
        ("mixed/1 $", None, "delivery_limit", "9"),
        ("mixed/1 $", None, "message_ttl", "9999.5"),
        ("nothing in it", None, "empty queue", "0"),
        ("nothing in it", None, "message_ttl", "1.0"),
    ]
    wanted = {name: cat(path, renumbered=True) for name, path in stores.items()}
    total = sum(len(found) for store in wanted.values() for found in store.values())
    reasons = Counter((row["status"], row["reason"]) for row in rows)
    assert reasons[("moved", None)] == total
    assert set(reasons) == {("moved", None), ("skipped", "transient")}, reasons
    with rocketstore.open(there.targets[str(stores["plain"])], read_only=True) as store:
        assert set(store.queues()) == {("orders", 0), ("audit%2F%C3%BC", 0)}
        (first, *_) = store.query("audit%2F%C3%BC", "k3")
        assert first.body == b"entry 3"
        assert first.properties["h.n"] == "3"
        assert first.properties["h.raw"] == '{"$base64": "AP8="}'
    back = migrate(spark, [str(tmp_path / "there" / "stores")], str(tmp_path / "back"))
    moved = Counter(row["status"] for row in back["moves"].collect())
    back.finish()
    assert moved == {"moved": total}
    for name in stores:
        made = cat(tmp_path / "back" / "stores" / name, renumbered=True)
        assert made == {queue: found for queue, found in wanted[name].items() if found}, name


def test_rocketmq_into_queues_and_back(spark: SparkSession, tmp_path: Path) -> None:
    store = make_rocket(tmp_path / "rocket")
    there = migrate(spark, [str(store)], str(tmp_path / "there"))
    rows = [row.asDict() for row in there["moves"].collect()]
    there.finish()
    reasons = Counter((row["status"], row["reason"]) for row in rows)
    assert sum(reasons.values()) == 700, "each record of the log is accounted for"
    assert reasons == {("moved", None): 664, ("skipped", "undone"): 36}
    made = there.targets[str(store)]
    assert {"orders.0", "audit.1"} <= set(StoreReader(made).queue_names())
    back = migrate(spark, [made], str(tmp_path / "back"))
    back.finish()
    with (
        rocketstore.open(store, read_only=True) as one,
        rocketstore.open(back.targets[made], read_only=True) as other,
    ):
        for topic in ("orders", "audit"):
            for queue_id in range(3):
                first = [_record(message) for message in one.messages(topic, queue_id)]
                second = [_record(message) for message in other.messages(topic, queue_id)]
                waited = [row for row in second if row not in first]
                assert [row for row in second if row in first] == first
                # Delayed messages, which went where they belong.
                assert all("REAL_TOPIC" in dict(row[2]) for row in waited)


def _record(message: rocketstore.StoredMessage) -> tuple[Any, ...]:
    properties = tuple(message.properties.items())
    born = message.born_timestamp, message.born_host, message.flag, message.sys_flag
    return message.topic, message.body, properties, *born


def test_what_rocketmq_cannot_hold_is_skipped_and_accounted_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "s"
    with qindex.open(store, background=False) as engine:
        engine.queue("q").publish(b"fits")
        engine.queue("q").publish(b"x" * (4 << 20))
        engine.queue("q").publish(b"y", headers={"h": "z" * 33_000})
        engine.queue("n" * 128).publish(b"long name")
        engine.queue("n" * 127).publish(b"name that fits")
        engine.queue("q").publish(b"gone", ttl=0.001)
        engine.queue("q").publish(b"D" * 20_000)
        # Room for the exact form, none for the header as a property besides.
        engine.queue("q").publish(b"tight", headers={"h": "z" * 20_000})
        engine.queue("limited", max_length=5)
    settings = queue_directory(store, "limited") / "qindex.settings"
    settings.write_bytes(settings.read_bytes()[:-1] + b"?")
    file = store / "msg_store_persistent" / "0.rdq"
    data = bytearray(file.read_bytes())
    data[data.index(b"D" * 20_000) + 5] ^= 1
    file.write_bytes(data)
    result = migrate(spark, [str(store)], str(tmp_path))
    rows = [row.asDict() for row in result["moves"].orderBy("queue", "seq_id").collect()]
    (lost,) = result["left_behind"].where("what = 'damaged settings'").collect()
    result.finish()
    assert lost.queue == "limited"
    assert lost.value.startswith(f"{settings}: at offset 0: ")
    (fleet,) = find_fleet([str(store)])
    assert [one.error for one in queues_kept(fleet, permissive=True) if one.error] == [lost.value]
    with pytest.raises(DamageError, match="the settings of the queue"):
        list(queues_kept(fleet, permissive=False))
    outcome = export_stores(spark, [str(store)], str(tmp_path / "export"))
    # An entry without its message, a record that no entry is sure to name, a queue's settings.
    assert outcome.summary["damaged"] == 3
    in_q = {row["seq_id"]: row for row in rows if row["queue"] == "q" and row["seq_id"] is not None}
    assert {seq: row["reason"] for seq, row in in_q.items()} == {
        0: None, 1: "too-large", 2: "too-large", 3: "expired", 4: "damaged", 5: None,
    }  # fmt: skip
    assert in_q[0]["target_queue"] == "q/0"
    assert in_q[1]["what"].startswith("record of 41")
    assert in_q[1]["what"].endswith(" bytes: the limit is 4194304")
    assert in_q[2]["what"].endswith(" bytes: the limit is 32767")
    names = {row["queue"]: row for row in rows if row["seq_id"] is not None}
    assert names["n" * 127]["status"] == "moved"
    assert names["n" * 128]["what"] == "topic of 128 bytes: the limit is 127"
    with pytest.raises(UsageError, match="of that kind already"):
        migrate(spark, [str(store)], str(tmp_path / "x"), to="qindex")


@pytest.mark.parametrize(
    "wrong",
    [{"queue": None}, {"queue": ""}, {"seq_id": -1}, {"seq_id": None}, {"msg_id": b"x" * 15},
     {"msg_id": None}, {"envelope": b""}, {"envelope": b"\x95"}],
)  # fmt: skip
def test_rows_that_no_export_has_written(wrong: dict[str, Any]) -> None:
    row = {"store": "/s", "queue": "q", "seq_id": 7, "msg_id": bytes(16), "persistent": True,
           "redelivered": False, "expiry": None, "priority": None, "body": b"x",
           "envelope": make_envelope(Message(b"x", "k"))}  # fmt: skip
    origin, message = transfer._message_of(dict(row))
    assert (origin.queue, origin.seq_id, message.key) == ("q", 7, "k")
    with pytest.raises(StoreError, match=r"^/s: message .* of queue .* is none of an export: "):
        transfer._message_of(row | wrong)


def test_paths_that_make_no_sense(spark: SparkSession, tmp_path: Path) -> None:
    make_plain(tmp_path / "in" / "a", count=5)
    make_rocket(tmp_path / "in" / "b", count=5)
    with pytest.raises(UsageError, match="stores of both kinds"):
        migrate(spark, [str(tmp_path / "in")], str(tmp_path / "out"))
    with pytest.raises(NotAStoreError, match="no export"):
        import_stores(spark, [str(tmp_path / "in")], str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("orders", "orders"),
        ("a b/c%d", "a%20b%2Fc%25d"),
        ("ü\udcff", "%C3%BC%FF"),
        ("SCHEDULE_TOPIC_XXXX", "%53CHEDULE_TOPIC_XXXX"),
        ("RMQ_SYS_TRACE", "%52MQ_SYS_TRACE"),
        (".", "%2E"),
    ],
)
def test_names_of_queues_and_topics(name: str, topic: str) -> None:
    assert encode_name(name) == topic
    assert decode_name(topic) == name


def test_names_of_new_stores() -> None:
    given = ["/a/b/x", "/a/b/y/z", "/a/b~y/z", "s3://a/b/x"]
    names = store_names(given)
    assert len(set(names.values())) == len(given)
    assert not any("/" in name for name in names.values())


def test_stats(spark: SparkSession, tmp_path: Path) -> None:
    plain = make_plain(tmp_path / "plain")
    stored = make_stored(tmp_path / "stored")
    rocket = make_rocket(tmp_path / "rocket")
    with rocketstore.open(rocket, background=False) as store:
        store.commit_offset("workers", "orders", 1, 10)
    result = stats(spark, [str(tmp_path)], top=3)
    queues = {(row["store"], row["queue"]): row for row in result["queues"].collect()}
    orders = queues[str(plain), "orders"]
    assert (orders["messages"], orders["redelivered"]) == (580, 30)
    assert orders["bytes"] == sum(len(b"order %d" % n) for n in range(20, 600))
    assert 0 < orders["age_newest"] <= orders["age_median"] <= orders["age_oldest"] < 600
    big = queues[str(stored), "big"]
    assert (big["messages"], big["size_median"], big["size_max"]) == (40, LARGE + 6, LARGE + 6)
    keys = [(row["key"], row["messages"], row["queues"]) for row in result["keys"].collect()]
    assert keys[0][0] == "all"
    assert keys[0][1] > 400
    assert len(keys) == 3
    files = {row["file"]: row for row in result["files"].where(f"store = '{stored}'").collect()}
    assert files["msg_store_persistent/0.rdq"]["garbage"] > 0
    assert 0 < files["msg_store_persistent/0.rdq"]["share"] < 1
    assert sum(row["messages"] for row in result["growth"].collect()) == sum(
        row["messages"] for row in queues.values()
    )
    (lag,) = result["lag"].collect()
    assert (lag["queue"], lag["committed"]) == ("orders/1", 10)
    assert lag["behind"] == lag["end"] - 10 > 0
    result.finish()


def test_what_is_published_while_it_runs_is_told_from_what_is_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that is newer than the messages that were read is neither moved nor transient."""
    import pyspark_qindex.jobs.migrate as module

    store = tmp_path / "busy"
    with qindex.open(store, background=False) as engine:
        engine.queue("q").publish_many([b"first", b"second"])
        before = module._left_out

        def later(*arguments: Any) -> Any:
            engine.queue("q").publish(b"third")
            engine.queue("q").publish(b"fleeting", persistent=False)
            return before(*arguments)

        monkeypatch.setattr(module, "_left_out", later)
        result = migrate(spark, [str(store)], str(tmp_path))
        rows = result["moves"].orderBy("seq_id").collect()
        result.finish()
    assert [(row.seq_id, row.status, row.reason) for row in rows] == [
        (0, "moved", None), (1, "moved", None),
        (2, "skipped", "later"), (3, "skipped", "later"),
    ]  # fmt: skip


def test_spark_reads_the_parquet_that_the_command_writes(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    """``qindex export``, which needs no Spark: the same rows as its own source, types and all."""
    out = tmp_path / "all.parquet"
    assert run("export", stores["stored"], "--out", out).code == 0
    written = spark.read.parquet(str(out))
    source = spark.read.format("qindex").load(str(stores["stored"]))
    assert written.dtypes == source.dtypes
    order = ("queue", "seq_id")
    found, wanted = (
        [row.asDict() for row in frame.orderBy(*order).collect()] for frame in (written, source)
    )
    assert len(found) == 60
    assert found == wanted
