"""``report``: a page that is safe to open, and what changed since the last one."""

from __future__ import annotations

import json
import os
import re
import time
from html import escape
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyarrow.parquet import read_table

import qindex
import rocketstore
from journal.shown import printable
from pyspark_qindex.jobs.results import Outcome, Plot, render_page
from tests.cli.support import run
from tests.spark.faults import FAULTS

HOSTILE = ("<script>alert(1)</script>", "a&b\"'><img src=x>", "\x1b[31m\u202ered", "ü 日本")
_PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
pytestmark = pytest.mark.usefixtures("spark")


def report(root: Path, code: int = 0) -> dict[str, Any]:
    """Run the command of docs/pipeline.md in a directory."""
    time.sleep(1.1)  # the directory of a report is named by its second
    (command,) = re.findall(r"^qindex (pipeline report .*)$", _PAGE.read_text(), re.MULTILINE)
    result = run(*command.replace("/srv", str(root)).split(), "--json")
    assert result.code == code, result
    summary: dict[str, Any] = result.rows[0]
    return summary


def rows(summary: dict[str, Any], name: str) -> list[dict[str, Any]]:
    path = Path(summary["out"], f"{name}.parquet")
    found: list[dict[str, Any]] = read_table(path).to_pylist()
    return found


def test_two_reports(tmp_path: Path) -> None:
    fleet, html = tmp_path / "fleet", tmp_path / "pages" / "fleet.html"
    with qindex.open(fleet / "a", background=False) as engine:
        for number, name in enumerate(HOSTILE, 1):
            engine.queue(name).publish_many([b"x" * 10] * number)
        orders = engine.queue("orders", dead_letter="dead")
        orders.publish_many([b"y" * 10] * 9)
        for _ in range(3):
            delivery = orders.get(timeout=1.0)
            assert delivery is not None
            delivery.reject(reason="<b>")
    with rocketstore.open(fleet / "r", background=False) as store:
        store.put("%DLQ%group", b"z", queue_id=0)
        store.put("t", b"z", queue_id=0)
    first = report(tmp_path)
    expected = {"stores": 2, "damage": 0, "messages": 21, "dead_letters": 4}
    assert {name: first[name] for name in expected} == expected
    assert "change" not in first
    letters = [(row["queue"], row["died_in"], row["reason"], row["messages"]) for row in
               rows(first, "letters")]  # fmt: skip
    assert letters == [("dead", "orders", "rejected", 3), ("%DLQ%group/0", None, "limit", 1)]
    page = html.read_text()
    for name in HOSTILE:
        assert escape(printable(name)) in page
        assert escape(name) == printable(name) or name not in page
    outside = re.findall(r"""(?:src|href)=["'](?!#|data:,)[^"']*|url\(|@import|<script""", page)
    assert outside == []

    with qindex.open(fleet / "a", background=False) as engine:
        dead = engine.queue("dead")
        dead.ack_many(dead.get_many(3))
        engine.queue("orders").publish_many([b"new"] * 5)
        engine.flush()
    FAULTS["unit_elsewhere"].plant(FAULTS["unit_elsewhere"].make(fleet / "bad"))
    (html.parent / "fleet.data" / "20990101T000000Z").mkdir()  # one that was killed
    second = report(tmp_path, code=1)
    assert (second["damage"], second["stores"]) == (1, 3)
    changes = {row["queue"]: row["change"] for row in rows(second, "changed")}
    assert (changes["orders"], changes["dead"]) == (5, -3)
    assert second["change"] == second["messages"] - 21
    by_store = {Path(row["store"]).name: row for row in rows(second, "stores")}
    assert by_store["a"]["change"] == 2
    assert by_store["a"]["file_bytes"] > by_store["a"]["garbage"]
    assert by_store["bad"]["damage"] == 1
    history = [row["messages"] for row in rows(second, "history")]
    assert history == [21, second["messages"]]
    assert f"Changes are since {Path(first['out']).name}" in html.read_text()


def test_wrong_use(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "s", background=False):
        pass
    os.mkfifo(tmp_path / "pipe")
    for wrong, complaint in (
        (("report", "--out", tmp_path / "o"), "report needs --html"),
        (("report", "--html", tmp_path / "h", "--out", tmp_path / "o"), "report needs --html"),
        (("stats", "--html", tmp_path / "h"), "stats needs --out"),
        (("report", "--html", tmp_path), "is not a regular file"),
        (("report", "--html", tmp_path / "pipe"), "is not a regular file"),
        (("report", "--html", ""), "a path is empty"),
    ):
        result = run("pipeline", wrong[0], tmp_path / "s", *wrong[1:])
        assert (result.code, len(result.complaints)) == (2, 1), result
        assert complaint in result.complaints[0]
    assert {path.name for path in tmp_path.iterdir()} == {"s", "pipe"}
    assert (tmp_path / "pipe").is_fifo()


def test_times_that_no_calendar_has() -> None:
    plot = Plot("Times", "t", "line", ("moment",), "n")
    some = [{"moment": moment, "age_oldest": moment, "n": 1} for moment in (-1e300, 0.0, 1e300)]
    page = render_page("job", Outcome({}, {}, plots=[plot]), {"t": some}, 10)
    assert "Times" in page
    assert json.dumps(page)
