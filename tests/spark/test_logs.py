"""CommitLogs that are in use, or damaged: what a plan and its tasks give, without a JVM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import rocketstore
from journal.findings import Cause, Finding, Kind
from pyspark_qindex.jobs.audit import FINDINGS, _audit_item, _plan, grouped
from pyspark_qindex.options import ROCKET_TABLES, read_options
from pyspark_qindex.planning import ReadFailedError
from pyspark_qindex.reading.read_parts import plan, read_part
from pyspark_qindex.stores import ROCKET, Store
from pyspark_qindex.streaming import Stream
from tests.spark.fleet import ROCKET_SIZES, make_rocket

Rows = list[dict[str, Any]]


def options_of(store: Path, **given: str) -> Any:
    return read_options({"path": str(store), **given}, ROCKET_TABLES)


def read(store: Path, **given: str) -> Rows:
    options = options_of(store, **given)
    parts = [part for task in plan(options) for part in task]
    batches = (batch for part in parts for batch in read_part(part, options))
    return [row for batch in batches for row in batch.to_pylist()]


def sound(rows: Rows) -> list[int]:
    return sorted(row["offset"] for row in rows if row["error"] is None)


def errors(rows: Rows) -> list[str]:
    return [row["error"] for row in rows if row["error"] is not None]


def audited(store: Path) -> Rows:
    """The findings, as rows."""
    rows = _audit_item(_plan(Store(("", {}), str(store), str(store), ROCKET)))
    return [dict(zip(FINDINGS, row[1:], strict=True)) for row in rows if row[0] == "finding"]


@pytest.mark.parametrize("mode", ["permissive", "failfast"])
def test_a_batch_ends_where_the_plan_says(tmp_path: Path, mode: str) -> None:
    """Beside a writer that puts three messages for each batch that is read."""
    with rocketstore.open(tmp_path, background=False, **ROCKET_SIZES) as store:
        put = [store.put("t", b"x" * 90, keys=f"k{at}").offset for at in range(900)]
        options = options_of(tmp_path, mode=mode)
        parts = [part for task in plan(options) for part in task]
        found: Rows = []
        batches = 0
        for part in parts:
            for batch in read_part(part, options):
                batches += 1
                found += batch.to_pylist()
                for _ in range(3):
                    store.put("t", b"later" * 20)
        assert errors(found) == []
        assert sound(found) == put
        assert batches == len(parts) > 2


def test_a_log_that_grows_behind_the_plan_is_in_order(tmp_path: Path) -> None:
    """A store that is opened, and closed again, between plan and task: what stands at the planned
    end then is a record, not junk."""
    make_rocket(tmp_path, count=100)
    options = options_of(tmp_path)
    parts = [part for task in plan(options) for part in task]
    before = sound(read(tmp_path))
    with rocketstore.open(tmp_path, background=False) as store:
        store.put("t", b"later")
    found = [row for part in parts for one in read_part(part, options) for row in one.to_pylist()]
    assert (sound(found), errors(found)) == (before, [])


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("cut", [5000, 5001, 33])
def test_the_sound_part_of_a_file_that_was_cut_off_is_read(
    tmp_path: Path, which: int, cut: int
) -> None:
    store = make_rocket(tmp_path / "s", count=700)
    whole = sound(read(store))
    path = sorted((store / "commitlog").iterdir())[which]
    start, size = int(path.name), path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(cut)
    found = read(store)
    assert errors(found) == [f"{path}: is {cut} bytes long, not {size}"]
    kept = sound(found)
    lost = sorted(set(whole) - set(kept))
    assert set(kept) <= set(whole)
    assert all(start <= at < start + size for at in lost)
    repaired = shutil.copytree(store, tmp_path / "repaired")
    with rocketstore.open(repaired, background=False, repair=True):
        pass
    after = [row for row in read(repaired) if not "SET_ASIDE".startswith(row["topic"] or "-")]
    assert sound(after) == kept
    with pytest.raises(ReadFailedError, match=f"is {cut} bytes long"):
        read(store, mode="failfast")


def test_a_stream_reads_what_is_left_and_tells_what_is_lost(tmp_path: Path) -> None:
    store = make_rocket(tmp_path, count=700)
    first, second, *_ = sorted((store / "commitlog").iterdir())
    kept = sound(read(store))
    gone = [at for at in kept if int(second.name) <= at < 2 * int(second.name)]
    second.unlink()
    size = first.stat().st_size
    with first.open("r+b") as file:
        file.truncate(9000)
    wanted = sound(read(store))
    assert set(gone).isdisjoint(wanted)
    for limit in (ReadAllAvailable(), ReadMaxRows(100)):
        stream = Stream(options_of(store))
        at = stream.initialOffset()
        found: Rows = []
        while (end := stream.latestOffset(at, limit)) != at:
            for task in stream.partitions(at, end):
                found += [row for batch in stream.read(task) for row in batch.to_pylist()]
            at = json.loads(json.dumps(end))
        assert sound(found) == wanted
        told = set(errors(found))
        assert told == {
            f"{first}: is 9000 bytes long, not {size}",
            f"{second}: this file of the log is missing",
        }


def test_what_follows_from_one_cut_is_told_once(tmp_path: Path) -> None:
    store = make_rocket(tmp_path, count=2000)
    assert audited(store) == []
    path = sorted((store / "commitlog").iterdir())[2]
    with path.open("r+b") as file:
        file.truncate(4000)
    found = audited(store)
    kinds = [one["kind"] for one in found]
    assert kinds.count("torn") == 1
    # The record that is cut itself may be pointed to.
    assert len(found) <= 1 + 3, found


def test_findings_of_one_kind_in_one_file_are_put_together() -> None:
    def damage(path: str, at: int, kind: Kind, what: str) -> Finding:
        return Finding(path, at, 1, Cause.DAMAGE, what, "", kind)

    found = [damage("a", at, Kind.RECORD, f"unit {at}") for at in range(500)]
    found += [damage("b", 7, Kind.RECORD, "alone"), damage("a", 3, Kind.GAP, "other")]
    rows = list(grouped(found))
    assert sum(number for _, number in rows) == 502
    assert len(rows) == 8 + 1 + 2
    (last,) = [one for one, number in rows if number > 1]
    assert last.what == "492 more of this kind, up to offset 499, the first: unit 8"
    assert last.offset == 8
