"""Stores that RocketMQ 4.9.3 wrote, opened in every mode: every question gets its answer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from rocketstore.format.javahash import hash_code, hash_many, index_hash, index_hash_many
from tests.golden import rocket_copy, rocket_golden
from tests.rocketstore.answers import QUESTIONS, wrong_answers
from tests.rocketstore.support import read_lines, touch_queues

STORES = [("gen", "store"), ("expire", "after"), ("delay", "store"), ("crash", "after")]
MODES: list[dict[str, Any]] = [
    {"read_only": True},
    {"recovery": "compatible", "background": False},
    {"background": False},
]


@pytest.mark.rotates(2)
@pytest.mark.parametrize("mode", MODES, ids=["read_only", "compatible", "full"])
@pytest.mark.parametrize(("name", "directory"), STORES, ids=[name for name, _ in STORES])
def test_every_question(name: str, directory: str, mode: dict[str, Any], tmp_path: Path) -> None:
    golden = rocket_copy(name, tmp_path)
    touch_queues(golden / directory)
    with rocketstore.open(golden / directory, **mode) as store:
        for questions in QUESTIONS:
            assert wrong_answers(store, golden, questions) == [], questions
    if name != "crash":
        assert store.findings == []


def test_nothing_in_expected_is_left_out() -> None:
    """Each file there is asked about by a test of this package; their lines, all in all."""
    lines = 0
    for name, _ in STORES:
        files = {path.name for path in (rocket_golden(name) / "expected").iterdir()}
        known = {f"{questions}.jsonl" for questions in QUESTIONS} | {"files.jsonl", "meta.json"}
        assert files - known == ({"hashes.jsonl", "puts.jsonl"} if name == "gen" else set())
        lines += sum(len(read_lines(rocket_golden(name), questions)) for questions in QUESTIONS)
    assert lines == 42_469


@pytest.mark.parametrize(("name", "directory"), STORES, ids=[name for name, _ in STORES])
def test_files_and_bounds(name: str, directory: str, tmp_path: Path) -> None:
    """``files.jsonl`` and ``meta.json``: lengths, checksums, headers, bounds, the queue table."""
    golden = rocket_copy(name, tmp_path)
    root = golden / directory
    headers = texts = 0
    with rocketstore.open(root, read_only=True) as store:
        index = {file.name: file.header for file in store._parts.index.files}
        checkpoint = store._parts.checkpoint
        for row in read_lines(golden, "files"):
            data = (root / row["path"]).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (row["size"], row["sha256"])
            if row["path"] == "checkpoint":
                found = [checkpoint.physical, checkpoint.logical, checkpoint.index]
                assert row["header"] == found
            elif "header" in row:
                header = index[Path(row["path"]).name]
                fields = list(header.fields())
                assert row["header"] == fields
                headers += 1
            texts += row.get("text", "").encode() == data
        assert (headers, texts) == (len(index), 1)
        meta = json.loads((golden / "expected" / "meta.json").read_text())
        parts = store._parts
        assert (meta["minPhyOffset"], meta["maxPhyOffset"]) == (store.min_offset, store.max_offset)
        assert meta["mappedFileSizeCommitLog"] == parts.commitlog.file_size
        assert meta["mappedFileSizeConsumeQueue"] == parts.consumequeue_file_size
        assert meta["maxHashSlotNum"] == parts.index.slots
        assert meta["maxIndexNum"] == parts.index.entries
        table = {f"{topic}-{queue}": end for (topic, queue), (_, end) in store.queues().items()}
        real = {key: end for key, end in meta["topicQueueTable"].items() if end}
        assert table == real
        times = [meta[f"checkpoint{kind}"] for kind in ("Physic", "Logics", "Index")]
        assert times == [checkpoint.physical, checkpoint.logical, checkpoint.index]
        records = [row for row in read_lines(golden, "messages") if "blank" not in row]
        assert meta["messages"] == len(records)


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
    touch_queues(golden / "store")
    with rocketstore.open(golden / "store", background=False) as store:
        assert store.recovered.walked_from == end
        for questions in QUESTIONS:
            assert wrong_answers(store, golden, questions) == [], questions


def test_hashes() -> None:
    rows = read_lines(rocket_golden("gen"), "hashes")
    texts = [row["s"] for row in rows]
    assert [hash_code(text) for text in texts] == [row["hashCode"] for row in rows]
    assert [index_hash(text) for text in texts] == [row["indexKeyHash"] for row in rows]
    assert hash_many(texts).astype("int32").tolist() == [row["hashCode"] for row in rows]
    assert index_hash_many(texts).tolist() == [row["indexKeyHash"] for row in rows]
