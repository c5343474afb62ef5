"""``qindex follow``: what it prints, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

import qindex
from tests.cli.support import run
from tests.qindex.support import WAIT, open_quietly

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[qindex.Engine]:
    with open_quietly(tmp_path) as engine:
        yield engine


def test_lines(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    queue.publish(b"plain")
    queue.publish(b"\x00\xff", key="o-17\n")
    result = run("follow", engine.directory, "q", "--from", "earliest", "--timeout", "0")
    assert (result.code, result.err) == (0, "")
    assert result.text == ("         0         5 - plain\n         1         2 'o-17\\n' 00ff\n")


def test_json_with_a_gap(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    queue.publish_many([b"%d" % seq for seq in range(6)])
    queue.ack_many(queue.get_many(5))
    queue.flush()
    options = ["--from", "2", "--timeout", "0"]
    result = run("follow", engine.directory, "q", "--json", *options)
    assert result.code == 1
    gap, message = result.rows
    assert gap["gap"] == [2, 4]
    assert (message["seq_id"], message["body"]) == (5, "5")
    plain = run("follow", engine.directory, "q", *options)
    assert plain.code == 1
    assert plain.complaints == [
        "qindex: gap: seq_ids 2 to 4: acknowledged and removed before the follower came to them"
    ]


@pytest.mark.parametrize(("start", "expected"), [("latest", []), ("1", [1]), ("earliest", [0])])
def test_where_it_starts(engine: qindex.Engine, start: str, expected: list[int]) -> None:
    engine.queue("q").publish_many([b"a", b"b"])
    options = ["--from", start, "--timeout", "0", "--count", "1", "--json"]
    result = run("follow", engine.directory, "q", *options)
    assert [row["seq_id"] for row in result.rows] == expected


def test_wrong_use(engine: qindex.Engine, tmp_path: Path) -> None:
    for arguments in (
        (engine.directory, "none"),
        (tmp_path / "none", "q"),
        (engine.directory, "q", "--from", "first"),
        (engine.directory, "q", "--poll", "0"),
    ):
        result = run("follow", *arguments)
        assert result.code == 2
        assert len(result.complaints) == 1


def test_beside_a_writer_until_it_is_interrupted(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    command = [sys.executable, "-m", "qindex.cli", "follow", engine.directory, "q", "--json"]
    with subprocess.Popen(
        [*command, "--from", "earliest"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for seq in range(3):
            queue.publish(b"%d" % seq)
            started = monotonic()
            assert json.loads(child.stdout.readline())["seq_id"] == seq
            assert monotonic() - started < WAIT
        child.send_signal(signal.SIGINT)
        assert child.wait(WAIT) == 130
        assert child.stderr.read() == b"qindex: interrupted\n"


def test_a_queue_that_is_deleted_meanwhile(engine: qindex.Engine) -> None:
    engine.queue("q").publish(b"x")
    command = [sys.executable, "-m", "qindex.cli", "follow", engine.directory, "q"]
    with subprocess.Popen(
        [*command, "--from", "earliest"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline().split()[0] == b"0"
        engine.delete_queue("q")
        assert child.wait(WAIT) == 2
        assert b"'q' was deleted" in child.stderr.read()
