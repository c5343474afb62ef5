"""Stores that RocketMQ 4.9.3 wrote, opened in every mode: every question gets its answer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from rocketstore.javahash import hash_code, hash_many, index_hash, index_hash_many
from tests.golden import rocket_copy, rocket_golden
from tests.rocketstore.answers import wrong_answers
from tests.rocketstore.support import read_lines, touch_queues

STORES = [("gen", "store"), ("expire", "after"), ("delay", "store"), ("crash", "after")]
MODES: list[dict[str, Any]] = [
    {"read_only": True},
    {"recovery": "compatible", "background": False},
    {"background": False},
]


@pytest.mark.parametrize("mode", MODES, ids=["read_only", "compatible", "full"])
@pytest.mark.parametrize(("name", "directory"), STORES, ids=[name for name, _ in STORES])
def test_every_question(name: str, directory: str, mode: dict[str, Any], tmp_path: Path) -> None:
    golden = rocket_copy(name, tmp_path)
    touch_queues(golden / directory)
    with rocketstore.open(golden / directory, **mode) as store:
        for questions in ("messages", "queues", "queries", "gets", "times"):
            assert wrong_answers(store, golden, questions) == [], questions
    if name != "crash":
        assert store.findings == []


def test_reading_changes_no_byte(tmp_path: Path) -> None:
    golden = rocket_copy("gen", tmp_path)

    def fingerprint() -> dict[str, str]:
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (golden / "store").rglob("*")
            if path.is_file()
        }

    before = fingerprint()
    with rocketstore.open(golden / "store", read_only=True) as store:
        assert len(store.queues()) == 13
    assert fingerprint() == before


def test_opening_a_sound_store_rewrites_no_data(tmp_path: Path) -> None:
    golden = rocket_copy("gen", tmp_path)
    with rocketstore.open(golden / "store", background=False) as store:
        assert store.recovered.walked_from == 0
        assert store.recovered.queues_changed == set()
        assert store.recovered.index_from == ""
    for row in read_lines(golden, "files"):
        if row["path"].split("/")[0] in ("commitlog", "consumequeue", "index", "lock"):
            data = (golden / "store" / row["path"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == row["sha256"], row["path"]


def test_second_open_reads_only_the_tail(tmp_path: Path) -> None:
    golden = rocket_copy("gen", tmp_path)
    with rocketstore.open(golden / "store", background=False) as store:
        end = store.max_offset
    with rocketstore.open(golden / "store", background=False) as store:
        assert store.recovered.walked_from == end


def test_hashes() -> None:
    rows = read_lines(rocket_golden("gen"), "hashes")
    texts = [row["s"] for row in rows]
    assert [hash_code(text) for text in texts] == [row["hashCode"] for row in rows]
    assert [index_hash(text) for text in texts] == [row["indexKeyHash"] for row in rows]
    assert hash_many(texts).astype("int32").tolist() == [row["hashCode"] for row in rows]
    assert index_hash_many(texts).tolist() == [row["indexKeyHash"] for row in rows]
