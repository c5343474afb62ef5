"""``qindex schedule``: on a store that nobody has open, beside a server, and beside a writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import qindex
from tests.cli.support import run
from tests.server.support import WAIT, end_server, end_store

CRON = "30 2 * * *"


def add(directory: Path, name: str, *how: str) -> None:
    done = run("schedule", directory, "add", name, *how, "--queue", "jobs")
    assert (done.code, done.err) == (0, "")
    assert done.text.startswith(f"scheduled {name}, next at 20")


@pytest.mark.parametrize("shared", [False, True])
def test_from_add_to_remove(tmp_path: Path, shared: bool) -> None:
    directory = tmp_path / "data"
    engine = qindex.open(directory, shared=True, linger=0) if shared else None
    add(directory, "nightly", CRON, "--timezone", "Europe/Amsterdam", "--missed", "all")
    add(directory, "pulse", "--every", "60", "--body", "ping", "--header", "a=b", "--key", "k")
    table = run("schedule", directory, "list").text
    assert "30 2 * * * Europe/Amsterdam" in table
    assert "every 60 s" in table
    nightly, pulse = run("schedule", directory, "list", "--json").rows
    assert (nightly["cron"], nightly["timezone"], nightly["missed"]) == (
        CRON,
        "Europe/Amsterdam",
        "all",
    )
    assert nightly["next"][11:19] in ("02:30:00", "03:00:00")
    assert (pulse["every"], pulse["body"], pulse["headers"]) == (60, "ping", {"a": "b"})
    assert (pulse["key"], pulse["last"], pulse["paused"]) == ("k", None, False)
    for command, done in [
        ("pause", "paused"),
        ("run-now", "published"),
        ("resume", "resumed"),
        ("remove", "removed"),
    ]:
        assert run("schedule", directory, command, "pulse").text == f"{done} pulse\n"
    messages = run("cat", directory, "jobs", "--json").rows
    assert [(one["body"], one["headers"]["qindex-schedule"]) for one in messages] == [
        ("ping", "pulse")
    ]
    if engine is not None:
        assert list(engine.schedules()) == ["nightly"]
        engine.close()
        end_server(directory)
    assert [one["name"] for one in run("schedule", directory, "list", "--json").rows] == ["nightly"]


def test_beside_a_writer_schedules_are_listed_and_not_changed(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        assert run("schedule", tmp_path, "list", "--json").rows == []
        engine.schedule("s", every=5, queue="jobs").pause()
        (row,) = run("schedule", tmp_path, "list", "--json").rows
        assert (row["paused"], row["next"]) == (True, None)
        assert "paused" in run("schedule", tmp_path, "list").text
        for command in ("pause", "resume", "remove", "run-now"):
            refused = run("schedule", tmp_path, command, "s")
            assert (refused.code, len(refused.complaints)) == (2, 1)
            assert "open for writing" in refused.err


def test_wrong_use(tmp_path: Path) -> None:
    add(tmp_path / "data", "s", "--every", "60")
    for wrong, what in [
        (("data", "pause", "t"), "there is no schedule 't' (qindex schedule DIR list shows them)"),
        (("nowhere", "list"), "no such directory"),
        (("nowhere", "pause", "s"), "no such directory"),
        (("nowhere", "run"), "no such directory"),
        (("data", "add", "t", "--every", "60"), "--queue"),
        (("data", "add", "t", "--queue", "q"), "needs either"),
        (("data", "add", "t", "* * * *", "--queue", "q"), "5 fields"),
        (("data", "add", "t", "* * * * 9", "--queue", "q"), "bad day-of-week"),
        (("data", "add", "t", CRON, "--queue", "q", "--timezone", "Mars"), "no time zone"),
        (("data", "add", "t", CRON, "--queue", "q", "--missed", "never"), "missed must be"),
        (("data", "add", "t", CRON, "--queue", "q", "--header", "x"), "NAME=VALUE"),
        (("data", "lists"), "lists"),
        (("data",), "command"),
    ]:
        done = run("schedule", tmp_path / wrong[0], *wrong[1:])
        assert done.code == 2
        (line,) = done.complaints
        assert what in line
    assert not (tmp_path / "nowhere").exists()
    assert run("schedule").code == 2


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_run_publishes_until_it_is_told_to_end(tmp_path: Path, end: signal.Signals) -> None:
    directory = tmp_path / "data"
    add(directory, "s", "--every", "0.2")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-P", "-m", "qindex.cli", "schedule", str(directory), "run"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            assert b"publishing" in running.stdout.readline()
            with qindex.open(directory, shared=True) as engine:
                assert engine.queue("jobs").get(timeout=WAIT) is not None
            running.send_signal(end)
            assert running.wait(WAIT) == 0
        finally:
            running.kill()
    end_store(directory)
