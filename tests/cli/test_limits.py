"""The commands and queues with limits: what fits, what waits, and the settings that are shown."""

from __future__ import annotations

from pathlib import Path

import qindex
from tests.cli.support import run


def test_publishing_into_a_queue_that_gets_full(tmp_path: Path) -> None:
    """What fits is published, the number is told, and nobody waits for room that none can make."""
    lines = b"".join(b"%d\n" % number for number in range(1000))
    for overflow in ("reject", "block"):
        for options in ((), ("--key", "k", "--header", "a=b")):
            name = overflow + "-".join(options)
            with qindex.open(tmp_path) as engine:
                engine.queue(name, max_length=700, overflow=overflow).publish(b"before")
            result = run("publish", tmp_path, name, *options, stdin=lines)
            assert result.code == 2
            assert result.text == f"published 699 to {name}, seq_id 1 to 699\n"
            assert len(result.complaints) == 1
            assert "is full (max_length=700)" in result.err
            rows = run("cat", tmp_path, name, "--json").rows
            assert [row["body"] for row in rows[1:]] == [str(n) for n in range(699)]
            if options:
                assert (rows[1]["key"], rows[1]["headers"]) == ("k", {"a": "b"})
    with qindex.open(tmp_path) as engine:
        engine.queue("latest", max_length=5, overflow="drop-head")
    assert run("publish", tmp_path, "latest", stdin=lines).code == 0
    rows = run("cat", tmp_path, "latest", "--json").rows
    assert [row["body"] for row in rows] == [str(n) for n in range(995, 1000)]


def test_expired_messages_that_wait_for_a_dead_letter_queue(tmp_path: Path) -> None:
    """They are in the store, and are shown and exported, until they are moved; others are not."""
    with qindex.open(tmp_path / "s") as engine:
        engine.queue("dead", max_length=1).publish(b"full")
        for name, dead_letter in (("moves", "dead"), ("drops", None)):
            engine.queue(name, dead_letter=dead_letter).publish(b"old", ttl=0)
    drops, moves = run("list", tmp_path / "s", "--json").rows[1:]
    # The timer may have marked the one that waits as delivered.
    held = [(one["name"], one["messages"]) for one in (drops, moves)]
    assert held == [("drops", 0), ("moves", 1)]
    (row,) = run("cat", tmp_path / "s", "moves", "--json").rows
    assert row["body"] == "old"
    assert run("consume", tmp_path / "s", "moves", "--peek").out == b"old\n"
    run("export", tmp_path / "s", "--out", tmp_path / "all.jsonl")
    assert run("import", tmp_path / "all.jsonl", tmp_path / "t").text.startswith("imported 2 ")
    result = run("consume", tmp_path / "s", "moves")
    assert (result.code, result.out) == (0, b"")
    assert result.complaints == [
        "qindex: 1 messages wait to be moved to 'dead', which does not take them"
    ]
    assert run("consume", tmp_path / "s", "dead").out == b"full\n"
    assert run("consume", tmp_path / "s", "moves").err == ""
    assert run("consume", tmp_path / "s", "dead").out == b"old\n"


def test_settings_in_list_and_stats(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("free")
        engine.queue("tight", max_length=5, overflow="drop-head", dead_letter="a\nb")
    for command in ("list", "stats"):
        first, free, tight = run(command, tmp_path, "--wide").text.splitlines()[:3]
        assert first.split()[-1] == "settings"
        assert free.split()[-1] == "0"
        assert tight.endswith(r"max_length=5 overflow=drop-head dead_letter='a\nb'")
    rows = run("list", tmp_path, "--json").rows
    assert rows[1]["settings"]["max_length"] == 5
    assert rows[0]["settings"]["max_length"] is None
    (row,) = run("stats", tmp_path, "--json").rows
    assert row["queues"][1]["settings"]["overflow"] == "drop-head"


def test_damaged_settings_are_told_and_the_queue_is_shown(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("q", max_length=5).publish(b"x")
    (path,) = tmp_path.rglob("qindex.settings")
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    for command in ("list", "stats"):
        result = run(command, tmp_path)
        assert result.code == 1
        assert "qindex.settings" in result.complaints[0]
        assert result.text.splitlines()[1].split()[:2] == ["q", "1"]
