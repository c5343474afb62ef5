"""Streams: from queues and logs, by offset and limit, into a queue, whatever dies."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import WAIT

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import qindex
import rocketstore
from journal.errors import StoreError
from pyspark_qindex import explain
from pyspark_qindex.options import ROCKET_TABLES, TABLES, read_options
from pyspark_qindex.streaming import Stream, _Queue
from qindex.format import layout
from qindex.view.reader import StoreReader
from tests.qindex.support import queue_directory
from tests.spark.faults import FAULTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_LOG: dict[str, Any] = {
    "commitlog_file_size": 4096,
    "consumequeue_file_size": 200,
    "background": False,
}


def follow(spark: SparkSession, path: object, source: str = "qindex", **options: object) -> Any:
    reader = spark.readStream.format(source)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(path))


class Collected:
    """What a stream gives, batch by batch, run until nothing is left."""

    def __init__(self, checkpoint: Path) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self._checkpoint = checkpoint

    def run(self, frame: DataFrame) -> list[dict[str, Any]]:
        """Go on from the checkpoint; gives the rows of this run."""

        def take(batch: DataFrame, _number: int) -> None:
            self.batches.append(batch.toArrow().to_pylist())

        before = len(self.batches)
        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(int(WAIT))
        finally:
            query.stop()
        return [row for batch in self.batches[before:] for row in batch]


def numbers(rows: list[dict[str, Any]], queue: str = "q") -> list[int]:
    return [int(row["body"]) for row in rows if row.get("queue", queue) == queue]


def test_a_stream_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    collected = Collected(tmp_path / "checkpoint")
    with qindex.open(store, background=False, segment_entry_count=64) as engine:
        queue, other = engine.queue("q"), engine.queue("other")
        queue.publish_many([b"%d" % at for at in range(150)])
        other.publish_many([b"%d" % at for at in range(7)])
        engine.flush()
        queue.publish(b"150", headers={"a": 1})
        rows = collected.run(follow(spark, store, maxMessagesPerBatch=100))
        assert sorted(numbers(rows)) == list(range(151))
        assert sorted(numbers(rows, "other")) == list(range(7))
        assert [len(batch) for batch in collected.batches if batch] == [100, 58]
        # Both queues have their share of the first batch.
        assert {row["queue"] for row in collected.batches[0]} == {"q", "other"}
        assert [json.loads(row["headers"]) for row in rows if row["seq_id"] == 150] == [{"a": 1}]
        # What is acknowledged before the stream comes to it is not given.
        queue.publish_many([b"%d" % at for at in range(151, 400)])
        queue.ack_many(queue.get_many(200))
        engine.flush()
        engine.queue("later").publish(b"0")
        rows = collected.run(follow(spark, store))
        assert sorted(numbers(rows)) == list(range(200, 400))
        assert numbers(rows, "later") == [0]


def test_a_log_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    collected = Collected(tmp_path / "checkpoint")
    with rocketstore.open(tmp_path / "rocket", **SMALL_LOG) as log:
        for at in range(100):
            log.put("t", b"%d" % at)
        frame = follow(spark, tmp_path / "rocket", "rocketstore", maxMessagesPerBatch=60)
        rows = collected.run(frame)
    assert sorted(numbers(rows)) == list(range(100))
    assert [len(batch) for batch in collected.batches if batch] == [60, 40]


def given(stream: Any, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    """What Spark reads of a batch, through a pickled reader for each task."""
    return read_all(stream, stream.partitions(start, end))


def read_all(stream: Any, parts: list[Any]) -> list[Any]:
    found = []
    for part in parts:
        reader, task = pickle.loads(pickle.dumps((stream, part)))
        for batch in reader.read(task):
            found += batch.to_pylist()
    return found


def stream_of(path: Path, tables: Any = TABLES, **options: str) -> Stream:
    return Stream(read_options({"path": str(path), **options}, tables, stream=True))


def plain(offsets: Any) -> Any:
    """Offsets without the incarnations of queues."""
    return {
        store: {
            queue: sum(place.values()) if isinstance(place, dict) else place
            for queue, place in queues.items()
        }
        for store, queues in offsets.items()
    }


def test_where_a_stream_starts(tmp_path: Path) -> None:
    store = str(tmp_path)
    with qindex.open(tmp_path, background=False, segment_entry_count=64) as engine:
        engine.queue("empty")
        engine.queue("q").publish_many([b"%d" % at for at in range(200)])
        engine.queue("q").ack_many(engine.queue("q").get_many(70))
        engine.flush()
        assert plain(stream_of(tmp_path).initialOffset()) == {store: {"empty": 0, "q": 64}}
        latest = stream_of(tmp_path, startingPosition="latest")
        start = latest.initialOffset()
        assert plain(start) == {store: {"empty": 0, "q": 200}}
        engine.queue("q").publish(b"200")
        end: Any = latest.latestOffset(start, ReadAllAvailable())
        assert plain(end) == {store: {"empty": 0, "q": 201}}
        told = stream_of(tmp_path, startingPosition=json.dumps({store: {"q": 197}}))
        start = told.initialOffset()
        end = told.latestOffset(start, ReadMaxRows(3))
        assert plain(end) == {store: {"empty": 0, "q": 200}}
        assert [int(row["body"]) for row in given(told, start, end)] == [197, 198, 199]
        # The place of a queue that is not there is kept: it may come back.
        ahead: dict[str, Any] = {store: {"gone": 9, "q": dict.fromkeys(end[store]["q"], 300)}}
        after = told.latestOffset(ahead, ReadAllAvailable())
        assert plain(after) == {store: {"empty": 0, "gone": 9, "q": 300}}
        assert told.partitions(ahead, after) == []
        # Planned again after a restart: the same rows.
        again = stream_of(tmp_path)
        assert [int(row["body"]) for row in given(again, start, end)] == [197, 198, 199]


def test_a_drained_queue_keeps_its_place_and_a_gap_is_jumped(tmp_path: Path) -> None:
    store = str(tmp_path)
    with qindex.open(tmp_path, background=False, segment_entry_count=64) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % at for at in range(500)])
        engine.flush()
        stream = stream_of(tmp_path)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadMaxRows(100))
        assert plain(end) == {store: {"q": 100}}
        queue.ack_many(queue.get_many(450))
        engine.flush()
        before = end
        end = stream.latestOffset(end, ReadMaxRows(100))
        assert plain(end) == {store: {"q": 500}}
        assert [row["seq_id"] for row in given(stream, before, end)] == list(range(450, 500))
        queue.ack_many(queue.get_many(50))
        engine.flush()
        assert stream.latestOffset(end, ReadMaxRows(100)) == end
        assert stream_of(tmp_path).latestOffset(end, ReadAllAvailable()) == end
        queue.publish(b"500")
        end = stream.latestOffset(end, ReadMaxRows(100))
        assert plain(end) == {store: {"q": 501}}


def test_available_now_goes_no_further(tmp_path: Path) -> None:
    with qindex.open(tmp_path, background=False) as engine:
        engine.queue("q").publish_many([b"x"] * 10)
        stream = stream_of(tmp_path)
        start = stream.initialOffset()
        stream.prepareForTriggerAvailableNow()
        engine.queue("q").publish_many([b"x"] * 10)
        engine.queue("later").publish(b"x")
        end = stream.latestOffset(start, ReadAllAvailable())
        assert plain(end) == {str(tmp_path): {"q": 10}}
        assert stream.latestOffset(end, ReadAllAvailable()) == end
        stream = stream_of(tmp_path, endingPosition=json.dumps({str(tmp_path): {"q": 15}}))
        stream.prepareForTriggerAvailableNow()
        end = stream.latestOffset(end, ReadAllAvailable())
        assert plain(end) == {str(tmp_path): {"q": 15}}


def test_a_stream_goes_to_the_last_message_before_damage(tmp_path: Path) -> None:
    FAULTS["seq_id_from_nowhere"].make(tmp_path)
    ends = stream_of(tmp_path, startingPosition="latest").initialOffset()
    FAULTS["seq_id_from_nowhere"].plant(tmp_path)
    assert stream_of(tmp_path, startingPosition="latest").initialOffset() == ends


def test_where_a_stream_of_a_log_starts_and_ends(tmp_path: Path) -> None:
    path = str(tmp_path)

    def log_stream(**options: str) -> Stream:
        return stream_of(tmp_path, ROCKET_TABLES, **options)

    with rocketstore.open(tmp_path, **SMALL_LOG) as log:
        places = [log.put("t", b"%d" % at).offset for at in range(100)]
        stream = log_stream()
        start = stream.initialOffset()
        assert start == {path: 0}
        end = stream.latestOffset(start, ReadMaxRows(30))
        assert end == {path: places[30]}
        after = stream.latestOffset(end, ReadMaxRows(1000))
        assert after == {path: log.max_offset}
        assert stream.latestOffset(after, ReadAllAvailable()) == after
        assert [int(row["body"]) for row in given(stream, end, after)] == list(range(30, 100))
        latest = log_stream(startingPosition="latest")
        assert latest.initialOffset() == after
        told = log_stream(startingPosition=json.dumps({path: places[97]}))
        assert told.initialOffset() == {path: places[97]}
        stream.prepareForTriggerAvailableNow()
        place = log.put("t", b"100").offset
        assert stream.latestOffset(end, ReadAllAvailable()) == after
        assert log_stream().latestOffset(end, ReadAllAvailable()) == {path: log.max_offset}
        assert [row["offset"] for row in given(latest, after, {path: log.max_offset})] == [place]


def marker(fleet: Path) -> Path:
    return fleet / "b" / layout.MARKER


def only_store(fleet: Path) -> Path:
    return fleet / "b"


def one_queue(fleet: Path) -> Path:
    return queue_directory(fleet / "b", "q")


def segment(fleet: Path) -> Path:
    return one_queue(fleet) / "1.idx"


def journal(fleet: Path) -> Path:
    return one_queue(fleet) / "journal.jif"


def log_file(fleet: Path) -> Path:
    return fleet / "b" / "commitlog" / f"{8192:020d}"


def first_log_file(fleet: Path) -> Path:
    return fleet / "b" / "commitlog" / f"{0:020d}"


def all_logs(fleet: Path) -> Path:
    return fleet / "b" / "commitlog"


@pytest.mark.parametrize(
    "which",
    [marker, only_store, one_queue, segment, journal, log_file, first_log_file, all_logs],
)
def test_a_planned_batch_is_given_whole_or_fails(
    tmp_path: Path, which: Callable[[Path], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash, while something of a batch is not there; and then it is again."""
    of_logs = "log" in which.__name__
    for name in "ab":
        if of_logs:
            with rocketstore.open(tmp_path / name, **SMALL_LOG) as log:
                for at in range(100):
                    log.put("t", b"%d" % at)
        else:
            with qindex.open(tmp_path / name, background=False, segment_entry_count=64) as engine:
                engine.queue("q").publish_many([b"%d" % at for at in range(150)])
                engine.flush()
                engine.queue("q").publish_many([b"%d" % at for at in range(150, 160)])

    def stream(**options: str) -> Stream:
        return stream_of(tmp_path, ROCKET_TABLES if of_logs else TABLES, **options)

    first = stream()
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    planned = first.partitions(start, end)
    path = which(tmp_path)
    aside = tmp_path.with_name(f"{tmp_path.name}-aside")
    path.rename(aside)
    if path.name == layout.MARKER:
        path.write_bytes(b"damaged")
    with pytest.raises(StoreError, match=f"{tmp_path}/b.* can't be given whole"):
        given(stream(), start, end)
    if path.name not in (layout.MARKER, "journal.jif"):  # a task does not read the marker
        with pytest.raises(StoreError):
            read_all(first, planned)
    lossy = given(stream(failOnDataLoss="false"), start, end)
    assert any(row["error"] and f"{tmp_path}/b" in row["error"] for row in lossy)
    if path.name == layout.MARKER:
        path.unlink()
    aside.rename(path)
    whole = given(stream(), start, end)
    assert len(whole) == (200 if of_logs else 320)
    assert not any(row["error"] for row in whole)


def test_a_store_that_can_not_be_read_is_left_for_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        with qindex.open(tmp_path / name) as engine:
            engine.queue("q").publish(b"1")
    stream = stream_of(tmp_path)
    start = stream.initialOffset()
    content = marker(tmp_path).read_bytes()
    marker(tmp_path).write_bytes(b"damaged")
    end = stream.latestOffset(start, ReadAllAvailable())
    assert len(given(stream, start, end)) == 1
    assert "b/qindex.store: not the marker" in caplog.text
    marker(tmp_path).write_bytes(content)
    assert len(given(stream, end, stream.latestOffset(end, ReadAllAvailable()))) == 1


def test_a_queue_that_is_made_again_is_read_from_its_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with qindex.open(tmp_path, background=False) as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(10)])
        stream = stream_of(tmp_path)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadMaxRows(4))
        assert len(given(stream, start, end)) == 4
        engine.delete_queue("q")
        engine.queue("q").publish_many([b"%d" % at for at in range(100, 107)])
        with pytest.raises(StoreError, match="queue 'q' was deleted"):
            given(stream_of(tmp_path), start, end)  # of a batch that a crash left
        after = stream.latestOffset(end, ReadAllAvailable())
        assert [int(row["body"]) for row in given(stream, end, after)] == list(range(100, 107))
    assert "queue 'q' was made again" in caplog.text
    # A checkpoint of an earlier version, of a queue that was made by this one.
    old: dict[str, Any] = {str(tmp_path): {"q": 5}}
    assert len(given(stream, old, stream.latestOffset(old, ReadAllAvailable()))) == 7


def test_a_backup_elsewhere_is_followed(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    with qindex.open(tmp_path / "s", background=False, segment_entry_count=64) as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(150)])
        engine.flush()
    fsspec.filesystem("memory").put(str(tmp_path / "s"), "/followed", recursive=True)
    stream = stream_of(Path("memory:/"), paths='["memory://followed"]')
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(100))
    assert len(given(stream, start, end)) == 100


def test_a_log_that_is_shorter_than_it_was_read(tmp_path: Path) -> None:
    for count in (50, 20):
        shutil.rmtree(tmp_path)
        with rocketstore.open(tmp_path, **SMALL_LOG) as log:
            for at in range(count):
                log.put("t", b"%d" % at)
        stream = stream_of(tmp_path, ROCKET_TABLES)
        if count == 50:
            end = stream.latestOffset({}, ReadAllAvailable())
    with pytest.raises(StoreError, match=r"ends at \d+: it was cut, or made again"):
        stream.latestOffset(end, ReadAllAvailable())
    stream = stream_of(tmp_path, ROCKET_TABLES, failOnDataLoss="false")
    after = stream.latestOffset(end, ReadAllAvailable())
    assert after == stream_of(tmp_path, ROCKET_TABLES).latestOffset({}, ReadAllAvailable())


def test_messages_of_a_transaction_are_given_when_it_is_committed(tmp_path: Path) -> None:
    with qindex.open(tmp_path, background=False) as engine:
        queue = engine.queue("q")
        queue.publish(b"0")
        stream = stream_of(tmp_path)
        start = stream.initialOffset()
        with engine.transaction() as transaction:
            transaction.publish("q", b"1")
            end = stream.latestOffset(start, ReadAllAvailable())
            assert len(given(stream, start, end)) == 1
        queue.publish(b"2")
        after = stream.latestOffset(end, ReadAllAvailable())
        assert [row["body"] for row in given(stream, end, after)] == [b"1", b"2"]


def sink_rows(store: Path, queue: str = "sink") -> list[Any]:
    return list(StoreReader(store).queue(queue).entries())


def test_a_dataframe_is_published(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "source"
    with qindex.open(store, background=False) as engine:
        for at in range(100):
            engine.queue("q").publish(
                b"%d" % at,
                key=f"k{at}" if at % 2 else None,
                headers={"raw": b"\xff\x00", "n": at} if at % 3 == 0 else None,
                properties={"content_type": "text/plain"} if at % 4 == 0 else None,
                ttl=1000.0 if at % 5 == 0 else None,
                persistent=at % 6 != 0,
            )
        source = spark.read.format("qindex").load(str(store)).drop("queue").repartition(3)
        (tmp_path / "sink").mkdir()
        before = time.time_ns()
        for _ in range(2):
            source.write.format("qindex").option("queue", "sink").option("jobId", "once").mode(
                "append"
            ).save(str(tmp_path / "sink"))
        took = (time.time_ns() - before) // 1000
        expected = sink_rows(store, "q")
    got = {int(row.body): row for row in sink_rows(tmp_path / "sink")}
    assert len(got) == len(sink_rows(tmp_path / "sink")) == len(expected) == 100
    for row in expected:
        twin = got[int(row.body)]
        assert (twin.key, twin.headers, twin.properties) == (row.key, row.headers, row.properties)
        assert twin.timestamp == row.timestamp
        # It is told as the time that is left, some time before the message is published.
        assert -2 <= twin.expiry - row.expiry <= took
    text = spark.createDataFrame(
        [("a", '{"x": 1}', None), ("b", None, "k")], "body string, headers string, key string"
    )
    for _ in range(2):
        text.write.format("qindex").option("queue", "text").mode("append").save(
            str(tmp_path / "sink")
        )
    rows = sorted(
        (row.body, dict(row.headers), row.key) for row in sink_rows(tmp_path / "sink", "text")
    )
    assert rows == sorted([(b"a", {"x": 1}, None), (b"b", {}, "k")] * 2, key=str)


def test_wrong_sinks_are_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """The errors themselves: test_options."""
    body = spark.createDataFrame([("a",)], "body string")
    (tmp_path / "file").write_text("")
    for options, wanted in (
        ({"queue": "q"}, "is a file, not a store directory"),
        ({}, "option queue is needed"),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            body.write.format("qindex").options(**options).mode("append").save(
                str(tmp_path / "file")
            )
        assert wanted in explain(caught.value)


def test_each_queue_has_a_name_of_its_own_in_offsets() -> None:
    queues = [("x", None), ("x", 1), ("x (priority 1)", None), ("x (plain)", None)]
    queues += [("x (priority 1) (plain)", None), ("x (plain)", 1)]
    parts: list[Any] = [SimpleNamespace(queue=name, priority=one) for name, one in queues]
    names = [_Queue(part, {}).name for part in parts]
    assert names[:2] == ["x", "x (priority 1)"]
    assert len(set(names)) == len(names)
