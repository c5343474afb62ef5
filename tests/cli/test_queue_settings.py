"""``qindex queue``: the settings of a queue, shown and changed."""

from __future__ import annotations

from pathlib import Path

import qindex
from tests.cli.support import run


def test_settings_are_shown_and_changed(tmp_path: Path) -> None:
    made = run("queue", tmp_path, "q", "--max-length", "5", "--dead-letter", "d", "--json")
    assert made.code == 0
    [row] = made.rows
    assert (row["max_length"], row["dead_letter"], row["max_bytes"]) == (5, "d", None)
    with qindex.open(tmp_path) as engine:
        assert engine.queue("q").settings.max_length == 5
        shown = run("queue", tmp_path, "q", "--json")  # beside a writer
        assert shown.rows == [row]
        assert run("queue", tmp_path, "q", "--max-length", "6").code == 2
    changed = run("queue", tmp_path, "q", "--unset", "message-ttl", "--overflow", "block", "--json")
    assert changed.rows == [{**row, "message_ttl": None, "overflow": "block"}]
    assert "dead_letter     d" in run("queue", tmp_path, "q").text


def test_wrong_use(tmp_path: Path) -> None:
    run("queue", tmp_path, "q", "--max-length", "5")
    for wrong in (
        ("q", "--max-length", "0"),
        ("q", "--overflow", "burst"),
        ("q", "--dead-letter", "q"),
        ("q", "--unset", "colour"),
        ("nowhere",),
    ):
        result = run("queue", tmp_path, *wrong)
        assert result.code == 2
        assert result.err.count("\n") == 1


def test_a_publish_that_needs_a_setting_names_the_command(tmp_path: Path) -> None:
    run("queue", tmp_path, "q", "--max-length", "5")
    refused = run("publish", tmp_path, "q", "--priority", "3", stdin=b"a\n")
    assert refused.code == 2
    assert "qindex queue DIR QUEUE --max-priority N" in refused.err
