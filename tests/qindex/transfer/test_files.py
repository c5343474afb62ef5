"""Export and import: lossless in both formats, resumable, and clear about what is wrong."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.cli.app import main
from qindex.format.rabbitmq.bridge import RabbitProperties
from qindex.tools.verify import verify
from qindex.transfer import export_messages, import_messages, importing
from qindex.transfer.files import FormatError
from qindex.view.reader import Row, StoreReader
from tests.golden import golden
from tests.qindex.support import queue_directory
from tests.qindex.transfer.support import contents, fill
from tests.server.support import end_server

ROOT = Path(__file__).parents[3]
FORMATS = ["jsonl", "parquet"]


@pytest.fixture(params=FORMATS)
def suffix(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "parquet":
        pytest.importorskip("pyarrow")
    return name


def test_nothing_is_lost_or_changed(tmp_path: Path, suffix: str) -> None:
    source, target, out = tmp_path / "a", tmp_path / "b", tmp_path / f"x.{suffix}"
    fill(source)
    before = contents(source)
    report = export_messages(source, out)
    assert report.messages == sum(map(len, before.values()))
    assert not report.damaged
    assert contents(source) == before
    done = import_messages([out], target)
    assert (done.messages, done.resumed) == (report.messages, 0)
    assert contents(target) == before
    assert any(row[3] for row in before["orders"])
    assert any(row[1] for row in before["orders"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", out.name]
    assert not (target / importing.IMPORT_FILE).exists()
    with qindex.open(target) as engine:
        first = engine.queue("orders").get(0)
        assert first is not None
        assert first.redelivered


def test_one_queue_into_another(tmp_path: Path, suffix: str) -> None:
    fill(tmp_path / "a")
    out = tmp_path / f"x.{suffix}"
    export_messages(tmp_path / "a", out, ["audit é"])
    import_messages([out, out], tmp_path / "b", "both")
    assert contents(tmp_path / "b") == {"both": contents(tmp_path / "a")["audit é"] * 2}


def test_beside_a_running_writer(tmp_path: Path, suffix: str) -> None:
    with qindex.open(tmp_path / "a") as engine:
        engine.queue("q").publish_many([b"%d" % n for n in range(100)])
        export_messages(tmp_path / "a", tmp_path / f"x.{suffix}")
    import_messages([tmp_path / f"x.{suffix}"], tmp_path / "b")
    assert [row[0] for row in contents(tmp_path / "b")["q"]] == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("max_priority", [None, 2])
def test_delayed_messages_stay_delayed(
    tmp_path: Path, max_priority: int | None, shared: bool
) -> None:
    with qindex.open(tmp_path / "a") as engine:
        queue = engine.queue("q", max_priority=max_priority)
        queue.publish(b"now")
        queue.publish_many([b"later", b"later still"], delay=2000)
        queue.publish(b"latest", delay=3000)
        expected = queue.stats()
    export_messages(tmp_path / "a", tmp_path / "x.jsonl")
    import_messages([tmp_path / "x.jsonl"], tmp_path / "b", shared=shared, linger=0)
    if shared:
        end_server(tmp_path / "b")
    found = StoreReader(tmp_path / "b").queue("q").summary()
    for _ in range(2):
        with qindex.open(tmp_path / "b") as engine:
            stats = engine.queue("q").stats()
            assert [one.body for one in engine.queue("q").peek(10)] == [b"now"]
        assert (stats.ready, stats.delayed) == (found.ready, found.delayed) == (1, 3)
        assert stats.next_due == expected.next_due
    assert not verify(tmp_path / "b").findings


def test_of_a_rabbitmq_node_with_all_types(tmp_path: Path, suffix: str) -> None:
    """Properties and header types that only the node's own records hold come through."""
    source = golden("g1_props_ttl_clean").copy(tmp_path)
    out = tmp_path / f"x.{suffix}"
    report = export_messages(source, out)
    assert report.messages > 0
    import_messages([out], tmp_path / "b")
    before, after = (
        {
            reader.name: [
                (row.body, row.key, row.expiry, _typed_properties(row)) for row in reader.entries()
            ]
            for reader in StoreReader(directory).readers()
        }
        for directory in (source, tmp_path / "b")
    )
    assert after == before
    assert sum(map(len, after.values())) == report.messages


def _typed_properties(row: Row) -> Any:
    assert isinstance(row.properties, RabbitProperties)
    record = row.properties.source
    return record.exchange, record.routing_keys, record.persistent, record.properties_raw


def test_empty_queues_and_settings_come_through(tmp_path: Path, suffix: str) -> None:
    with qindex.open(tmp_path / "a", background=False) as engine:
        engine.queue("empty é", message_ttl=2.5, dead_letter="failed")
        engine.queue("full", max_length=3, overflow="drop-head").publish_many([b"x"] * 3)
        engine.queue("full", max_length=2)
        engine.queue("failed", message_ttl=None)
        before = {name: engine.queue(name).settings for name in engine.queue_names()}
    out = tmp_path / f"x.{suffix}"
    assert export_messages(tmp_path / "a", out).messages == 3
    report = import_messages([out], tmp_path / "b")
    assert report.queues == {"empty é": 0, "failed": 0, "full": 3}
    with qindex.open(tmp_path / "b", background=False) as engine:
        assert {name: engine.queue(name).settings for name in engine.queue_names()} == before
        assert len(engine.queue("full")) == 3


def test_a_queue_with_settings_keeps_them_at_an_import(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "a") as engine:
        engine.queue("q", max_length=3)
    with qindex.open(tmp_path / "b") as engine:
        engine.queue("q", max_length=7)
    export_messages(tmp_path / "a", tmp_path / "x.jsonl")
    import_messages([tmp_path / "x.jsonl"], tmp_path / "b")
    with qindex.open(tmp_path / "b") as engine:
        assert engine.queue("q").settings.max_length == 7


def test_a_damaged_list_of_queues_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for queues in ('{"q": {"max_length": 0, "message_ttl": null}}', '{"": {}}', "[]"):
        path.write_text(f'{{"qindex_messages": 1, "count": 0, "queues": {queues}}}\n')
        with pytest.raises(FormatError, match="list of queues"):
            import_messages([path], tmp_path / "b")
        assert not (tmp_path / "b").exists()


def test_parquet_has_the_columns_of_the_spark_source(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    options = pytest.importorskip("pyspark_qindex.options")
    from qindex.view.arrow import arrow_schema

    fill(tmp_path / "a")
    export_messages(tmp_path / "a", tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.schema.remove_metadata() == arrow_schema(options.TABLES["messages"])
    rows = table.to_pylist()
    assert [row["body"] for row in rows if row["queue"] == "orders"] == [
        row[0] for row in contents(tmp_path / "a")["orders"]
    ]


def test_a_damaged_message_is_left_out_and_told(tmp_path: Path, suffix: str) -> None:
    with qindex.open(tmp_path / "a", segment_entry_count=8) as engine:
        engine.queue("q").publish_many([b"message %d" % n for n in range(8)])
        engine.flush()
    segment = queue_directory(tmp_path / "a", "q") / "0.idx"
    data = segment.read_bytes()
    at = data.index(b"message 3")
    segment.write_bytes(data[:at] + b"MASSAGE 9" + data[at + 9 :])
    report = export_messages(tmp_path / "a", tmp_path / f"x.{suffix}")
    assert report.messages == 7
    assert report.findings


# -- interrupted -----------------------------------------------------------------------------


class Stop(BaseException):
    """Stands for Ctrl-C, at a place of our choice."""


def test_an_interrupted_export_goes_on(tmp_path: Path, suffix: str) -> None:
    fill(tmp_path / "a")
    out = tmp_path / f"x.{suffix}"
    stops = 0

    def stop_in_the_end(done: int, total: int) -> None:
        raise Stop

    while not out.exists():
        try:
            export_messages(tmp_path / "a", out, chunk_rows=20, progress=stop_in_the_end)
        except Stop:
            stops += 1
            assert stops < 20
    assert stops > 3
    with pytest.raises(qindex.UsageError, match="exists already"):
        export_messages(tmp_path / "a", out)
    report_back = import_messages([out], tmp_path / "b")
    assert report_back.messages == sum(map(len, contents(tmp_path / "a").values()))
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_an_export_of_something_else_is_not_gone_on_with(tmp_path: Path) -> None:
    fill(tmp_path / "a")
    out = tmp_path / "x.jsonl"

    def stop(done: int, total: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        export_messages(tmp_path / "a", out, chunk_rows=20, progress=stop)
    with pytest.raises(qindex.UsageError, match="another export"):
        export_messages(tmp_path / "a", out, ["orders"])
    with (tmp_path / "x.jsonl.parts" / "progress").open("a") as file:
        file.write('{"messages": 1, "last": [["orders", 0]]}\n')
    with pytest.raises(qindex.UsageError, match="damaged"):
        export_messages(tmp_path / "a", out)


def test_a_resumed_export_is_a_whole_backup(tmp_path: Path, suffix: str) -> None:
    """A queue that was done gets messages before the export goes on, and a new queue comes."""
    out = tmp_path / f"x.{suffix}"
    with qindex.open(tmp_path / "a", segment_entry_count=16) as engine:
        for name in ("first", "second"):
            engine.queue(name).publish_many([b"%d" % n for n in range(40)])

    written = 0

    def stop_in_the_second(done: int, total: int) -> None:
        nonlocal written
        written = done
        if done >= 60:
            raise Stop

    with pytest.raises(Stop):
        export_messages(tmp_path / "a", out, chunk_rows=20, progress=stop_in_the_second)
    with (tmp_path / f"x.{suffix}.parts" / "progress").open("a") as file:
        file.write('{"messages": 1, "la')  # a kill within the note
    with qindex.open(tmp_path / "a", segment_entry_count=16) as engine:
        engine.queue("first").publish_many([b"later"] * 3)
        engine.queue("a new one").publish(b"new")
    report = export_messages(tmp_path / "a", out, chunk_rows=20)
    assert (report.messages, report.resumed) == (84, written)
    import_messages([out], tmp_path / "b")
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_damage_is_told_by_a_resumed_export_also(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "a", segment_entry_count=8) as engine:
        engine.queue("q").publish_many([b"message %d" % n for n in range(24)])
        engine.flush()
    segment = queue_directory(tmp_path / "a", "q") / "0.idx"
    data = bytearray(segment.read_bytes())
    at = data.index(b"message 3")
    data[at : at + 9] = b"MASSAGE 9"
    segment.write_bytes(data)
    out = tmp_path / "x.jsonl"

    def stop(done: int, total: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        export_messages(tmp_path / "a", out, chunk_rows=10, progress=stop)
    report = export_messages(tmp_path / "a", out, chunk_rows=10)
    assert (report.messages, report.resumed) == (23, 10)
    assert report.findings


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
@pytest.mark.parametrize("planted", ["owned", "writable", "linked"])
def test_parts_that_another_user_could_write_are_refused(tmp_path: Path, planted: str) -> None:
    fill(tmp_path / "a")
    out, victim = tmp_path / "x.jsonl", tmp_path / "victim"
    victim.write_text("precious")
    parts = tmp_path / ("elsewhere" if planted == "linked" else "x.jsonl.parts")
    parts.mkdir()
    for name in ("00000000", "whole"):
        (parts / name).symlink_to(victim)
    if planted == "owned":
        os.chown(parts, 12345, 12345)
    elif planted == "writable":
        parts.chmod(0o777)
    else:
        (tmp_path / "x.jsonl.parts").symlink_to(parts)
    with pytest.raises(qindex.StorageError, match=r"[Nn]ot a directory|another user"):
        export_messages(tmp_path / "a", out)
    assert victim.read_text() == "precious"
    assert not out.exists()
    assert (parts / "whole").is_symlink()


def test_links_in_parts_of_our_own_are_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "a")
    victim, parts = tmp_path / "victim", tmp_path / "x.jsonl.parts"
    victim.write_text("precious")
    parts.mkdir(mode=0o700)
    for name in ("00000000", "whole", "progress"):
        (parts / name).symlink_to(victim)
    with pytest.raises(qindex.StorageError, match="symbolic link"):
        export_messages(tmp_path / "a", tmp_path / "x.jsonl")
    (parts / "progress").unlink()
    export_messages(tmp_path / "a", tmp_path / "x.jsonl")
    assert victim.read_text() == "precious"
    assert (tmp_path / "x.jsonl").stat().st_mode & 0o777 == 0o600


CHILD = """
import os, sys
from qindex.transfer import import_messages, importing
whole = importing.restore_level
calls = 0
def restore(queue, batch):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        list(whole(queue, batch[:int(sys.argv[4])]))
        os.kill(os.getpid(), 9)
    return whole(queue, batch)
importing.restore_level = restore
import_messages([sys.argv[1]], sys.argv[2], batch=10)
"""


def test_an_import_killed_within_a_batch_goes_on(tmp_path: Path, suffix: str) -> None:
    fill(tmp_path / "a")
    out, target = tmp_path / f"x.{suffix}", tmp_path / "b"
    export_messages(tmp_path / "a", out)
    for call, part in ((1, 0), (2, 3), (3, 10), (2, 9)):
        died = subprocess.run(
            [sys.executable, "-c", CHILD, str(out), str(target), str(call), str(part)],
            cwd=ROOT,
            check=False,
        )
        assert died.returncode == -signal.SIGKILL
    with pytest.raises(qindex.UsageError, match="not finished"):
        import_messages([out], target, "elsewhere")
    assert any("an import that was cut short" in one.what for one in verify(target).findings)
    report = import_messages([out], target, batch=10)
    # Each run went on behind what was published; the first queue has 7 messages, so one batch.
    assert report.resumed == 0 + (7 + 3) + (7 + 10 + 10) + (10 + 9)
    assert contents(target) == contents(tmp_path / "a")


def test_queues_in_turn_are_imported_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line in turn, each message was a batch of its own, with its syncs."""
    with qindex.open(tmp_path / "a", background=False) as engine:
        for number in range(100):
            engine.queue("one").publish(b"1-%d" % number)
            engine.queue("two").publish(b"2-%d" % number)
    export_messages(tmp_path / "a", tmp_path / "x.jsonl")
    lines = (tmp_path / "x.jsonl").read_bytes().splitlines(keepends=True)
    first, (one, two) = lines[:-200], (lines[-200:-100], lines[-100:])
    turn = [line for pair in zip(one, two, strict=True) for line in pair]
    (tmp_path / "x.jsonl").write_bytes(b"".join(first + turn))
    for call, part in ((1, 4), (3, 5), (2, 0)):
        subprocess.run(
            [sys.executable, "-c", CHILD, "x.jsonl", "b", str(call), str(part)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    counts = []
    monkeypatch.chdir(tmp_path)
    report = import_messages(["x.jsonl"], "b", batch=10, progress=lambda at, _: counts.append(at))
    assert report.resumed == 4 + (6 + 10 + 5) + 5
    assert len(counts) == 20 - 3  # batches
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_an_import_killed_at_any_time_goes_on(tmp_path: Path) -> None:
    fill(tmp_path / "a", 400)
    out, target = tmp_path / "x.jsonl", tmp_path / "b"
    export_messages(tmp_path / "a", out)
    program = (
        "import sys\n"
        "from qindex.transfer import import_messages\n"
        "import_messages([sys.argv[1]], sys.argv[2], batch=10,\n"
        "    progress=lambda done, total: print(done, flush=True))\n"
    )
    chance, kills = random.Random(7), 0
    while True:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(out), str(target)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert child.stdout is not None
        for _ in range(chance.randrange(8, 30)):
            child.stdout.readline()
        time.sleep(chance.random() * 0.002)
        child.kill()
        child.stdout.close()
        child.wait()
        if not (target / importing.IMPORT_FILE).exists():  # done: another one would begin anew
            break
        kills += 1
        assert kills < 20
    assert kills >= 2
    assert contents(target) == contents(tmp_path / "a")


def test_a_queue_that_was_published_to_meanwhile_is_not_guessed_about(tmp_path: Path) -> None:
    fill(tmp_path / "a")
    out, target = tmp_path / "x.jsonl", tmp_path / "b"
    export_messages(tmp_path / "a", out, ["orders"])
    subprocess.run(
        [sys.executable, "-c", CHILD, str(out), str(target), "2", "5"], cwd=ROOT, check=False
    )
    with qindex.open(target) as engine:
        engine.queue("orders").publish_many([b"stranger"] * 50)
    with pytest.raises(qindex.UsageError, match="published to"):
        import_messages([out], target)


def test_a_last_line_without_an_end_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(GOOD + GOOD.strip())
    assert import_messages([path], tmp_path / "b").messages == 2


# -- bad input -------------------------------------------------------------------------------

GOOD = '{"queue": "q", "body": "fine"}\n'


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (GOOD + '{"queue": "q", "bo', 2, "cut here"),
        (GOOD + "{not json}\n", 2, "not JSON"),
        (GOOD + "\xff\n", 2, "not JSON"),
        (GOOD + "[1]\n", 2, "not an object"),
        (GOOD + "\n", 2, "not JSON"),
        (GOOD + '{"time": 1}\n', 2, "no message of ours"),
        (GOOD + '{"queue": "q", "body": 5}\n', 2, "body must be text"),
        (GOOD + '{"queue": "q", "body_base64": "a"}\n', 2, "not base64"),
        (GOOD + '{"queue": "q", "body": "x", "key": 5}\n', 2, "key must be"),
        (GOOD + '{"queue": "q", "body": "x", "kye": "k"}\n', 2, "'key' is meant"),
        (GOOD + '{"queue": "q", "body": "x", "headers": [1]}\n', 2, "headers must be"),
        (GOOD + '{"queue": "q", "body": "x", "headers": {"a": {"$x": 1}}}\n', 2, r"\$x"),
        (GOOD + '{"queue": "q", "body": "x", "headers": {"a": {"$ext": 1}}}\n', 2, r"\$ext"),
        (GOOD + '{"queue": "q", "body": "x", "expiry": -1}\n', 2, "expiry must be"),
        (GOOD + '{"queue": "q", "body": "x", "expiry": true}\n', 2, "expiry must be"),
        (GOOD + '{"queue": "q", "body": "x", "persistent": "no"}\n', 2, "persistent must be"),
        (GOOD + '{"queue": "q", "body": "x", "envelope_base64": "eHh4"}\n', 2, "envelope"),
        (GOOD + '{"queue": 5, "body": "x"}\n', 2, "queue must be"),
        ('{"qindex_messages": 2, "count": 1}\n' + GOOD, 1, "newer version"),
        ('{"qindex_messages": "1", "count": 1}\n' + GOOD, 1, "damaged"),
        ('{"qindex_messages": 1, "count": 2}\n' + GOOD, 0, "cut: it has 1 messages of 2"),
        ("[" * 100_000 + "\n", 1, "nested|no JSON"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_done(
    tmp_path: Path, text: str, line: int, what: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match=what) as refused:
        import_messages([path], tmp_path / "b")
    assert refused.value.place == line
    assert str(path) in str(refused.value)
    assert not (tmp_path / "b").exists()


def test_lines_made_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_text(
        '{"body": "tëxt", "key": "k", "headers": {"b": {"$base64": "AP8="}, "d": '
        '{"$map": [[1, "a"]]}}, "unknown": 5}\n{"body_base64": "AP8=", "queue": "named"}\n'
    )
    import_messages([path], tmp_path / "b", "q")
    with qindex.open(tmp_path / "b") as engine:
        first, second = engine.queue("q").get_many(2)
        assert first.body == "tëxt".encode()
        assert first.headers == {"b": b"\x00\xff", "d": {1: "a"}}
        assert second.body == b"\x00\xff"
    with pytest.raises(qindex.UsageError, match="message 1 names no queue"):
        import_messages([path], tmp_path / "c")


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [_cut, lambda _: b"", lambda _: b"PAR1 is not all"])
def test_a_file_that_is_no_parquet(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    pytest.importorskip("pyarrow")
    fill(tmp_path / "a")
    out = tmp_path / "x.parquet"
    export_messages(tmp_path / "a", out)
    out.write_bytes(damage(out.read_bytes()))
    with pytest.raises(FormatError, match="not a whole Parquet"):
        import_messages([out], tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("columns", "metadata", "what"),
    [
        ({"text": ["x"]}, {}, "no column body"),
        ({"body": ["x"]}, {}, "column body must not be of type string"),
        ({"body": [b"x"], "expiry": ["soon"]}, {}, "column expiry"),
        ({"body": [b"x"]}, {"qindex_messages": "9"}, "newer version"),
        ({"body": [b"x", None]}, {}, "row 2: has no body"),
        ({"body": [b"x"], "headers": ["{"]}, {}, "row 1"),
    ],
)
def test_a_parquet_of_something_else(
    tmp_path: Path, columns: dict[str, list[Any]], metadata: dict[str, str], what: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), tmp_path / "x.parquet")
    with pytest.raises(FormatError, match=what):
        import_messages([tmp_path / "x.parquet"], tmp_path / "b", "q")
    assert not (tmp_path / "b").exists()


def test_an_empty_file_is_no_export(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(FormatError, match="is empty"):
        import_messages([tmp_path / "empty.jsonl"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_name_that_no_queue_has(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"body": "x", "queue": "q"}\n')
    with pytest.raises(qindex.UsageError, match="1 to 255 bytes"):
        import_messages([tmp_path / "one.jsonl"], tmp_path / "new", "")
    assert not (tmp_path / "new").exists()


def test_wrong_use(tmp_path: Path) -> None:
    fill(tmp_path / "a", 2)
    with pytest.raises(qindex.UsageError, match="say which it is"):
        export_messages(tmp_path / "a", tmp_path / "x.csv")
    with pytest.raises(qindex.UsageError, match="no queue"):
        export_messages(tmp_path / "a", tmp_path / "x.jsonl", ["none"])
    with pytest.raises(qindex.StorageError):
        export_messages(tmp_path / "a", tmp_path / "no" / "x.jsonl")
    with pytest.raises(qindex.NotAStoreError):
        export_messages(tmp_path / "nothing", tmp_path / "x.jsonl")
    with pytest.raises(qindex.StorageError):
        import_messages([tmp_path / "none.jsonl"], tmp_path / "b")
    with pytest.raises(qindex.UsageError, match="no files"):
        import_messages([], tmp_path / "b")


def test_on_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(one) for one in arguments])
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    fill(tmp_path / "a")
    out = tmp_path / "x.jsonl"
    code, printed, told = run("export", tmp_path / "a", "orders", "--out", out, "--json")
    assert (code, told) == (0, "")
    count = json.loads(printed)["messages"]
    assert run("export", tmp_path / "a", "--out", out)[0] == 2
    code, printed, told = run("import", out, tmp_path / "b")
    assert (code, printed, told) == (0, f"imported {count} to {tmp_path / 'b'}\n", "")
    assert contents(tmp_path / "b")["orders"] == contents(tmp_path / "a")["orders"]
    out.write_bytes(out.read_bytes()[:-5])
    code, printed, told = run("import", out, tmp_path / "c")
    assert (code, printed) == (2, "")
    assert told.count("\n") == 1
    assert f"{out}: line {count + 1}: the file is cut here" in told
    assert run("import", tmp_path / "b")[0] == 2
    assert run("export", tmp_path / "a")[0] == 2


# -- files that are made to take much memory, or time ------------------------------------------


def test_a_text_that_many_rows_share_is_not_in_memory_for_each(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("qindex.transfer.parquet")
    table = pa.table({"body": [b"x" * 1_000_000] * 100})
    pa.parquet.write_table(table, tmp_path / "x.parquet", compression="zstd")
    del table
    tracemalloc.start()
    try:
        count = sum(len(one.message.body) for one in parquet.read(tmp_path / "x.parquet"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 100_000_000
    assert peak < 50_000_000


def test_more_rows_than_bytes_could_hold_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"body": [b"x"] * 1_500_000})
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd")
    with pytest.raises(FormatError, match=r"1,500,000 rows in [\d,]+ bytes"):
        import_messages([tmp_path / "x.parquet"], tmp_path / "b", "q")
    assert not (tmp_path / "b").exists()


def test_a_row_group_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("qindex.transfer.parquet")
    table = pa.table({"body": [b"x" * 100_000]})
    pa.parquet.write_table(table, tmp_path / "x.parquet", compression="zstd")
    monkeypatch.setattr(parquet, "_MAX_GROUP", 90_000)
    with pytest.raises(FormatError, match="write smaller row groups"):
        import_messages([tmp_path / "x.parquet"], tmp_path / "b", "q")
