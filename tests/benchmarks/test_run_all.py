"""The program that runs all benchmarks, the two newest of them, and the page that comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import contention, rabbitmq
from benchmarks.erlang_vm import ErlangError, ErlangVM, node_paths
from benchmarks.page import Result, write_page
from benchmarks.run import main
from tests.effort import not_quick

_MARKS = "before\n<!-- figures: begin -->\nstale\n<!-- figures: end -->\nafter\n"


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_program_and_the_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(_MARKS)
    lines = tmp_path / "lines"
    given = ["--quick", "--only", "aio", "--page", str(page), "--json", str(lines)]
    assert main([*given, "--dir", str(tmp_path)]) == 0
    assert {line["benchmark"] for line in lines_of(lines)} == {"aio"}
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "stale" not in text
    assert "| aio publish / plain publish |" in text
    assert "| processor |" in text
    assert "-- aio: done" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines", "page.md"]


def test_a_page_without_marks_stays_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="no marks"):
        write_page(page, [])
    assert page.read_text() == "nothing"


@pytest.mark.parametrize("content", [None, "nothing"])
def test_a_page_that_can_not_be_written_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    page = tmp_path / "page.md"
    if content is not None:
        page.write_text(content)
    with pytest.raises(SystemExit, match="2"):
        main(["--page", str(page)])
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--page" in last
    assert str(page) in last


def test_a_program_that_was_cut_off_has_failed() -> None:
    lines = [{"figure": "publish", "who": "qindex", "value": 1.0}]
    assert Result("engine", "", lines, 1.0, -1).failed
    assert not Result("engine", "", lines, 1.0, 1).failed  # a bar that does not hold


@not_quick("eight threads and eight queues")
def test_contention(tmp_path: Path) -> None:
    given = ["--messages", "64000", "--rounds", "1", "--dir", str(tmp_path)]
    assert contention.main([*given, "--json", str(tmp_path / "lines")]) == 0
    bars = {str(line["bar"]): line for line in lines_of(tmp_path / "lines") if "bar" in line}
    assert set(bars) == {
        "4 + 4 threads, 1 queue / one thread",
        "4 + 4 threads, 8 queues / one thread",
        "4 + 4 threads, 1 queue, 8 KiB / one thread",
        "4 + 4 threads, 8 queues, 8 KiB / one thread",
        "publish, p99.9, while flushing",
    }
    assert all(isinstance(bar["holds"], bool) for bar in bars.values())
    figures = {str(line.get("figure")) for line in lines_of(tmp_path / "lines")}
    assert "rocketstore: 4 + 4 threads" in figures
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


@not_quick("a real RabbitMQ")
def test_beside_the_erlang_vm(tmp_path: Path) -> None:
    _, code, reason = node_paths()
    given = ["--messages", "3000", "--entries", "5000", "--rounds", "1", "--dir", str(tmp_path)]
    if reason:
        assert rabbitmq.main(given) == 2
        pytest.skip(reason)
    assert rabbitmq.main([*given, "--json", str(tmp_path / "lines")]) == 0
    lines = lines_of(tmp_path / "lines")
    figures = {(line["figure"], line["who"]) for line in lines if "figure" in line}
    for name in ("publish_deliver", "publish_deliver_ack", "ack", "store_read", "recovery"):
        assert {(name, "qindex"), (name, "rabbitmq")} <= figures
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]
    with ErlangVM(tmp_path / "vm", code) as vm:
        with pytest.raises(ErlangError, match="recover nothing 1"):
            vm.figures("recover", "nothing", 1)
        assert set(vm.figures("fill", "q", 10, 100)) == {"fill"}  # it goes on behind an error
