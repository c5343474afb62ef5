"""What is fetched of stores that are elsewhere: little by a plan, and by a task what it reads."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed (extra spark)")

from fsspec.implementations.local import LocalFileSystem

import qindex
import rocketstore
from pyspark_qindex.filesystem import RemoteFileSystem
from pyspark_qindex.jobs.audit import _audit_item, _plan
from pyspark_qindex.jobs.fleet import find_fleet
from pyspark_qindex.options import ROCKET_TABLES, TABLES, ReadOptions, read_options
from pyspark_qindex.reading.read_parts import plan, read_part
from pyspark_qindex.reading.read_queues import QueuePart
from tests.effort import by_tier
from tests.effort import part as slice_of
from tests.golden_v2 import SCENARIOS, scenario
from tests.spark.faults import FAULTS
from tests.spark.fleet import LARGE, ROCKET_SIZES, make_rocket

Rows = list[dict[str, Any]]
MOST = 16 << 10
"""What one small request fetches at most."""


class Counting(LocalFileSystem):  # type: ignore[misc]
    """Notes what is fetched: bytes by file, and requests."""

    protocol = ("counting",)
    cachable = False
    fetched: ClassVar[Counter[str]] = Counter()
    requests: ClassVar[Counter[str]] = Counter()

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return LocalFileSystem._strip_protocol(path.removeprefix("counting://"))

    def get_file(self, path: str, target: str, **given: Any) -> None:
        Counting.fetched[path] += os.path.getsize(path)
        Counting.requests[path] += 1
        super().get_file(path, target, **given)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **given: Any
    ) -> Any:
        data = super().cat_file(path, start=start, end=end, **given)
        Counting.fetched[path] += len(data)
        Counting.requests[path] += 1
        return data


@pytest.fixture(autouse=True)
def counting() -> None:
    fsspec.register_implementation("counting", Counting, clobber=True)
    Counting.fetched.clear()
    Counting.requests.clear()


def total() -> int:
    found = Counting.fetched.total()
    Counting.fetched.clear()
    Counting.requests.clear()
    return found


def rows_of(parts: list[Any], options: ReadOptions) -> Rows:
    found: Rows = []
    for part in parts:
        assert isinstance(part, QueuePart), part
        for batch in read_part(part, options):
            found += batch.to_pylist()
    return found


def make_backup(path: Path) -> Path:
    """A copy of a store at work: segments, and a journal that has more of some of them."""
    live = path.with_name("live")
    with qindex.open(live, background=False, segment_entry_count=512) as engine:
        queue = engine.queue("orders")
        queue.publish_many([b"%06d" % at * 50 for at in range(6000)])
        queue.ack_many(queue.get_many(1100))
        engine.flush()
        queue.publish_many([b"%06d" % at * 50 for at in range(6000, 7500)])
        engine.queue("large").publish(random.randbytes(LARGE), key="k")
        queue.ack_many(queue.get_many(30))
        shutil.copytree(live, path)
    return path


@pytest.mark.parametrize("include", ["messages", "entries"])
def test_queues_are_planned_by_their_names(tmp_path: Path, include: str) -> None:
    store = make_backup(tmp_path / "backup")
    here = read_options({"path": str(store), "include": include, "partitions": "5"}, TABLES)
    wanted = rows_of([part for task in plan(here) for part in task], here)
    assert len(wanted) > 6000
    there = read_options(
        {"path": f"counting://{store}", "include": include, "partitions": "5"}, TABLES
    )
    tasks = plan(there)
    assert len(tasks) == 5
    assert all(os.path.getsize(path) < 200 for path in Counting.fetched)
    assert total() < 1000
    found: Rows = []
    segments: Counter[str] = Counter()
    for task in tasks:
        found += rows_of(task, there)
        fetched = Counting.fetched.items()
        segments.update({path: size for path, size in fetched if path.endswith(".idx")})
        total()
    # Each segment is fetched by one task, and once.
    assert len(segments) > 8
    assert segments == {path: os.path.getsize(path) for path in segments}

    def in_order(rows: Rows) -> Rows:
        bare = [row | {"store": None} for row in rows]
        return sorted(bare, key=lambda row: (row["queue"], row["seq_id"], row.get("file")))

    assert in_order(found) == in_order(wanted)


def rocket_rows(path: str, include: str) -> tuple[int, list[str], Rows]:
    """Bytes that the plan fetched, of which files, and the rows."""
    options = read_options({"path": path, "include": include}, ROCKET_TABLES)
    parts = [part for task in plan(options) for part in task]
    names = list(Counting.fetched)
    planned = total()
    found: Rows = []
    for part in parts:
        for batch in read_part(part, options):
            found += [row | {"store": None} for row in batch.to_pylist()]
    total()
    return planned, names, found


def test_queues_of_version_2_are_the_same_there(tmp_path: Path) -> None:
    compared = 0
    for name in slice_of(SCENARIOS, by_tier(quick=4, all=1, nightly=1), "remote rows"):
        store = scenario(name).vhost_dir
        rows = []
        for path in (str(store), f"counting://{store}"):
            options = read_options({"path": path, "include": "messages", "partitions": "3"}, TABLES)
            parts = [part for task in plan(options) for part in task]
            found = [row | {"store": None} for row in rows_of(parts, options)]
            rows.append(sorted(found, key=lambda row: (row["queue"], row["seq_id"])))
        assert rows[0] == rows[1]
        compared += len(rows[0])
    assert compared > by_tier(quick=0, all=1000, nightly=1000)


@pytest.mark.parametrize("include", list(ROCKET_TABLES))
def test_rocketmq_stores_are_planned_by_their_names(tmp_path: Path, include: str) -> None:
    make_rocket(tmp_path / "small", count=100)
    sizes = ROCKET_SIZES | {"index_slots": 5_000, "index_entries": 4_000}
    with rocketstore.open(tmp_path / "large", background=False, **sizes) as opened:
        for at in range(300):
            opened.put("t", b"x" * 500, keys=f"k{at}")
    for name in ("small", "large"):
        path = tmp_path / name
        planned, names, found = rocket_rows(f"counting://{path}", include)
        assert planned <= 6 * MOST
        assert [one for one in names if "commitlog" in one or "consumequeue" in one] == []
        assert found == rocket_rows(str(path), include)[2]
        assert len(found) >= 75
    # Without a note the index file has to be looked through, for its sizes.
    (tmp_path / "large" / "config" / "rocketstore.json").unlink()
    assert rocket_rows(f"counting://{path}", include)[2] == found


def test_a_rocketmq_store_is_audited_where_it_is(tmp_path: Path) -> None:
    """The same rows as here, and each file is fetched once."""
    path = make_rocket(tmp_path / "s", count=300)
    FAULTS["unit_elsewhere"].plant(path)
    FAULTS["body_checksum"].plant(path)
    rows = {}
    for url in (str(path), f"counting://{path}"):
        (one,) = find_fleet([url])
        rows[url] = [[value for value in row if value != url] for row in _audit_item(_plan(one))]
    here, there = rows.values()
    assert here == there
    assert [row[0] for row in here] == ["finding", "finding", "count", "count", "count"]
    held = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert total() <= held + MOST  # and what the plan looked at


def test_a_file_is_fetched_in_pieces_and_once(tmp_path: Path) -> None:
    dice = random.Random(5)
    data = dice.randbytes(300_000)
    (tmp_path / "f").write_bytes(data)
    (tmp_path / "empty").touch()
    fs = RemoteFileSystem("counting", {})
    fd = fs.open(tmp_path / "f", os.O_RDONLY)
    assert fs.fstat(fd).st_size == len(data)
    assert fs.pread(fd, 40, 100) == data[100:140]
    assert Counting.fetched.total() == MOST
    assert fs.read(fd, 50) == data[:50]
    assert Counting.requests.total() == 1
    for _ in range(60):
        at, count = dice.randrange(310_000), dice.randrange(40_000)
        assert fs.pread(fd, count, at) == data[at : at + count]
    fs.lseek(fd, 0, os.SEEK_DATA)
    assert Counting.fetched.total() == len(data)
    fs.close(fd)
    fd = fs.open(tmp_path / "f", os.O_RDONLY)
    assert fs.pread(fd, len(data), 0) == data
    fs.close(fd)
    assert total() == len(data)
    fd = fs.open(tmp_path / "empty", os.O_RDONLY)
    assert fs.pread(fd, 10, 0) == b""
    fs.close(fd)
    with pytest.raises(FileNotFoundError):
        fs.open(tmp_path / "none", os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        fs.open(tmp_path, os.O_RDONLY)
    assert fs.listdir(tmp_path) == ["empty", "f"] or fs.listdir(tmp_path) == ["f", "empty"]
    (tmp_path / "later").touch()  # a backup stands still
    with pytest.raises(FileNotFoundError):
        fs.stat(tmp_path / "later")


def test_a_file_that_came_short_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    fs = RemoteFileSystem("counting", {})
    fd = fs.open(tmp_path / "f", os.O_RDONLY)
    monkeypatch.setattr(Counting, "cat_file", lambda *_given, **_named: b"x" * 10)
    with pytest.raises(OSError, match="10 bytes came in place of 16384"):
        fs.pread(fd, 10, 0)
    fs.close(fd)
