"""Exactly once, whatever dies: the publisher of a batch is killed at every step it takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import qindex
from journal.errors import DamageError, LockedError, UsageError
from journal.fs.files import REAL
from pyspark_qindex.writing import publishing
from pyspark_qindex.writing.publishing import (
    ForeignPublisherError,
    Progress,
    Staging,
    commit_batch,
    make_store,
    read_staged,
    stage,
)
from qindex.format.layout import STAGING
from qindex.view.reader import StoreReader

ROOT = Path(__file__).parents[2]
FAR = 1e9


def rows_of(first: int, count: int) -> Any:
    numbers = range(first, first + count)
    bodies = [b"%06d" % number for number in numbers]
    keys = [f"k{number}" if number % 2 else None for number in numbers]
    arrays = [pa.array(bodies, pa.binary()), pa.array(keys, pa.string())]
    return pa.RecordBatch.from_arrays(arrays, names=["body", "key"])


def staged(store: Path, query: str, batch: int, counts: list[int], first: int = 0) -> list[Any]:
    """Stage a batch as Spark's tasks would: a file for each of ``counts``."""
    staging = Staging(str(store))
    files = []
    for number, count in enumerate(counts):
        path = os.path.join(
            staging.batch_directory(query, batch), f"{number:05d}-{uuid.uuid4().hex}"
        )
        half = count // 2
        batches = [rows_of(first, half), rows_of(first + half, count - half)]
        rows = stage(path, iter(batches), ["body", "key"], staging.fs)
        assert rows == count
        files.append((os.path.relpath(path, staging.path), rows))
        first += count
    return files


def commit(store: Path, query: str, batch: int, files: list[Any]) -> None:
    commit_batch(str(store), "q", query, batch, files, lock_timeout=0, orphan_age=FAR)


def bodies(store: Path, queue: str = "q") -> list[int]:
    return [int(row.body or b"-1") for row in StoreReader(store).queue(queue).entries()]


def test_batches_are_published_in_order_and_once(tmp_path: Path) -> None:
    make_store(str(tmp_path), "q")
    commit(tmp_path, "a", 0, staged(tmp_path, "a", 0, [5, 3]))
    commit(tmp_path, "a", 1, staged(tmp_path, "a", 1, [4], first=8))
    again = staged(tmp_path, "a", 1, [4], first=8)
    commit(tmp_path, "a", 1, again)
    commit(tmp_path, "a", 0, staged(tmp_path, "a", 0, [5, 3]))
    assert bodies(tmp_path) == list(range(12))
    found = StoreReader(tmp_path).queue("q").entries()
    assert [row.key for row in found] == [f"k{at}" if at % 2 else None for at in range(12)]
    # What a repeated attempt staged is swept, too.
    assert sorted(os.listdir(tmp_path / STAGING)) == ["a", "a.json"]
    assert os.listdir(tmp_path / STAGING / "a") == []


def test_queries_do_not_know_each_other(tmp_path: Path) -> None:
    make_store(str(tmp_path), "q")
    commit(tmp_path, "a", 0, staged(tmp_path, "a", 0, [3]))
    commit(tmp_path, "../b c", 0, staged(tmp_path, "../b c", 0, [3], first=3))
    assert bodies(tmp_path) == list(range(6))
    commit(tmp_path, "c", 7, [])
    assert Staging(str(tmp_path)).load("c") is None


@pytest.mark.parametrize("step", [4, 7, 100])
def test_large_batches_are_published_in_steps(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "STEP", step)
    monkeypatch.setattr(publishing, "_ROWS_AT_ONCE", 3)
    make_store(str(tmp_path), "q")
    commit(tmp_path, "a", 0, staged(tmp_path, "a", 0, [5, 1, 9]))
    assert bodies(tmp_path) == list(range(15))
    progress = Staging(str(tmp_path)).load("a")
    assert progress is not None
    assert (progress.done, progress.rows, progress.finished) == (15, 0, True)


VICTIMS = """
import json, os, signal, sys
from journal.fs import files
from journal.fs.beneath import BeneathFileSystem
from pyspark_qindex.writing import publishing
from qindex.index.queue_index import QueueIndex

publishing.STEP, publishing._ROWS_AT_ONCE = 6, 4
left = 0

def count():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def counted(call):
    def run(*arguments, **options):
        count()
        return call(*arguments, **options)
    return run

for name in ("open", "write", "pwrite", "fdatasync", "rename", "unlink", "sync_dir", "rmdir"):
    setattr(files.RealFileSystem, name, staticmethod(counted(getattr(files.RealFileSystem, name))))
    if name in vars(BeneathFileSystem):
        setattr(BeneathFileSystem, name, counted(getattr(BeneathFileSystem, name)))
append = QueueIndex.append_batch

def append_and_count(*arguments, **options):
    result = append(*arguments, **options)
    count()
    return result

QueueIndex.append_batch = append_and_count
for line in sys.stdin:
    store, batch, rows, left = json.loads(line)
    child = os.fork()
    if not child:
        publishing.commit_batch(store, "q", "a", batch, rows, lock_timeout=5, orphan_age=1e9)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""A process that has all it needs in memory, and forks a publisher for each line it is given; the
publisher kills itself at its operation number ``left``."""


class Victims:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", VICTIMS],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def killed(self, store: Path, batch: int, files: list[Any], after: int) -> bool:
        """Commit in a process that dies at its operation ``after``; false: it came to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(store), batch, files, after]) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert status in (0, signal.SIGKILL)
        return status != 0

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    found = Victims()
    yield found
    found.close()


@pytest.mark.interpreted
def test_killed_at_every_step(tmp_path: Path, victims: Victims) -> None:
    """The publisher of a batch is killed at one operation after the other (of its files, and
    behind each append to the queue); it is repeated with what Spark's tasks staged again, and half
    of the times killed again. In between, a consumer may take messages."""
    store = tmp_path / "store"
    make_store(str(store), "q")
    taken: list[int] = []
    killed = first = 0
    for batch in range(1, 400):
        alive = not victims.killed(store, batch, staged(store, "a", batch, [5, 6], first), batch)
        killed += not alive
        if batch % 3 == 0:
            with qindex.open(store) as engine:
                some = engine.queue("q").get_many(9)
                taken += [int(one.body) for one in some]
                engine.queue("q").ack_many(some)
        if batch % 2:
            again = staged(store, "a", batch, [5, 6], first)
            victims.killed(store, batch, again, batch // 2 + 1)
        commit(store, "a", batch, staged(store, "a", batch, [5, 6], first))
        first += 11
        if alive:
            break
    else:
        pytest.fail("the publisher was never let finish")
    assert killed > 35
    assert taken + bodies(store) == list(range(first))
    assert os.listdir(store / STAGING / "a") == []


@pytest.mark.interpreted
def test_a_query_that_never_comes_back(tmp_path: Path, victims: Victims) -> None:
    """What it left half done is finished by whoever publishes next."""
    make_store(str(tmp_path), "q")
    files = staged(tmp_path, "a", 0, [5, 6])
    at = 20
    while not 0 < len(bodies(tmp_path)) < 11:
        assert victims.killed(tmp_path, 0, files, at)
        at += 1
    commit(tmp_path, "b", 0, staged(tmp_path, "b", 0, [2], first=11))
    assert bodies(tmp_path) == list(range(13))


def half_done(store: Path, there: int, boot: str | None = None) -> Progress:
    """A batch of eight rows of which ``there`` are published."""
    make_store(str(store), "q")
    files = staged(store, "a", 0, [8])
    progress = Progress("a", 0, "q", files, rows=8, boot=boot or publishing._boot())
    with qindex.open(store) as engine:
        progress.start = engine.queue("q").reserve(8)
        progress.incarnation = engine.queue("q")._parts.state.incarnation
        Staging(str(store)).save(progress)
        for message in list(read_staged(os.path.join(str(store), STAGING, files[0][0])))[:there]:
            engine.queue("q").publish_many([message.message])
    return progress


@pytest.mark.parametrize("there", [0, 3, 8])
def test_after_a_loss_of_power_what_is_missing_is_published(tmp_path: Path, there: int) -> None:
    half_done(tmp_path, there, boot="another run")
    commit(tmp_path, "a", 0, [])
    assert bodies(tmp_path) == list(range(8))


def test_a_queue_that_is_made_again_gets_the_batch_whole(tmp_path: Path) -> None:
    half_done(tmp_path, 3)
    with qindex.open(tmp_path) as engine:
        engine.delete_queue("q")
        engine.queue("q").publish_many([b"%06d" % at for at in range(900, 904)])
    commit(tmp_path, "a", 0, [])
    assert bodies(tmp_path) == [*range(900, 904), *range(8)]


def test_another_producer_is_found_out(tmp_path: Path) -> None:
    half_done(tmp_path, 3)
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish_many([b"%06d" % at for at in range(900, 907)])
    with pytest.raises(ForeignPublisherError, match=r"someone published into it \(seq_id 3\)"):
        commit(tmp_path, "a", 0, [])


def test_a_producer_behind_a_whole_batch_does_no_harm(tmp_path: Path) -> None:
    half_done(tmp_path, 8)
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish(b"900")
    commit(tmp_path, "a", 0, [])
    assert bodies(tmp_path) == [*range(8), 900]


def test_who_has_the_store_is_waited_for(tmp_path: Path) -> None:
    make_store(str(tmp_path), "q")
    files = staged(tmp_path, "a", 0, [2])
    with qindex.open(tmp_path), pytest.raises(LockedError, match="by this process"):
        commit(tmp_path, "a", 0, files)
    commit(tmp_path, "a", 0, files)
    assert bodies(tmp_path) == [0, 1]


def test_old_orphans_of_other_queries_are_swept(tmp_path: Path) -> None:
    half_done(tmp_path, 1)
    staged(tmp_path, "dead", 4, [2])
    old = tmp_path / STAGING / "dead" / "4"
    os.utime(old, (1, 1))
    os.utime(tmp_path / STAGING / "a" / "0", (1, 1))
    staging = Staging(str(tmp_path))
    staging.sweep_old(1000)
    assert not old.exists()
    assert (tmp_path / STAGING / "a" / "0").exists()  # it has a batch to finish
    commit(tmp_path, "a", 0, [])
    assert bodies(tmp_path) == list(range(8))


def test_a_damaged_progress_is_told(tmp_path: Path) -> None:
    progress = half_done(tmp_path, 1)
    path = tmp_path / STAGING / "a.json"
    for wrong in (b"", b"{", b'{"version": 2}', b'{"version": 1, "nothing": 1}', b"[]"):
        path.write_bytes(wrong)
        with pytest.raises(DamageError):
            commit(tmp_path, progress.query, 0, [])


def test_what_is_staged_in_a_store_of_a_group_is_the_groups(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with qindex.open(store, mode=0o660) as engine:
        engine.queue("q")
    files = staged(store, "a", 0, [10])
    Staging(str(store)).save(Progress("a", 0, "q", files))
    for path in (store / STAGING, *(store / STAGING).rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o770 if path.is_dir() else 0o660), path
    commit(store, "a", 0, files)
    assert StoreReader(store).queue("q").summary().messages == 10


def test_rows_that_can_not_be_published(tmp_path: Path) -> None:
    wrong = pa.RecordBatch.from_pydict({"body": [b"x", None]})
    with pytest.raises(UsageError, match="a row has no body"):
        stage(str(tmp_path / "f"), iter([wrong]), ["body"])
    text = pa.RecordBatch.from_pydict({"body": ["x"], "headers": ["{"]})
    kinds = pa.RecordBatch.from_pydict(
        {"body": ["x"], "headers": ['{"a": {"$base64": "AP8="}, "b": [1, null]}']}
    )
    stage(str(tmp_path / "e"), iter([kinds]), ["body", "headers"])
    (row,) = read_staged(str(tmp_path / "e"))
    assert row.message.headers == {"a": b"\x00\xff", "b": [1, None]}
    stage(str(tmp_path / "g"), iter([text]), ["body", "headers"])
    with pytest.raises(UsageError, match="headers is no JSON"):
        list(read_staged(str(tmp_path / "g")))
    assert stage(str(tmp_path / "h"), iter([rows_of(0, 0)]), ["body"]) == 0
    assert not (tmp_path / "h").exists()
    assert REAL.listdir(tmp_path)


def test_verify_finds_nothing_wrong_with_a_store_that_spark_publishes_into(tmp_path: Path) -> None:
    from qindex.tools.names_check import check_names

    half_done(tmp_path, 3)
    assert list(check_names(REAL, str(tmp_path), ours=True, pairs=False, in_use=False)) == []
