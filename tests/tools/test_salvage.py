"""Salvage of a RabbitMQ node's directories: at least what the node delivers, and all that is sound
where it hangs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.format.rabbitmq.names import directory_name
from qindex.view.reader import StoreReader
from tests.effort import by_tier, part
from tests.golden import SCENARIOS, SYNTHETIC_CASES, golden, sha16, synthetic

QUEUES = ["qr", "qs"]

# Where the node does not start, gives up the queue, or finds less: what is saved of qr and qs. In
# 28 messages expired in 1970, which no node can have written.
BETTER_THAN_THE_NODE = {
    "04": ("m0 m1 m2 m3 m4 m5", ""),
    "07": ("m0 m1 m2 m3 m4", "m0 m1 m2 m3 m4"),
    "07a": ("m0 m1 m2 m3 m4", ""),
    "07b": ("m0 m1 m2 m3 m4", ""),
    "08": ("m0 m1 m2 m3 m4 m5", ""),
    "09": ("", "m0 m1 m2 m3 m4 m5"),
    "11": ("b0 b1 b2", ""),
    "12": ("b0 b1 b2 b3", ""),
    "14": ("b0 b2 b3 b4", ""),
    "18": ("b0 b2", ""),
    "21": ("m0 m1", ""),
    "22": ("m0 m1 m2", ""),
    "23": ("m0 m1 m2 m3 m4 m5", ""),
    "27": ("m0 m1 pt", ""),
    "28": ("m0 m1 m2 m3 m4 m5", "m0 m1 m2 m3 m4 m5"),
}
INCOMPLETE = {
    "01": 1,
    "02": 2,
    "03": 2,
    "07": 2,
    "07a": 1,
    "07b": 1,
    "08": 1,
    "09": 2,
    "09a": 1,
    "10": 4,
    "19": 2,
    "20": 1,
    "21": 1,
}
"""Places that could not be saved: messages that are nowhere, records that are cut or zero, and
earlier ones of a pair."""


def taken(directory: Path) -> dict[str, list[qindex.Delivery]]:
    found = {}
    with qindex.open(directory, background=False) as engine:
        for name in engine.queue_names():
            found[name] = list(engine.queue(name).get_many(100_000))
    return found


@pytest.mark.parametrize("case", SYNTHETIC_CASES)
def test_a_damaged_or_half_done_state(case: str, tmp_path: Path) -> None:
    broken = synthetic(case)
    short = case.partition("_")[0]
    saved = qindex.salvage(broken.vhost_dir, tmp_path / "new", names=QUEUES)
    assert len(saved.lost) == INCOMPLETE.get(short, 0)
    assert saved.complete is (short not in INCOMPLETE)
    assert qindex.verify(tmp_path / "new").findings == []
    found = taken(tmp_path / "new")
    assert set(found) <= set(QUEUES)
    if short in BETTER_THAN_THE_NODE:
        for name, expected in zip(QUEUES, BETTER_THAN_THE_NODE[short], strict=True):
            bodies = [one.body[:2].decode() for one in found.get(name, [])]
            assert bodies == expected.split()
        return
    assert broken.boot == "OK"
    for name, messages in broken.delivered.items():
        assert len(found.get(name, [])) == len(messages)
        for one, message in zip(found.get(name, []), messages, strict=True):
            assert message.matches(one.body)
            assert one.redelivered == message.redelivered


def test_all_cases_are_told() -> None:
    hanging = {case.partition("_")[0] for case in SYNTHETIC_CASES if synthetic(case).boot != "OK"}
    assert hanging <= set(BETTER_THAN_THE_NODE)
    assert len(SYNTHETIC_CASES) == 32


@pytest.mark.parametrize("case", sorted(BETTER_THAN_THE_NODE))
def test_more_than_the_node_delivers_is_saved(case: str) -> None:
    broken = synthetic(case)
    for name, expected in zip(QUEUES, BETTER_THAN_THE_NODE[case], strict=True):
        for message in broken.delivered.get(name, []):
            assert message.prefix[:2] in expected.split()


@pytest.mark.parametrize("scenario", part(SCENARIOS, by_tier(quick=6, all=1, nightly=1), "salvage"))
def test_a_scenario(scenario: str, tmp_path: Path) -> None:
    """Everything the node delivered after a restart: in order, with the same flags, routing keys
    and properties, in both formats."""
    store = golden(scenario)
    saved = qindex.salvage(store.vhost_dir, tmp_path / "new")
    assert saved.complete
    assert saved.findings == []
    theirs = qindex.salvage(store.vhost_dir, tmp_path / "theirs", format="rabbitmq")
    assert theirs.messages == saved.messages
    assert qindex.verify(tmp_path / "new").findings == []
    assert qindex.verify(tmp_path / "theirs").findings == []
    found = taken(tmp_path / "new")
    reader = StoreReader(tmp_path / "theirs")
    names = reader.queue_names()
    assert names == sorted(found)
    for name, queue in store.truth.queues.items():
        if not queue.survives:
            continue
        mine = found.get(name, [])
        expected = queue.delivered
        assert [sha16(one.body) for one in mine] == [one.sha16 for one in expected]
        assert [one.redelivered for one in mine] == [one.redelivered for one in expected]
        assert [one.key for one in mine] == [one.routing_key for one in expected]
        exchanges = [one.properties["exchange"] for one in mine]
        assert exchanges == [one.exchange for one in expected]
        rows = list(reader.queue(name)) if name in names else []
        assert [row.body for row in rows] == [one.body for one in mine]
        assert [row.headers for row in rows] == [one.headers for one in mine]


def originals(directory: Path) -> dict[str, list[Any]]:
    return {
        one.name: [(row.seq_id, row.msg_id, row.expiry, row.properties) for row in one.entries()]
        for one in StoreReader(directory).readers()
    }


@pytest.mark.parametrize("scenario", ["b", "e1", "g1"])
def test_records_ids_and_places_are_kept(scenario: str, tmp_path: Path) -> None:
    store = golden(scenario)
    qindex.salvage(store.vhost_dir, tmp_path / "new", format="rabbitmq")
    assert originals(tmp_path / "new") == originals(store.vhost_dir)


def test_a_whole_node(tmp_path: Path) -> None:
    """Several virtual hosts give a store each, in both forms of the tree."""
    node = tmp_path / "mnesia" / "rabbit@host"
    for name, scenario in (("AAA", "b"), ("BBB", "e1")):
        shutil.copytree(golden(scenario).vhost_dir, node / "msg_stores" / "vhosts" / name)
    for at, tree in enumerate((node, node / "msg_stores", tmp_path / "mnesia")):
        saved = qindex.salvage(tree, tmp_path / f"new-{at}")
        assert saved.messages == 457 + 177
        assert sorted(one.name for one in (tmp_path / f"new-{at}").iterdir()) == ["AAA", "BBB"]
        assert len(taken(tmp_path / f"new-{at}" / "BBB")["qe.1"]) == 60


def test_without_the_small_files(tmp_path: Path) -> None:
    """Queue directories and message store alone: names are told from what was published."""
    vhost = golden("e1").copy(tmp_path)
    for path in vhost.rglob(".*"):
        if path.name in (".queue_name", ".vhost"):
            path.unlink()
    (vhost / "recovery.dets").unlink()
    saved = qindex.salvage(vhost, tmp_path / "new")
    hashes = {directory_name("/", name): name for name in ("qe.1", "qe.2", "qe.3")}
    by_name = {one.name.removeprefix("recovered-"): one.messages for one in saved.queues}
    counts = {hashes.get(name, name): count for name, count in by_name.items()}
    assert counts == {"qe.1": 60, "qe.2": 20, "qe.3": 97}


@pytest.mark.parametrize("noise", [b"\xc0" * 100, b"a\0b"])
def test_the_name_of_the_virtual_host_is_damaged(noise: bytes, tmp_path: Path) -> None:
    vhost = Path(shutil.copytree(golden("b").vhost_dir, tmp_path / "vhost"))
    expected = qindex.salvage(vhost, tmp_path / "expected")
    (vhost / ".vhost").write_bytes(noise)
    saved = qindex.salvage(vhost, tmp_path / "new")
    assert [(one.name, one.messages) for one in saved.queues] == [
        (one.name, one.messages) for one in expected.queues
    ]
    assert qindex.verify(tmp_path / "new").sound


def test_what_is_set_aside(tmp_path: Path) -> None:
    broken = synthetic("21")
    saved = qindex.salvage(broken.vhost_dir, tmp_path / "new")
    (lost,) = saved.lost
    (aside,) = saved.quarantined
    piece = (tmp_path / "new" / aside).read_bytes()
    source = Path(lost.path).read_bytes()
    assert piece == source[lost.offset : lost.offset + lost.length]
    assert len(piece) == 226
