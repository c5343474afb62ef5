"""``verify``, ``repair``, ``salvage`` and ``inspect`` on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from journal.findings import Kind
from tests.cli.support import run
from tests.golden import golden, rocket_copy, rocket_golden, synthetic
from tests.tools.faults import State
from tests.tools.stores import flip, rich_files

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_verify_a_sound_store(copy_of: Callable[[State], Path]) -> None:
    store = copy_of("clean")
    result = run("verify", store)
    assert (result.code, result.err) == (0, "")
    assert result.text.startswith(f"{store}: sound (stores: 1, queues: 2, entries: 66, ")
    (row,) = run("verify", store, "--json").rows
    assert row["summary"]["sound"] is True
    assert row["summary"]["entries"] == 66


def test_verify_names_damage(copy_of: Callable[[State], Path]) -> None:
    store = copy_of("clean")
    segment = rich_files(store).segment
    flip(segment, 40)
    result = run("verify", store)
    assert (result.code, result.err) == (1, "")
    line, last = result.text.splitlines()
    assert line.startswith(f"[corrected] {segment}: at offset 40, 1 bytes: one flipped bit; ")
    assert last.startswith(f"{store}: damaged in 1 places")
    row, summary = run("verify", store, "--json").rows
    assert row == {
        "path": str(segment),
        "offset": 40,
        "length": 1,
        "kind": "corrected",
        "cause": "damage",
        "what": "one flipped bit",
        "consequence": "put right by the checksum of its block: none lost",
    }
    assert (summary["summary"]["damage"], summary["summary"]["notes"]) == (1, 0)


def test_what_a_crash_left_is_a_note(tmp_path: Path) -> None:
    vhost = synthetic("01").vhost_dir
    result = run("verify", vhost)
    assert result.code == 0
    note, name = result.complaints
    assert note.startswith("qindex: note: [torn] ")
    assert name.startswith("qindex: note: [missing-file] ")
    row, *_ = run("verify", vhost, "--json").rows
    assert (row["cause"], row["kind"], row["offset"]) == ("crash", "torn", 1170)


def test_verify_a_rocketmq_store(tmp_path: Path) -> None:
    store = rocket_golden("gen")
    for directory in (store, store / "store"):
        assert run("verify", directory).code == 0
    broken = rocket_copy("gen", tmp_path)
    log = sorted((broken / "store" / "commitlog").iterdir())[1]  # there are messages in it
    flip(log, 400)
    result = run("verify", broken)
    assert result.code == 1
    assert any(str(log) in line for line in result.text.splitlines())
    assert run("verify", broken, "--json").rows[-1]["summary"]["sound"] is False


def test_repair_reports(copy_of: Callable[[State], Path], tmp_path: Path) -> None:
    store = copy_of("clean")
    records = rich_files(store).records
    flip(records, 9000)
    result = run("repair", store, "--out", tmp_path / "new")
    assert result.code == 1
    lines = result.text.splitlines()
    assert [line for line in lines if line.startswith("lost: [entry-without-message]")]
    assert any(re.match(r"queue orders: messages: 25, bytes: \d+, ", line) for line in lines)
    assert lines[-1].endswith(
        "64 messages in 2 queues, 9 in the message store; 2 entries without a message"
    )
    aside = tmp_path / "new" / "quarantine" / "msg_store_persistent" / "1.rdq.6884"
    assert f"qindex: quarantined: {aside}" in result.complaints
    (row,) = run("repair", store, "--out", tmp_path / "json", "--json").rows
    assert (row["complete"], row["messages"]) == (False, 64)
    assert {one["lost"] for one in row["findings"]} == {True, False}
    assert row["quarantined"] == [
        str(path.relative_to(tmp_path / "json"))
        for path in sorted((tmp_path / "json" / "quarantine").rglob("*"))
        if path.is_file()
    ]


def test_salvage_reports(tmp_path: Path) -> None:
    result = run("salvage", golden("g1").vhost_dir, "--out", tmp_path / "new")
    assert (result.code, result.err) == (0, "")
    assert "queue qg.prio: messages: 30, " in result.text
    assert result.text.splitlines()[-1].endswith("nothing was lost")
    (row,) = run("salvage", synthetic("21").vhost_dir, "--out", tmp_path / "x", "--json").rows
    assert row["complete"] is False
    named = run(
        "salvage", synthetic("28").vhost_dir, "--out", tmp_path / "y", "--queue", "qr", "--json"
    )
    (row,) = named.rows
    assert "qr" in {queue["name"] for queue in row["queues"]}
    assert {queue["expiring"] for queue in row["queues"]} == {0, 6}


SMALL_FILES = {
    "sums": ("extent", "extent"),
    "seq": ("reserved", "floor"),
    "settings": ("settings",),
    "name": ("queue_name",),
    "marker": ("marker", "marker"),
    "snapshot": ("snapshot", "queue", "queue", "file", "file", "messages"),
    "segment": ("publish",),
    "records": ("message",),
}


@pytest.mark.parametrize("kind", SMALL_FILES)
def test_inspect(kind: str, copy_of: Callable[[State], Path]) -> None:
    """Each kind of file: its records; and with a flipped bit, where it stops making sense."""
    path: Path = getattr(rich_files(copy_of("clean")), kind)
    result = run("inspect", path, "--json")
    assert (result.code, result.err) == (0, "")
    records = [row["record"] for row in result.rows]
    assert tuple(records[: len(SMALL_FILES[kind])]) == SMALL_FILES[kind]
    assert len(run("inspect", path).text.splitlines()) == len(records)
    flip(path, 20)
    damaged = run("inspect", path)
    assert damaged.code == 1
    assert any(line.startswith(f"qindex: {path}: at offset ") for line in damaged.complaints)


def test_inspect_what_a_node_wrote() -> None:
    vhost = golden("e1").vhost_dir
    (row,) = run("inspect", vhost / ".config", "--json").rows
    assert row["segment_entry_count"] == 2048
    (row,) = run("inspect", vhost / ".vhost", "--json").rows
    assert row["name"] == "/"
    rows = run("inspect", vhost / "recovery.dets", "--json").rows
    assert len(rows) == 3
    assert sum(row["persistent_count"] for row in rows) == 177
    (row,) = run("inspect", vhost / "msg_store_persistent" / "clean.dot", "--json").rows
    assert len(row["client_refs"]) == 3


def test_inspect_what_rocketmq_wrote(tmp_path: Path) -> None:
    store = rocket_copy("gen", tmp_path) / "store"
    log = store / "commitlog" / "00000000000000000000"
    rows = run("inspect", log, "--json").rows
    assert rows[0]["kind"] == "record"
    assert run("inspect", store / "checkpoint", "--json").rows[0]["kind"] == "checkpoint"
    flip(log, 5000)
    result = run("inspect", log)
    assert result.code == 1
    assert result.complaints


def test_every_kind_of_finding_is_explained() -> None:
    explained = set(re.findall(r"^\| `([a-z-]+)` \|", DOCS.read_text(), re.MULTILINE))
    assert explained == {kind.value for kind in Kind}


def test_the_python_names() -> None:
    assert set(qindex.__all__) >= {"verify", "repair", "salvage", "SaveReport", "VerifyReport"}
