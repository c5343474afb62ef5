"""The commands on stores of ours: what they print, and how they end."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from time import monotonic, sleep

import msgpack
import pytest

import qindex
from journal.compiled import build
from qindex.cli import app
from qindex.cli.app import main, make_app
from qindex.format.json_value import plain_value
from tests.cli.support import Result, run
from tests.golden import golden, synthetic
from tests.waiting import WAIT

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "qindex.cli"]


def bodies(result: Result) -> list[bytes]:
    return [base64.b64decode(row["body_base64"]) for row in result.rows]


def child(*arguments: object, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=ROOT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


# -- publish ------------------------------------------------------------------------------------


def test_lines_of_standard_input(tmp_path: Path) -> None:
    result = run("publish", tmp_path / "new", "q", stdin=b"one\n\ntwo \xff\nlast")
    assert (result.code, result.err) == (0, "")
    assert result.text == "published 4 to q, seq_id 0 to 3\n"
    assert bodies(run("cat", tmp_path / "new", "q", "--json")) == [
        b"one",
        b"",
        b"two \xff",
        b"last",
    ]


def test_nothing_to_publish(tmp_path: Path) -> None:
    assert run("publish", tmp_path, "q").text == "published 0 to q\n"
    assert run("cat", tmp_path, "q").out == b""


def test_whole_input_and_files(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"")
    run("publish", store, "q", "--whole", stdin=b"x\ny\n")
    run("publish", store, "q", tmp_path / "a", tmp_path / "b")
    result = run("publish", store, "q", "--lines", tmp_path / "a", tmp_path / "b", "--json")
    assert result.rows == [{"queue": "q", "published": 2, "first_seq_id": 3, "last_seq_id": 4}]
    shown = run("cat", store, "q", "--json")
    assert bodies(shown) == [b"x\ny\n", b"1\n2\n", b"", b"1", b"2"]


def test_key_headers_and_ttl(tmp_path: Path) -> None:
    arguments = ["--key", "k", "--header", "a=1", "--header", "b=x=y", "--ttl", "100", "--confirm"]
    assert run("publish", tmp_path, "q", *arguments, stdin=b"m\nn\n").code == 0
    first, second = run("cat", tmp_path, "q", "--json").rows
    assert (first["key"], first["headers"]) == ("k", {"a": "1", "b": "x=y"})
    assert first["expiry"] > first["timestamp"] // 1000
    assert second["body"] == "n"
    run("publish", tmp_path, "q", "--ttl", "0", stdin=b"gone\n")
    assert len(run("cat", tmp_path, "q", "--json").rows) == 2


def test_a_line_is_published_at_once(tmp_path: Path) -> None:
    process = child("publish", tmp_path, "q", stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(b"first\nhalf a li")
        process.stdin.flush()
        deadline = monotonic() + WAIT
        seen: list[bytes] = []
        while not seen and monotonic() < deadline:
            sleep(0.1)
            result = run("cat", tmp_path, "q", "--json")
            seen = bodies(result) if result.code == 0 else []
        assert seen == [b"first"]
        process.stdin.write(b"ne\n")
        out, err = process.communicate(timeout=WAIT)
        assert (out, err) == (b"published 2 to q, seq_id 0 to 1\n", b"")
    finally:
        process.kill()
        process.communicate()


# -- consume ------------------------------------------------------------------------------------


def test_consume_acknowledges_what_it_wrote(tmp_path: Path) -> None:
    run("publish", tmp_path, "q", stdin=b"".join(b"%d\n" % n for n in range(1200)))
    first = run("consume", tmp_path, "q", "--count", "700")
    assert (first.code, first.err) == (0, "")
    assert first.out == b"".join(b"%d\n" % n for n in range(700))
    rest = run("consume", tmp_path, "q", "--json")
    assert [row["body"] for row in rest.rows] == [str(n) for n in range(700, 1200)]
    assert rest.rows[0]["seq_id"] == 700
    assert not any(row["redelivered"] for row in rest.rows)
    assert run("consume", tmp_path, "q").out == b""


def test_peek_changes_nothing(tmp_path: Path) -> None:
    run("publish", tmp_path, "q", stdin=b"a\nb\nc\n")
    assert run("consume", tmp_path, "q", "--peek", "--count", 2).out == b"a\nb\n"
    assert [row["redelivered"] for row in run("cat", tmp_path, "q", "--json").rows] == [False] * 3
    assert run("consume", tmp_path, "q", "--peek", "--json").rows[2]["body"] == "c"


def test_consume_waits(tmp_path: Path) -> None:
    run("publish", tmp_path, "q", stdin=b"a\n")
    started = monotonic()
    assert run("consume", tmp_path, "q", "--timeout", "0.3").out == b"a\n"
    assert monotonic() - started >= 0.3


def test_consume_of_a_node_s_queue_is_refused(tmp_path: Path) -> None:
    store = golden("a").copy(tmp_path)
    result = run("consume", store, "qa.part")
    assert result.code == 2
    assert "only --peek works there" in result.complaints[0]
    assert len(run("consume", store, "qa.part", "--peek", "--json").rows) == 320
    looked = run("consume", golden("g1").vhost_dir, "qg.exp", "--peek", "--json")
    assert (looked.code, len(looked.rows), looked.err) == (0, 20, "")


def test_what_a_closed_pipe_did_not_take_is_not_acknowledged(tmp_path: Path) -> None:
    run("publish", tmp_path, "q", stdin=b"".join(b"%d\n" % n for n in range(30_000)))
    process = child("consume", tmp_path, "q")
    assert process.stdout is not None
    assert process.stdout.read(4) == b"0\n1\n"
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait(timeout=WAIT)) == (b"", 141)
    process.stderr.close()
    rows = run("cat", tmp_path, "q", "--json").rows
    assert 15_000 < len(rows) < 30_000
    assert [row["seq_id"] for row in rows] == list(range(30_000 - len(rows), 30_000))
    assert rows[0]["redelivered"]


def test_what_took_longer_than_its_lease_comes_again(tmp_path: Path) -> None:
    body = b"x" * 300_000  # more than a pipe holds
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish_many([b"first", body])
    process = child("consume", tmp_path, "q", "--lease", "0.5")
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    sleep(1.5)
    # What the line was read with holds some of the rest already.
    lines = process.stdout.read().split(b"\n")
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read().decode().splitlines()
    process.stderr.close()
    assert process.wait(timeout=WAIT) == 1
    assert set(lines) == {body, b""}
    assert lines.count(body) >= 2
    assert said == ["qindex: seq_id 1 took longer than its lease: it comes again"] * len(said)
    assert len(said) == lines.count(body) - 1
    assert run("cat", tmp_path, "q").out == b""


def test_a_lease_that_is_long_enough(tmp_path: Path) -> None:
    run("publish", tmp_path, "q", stdin=b"1\n2\n3\n")
    result = run("consume", tmp_path, "q", "--lease", "100", "--count", 2)
    assert (result.code, result.out, result.err) == (0, b"1\n2\n", "")
    assert bodies(run("cat", tmp_path, "q", "--json")) == [b"3"]
    for lease in ("0", "-1", "nan", "1e12"):
        result = run("consume", tmp_path, "q", "--lease", lease)
        assert (result.code, len(result.complaints)) == (2, 1)
        assert "a lease must be" in result.err
    assert run("consume", tmp_path, "q", "--lease", "1", "--peek").code == 2


def test_cat_into_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    run("publish", tmp_path, "q", stdin=b"x\n" * 50_000)
    process = child("cat", tmp_path, "q")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait(timeout=WAIT)) == (b"", 141)
    process.stderr.close()


def test_interrupted(tmp_path: Path) -> None:
    run("publish", tmp_path, "q", stdin=b"only\n")
    process = child("consume", tmp_path, "q", "--timeout", "inf")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"only\n"
        sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT)
        assert (process.returncode, out, err) == (130, b"", b"qindex: interrupted\n")
    finally:
        process.kill()
        process.communicate()
    # The store was closed in order: nothing is left, and no lock.
    assert run("cat", tmp_path, "q").out == b""
    assert (tmp_path / "qindex.clean").exists()


# -- cat, list ----------------------------------------------------------------------------------


def test_cat_for_people(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"text\x1b[31m\n", key="k\n")
        queue.publish(b"\xff\x00" * 50, persistent=False)
        queue.publish(("é" * 100).encode())
        lines = run("cat", tmp_path, "q").text.splitlines()
    assert lines[0].split(maxsplit=5) == ["0", "p-", "journal", "10", "'k\\n'", "text\\x1b[31m\\n"]
    assert lines[1].split()[:4] == ["1", "t-", "journal", "100"]
    assert lines[1].endswith("...")
    assert lines[2].endswith("é...")


def test_cat_count_and_key(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        for n in range(10):
            engine.queue("q").publish(b"%d" % n, key=f"k{n % 3}")
    assert bodies(run("cat", tmp_path, "q", "--key", "k1", "--json")) == [b"1", b"4", b"7"]
    assert bodies(run("cat", tmp_path, "q", "--key", "k1", "--count", 2, "--json")) == [b"1", b"4"]
    assert run("cat", tmp_path, "q", "--count", 0).out == b""


def test_cat_of_a_priority_queue_is_in_order_of_delivery(tmp_path: Path) -> None:
    """With the seq_ids that a program gets, whatever came back or is in the message store."""
    chance = random.Random(4)
    with qindex.open(tmp_path, segment_entry_count=16, embed_below=500) as engine:
        queue = engine.queue("jobs", max_priority=5)
        for number in range(120):
            body, priority = bytes(chance.choice((1, 600))), chance.choice((None, 0, 1, 3, 5))
            later = 1e6 if number % 20 == 7 else None
            queue.publish(body, key=f"{number}", priority=priority, delay=later)
            if number % 25 == 24:
                engine.flush()
        held = list(queue.get_many(40))
        chance.shuffle(held)
        for one in held[:10]:
            one.ack()
        for one in held[10:25]:
            one.nack()
        in_use = run("cat", tmp_path, "jobs", "--json").rows
    rows = run("cat", tmp_path, "jobs", "--json").rows
    assert [row["seq_id"] for row in in_use] == [row["seq_id"] for row in rows]
    assert len(rows) == 110
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("jobs")
        given = []
        while (delivery := queue.get(timeout=0)) is not None:
            given.append((delivery.seq_id, delivery.priority, delivery.key, delivery.redelivered))
        assert queue.stats().delayed == 6
    assert {priority for _, priority, *_ in given} == {0, 1, 3, 5}
    delivered = {seq_id for seq_id, *_ in given}
    found = [(row["seq_id"], row["priority"], row["key"], row["redelivered"]) for row in rows]
    assert [one for one in found if one[0] in delivered] == given
    # Those that are not due yet have the place in which they were published.
    assert len(found) == len(given) + 6
    for priority in (0, 1, 3, 5):
        its_own = [seq_id for seq_id, its, *_ in found if its == priority]
        assert its_own == sorted(its_own)


def test_values_that_json_does_not_have(tmp_path: Path) -> None:
    headers = {
        "bytes": b"\x00\xff",
        "nan": float("nan"),
        "map": {1: "a"},
        "dollar": {"$x": 1},
        "time": msgpack.Timestamp(3, 500_000_000),
        "ext": msgpack.ExtType(5, b"x"),
        "list": [1, 2.5, None, True, {"k": b""}],
    }
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish(b"", headers=headers)
    assert run("cat", tmp_path, "q", "--json").rows[0]["headers"] == {
        "bytes": {"$base64": "AP8="},
        "nan": {"$float": "nan"},
        "map": {"$map": [[1, "a"]]},
        "dollar": {"$map": [["$x", 1]]},
        "time": {"$time": 3.5},
        "ext": {"$ext": [5, "eA=="]},
        "list": [1, 2.5, None, True, {"k": {"$base64": ""}}],
    }
    assert plain_value(Decimal("1.50")) == {"$decimal": "1.50"}
    assert plain_value("h\udce9") == {"$text": "68e9"}
    assert plain_value({"h\udce9": 1}) == {"$map": [[{"$text": "68e9"}, 1]]}
    with pytest.raises(TypeError, match="a object in a message"):
        plain_value(object())


def test_list_for_people(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("long name").publish_many([b"12345"] * 3)
        engine.queue("z\n").publish(b"")
        result = run("list", tmp_path, "--wide")
    first, second, third = result.text.splitlines()
    assert first.split()[:4] == ["name", "messages", "ready", "delayed"]
    assert first.split()[4:] == [
        "unacked",
        "delivered_before",
        "bytes",
        "file_bytes",
        "segments",
        "journal_entries",
        "next_seq_id",
    ]
    assert second.split()[:8] == ["long", "name", "3", "3", "0", "0", "0", "15"]
    assert third.split()[:4] == ["'z\\n'", "1", "1", "0"]
    assert len(first) == len(second) == len(third)


def test_cat_of_a_damaged_store(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish_many([b"%d" % n * 30 for n in range(5)])
        engine.flush()
    (path,) = tmp_path.glob("queues/*/0.idx")
    data = bytearray(path.read_bytes())
    at = data.index(b"2" * 30)
    data[at : at + 3] = b"abc"
    path.write_bytes(data)
    result = run("cat", tmp_path, "q", "--json")
    assert bodies(result) == [b"%d" % n * 30 for n in (0, 1, 3, 4)]
    assert result.code == 1
    assert any(f"{path}: at offset" in line for line in result.complaints)
    again = run("list", tmp_path)
    assert again.code == 1
    assert again.complaints == result.complaints


def test_consume_goes_on_behind_damage(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish_many([b"%d" % n * 30 for n in range(5)])
        engine.flush()
    (path,) = tmp_path.glob("queues/*/0.idx")
    data = bytearray(path.read_bytes())
    at = data.index(b"2" * 30)
    data[at : at + 3] = b"abc"
    path.write_bytes(data)
    result = run("consume", tmp_path, "q")
    assert result.out == b"".join(b"%d" % n * 30 + b"\n" for n in (0, 1, 3, 4))
    assert result.code == 1
    assert "at offset" in result.complaints[0]


# -- inspect ------------------------------------------------------------------------------------


def test_inspect_a_journal(tmp_path: Path) -> None:
    with qindex.open(tmp_path, background=False) as engine:
        queue = engine.queue("q")
        queue.publish(b"body", ttl=100)
        queue.publish(b"other", persistent=False)
        delivery = queue.get()
        assert delivery is not None
        delivery.ack()
        (path,) = tmp_path.glob("queues/*/journal.jif")
        result = run("inspect", path, "--json")
        text = run("inspect", path).text.splitlines()
    assert (result.code, result.err) == (0, "")
    assert [row["record"] for row in result.rows] == ["publish", "publish", "deliver", "ack"]
    assert [row["seq_id"] for row in result.rows] == [0, 1, 0, 0]
    first, second = result.rows[:2]
    assert (first["offset"], second["offset"]) == (0, first["length"])
    assert (first["size"], first["persistent"], first["format"]) == (4, True, "qindex")
    assert (second["persistent"], second["expiry"]) == (False, None)
    assert len(text) == 4
    assert text[3].split()[2:] == ["ack", "seq_id=0"]


def test_inspect_a_segment_of_a_node(tmp_path: Path) -> None:
    root = golden("c1").vhost_dir
    (path,) = root.glob("queues/*/3.idx")
    result = run("inspect", path, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.rows[0]["format"] == "rabbitmq"
    assert {row["seq_id"] // 2048 for row in result.rows} == {3}
    assert {row["record"] for row in result.rows} == {"publish", "deliver", "ack"}
    alone = tmp_path / "3.idx"
    alone.write_bytes(path.read_bytes())
    guessed = run("inspect", alone, "--json")
    assert "16384 entries a segment assumed" in guessed.complaints[0]
    told = run("inspect", alone, "--json", "--entries", 2048)
    assert told.rows == result.rows


def test_inspect_says_where_it_stops_making_sense() -> None:
    (path,) = synthetic("07a").vhost_dir.glob("queues/*/0.idx")
    result = run("inspect", path)
    assert result.code == 1
    assert f"{path}: at offset 1110" in result.complaints[0]


def test_inspect_a_message_store_file() -> None:
    result = run("inspect", golden("g1").vhost_dir / "msg_store_persistent" / "0.rdq", "--json")
    assert result.code == 0
    assert {row["record"] for row in result.rows} == {"message"}
    assert len(result.rows) >= 20
    torn = run("inspect", synthetic("10").vhost_dir / "msg_store_persistent" / "0.rdq")
    assert torn.code == 1
    assert "0.rdq: at offset" in torn.complaints[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("other.txt", b"", "not a file that can be inspected"),
        ("x.idx", b"", "named for its number"),
        ("missing.jif", None, "can't be read"),
        ("missing.rdq", None, "can't be scanned"),
    ],
)
def test_inspect_of_something_else(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    result = run("inspect", path)
    assert (result.code, result.out) == (2, b"")
    assert said in result.complaints[0]
    assert "is a directory" in run("inspect", tmp_path).complaints[0]


# -- all of them --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["cat"], "Missing argument 'DIR'"),
        (["cat", "{}", "q", "--nonsense"], "No such option"),
        (["cat", "{}", "q", "--count", "x"], "--count"),
        (["list", "{}"], "neither a qindex store nor a RabbitMQ vhost directory"),
        (["list", "{}/missing"], "no such directory"),
        (["cat", "{}/missing", "q"], "no such directory"),
        (["consume", "{}/missing", "q"], "no such directory"),
        (["consume", "{}/store", "nothing"], "there is no queue 'nothing'"),
        (["consume", "{}/store", "q", "--timeout", "nan"], "timeout"),
        (["consume", "{}/store", "q", "--timeout", "-1"], "--timeout"),
        (["publish", "{}/store", ""], "1 to 255 bytes"),
        (["publish", "{}/store", "x" * 256], "1 to 255 bytes"),
        (["publish", "{}/store", "q", "{}/missing"], "No such file or directory"),
        (["publish", "{}/store", "q", "--header", "novalue"], "a header is NAME=VALUE"),
        (["publish", "{}/store", "q", "--ttl", "-1", "{}/a"], "ttl must be"),
        (["publish", "{}/a", "q", "{}/a"], "is a file, not a store directory"),
    ],
)
def test_wrong_use(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "a").write_bytes(b"x")
    run("publish", tmp_path / "store", "q", stdin=b"x\n")
    result = run(*(one.replace("{}", str(tmp_path)) for one in arguments))
    assert (result.code, result.out) == (2, b"")
    assert len(result.complaints) == 1
    assert said in result.complaints[0]
    assert not (tmp_path / "missing").exists()
    assert run("list", tmp_path / "store", "--json").rows[0]["ready"] == 1


def test_a_store_in_use(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish(b"x")
        for command in (["publish", tmp_path, "q"], ["consume", tmp_path, "q"]):
            result = run(*command, stdin=b"y\n")
            assert result.code == 2
            assert "is open for writing by this process already" in result.complaints[0]
        assert run("consume", tmp_path, "q", "--peek").out == b"x\n"


def test_without_a_command(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([]) == 2
    assert b"Usage: qindex" in capsysbinary.readouterr().out
    assert main(["--help"]) == 0
    text = capsysbinary.readouterr().out.decode()
    for name in ("demo", "list", "cat", "publish", "consume", "inspect"):
        assert f" {name} " in text
    assert main(["cat", "--help"]) == 0


def test_version() -> None:
    assert run("--version").text == f"qindex {qindex.__version__} ({build()})\n"


def test_a_defect_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_rows: object) -> int:
        raise ZeroDivisionError("by zero")

    run("publish", tmp_path, "q", stdin=b"x\n")
    monkeypatch.setattr("qindex.cli.look.print_findings", fail)
    monkeypatch.delenv("QINDEX_DEBUG", raising=False)
    result = run("cat", tmp_path, "q")
    assert result.code == 70
    assert result.complaints == ["qindex: a defect of this program: ZeroDivisionError: by zero"]
    monkeypatch.setenv("QINDEX_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run("cat", tmp_path, "q")


def test_rocket_commands_are_mounted_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {command.name for command in make_app().registered_commands}
    monkeypatch.setitem(app._LATER, "rocket", ("no_such_package.cli", ""))
    assert "rocket" not in {command.name for command in make_app().registered_commands}
    assert {"demo", "list", "cat", "publish", "consume", "inspect"} <= names
    result = run("rocket", "list", ".")
    assert result.code == 2
    assert "its package 'no_such_package' is missing" in result.complaints[0]


class ClosedPipe(io.BytesIO):
    """A pipe that nobody reads any more."""

    def write(self, _data: object, /) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("arguments", [["cat", "{}", "q"], ["consume", "{}", "q"], ["--version"]])
def test_a_closed_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    run("publish", tmp_path, "q", stdin=b"x\n")
    stream = io.TextIOWrapper(ClosedPipe())
    monkeypatch.setattr(sys, "stdout", stream)
    assert main([one.replace("{}", str(tmp_path)) for one in arguments]) == 141
    monkeypatch.undo()
    with pytest.raises(BrokenPipeError):
        stream.close()
    assert len(run("cat", tmp_path, "q", "--json").rows) == 1


def test_the_keyboard_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_rows: object) -> int:
        raise KeyboardInterrupt

    run("publish", tmp_path, "q", stdin=b"x\n")
    monkeypatch.setattr("qindex.cli.look.print_findings", interrupt)
    result = run("cat", tmp_path, "q")
    assert (result.code, result.complaints) == (130, ["qindex: interrupted"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (qindex.DamageError("f.idx", 7, "bad"), 1),
        (qindex.ClosedError("closed"), 2),
        (OSError(28, "No space left on device", "f"), 2),
    ],
)
def test_errors_and_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(_rows: object) -> int:
        raise error

    run("publish", tmp_path, "q", stdin=b"x\n")
    monkeypatch.setattr("qindex.cli.look.print_findings", fail)
    result = run("cat", tmp_path, "q")
    assert result.code == code
    assert len(result.complaints) == 1
    assert result.text.startswith("         0 p-")


LIGHT = """
import sys
import qindex
heavy = {"typer", "rich", "click", "pyarrow", "pyspark", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
assert "qindex.view.reader" not in sys.modules
"""


def test_import_qindex_is_light() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, check=True)
    # Without site-packages, some of which import pathlib: it needs nothing of them.
    alone = "import sys, qindex; assert 'pathlib' not in sys.modules"
    subprocess.run([sys.executable, "-S", "-c", alone], cwd=ROOT, check=True)


def test_the_command_starts_without_rich() -> None:
    program = (
        "import sys; from qindex.cli.app import main; assert main(['--version']) == 0; "
        "assert 'rich' not in sys.modules and 'rocketstore' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)


def test_json_lines_are_utf_8_whatever_the_terminal(tmp_path: Path) -> None:
    run("publish", tmp_path, "ü", stdin="é\n".encode())
    environment = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*COMMAND, "cat", str(tmp_path), "ü", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["body"] == "é"


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    ("command", "closed", "code", "said"),
    [
        ("list {}", ">&-", 2, "qindex: standard output: Bad file descriptor\n"),
        ("list {}", "2>&-", 0, ""),
        ("list {}/no", ">&-", 2, "no such directory\n"),
        ("list {}/no", "2>&-", 2, ""),
        ("export {} --out -", "2>&-", 0, ""),
        ("export {} --out -", ">&-", 2, "Bad file descriptor\n"),
        ("export {} --out -", ">/dev/full", 2, "No space left on device\n"),
        ("consume {} q", ">&-", 2, "Bad file descriptor\n"),
        ("consume {} q", ">/dev/full", 2, "No space left on device\n"),
        ("publish {} q", "<&-", 2, "Bad file descriptor\n"),
        ("verify {}", "<&- >&- 2>&-", 2, ""),
    ],
)
def test_closed_standard_streams(
    tmp_path: Path, command: str, closed: str, code: int, said: str
) -> None:
    with qindex.open(tmp_path / "a") as engine:
        engine.queue("q").publish(b"x")
    words = " ".join([*COMMAND, *command.format(tmp_path / "a").split()])
    # Unbuffered output fails at another place, and only once.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        f"{words} {closed}",
        shell=True,
        cwd=ROOT,
        env=buffered,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stderr.count("\n") == (1 if said else 0)
    assert done.stderr.endswith(said)
    if command.startswith("export") and not code:
        assert json.loads(done.stdout)["body"] == "x"
    with qindex.open(tmp_path / "a", read_only=True) as engine:
        assert len(engine.queue("q")) == 1


@pytest.mark.rotates(2)
def test_a_directory_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    """JSON has the name as Python has it: os.fsencode gives the path again."""
    odd = os.path.join(os.fsencode(tmp_path), b"\xff")
    directory = Path(os.fsdecode(odd))
    with qindex.open(directory) as engine:
        engine.queue("q").publish(b"x")
    for command in (
        ["verify", directory],
        ["repair", directory, "--out", tmp_path / "new\udcfe"],
        ["export", directory, "--out", directory / "x.jsonl"],
        ["list", directory],
    ):
        done = child(*command, "--json")
        output, errors = done.communicate(timeout=WAIT)
        assert (done.returncode, errors) == (0, b"")
        assert json.loads(output.decode("utf-8").splitlines()[0])
        if command[0] == "export":
            assert os.fsencode(json.loads(output)["file"]) == os.path.join(odd, b"x.jsonl")


def test_an_empty_journal_is_said_to_be_empty(tmp_path: Path) -> None:
    file = tmp_path / "journal.jif"
    file.touch()
    assert run("inspect", file).text == f"{file}: no records\n"


def test_a_flushed_journal_is_sound(tmp_path: Path) -> None:
    """Zeros are written ahead: they are no damage, as for verify."""
    with qindex.open(tmp_path, background=False) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        engine.flush()
        (file,) = tmp_path.glob("queues/*/journal.jif")
        assert not any(file.read_bytes())
        done = run("inspect", file)
    assert (done.code, done.text, done.err) == (0, f"{file}: no records\n", "")


ODD_NAME = "a\x1b[31m\u202e\x9bq"
ODD_KEY = "k\x1b[2J\u2066"


@pytest.mark.parametrize(
    "words",
    [
        "list {}",
        "list {} --wide",
        "list {} --json",
        "cat {} NAME",
        "cat {} NAME --json",
        "stats {}",
        "stats {} --prometheus",
        "verify {}",
        "queue {} NAME",
        "top {} --once",
        "export {} --out -",
        "cat {} \x1b[31mno",
        "list {}/\x1b]0;x\x07",
        "inspect /tmp/\x1b[31mx",
        "rocket list \x1b[31mx",
    ],
)
def test_nothing_foreign_reaches_the_terminal_as_it_is(tmp_path: Path, words: str) -> None:
    with qindex.open(tmp_path / "s") as engine:
        engine.queue(ODD_NAME, dead_letter="d\x1b[0m\x07").publish(b"x", key=ODD_KEY)
    arguments = [
        ODD_NAME if word == "NAME" else word.format(tmp_path / "s") for word in words.split(" ")
    ]
    result = run(*arguments)
    text = (result.out + result.err.encode()).decode()
    assert text
    assert not [one for one in text if not one.isprintable() and one != "\n"]
    if words.endswith("--json"):
        (row,) = result.rows
        assert row.get("name") == ODD_NAME or row["key"] == ODD_KEY
