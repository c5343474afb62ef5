"""The audit finds each fault that was planted, by store, file and offset, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import qindex
import rocketstore
from journal.errors import NotAStoreError, UsageError
from pyspark_qindex.jobs import audit
from pyspark_qindex.jobs.results import Outcome
from qindex.format import layout
from tests.spark.faults import FAULTS
from tests.spark.fleet import ROCKET_SIZES, make_fleet, make_plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Finding = dict[str, Any]


def findings_of(result: Outcome) -> list[Finding]:
    rows = [row.asDict() for row in result["findings"].collect()]
    result.finish()
    return rows


def test_nothing_is_wrong_with_a_healthy_fleet(spark: SparkSession, tmp_path: Path) -> None:
    stores = make_fleet(tmp_path)
    result = audit(spark, [str(tmp_path)])
    counts = {(row["store"], row["things"]): row["number"] for row in result["counts"].collect()}
    assert findings_of(result) == []
    assert result.summary["stores"] == len(stores) == 13
    assert counts[str(stores["plain"]), "entries"] == 620 - 8
    assert counts[str(stores["stored"]), "stored messages"] == 60
    assert counts[str(stores["rocket"]), "records"] == 700
    assert counts[str(stores["golden-gen"]), "index entries"] > 500


def test_each_planted_fault_is_found(spark: SparkSession, tmp_path: Path) -> None:
    healthy: dict[Callable[[Path], Path], Path] = {}
    wanted = {}
    for name, fault in FAULTS.items():
        if fault.make not in healthy:
            healthy[fault.make] = fault.make(tmp_path / "healthy" / fault.make.__name__)
        store = tmp_path / "faulty" / name
        shutil.copytree(healthy[fault.make], store)
        wanted[str(store)] = fault.plant(store)
    found = findings_of(audit(spark, [str(tmp_path)]))
    for where, planted in wanted.items():
        mine = [one for one in found if one["store"] == where]
        hits = [
            one
            for one in mine
            if (one["kind"], one["cause"]) == (planted.kind, planted.cause)
            and one["file"].startswith(planted.file)
            and planted.offset in (None, one["offset"])
        ]
        assert hits, (Path(where).name, planted, mine)
        assert all(one["what"] for one in mine)
    assert {one["store"] for one in found} == set(wanted)


def test_queue_offsets_that_are_missing_between_two_log_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each log file by itself is in order: only together they show it."""
    store = tmp_path / "s"
    with rocketstore.open(store, background=False, **ROCKET_SIZES) as opened:
        for number in range(300):
            opened.put("t", b"x" * 100 + b"%03d" % number)
    log = sorted((store / "commitlog").iterdir())
    first = bytearray(log[0].read_bytes())
    # The last message of the first file becomes part of the blank record behind it.
    size = int.from_bytes(first[:4], "big")
    count = first.index(b"\xcb\xd4\x31\x94") // size
    at = (count - 1) * size
    first[at : at + 8] = (len(first) - at).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
    log[0].write_bytes(first)
    found = findings_of(audit(spark, [str(store)]))
    gaps = [one for one in found if one["kind"] == "gap"]
    assert [(one["file"], one["offset"]) for one in gaps] == [(f"commitlog/{log[1].name}", 0)]
    assert gaps[0]["what"] == f"queue offset {count} of t/0 follows on {count - 2}"


def test_stores_in_use_have_nothing_wrong(spark: SparkSession, tmp_path: Path) -> None:
    """Beside a process that publishes, consumes, flushes and compacts, and a RocketMQ writer."""
    busy, rocket = tmp_path / "busy", tmp_path / "rocket"
    command = [sys.executable, "-m", "tests.tools.busy_child", str(busy), "60"]
    root = Path(__file__).parents[2]
    stop = threading.Event()

    def put() -> None:
        sizes = ROCKET_SIZES | {"index_entries": 2000, "consumequeue_file_size": 8000}
        with rocketstore.open(rocket, flush_interval=0.02, **sizes) as store:
            number = 0
            while not stop.is_set():
                store.put("t", b"x" * (number % 90), keys=f"k{number}", queue_id=number % 2)
                time.sleep(0.0005)
                number += 1

    writer = threading.Thread(target=put)
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as child:
        writer.start()
        try:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == "ready"
            for _ in range(2):
                result = audit(spark, [str(tmp_path)])
                looked_at = {row["things"] for row in result["counts"].collect()}
                assert findings_of(result) == []
                assert {"entries", "records", "units"} <= looked_at
        finally:
            stop.set()
            writer.join()
            child.kill()


def test_a_store_in_a_tree_that_is_none_is_a_finding(spark: SparkSession, tmp_path: Path) -> None:
    make_plain(tmp_path / "good", count=20)
    newer = tmp_path / "newer"
    make_plain(newer, count=20)
    content = {"qindex": 9, "segment_entry_count": 128, "vhost": "/"}
    (newer / layout.MARKER).write_bytes(2 * layout.pack_checked(content))
    found = findings_of(audit(spark, [str(tmp_path)]))
    assert [(one["store"], one["kind"]) for one in found] == [(str(newer), "unreadable")]
    assert "version 9" in found[0]["what"]
    with pytest.raises(NotAStoreError, match="version 9"):
        audit(spark, [str(newer)])
    with pytest.raises(UsageError, match="nothing matches"):
        audit(spark, [str(tmp_path / "no*")])


def test_an_empty_store_is_healthy(spark: SparkSession, tmp_path: Path) -> None:
    qindex.open(tmp_path / "empty").close()
    assert findings_of(audit(spark, [str(tmp_path / "empty")])) == []
