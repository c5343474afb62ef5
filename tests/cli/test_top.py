"""``qindex top``: its looks, and its screen in a pseudo-terminal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

import qindex
from qindex.cli.top import Look
from tests.cli.support import run
from tests.cli.terminal import Terminal
from tests.golden import golden
from tests.qindex.support import open_quietly


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[qindex.Engine]:
    with open_quietly(tmp_path / "store", store_file_bytes=100_000) as engine:
        small = engine.queue("small")
        small.publish_many([b"x" * 10] * 40)
        small.ack_many(small.get_many(12))
        small.get_many(3)
        small.flush()
        small.publish_many([b"y"] * 5)
        large = engine.queue("large")
        large.publish_many([bytes([at]) * 20_000 for at in range(40)])
        large.ack_many(large.get_many(20))
        yield engine


def test_rates(engine: qindex.Engine) -> None:
    first = Look.take(engine.directory)
    started = monotonic()
    assert first.rates == {}
    queue = engine.queue("small")
    queue.publish_many([b"z"] * 1000)
    queue.get_many(500)
    sleep(0.05)
    second = Look.take(engine.directory, first)
    took = monotonic() - first.at
    assert started < second.at
    rates = second.rates["small"]
    assert rates.published >= 1000 / took > 0
    assert 0 < rates.delivered < rates.published
    assert rates.acked == 0
    queue.ack_up_to(600)
    queue.flush()
    after = Look.take(engine.directory, second).rates["small"]
    assert after.acked > 0
    assert after.published == 0


def test_looking_writes_nothing_and_takes_no_lock(engine: qindex.Engine) -> None:
    root = Path(engine.directory)
    before = {path: path.stat() for path in root.rglob("*")}
    assert run("top", root, "--once").code == 0
    after = {path: path.stat() for path in root.rglob("*")}
    assert {path: (one.st_size, one.st_mtime_ns) for path, one in before.items()} == {
        path: (one.st_size, one.st_mtime_ns) for path, one in after.items()
    }
    engine.queue("small").publish(b"still open")


def test_without_a_terminal(engine: qindex.Engine) -> None:
    result = run("top", engine.directory)
    assert (result.code, result.err) == (0, "")
    small, large, store = result.text.splitlines()
    assert small.startswith("small: messages 33, ready -, unacked -, bytes 285, journal ")
    assert large.startswith("large: messages 20, ready 20, unacked 0, bytes 400000, journal ")
    assert "garbage" in store
    (row,) = run("top", engine.directory, "--json").rows
    assert [one["messages"] for one in row["queues"]] == [20, 33]
    assert row["message_store"]["garbage"] > 0


def test_a_node_s_directory() -> None:
    result = run("top", golden("d1").vhost_dir, "--once")
    assert result.code == 0
    assert "messages" in result.text


def test_no_store(tmp_path: Path) -> None:
    result = run("top", tmp_path / "none")
    assert result.code == 2
    assert len(result.complaints) == 1
    assert run("top", tmp_path, "--interval", "0").code == 2


def test_the_screen(engine: qindex.Engine) -> None:
    terminal = Terminal("top", engine.directory, "--interval", "0.1")
    try:
        line = terminal.wait_for("small").split()
        assert line[:4] == ["small", "33", "-", "-"]
        assert line[-1] == "4"
        assert "garbage" in terminal.wait_for("message store: ")
        assert terminal.wait_for("sorted by messages")
        terminal.press("n")
        terminal.wait_for("sorted by name")
        names = [line.split()[0] for line in terminal.lines if line[:5] in ("small", "large")]
        assert names == ["large", "small"]
        engine.queue("small").publish_many([b"more"] * 70)
        assert terminal.wait_for("103 ").split()[:2] == ["small", "103"]
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_resized_and_narrow(engine: qindex.Engine) -> None:
    terminal = Terminal("top", engine.directory, "--interval", "0.2", columns=40, rows=10)
    try:
        terminal.wait_for("ready")
        assert not any("pub/s" in line for line in terminal.lines)
        terminal.resize(130, 20)
        terminal.screen.resize(20, 130)
        assert "segments" in terminal.wait_for("pub/s")
        terminal.resize(12, 3)
        terminal.screen.resize(3, 12)
        terminal.read(0.5)
        assert terminal.process.poll() is None
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_a_store_that_vanishes(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "s") as engine:
        engine.queue("q").publish(b"x")
    terminal = Terminal("top", tmp_path / "s", "--interval", "0.1")
    try:
        terminal.wait_for("1 queues")
        shutil.rmtree(tmp_path / "s")
        assert terminal.end() == 2
        assert terminal.process.stderr is not None
        error = terminal.process.stderr.read().decode()
        assert error.startswith("qindex: ")
        assert "no such directory" in error
        assert "Traceback" not in error
    finally:
        terminal.close()


def test_more_queues_than_lines(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "s") as engine:
        for number in range(60):
            engine.queue(f"q{number}").publish_many([b"x"] * (number + 1))
    terminal = Terminal("top", tmp_path / "s", rows=16)
    try:
        assert terminal.wait_for("q59").split()[:2] == ["q59", "60"]
        assert terminal.wait_for("... and 50 more")
        assert not any(line.startswith("q1 ") for line in terminal.lines)
    finally:
        terminal.close()
