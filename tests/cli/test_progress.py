"""Progress on a terminal: the screen of ``export`` and ``import`` is read."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import qindex
from tests.cli.support import run
from tests.cli.terminal import Terminal
from tests.effort import by_tier, part

_COUNTED = re.compile(rb"(\d+)/(\d+)")
COUNT = 6_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with qindex.open(tmp_path / "store") as engine:
        engine.queue("q").publish_many([b"%06d" % n for n in range(COUNT)])
    return tmp_path / "store"


def counted(terminal: Terminal) -> list[int]:
    """How far it had come, each time it was drawn."""
    found = [(int(done), int(of)) for done, of in _COUNTED.findall(terminal.raw)]
    assert {of for _, of in found} == {COUNT}
    return [done for done, _ in found]


@pytest.mark.parametrize(
    "suffix", part(["jsonl", "parquet"], by_tier(quick=2, all=1, nightly=1), "progress")
)
def test_export_and_import(store: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"all.{suffix}"
    for doing, arguments, said in (
        ("exporting", ("export", store, "--out", file), f"exported {COUNT} to"),
        ("importing", ("import", file, tmp_path / "new"), f"imported {COUNT} to"),
    ):
        terminal = Terminal(*arguments, errors_too=True)
        try:
            assert terminal.end() == 0
            terminal.read(0.2)
            bar, line = [one for one in terminal.lines if one][:2]
            assert bar.startswith(doing)
            assert f" {COUNT}/{COUNT} " in bar
            assert "━" in bar
            assert line.startswith(said)
            done = counted(terminal)
            assert done == sorted(done)
            assert done[-1] == COUNT
        finally:
            terminal.close()
    assert run("cat", tmp_path / "new", "q", "--count", 1).text.endswith(" 000000\n")


def test_without_a_terminal_there_is_none(store: Path, tmp_path: Path) -> None:
    result = run("export", store, "--out", tmp_path / "all.jsonl")
    assert (result.code, result.err) == (0, "")
    assert len(result.text.splitlines()) == 1


def test_interrupted_the_screen_is_left_in_order(store: Path, tmp_path: Path) -> None:
    """The cursor is shown again, and what is said has a line of its own."""
    out = tmp_path / "all.jsonl"
    run("export", store, "--out", out)
    terminal = Terminal("import", *[out] * 20, tmp_path / "new", errors_too=True)
    try:
        terminal.wait_for("importing")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        terminal.read(0.2)
        assert "qindex: interrupted" in terminal.lines
        assert terminal.raw.rfind(b"\x1b[?25h") > terminal.raw.rfind(b"\x1b[?25l")
    finally:
        terminal.close()
