"""On a real cluster, with an executor killed in the middle: the streaming sink, audit and
build-index come to the result that they come to here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import qindex
from pyspark_qindex.jobs import audit
from qindex.format.layout import STAGING
from qindex.view.reader import StoreReader
from tests.spark.cluster import Cluster, Driver
from tests.spark.faults import FAULTS
from tests.spark.fleet import LARGE, make_plain, make_rocket
from tests.spark.test_jobs_build import derived_files
from tests.waiting import WAIT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Iterator[Driver]:
    """One for all tests of this file: its start, and its executors', cost more than they do."""
    found = Driver(cluster.master)
    yield found
    found.kill()


# Before the others: it has a driver of its own, and the one that they share holds all cores.
@pytest.mark.timeout(400)  # thirty jobs, one after the other
def test_a_store_that_workers_do_not_see_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    if cluster.hidden is None:
        pytest.skip("a directory can't be hidden from one process here: unshare --mount is refused")
    queues = make_plain(cluster.hidden / "queues")
    with qindex.open(queues) as engine:
        engine.publish_to(["orders", "large"], os.urandom(LARGE))
    rocket = make_rocket(cluster.hidden / "rocket", count=2000)
    driver = Driver(cluster.master, "spark.task.maxFailures=1")
    try:
        driver.say("hidden", queues, rocket, tmp_path / "out")
        found = json.loads(driver.answer())
    finally:
        driver.kill()
    assert len(found) > 20
    for name, ended in found.items():
        assert isinstance(ended, str), (name, ended)
        assert f"{cluster.hidden}" in ended, (name, ended)
        assert "not there on host" in ended, (name, ended)


def test_an_executor_dies_and_each_message_is_published_once(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    with qindex.open(tmp_path / "source", background=False, segment_entry_count=16) as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(300)])
    driver.say("finish", *(tmp_path / name for name in ("source", "sink", "checkpoint")))
    state = tmp_path / "sink" / STAGING
    until = time.monotonic() + WAIT
    while not list(state.glob("*.json")):
        assert time.monotonic() < until
        time.sleep(0.02)
    executors = cluster.executors()
    assert len(executors) == 2
    os.kill(executors[0], signal.SIGKILL)
    driver.expect("done")
    found = [
        int(row.body or b"-1") for row in StoreReader(tmp_path / "sink").queue("sink").entries()
    ]
    # In the order of each task's rows; tasks of a batch are published one after the other.
    assert sorted(found) == list(range(300))
    assert [path for path in state.rglob("*") if path.suffix == ".arrow"] == []


def test_audit_and_build_index_survive_an_executor(
    spark: SparkSession, cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    fleet = tmp_path / "fleet"
    for number in range(4):
        make_plain(fleet / f"healthy-{number}")
    for name in ("entry_checksum", "refcount", "unit_elsewhere", "index_entry", "journal_gap"):
        store = FAULTS[name].make(fleet / name)
        FAULTS[name].plant(store)
    rocket = make_rocket(tmp_path / "rocket", count=2000)
    wanted = derived_files(rocket)
    shutil.rmtree(rocket / "consumequeue")
    columns = ("store", "file", "offset", "kind", "what")
    result = audit(spark, [str(fleet)])
    here = sorted(list(map(str, row)) for row in result.findings.select(*columns).collect())
    result.unpersist()
    assert len({row[0] for row in here}) == 5
    driver.say("jobs", fleet, rocket)
    driver.expect("middle")
    executors = cluster.executors()
    assert executors
    os.kill(executors[0], signal.SIGKILL)
    there = json.loads(driver.answer())
    assert there["found"] == here
    assert {was for _, was in there["files"]} == {"missing", "identical"}
    assert derived_files(rocket) == wanted
