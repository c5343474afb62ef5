"""``build-index``: byte for byte what the sequential store writes, and installed all at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import rocketstore
from journal.errors import DamageError, LockedError, NotAStoreError
from journal.fs.files import REAL
from pyspark_qindex.jobs.build_index import build_index
from rocketstore.layout import Paths, look
from rocketstore.options import Options
from rocketstore.repair.derived_files import STAGING
from tests.golden import rocket_golden
from tests.rocketstore.support import store_files
from tests.spark.fleet import ROCKET_SIZES, make_rocket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = {"gen": "store", "delay": "store", "expire": "after", "crash": "before"}


def sizes_of(root: Path) -> dict[str, Any]:
    if (root / "config" / "rocketstore.json").exists():
        return ROCKET_SIZES
    found = look(REAL, Paths(str(root)), Options(read_only=True))
    return {
        "commitlog_file_size": found.commitlog_file_size,
        "consumequeue_file_size": found.consumequeue_file_size,
        "index_slots": found.index_slots,
        "index_entries": found.index_entries,
    }


def derived_files(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in store_files(root) if not name.startswith("commitlog")}


def built_in_sequence(root: Path, copy: Path) -> dict[str, bytes]:
    """Queues and index as :mod:`rocketstore` builds them from nothing but the log."""
    sizes = sizes_of(root)
    shutil.copytree(root, copy)
    shutil.rmtree(copy / "consumequeue")
    shutil.rmtree(copy / "index")
    (copy / "config" / "rocketstore.json").unlink(missing_ok=True)
    rocketstore.open(copy, background=False, **sizes).close()
    return derived_files(copy)


def make_exact(path: Path, *, more: bool) -> Path:
    """Keys that fill index files to the last entry; ``more``: a message without a key follows."""
    with rocketstore.open(path, background=False, **ROCKET_SIZES) as store:
        for number in range(2 * (ROCKET_SIZES["index_entries"] - 1)):
            store.put("exact", b"x" * 40, keys=f"k{number}")
        if more:
            store.put("exact", b"none")
    return path


def test_the_same_bytes_as_in_sequence(spark: SparkSession, tmp_path: Path) -> None:
    """Golden stores (one whose log was cut by retention, one that was killed), ours, full index
    files, no keys at all, no messages at all; and the next open has nothing to do."""
    fleet = tmp_path / "fleet"
    for name, part in GOLDEN.items():
        shutil.copytree(rocket_golden(name) / part, fleet / name)
    make_rocket(fleet / "ours")
    make_exact(fleet / "exact", more=False)
    make_exact(fleet / "more", more=True)
    with rocketstore.open(fleet / "keyless", background=False, **ROCKET_SIZES) as store:
        store.put("t", b"no key")
    rocketstore.open(fleet / "empty", background=False, **ROCKET_SIZES).close()
    names = sorted(os.listdir(fleet))
    wanted = {name: built_in_sequence(fleet / name, tmp_path / "copy" / name) for name in names}
    as_it_was = {name: derived_files(fleet / name) for name in names}
    had_abort = {name: (fleet / name / "abort").exists() for name in names}
    result = build_index(spark, [str(fleet)])
    assert result.summary["stores"] == len(names)
    for name in names:
        assert derived_files(fleet / name) == wanted[name], name
        assert not (fleet / name / STAGING).exists()
        assert (fleet / name / "abort").exists() == had_abort[name]
        with rocketstore.open(fleet / name, background=False) as store:
            assert store.recovered.walked_from == store.max_offset, name
            assert not store.recovered.queues_changed
            assert store.findings == []
        assert derived_files(fleet / name) == wanted[name], name
    # What the real store and ours had written at first, but where a log was cut: there the files
    # keep units of messages that are gone.
    for name in set(names) - {"expire"}:
        assert wanted[name] == as_it_was[name], name
    was = {row["was"] for row in result["files"].where("store not like '%expire'").collect()}
    assert was == {"identical"}


def test_what_was_damaged_or_lost_is_there_again(spark: SparkSession, tmp_path: Path) -> None:
    store = make_rocket(tmp_path / "s")
    before = derived_files(store)
    shutil.rmtree(store / "consumequeue" / "orders" / "1")
    damaged = sorted((store / "index").iterdir())[0]
    damaged.write_bytes(bytes(damaged.stat().st_size))
    (store / "config" / "rocketstore.json").unlink()
    result = build_index(spark, [str(store)], install=False, out=str(tmp_path / "out"))
    assert result.notes == [f"left below {tmp_path / 'out'}"]
    assert derived_files(store) != before, "without install nothing is changed"
    (left,) = (tmp_path / "out").iterdir()
    assert (left / "consumequeue" / "orders" / "1").is_dir()
    was = {row["file"]: row["was"] for row in result["files"].collect()}
    assert was["consumequeue/orders/1"] == "missing"
    assert sorted(was.values()).count("different") == 1
    build_index(spark, [str(store)])
    assert derived_files(store) == before


def test_a_queue_whose_messages_are_all_expired_keeps_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "s"
    with rocketstore.open(store, background=False, **ROCKET_SIZES) as opened:
        for _ in range(30):
            opened.put("old", b"x" * 200)
        for _ in range(300):
            opened.put("new", b"x" * 200)
    sorted((store / "commitlog").iterdir())[0].unlink()
    build_index(spark, [str(store)])
    with rocketstore.open(store, background=False) as opened:
        assert opened.put("old", b"next").queue_offset == 30
        assert opened.recovered.walked_from > 0


def test_a_store_in_use_is_refused_with_the_pid(spark: SparkSession, tmp_path: Path) -> None:
    store = make_rocket(tmp_path / "s", count=20)
    other = make_rocket(tmp_path / "other", count=20)
    before = derived_files(store), derived_files(other)
    code = "import rocketstore, sys; s = rocketstore.open(sys.argv[1]); print('open'); input()"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, str(store)], **pipes) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(LockedError, match=f"process {child.pid}"):
            build_index(spark, [str(tmp_path)])
        child.communicate("\n", timeout=30)
    assert (derived_files(store), derived_files(other)) == before
    rocketstore.open(other).close()  # its lock was given back


def test_a_damaged_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    store = make_rocket(tmp_path / "s")
    before = derived_files(store)
    log = sorted((store / "commitlog").iterdir())[0]
    data = bytearray(log.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[size] ^= 0x55
    log.write_bytes(data)
    with pytest.raises(DamageError, match=f"at offset {size}: there is no record here"):
        build_index(spark, [str(store)])
    assert derived_files(store) == before
    sorted((store / "commitlog").iterdir())[1].unlink()
    with pytest.raises(DamageError, match="this file of the commit log is missing"):
        build_index(spark, [str(store)])
    with pytest.raises(NotAStoreError):
        build_index(spark, [str(tmp_path / "nowhere")])


def test_other_stores_go_on(spark: SparkSession, tmp_path: Path) -> None:
    """Beside a log with a hole, one whose file was cut off, and one that lacks a file."""
    good = make_rocket(tmp_path / "good")
    wanted = derived_files(good)
    shutil.rmtree(good / "consumequeue")
    names = ("hole", "cut", "gap")
    bad = {name: shutil.copytree(good, tmp_path / name) for name in names}
    logs = {name: sorted((store / "commitlog").iterdir()) for name, store in bad.items()}
    with logs["hole"][0].open("r+b") as file:
        size = int.from_bytes(file.read(4), "big")
        file.seek(size)
        file.write(b"\x55")
    os.truncate(logs["cut"][0], 5000)
    logs["gap"][1].unlink()
    before = {name: derived_files(store) for name, store in bad.items()}
    outcome = build_index(spark, [str(tmp_path)])
    assert derived_files(good) == wanted
    assert {name: derived_files(store) for name, store in bad.items()} == before
    assert not any((store / STAGING).exists() for store in (good, *bad.values()))
    assert (outcome.summary["stores"], outcome.summary["refused"], outcome.found) == (1, 3, True)
    why = {row["store"]: row["why"] for row in outcome["refused"].collect()}
    assert f"{logs['hole'][0]}: at offset {size}" in why[str(bad["hole"])]
    assert f"{logs['cut'][0]}: at offset 0: is 5000 bytes long" in why[str(bad["cut"])]
    assert f"{logs['gap'][1]}: at offset 0: this file of" in why[str(bad["gap"])]
