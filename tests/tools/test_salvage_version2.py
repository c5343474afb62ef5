"""Salvage of directories with queues of version 2: all that the node delivers, in each format."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, get_args

import pytest

import qindex
from qindex.format.rabbitmq.bridge import read_rabbitmq
from qindex.tools.salvage import UNNAMED as UNNAMED_QUEUE
from qindex.tools.salvage import Format
from qindex.view.reader import Row, StoreReader
from tests.cli.support import run
from tests.effort import by_tier, part
from tests.golden import golden, sha16
from tests.golden_v2 import RECORDED_AT, SCENARIOS, cases, scenario

SLICES = by_tier(quick=5, all=1, nightly=1)
FORMATS: tuple[Format, ...] = get_args(Format)

# Where the node does not read the queue, or drops what is sound.
MORE = {
    ("01", "qr"): 6,
    ("02", "qr"): 6,
    ("02b", "qr"): 6,
    ("03", "qr"): 5,
    ("04", "qr"): 3,
    ("04", "qs"): 3,
    ("05", "qr"): 5,
    ("09", "qr"): 3,
    ("09c", "qr"): 0,
    ("12", "qr"): 3,
    ("13", "qr"): 3,
    ("14", "qr"): 3,
    ("14b", "qr"): 3,
    ("15", "qr"): 3,
    ("17", "qr"): 3,
    ("18", "qr"): 3,
    ("22", "qr"): 3,
    ("26", "qr"): 4,
    ("27", "qr"): 2,
}
LOST = {
    "01": 2,
    "02": 2,
    "02b": 2,
    "02c": 1,
    "03": 2,
    "05": 2,
    "07": 3,
    "08": 2,
    "09b": 4,
    "09c": 4,
    "10": 1,
    "11": 1,
    "16": 1,
    "19": 1,
    "22": 2,
    "25": 1,
    "27": 1,
}
"""Places that could not be saved, or that an acknowledgement in the last moments explains too.
Where messages were saved though their index is lost, there may have been more."""
UNNAMED = {"01": 1, "02": 1, "02b": 1, "03": 3, "05": 3, "22": 3}
"""Messages that were saved though their index is lost."""
WITHOUT_MESSAGE = {"vh2_heavy_dirty": 63}
"""Entries of killed nodes: a node takes their messages for acknowledged."""


@pytest.fixture(autouse=True)
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time at which the nodes delivered."""
    monkeypatch.setattr("qindex.view.queue_view.time_ns", lambda: RECORDED_AT * 10**9)


def rows_of(directory: Path) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for reader in StoreReader(directory).readers():
        found[reader.name] = list(reader.entries())
        assert reader.findings == []
    return found


def shown(row: Row) -> Any:
    return row.body, row.key, dict(row.headers), dict(row.properties), row.msg_id, row.expiry


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", part(SCENARIOS, SLICES, "salvage of version 2"))
def test_a_scenario(name: str, format: Format, tmp_path: Path) -> None:
    store = scenario(name)
    saved = qindex.salvage(store.vhost_dir, tmp_path / "new", format=format)
    without = WITHOUT_MESSAGE.get(name, 0)
    assert saved.complete is (without == 0)
    assert sum(queue.lost for queue in saved.queues) == len(saved.lost) == without
    report = qindex.verify(tmp_path / "new")
    assert report.findings == []
    before, after = rows_of(store.vhost_dir), rows_of(tmp_path / "new")
    for queue, delivered in store.delivered.items():
        rows = after.get(queue, [])
        assert [(sha16(row.body or b""), row.key) for row in rows] == [
            (one.sha16, one.routing_key) for one in delivered
        ]
        assert [shown(row) for row in rows] == [shown(row) for row in before.get(queue, [])]
        if format == "qindex":
            assert [row.redelivered for row in rows] == [one.redelivered for one in delivered]
    suffixes = {path.suffix for path in (tmp_path / "new" / "queues").rglob("[0-9]*.*")}
    assert suffixes <= ({".qi", ".qs"} if format == "rabbitmq-4" else {".idx", ".sum"})


@pytest.mark.parametrize("name", ["x40_g4", "x40_m", "x43_e1"])
def test_a_node_of_3_10_gets_records_that_it_reads(name: str, tmp_path: Path) -> None:
    qindex.salvage(scenario(name).vhost_dir, tmp_path / "new", format="rabbitmq")
    heads = [path.read_bytes() for path in (tmp_path / "new").rglob("*.idx")]
    heads += [path.read_bytes() for path in (tmp_path / "new").rglob("*.rdq")]
    assert any(b"basic_message" in one for one in heads)
    assert not any(b"h\x04w\x02mc" in one for one in heads)


@pytest.mark.parametrize("name", part(["a", "c1", "e1", "g1"], SLICES, "to version 2"))
def test_version_1_becomes_version_2(name: str, tmp_path: Path) -> None:
    source = golden(name).vhost_dir
    saved = qindex.salvage(source, tmp_path / "new", format="rabbitmq-4")
    assert saved.complete
    assert qindex.verify(tmp_path / "new").findings == []
    before, after = rows_of(source), rows_of(tmp_path / "new")
    assert {name: list(map(shown, rows)) for name, rows in after.items()} == {
        name: list(map(shown, rows)) for name, rows in before.items()
    }
    assert {name: [row.seq_id for row in rows] for name, rows in after.items()} == {
        name: [row.seq_id for row in rows] for name, rows in before.items()
    }


@pytest.mark.parametrize("name", cases())
def test_a_hand_made_state(name: str, tmp_path: Path) -> None:
    case, short = cases()[name], name.partition("_")[0]
    saved = qindex.salvage(case.vhost_dir, tmp_path / "new", names=["qr", "qs"])
    assert len(saved.lost) == LOST.get(short, 0)
    assert saved.complete is (short not in LOST)
    assert sum(queue.unnamed for queue in saved.queues) == UNNAMED.get(short, 0)
    assert all(one.path.endswith((".qi", ".qs")) for one in saved.lost)
    assert qindex.verify(tmp_path / "new").findings == []
    found = rows_of(tmp_path / "new")
    for queue in ("qr", "qs"):
        rows = found.get(queue, [])
        if (short, queue) in MORE:
            assert len(rows) == MORE[short, queue]
            continue
        answers = [node[queue] for node in case.nodes.values()]
        answer = max((one for one in answers if not str(one).count("EXC")), key=len)
        assert len(rows) == len(answer)
        for row, one in zip(rows, answer, strict=True):
            start = one.removesuffix("-").partition("..")[0]
            assert (row.body or b"").decode().startswith(start)


def test_records_are_kept_as_they_are(tmp_path: Path) -> None:
    source = scenario("x43_g4").vhost_dir
    qindex.salvage(source, tmp_path / "new", format="rabbitmq-4")
    for path in sorted((tmp_path / "new").rglob("*.qs")):
        theirs = (source / path.relative_to(tmp_path / "new")).read_bytes()
        size = int.from_bytes(path.read_bytes()[64:68], "big")
        record = path.read_bytes()[72 : 72 + size]
        assert record in theirs
        assert read_rabbitmq(record)[1] == size


def test_quorum_queues_and_streams_are_named(tmp_path: Path) -> None:
    node = tmp_path / "mnesia" / "rabbit@host"
    shutil.copytree(scenario("x43_e1").vhost_dir, node / "msg_stores" / "vhosts" / "HASH")
    quorum = node / "quorum" / "rabbit@host" / "2F_QUOP9K80L9TRZQ8"
    quorum.mkdir(parents=True)
    (quorum.parent / "0000000000000001.wal").touch()
    resource = '#{name => x,queue_resource =>\n  {resource,<<"/">>,queue,<<"quo">>}}.'
    (quorum / "config").write_text(resource)
    (node / "stream" / "__str_1795549795737437546").mkdir(parents=True)
    for tree in (node, tmp_path / "mnesia"):
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        saved = qindex.salvage(tree, tmp_path / "new")
        assert saved.messages == 177
        assert [one.what.split(" is ")[0] for one in saved.lost] == [
            "quorum queue 'quo'",
            "stream '__str_1795549795737437546'",
        ]
        assert [Path(one.path) for one in saved.lost] == [quorum, *(node / "stream").iterdir()]
    assert qindex.salvage(node / "msg_stores", tmp_path / "other").complete


def _node(name: str, tmp_path: Path) -> Path:
    vhost = tmp_path / "node" / "HASH"
    shutil.copytree(scenario(name).vhost_dir, vhost)
    return vhost


def test_messages_whose_entries_are_lost_have_a_queue_of_their_own(tmp_path: Path) -> None:
    """Nothing tells which of the message store's records the lost entries named, nor which of them
    had been acknowledged. So they are kept apart."""
    source = scenario("ve1").vhost_dir
    whole = {queue.name for queue in qindex.salvage(source, tmp_path / "a").queues}
    for format in FORMATS:
        vhost = _node("ve1", tmp_path / format)
        for index in (vhost / "queues").rglob("*.qi"):
            index.write_bytes(index.read_bytes()[:-5])
        saved = qindex.salvage(vhost, tmp_path / format / "new", format=format)
        assert not saved.complete
        assert qindex.verify(tmp_path / format / "new").findings == []
        found = {queue.name: queue for queue in saved.queues}
        apart = found.pop(UNNAMED_QUEUE)
        assert apart.unnamed == apart.messages
        rows = rows_of(tmp_path / format / "new")
        assert {name: len(each) for name, each in rows.items() if each} == {
            name: queue.messages for name, queue in (found | {UNNAMED_QUEUE: apart}).items()
        }
        assert set(found) == whole


def test_a_cut_store_is_told_once_and_counted(tmp_path: Path) -> None:
    vhost = _node("vb", tmp_path)
    store = max((vhost / "queues").rglob("*.qs"), key=lambda path: path.stat().st_size)
    store.write_bytes(store.read_bytes()[: store.stat().st_size * 2 // 3 + 1])
    result = run("salvage", vhost, "--out", tmp_path / "new")
    lost = 725 - sum(map(len, rows_of(tmp_path / "new").values()))
    assert lost > 90
    assert result.code == 1
    assert len([line for line in result.text.splitlines() if line.startswith("lost: ")]) <= 4
    assert f"; {lost} entries without a message" in result.text.splitlines()[-1]
    assert f", lost: {lost}" in result.text
    assert "acknowledged just before the crash, or lost" in result.text.splitlines()[-1]
