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

import pytest

pytest.importorskip("pyspark")

import qindex
from pyspark_qindex.jobs.audit import FINDINGS, _audit_item, _plan
from pyspark_qindex.jobs.fleet import find_fleet
from qindex.format.layout import STAGING
from qindex.view.reader import StoreReader
from tests.spark.cluster import Cluster, Driver
from tests.spark.faults import FAULTS
from tests.spark.fleet import make_plain, make_rocket
from tests.spark.test_jobs_build import derived_files
from tests.waiting import WAIT


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Iterator[Driver]:
    """One for all tests of this file: its start, and its executors', cost more than they do."""
    # A task is tried again once: each test takes an executor away at most once.
    found = Driver(cluster.master, "spark.task.maxFailures=2")
    yield found
    found.kill()


def test_a_store_that_workers_do_not_see_is_an_error(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    """However it comes to a task. Of each table test_options asks the same without a cluster."""
    if cluster.hidden is None:
        pytest.skip("a directory can't be hidden from one process here: unshare --mount is refused")
    queues = make_plain(cluster.hidden / "queues")
    rocket = make_rocket(cluster.hidden / "rocket", count=200)
    driver.say("hidden", queues, rocket, tmp_path / "out")
    found = json.loads(driver.answer())
    assert len(found) == 8
    for name, ended in found.items():
        assert isinstance(ended, str), (name, ended)
        assert f"{cluster.hidden}" in ended, (name, ended)
        assert "not there on host" in ended, (name, ended)


def test_an_executor_dies_and_each_message_is_published_once(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    with qindex.open(tmp_path / "source", background=False, segment_entry_count=16) as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(240)])
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
    assert sorted(found) == list(range(240))
    assert [path for path in state.rglob("*") if path.suffix == ".arrow"] == []


def test_audit_and_build_index_survive_an_executor(
    cluster: Cluster, driver: Driver, tmp_path: Path
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
    rows = [row for store in find_fleet([str(fleet)]) for row in _audit_item(_plan(store))]
    found = [dict(zip(FINDINGS, row[1:], strict=True)) for row in rows if row[0] == "finding"]
    columns = ("store", "file", "offset", "kind", "what")
    here = sorted([str(row[name]) for name in columns] for row in found)
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
