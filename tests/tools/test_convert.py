"""Conversion of a virtual host's queues from one version to the other, in place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.tools.convert import Version, convert
from qindex.view.reader import StoreReader
from tests.cli.support import run
from tests.effort import by_tier, part
from tests.golden import golden
from tests.golden_v2 import RECORDED_AT, cases, scenario


@pytest.fixture(autouse=True)
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time at which the nodes delivered."""
    monkeypatch.setattr("qindex.view.queue_view.time_ns", lambda: RECORDED_AT * 10**9)


Shown = dict[str, list[Any]]


def shown(directory: Path) -> Shown:
    """What a node delivers, but for whether it calls it redelivered."""
    found: Shown = {}
    for reader in StoreReader(directory).readers():
        rows = list(reader.entries())
        assert reader.findings == []
        if rows:
            found[reader.name] = [
                (row.seq_id, row.msg_id, row.body, row.key, dict(row.headers), row.properties)
                for row in rows
            ]
    return found


def versions(directory: Path) -> set[int]:
    return {one for queue in StoreReader(directory).queues() for one in queue.versions}


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


VERSION_1 = ["a", "c1", "d1", "d3", "e1", "f1", "g1"]
VERSION_2 = ["va", "vh2", "vi1", "vk", "x40_g4", "x40_m", "x43_d4", "x43_e1"]
SLICES = by_tier(quick=4, all=1, nightly=1)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("name", part(VERSION_1, SLICES, "to version 2"))
def test_to_version_2_and_back(name: str, tmp_path: Path) -> None:
    vhost = golden(name).copy(tmp_path)
    before = shown(vhost)
    report = convert(vhost, 2)
    assert report.complete
    assert report.messages == sum(map(len, before.values()))
    assert versions(vhost) == {2}
    assert shown(vhost) == before
    assert qindex.verify(vhost).findings == []
    assert not (vhost / "qindex.convert").exists()
    assert not (vhost / "recovery.dets").exists()
    convert(vhost, 1)
    assert versions(vhost) == {1}
    assert shown(vhost) == before
    assert qindex.verify(vhost).findings == []


@pytest.mark.parametrize("name", part(VERSION_2, SLICES, "to version 1"))
def test_to_version_1_and_back(name: str, tmp_path: Path) -> None:
    """What came from a node of 3.13 or later becomes what one of 3.10 reads."""
    vhost = scenario(name).copy(tmp_path)
    before = shown(vhost)
    convert(vhost, 1)
    assert versions(vhost) == {1}
    assert shown(vhost) == before
    assert qindex.verify(vhost).findings == []
    there = files(vhost).items()  # but for what a node erases when it starts
    records = [data for path, data in there if not path.startswith("msg_store_transient")]
    assert not any(b"h\x04w\x02mc" in data for data in records)
    convert(vhost, 2)
    assert versions(vhost) == {2}
    assert shown(vhost) == before


def test_a_queue_with_files_of_both_versions(tmp_path: Path) -> None:
    vhost = cases()["23_v1_and_v2"].copy(tmp_path)
    before = shown(vhost)
    assert [row[2][:4] for row in before["CRHF6MSAXAPLIWE283330YMEJ"]] == [
        *(b"m0-x", b"m1-x", b"m2-x"),
        *(b"v1m3", b"v1m4", b"v1m5"),
    ]
    convert(vhost, 2)
    assert versions(vhost) == {2}
    assert shown(vhost) == before


def test_what_has_the_version_is_left_alone(tmp_path: Path) -> None:
    vhost = scenario("x43_e1").copy(tmp_path)
    before = files(vhost)
    assert convert(vhost, 2).messages == 0
    assert files(vhost) == before


def test_a_damaged_directory_is_refused_and_unchanged(tmp_path: Path) -> None:
    vhost = scenario("x43_b").copy(tmp_path)
    path = max(vhost.glob("queues/*/*.qs"), key=lambda one: one.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)
    before = files(vhost)
    with pytest.raises(qindex.DamageError, match="salvage copies the sound messages"):
        convert(vhost, 1)
    assert {name: data for name, data in files(vhost).items() if "convert/" not in name} == before
    result = run("convert", vhost, "--to", 1)
    assert result.code == 1
    assert path.name in result.complaints[0]


def test_a_store_of_ours_becomes_a_directory_for_a_node(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "store", background=False) as engine:
        orders = engine.queue("orders")
        orders.publish(b"small", key="a.b", headers={"n": 1}, properties={"type": "t"})
        orders.publish(b"large" * 4000, key="large")
        orders.publish(b"gone when it closes", persistent=False)
    report = convert(tmp_path / "store", 2, out=tmp_path / "vhost")
    assert report.messages == 2
    assert qindex.verify(tmp_path / "vhost").findings == []
    rows = list(StoreReader(tmp_path / "vhost").queue("orders").entries())
    assert [(row.body, row.key, dict(row.headers)) for row in rows] == [
        (b"small", "a.b", {"n": 1}),
        (b"large" * 4000, "large", {}),
    ]
    assert rows[0].properties["type"] == "t"
    assert versions(tmp_path / "vhost") == {2}


@pytest.mark.parametrize("to", [2, 1])
@pytest.mark.parametrize("format", ["qindex", "rabbitmq"])
def test_from_a_store_to_a_node_and_back(format: Any, to: Version, tmp_path: Path) -> None:
    with qindex.open(tmp_path / "store", record_format=format, background=False) as engine:
        for name in ("a", "b"):
            for number in range(20):
                body = b"%d" % number * (1 + number % 2 * 20_000)
                headers = {"n": number} if number % 3 else None
                engine.queue(name).publish(body, key=f"k{number}", headers=headers, ttl=1e6)
        engine.publish_to(["a", "b"], b"in both" * 1000)
        engine.queue("a").get().ack()
        engine.queue("a").get()
    before = shown(tmp_path / "store")
    assert convert(tmp_path / "store", to, out=tmp_path / "vhost").messages == 41
    assert versions(tmp_path / "vhost") == {to}
    assert qindex.salvage(tmp_path / "vhost", tmp_path / "back").complete
    with (
        qindex.open(tmp_path / "store") as old,
        qindex.open(tmp_path / "back") as new,
    ):
        for name, rows in before.items():
            pairs = list(
                zip(old.queue(name).get_many(50), new.queue(name).get_many(50), strict=True)
            )
            assert len(pairs) == len(rows)
            for one, other in pairs:
                assert other.redelivered
                assert other.key == (one.key or "")  # a node's messages have one
                for field in ("seq_id", "body", "headers", "expiry"):
                    assert getattr(one, field) == getattr(other, field)


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "store"), pytest.raises(qindex.LockedError):
        convert(tmp_path / "store", 2, out=tmp_path / "vhost")
    assert os.listdir(tmp_path) == ["store"]


def test_a_move_that_was_cut_short_is_there_once(tmp_path: Path) -> None:
    """The message is in the dead-letter queue already, its entry not yet out of the source."""
    store = tmp_path / "store"
    with qindex.open(store, background=False) as engine:
        engine.queue("dead")
        work = engine.queue("work", dead_letter="dead")
        work.publish_many([b"bad", b"good"])
        work.flush()
        path = next((store / "queues").glob("*/0.idx"))
        kept = {one: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
        work.reject(work.get())
        moves = (store / "qindex.transactions").read_bytes()
        files = {one: one.read_bytes() for one in store.rglob("*") if one.is_file()}
    for one in [*store.rglob("*")]:
        if one.is_file():
            one.unlink()
    for one, data in (files | kept).items():
        one.write_bytes(data)
    assert moves
    assert convert(store, 2, out=tmp_path / "vhost").messages == 2
    found = shown(tmp_path / "vhost")
    assert [row[2] for rows in found.values() for row in rows] == [b"bad", b"good"]


def test_wrong_use(tmp_path: Path) -> None:
    for directory, arguments, said in (
        (tmp_path, (), "no RabbitMQ virtual host"),
        (golden("e1").vhost_dir, ("--out", tmp_path / "x"), "converted in place"),
    ):
        result = run("convert", directory, "--to", 2, *arguments)
        assert result.code == 2
        assert said in result.complaints[0]
    qindex.open(tmp_path / "store").close()
    assert "name a new directory" in run("convert", tmp_path / "store", "--to", 2).complaints[0]
    with pytest.raises(qindex.UsageError, match="1 or 2"):
        convert(tmp_path / "store", 3)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["store"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A directory that came from elsewhere: nothing outside of it is read or changed."""
    vhost = golden("e1").copy(tmp_path)
    outside = tmp_path / "outside"
    queue = min((vhost / "queues").iterdir())
    queue.rename(outside)
    queue.symlink_to(outside)
    before = files(outside)
    with pytest.raises((qindex.StorageError, qindex.DamageError)):
        convert(vhost, 2)
    assert files(outside) == before
