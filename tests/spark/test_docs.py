"""The examples of docs/spark.md and pipeline.md run, as printed, except where the stores are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import qindex
from qindex.view.reader import StoreReader
from tests.cli.support import run
from tests.waiting import WAIT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "spark.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SOURCES = ("## From zero", "## Streams")


def test_the_examples_of_sources_and_streams_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        with qindex.open(tmp_path / "fleet" / name) as engine:
            engine.queue("q").publish_many([b"one", b"two", b"three"])
    names: dict[str, Any] = {}
    for section in re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE):
        if section.startswith(_SOURCES):
            for block in _BLOCK.findall(section):
                exec(block.replace("/srv", str(tmp_path)), names)
    assert names["spark"] is spark
    assert "|    3|" in capsys.readouterr().out
    assert names["query"].awaitTermination(int(WAIT))
    found = StoreReader(tmp_path / "sink").queue("collected").entries()
    assert [row.body for row in found] == [b"one", b"two", b"three"]


def test_the_examples_of_the_pipeline_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        with qindex.open(tmp_path / "fleet" / name) as engine:
            engine.queue("orders").publish_many([b'{"id": 1, "amount": 2.5}'] * 2)
    with qindex.open(tmp_path / "fleet" / "b") as engine:
        engine.queue("orders").publish(b"no JSON")
    page = (DOCS / "pipeline.md").read_text().replace("/srv", str(tmp_path))
    command, _ = re.findall(r"^```sh\nqindex (.*)\n```$", page, re.MULTILINE)
    (printed,) = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert run(*command.split()).text == printed
    (block,) = _BLOCK.findall(page)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["spark"] is spark
    shown = capsys.readouterr().out
    assert re.search(r"\|\s+10\.0\|", shown)
    assert "|    b|the body is not JSON|    1|" in shown
