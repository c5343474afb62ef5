"""RabbitMQ's version 2 is read and converted, and no engine writes it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import qindex
from journal.findings import Kind
from qindex.tools.convert import Version, convert
from qindex.view.reader import StoreReader
from tests.golden_v2 import scenario

DATA = Path(__file__).parents[1] / "data"
ARCHIVE = "store-rabbitmq-4.tar.xz"
"""Stores that an engine wrote before that: their segments beside a journal of ours."""
FLUSHING = "store-rabbitmq-4-flush.tar.xz"
"""Such stores that were killed in the middle of a flush."""


def files(root: Path) -> dict[Path, tuple[bytes, int]]:
    found = [path for path in root.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


Shown = dict[str, list[tuple[int, str | None, bytes | None]]]


def unpack(archive: str, into: Path) -> dict[str, Shown]:
    """By store and queue: seq_id, key, and body of each message."""
    with tarfile.open(DATA / archive) as packed:
        packed.extractall(into, filter="data")
    truth = json.loads((into / "truth.json").read_text())
    return {
        store: {
            name: [(row[0], row[2], bytes.fromhex(row[3])) for row in rows]
            for name, rows in queues.items()
        }
        for store, queues in truth.items()
    }


@pytest.fixture(params=["clean", "killed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unpack(ARCHIVE, tmp_path)
    path: Path = tmp_path / request.param
    return path


@pytest.fixture
def truth(store: Path) -> Shown:
    return unpack(ARCHIVE, store.parent)[store.name]


def shown(directory: Path) -> Shown:
    return {
        queue.name: [(row.seq_id, row.key, row.body) for row in queue.entries()]
        for queue in StoreReader(directory).readers()
    }


def test_no_engine_opens_such_a_store(store: Path) -> None:
    before = files(store)
    for repair in (False, True):
        with pytest.raises(qindex.UsageError, match=f"`qindex convert {store} --to 2 --out NEW`"):
            qindex.open(store, repair=repair)
    with pytest.raises(qindex.UsageError, match="qindex convert"):
        qindex.follow(store, "orders")
    assert files(store) == before


def test_no_engine_opens_a_nodes_directory(tmp_path: Path) -> None:
    vhost = scenario("x43_d4").copy(tmp_path)
    before = files(vhost)
    with pytest.raises(qindex.NotAStoreError, match=f"`qindex convert {vhost} --to 1`"):
        qindex.open(vhost)
    assert files(vhost) == before


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_no_engine_opens_a_store_with_a_nodes_queues(tmp_path: Path, end: str) -> None:
    store = tmp_path / "store"
    with qindex.open(store, background=False) as engine:
        engine.queue("q").publish(b"x")
    if end == "killed":
        (store / "qindex.clean").unlink()
    node = scenario("x43_d4").copy(tmp_path)
    for queue in (node / "queues").iterdir():
        queue.rename(store / "queues" / queue.name)
    before = files(store)
    with pytest.raises(qindex.UsageError, match="`qindex convert VHOST --to 1`"):
        qindex.open(store, repair=True)
    after = files(store)
    assert after.pop(store / "qindex.lock")
    assert after.items() <= before.items()
    assert len(after) == len(before) - 1
    foreign = {one.path for one in qindex.verify(store).damage if one.kind is Kind.FOREIGN_FILE}
    assert foreign >= {str(path) for path in after if path.suffix in (".qi", ".qs")}


def test_the_option_is_gone(tmp_path: Path) -> None:
    with pytest.raises(qindex.UsageError, match="qindex convert DIR --to 2 --out NEW"):
        qindex.open(tmp_path / "new", record_format="rabbitmq-4")  # type: ignore[call-overload]
    assert not (tmp_path / "new").exists()


def test_such_a_store_is_read(store: Path, truth: Shown) -> None:
    assert qindex.verify(store).sound
    assert shown(store) == truth
    with qindex.open(store, read_only=True) as engine:
        assert len(engine.queue("orders")) == len(truth["orders"])
        assert all(one.redelivered for one in engine.queue("orders").peek(1000))


def test_such_a_store_is_read_without_its_marker(store: Path, truth: Shown) -> None:
    (store / "qindex.store").unlink()
    assert qindex.repair(store, store.parent / "new").messages == sum(map(len, truth.values()))
    assert shown(store.parent / "new") == truth


@pytest.mark.parametrize("to", [1, 2])
def test_such_a_store_is_converted(store: Path, truth: Shown, to: Version) -> None:
    out = store.parent / "vhost"
    assert convert(store, to, out=out).messages == sum(map(len, truth.values()))
    assert qindex.verify(out).findings == []
    assert shown(out) == truth
    assert len(list(out.rglob("*.qi"))) == (5 if to == 2 else 0)


def test_repair_makes_a_store_to_open(store: Path, truth: Shown) -> None:
    out = store.parent / "new"
    assert qindex.repair(store, out).complete
    assert not list(out.rglob("*.q[is]"))
    assert shown(out) == truth
    with qindex.open(out) as engine:
        assert engine.queue("orders").settings.dead_letter == "dead"
        last = engine.queue("orders").publish(b"goes on")
    assert last > max(seq for seq, _, _ in truth["orders"])


def test_a_flush_that_was_cut_short_loses_nothing(tmp_path: Path) -> None:
    """Neither is anything there twice, or back that was acknowledged."""
    for name, truth in unpack(FLUSHING, tmp_path).items():
        store = tmp_path / name
        assert shown(store) == truth
        assert qindex.verify(store).sound
        convert(store, 2, out=tmp_path / f"{name}-vhost")
        assert shown(tmp_path / f"{name}-vhost") == truth
        assert qindex.repair(store, tmp_path / f"{name}-new").complete
        assert shown(tmp_path / f"{name}-new") == truth
