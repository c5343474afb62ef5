"""Through Spark Connect, where no context can be asked, sources and jobs do what they do here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc", reason="grpcio is not installed (extra connect)")

from tests.spark.cluster import ROOT
from tests.spark.faults import FAULTS
from tests.spark.fleet import make_plain, make_rocket
from tests.spark.test_jobs_build import derived_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_read_audit_and_build_index(spark: SparkSession, tmp_path: Path) -> None:
    make_plain(tmp_path / "fleet" / "plain")
    fault = FAULTS["unit_elsewhere"]
    bad = fault.make(tmp_path / "fleet" / "bad")
    fault.plant(bad)
    rocket = make_rocket(tmp_path / "rocket")
    wanted = derived_files(rocket)
    shutil.rmtree(rocket / "consumequeue")
    url = f"sc://127.0.0.1:{spark.conf.get('spark.connect.grpc.binding.port')}"
    command = [sys.executable, "-m", "tests.spark.connect_driver", url]
    done = subprocess.run(
        [*command, str(tmp_path / "fleet"), str(rocket)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said["queues"] == {"orders": 580, "audit/ü": 32}
    assert said["found"] == [[str(bad), "mismatch", "1"]]
    assert (said["built"]["stores"], said["built"]["missing"]) == (1, 7)
    assert derived_files(rocket) == wanted


WITHOUT = """
import sys
sys.modules["grpc"] = None
import pyspark_qindex
try:
    pyspark_qindex.session(master="sc://127.0.0.1:1")
except pyspark_qindex.SparkMissingError as error:
    print(error)
"""


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program.py"  # Spark takes a program of another kind for its doctests
    program.write_text(WITHOUT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith("sc://127.0.0.1:1: ")
    assert line.endswith("pip install qindex[connect]")
