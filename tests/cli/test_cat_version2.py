"""Queues of version 2: ``cat`` and ``list`` give what the node delivered, message by message."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import qindex
from tests.cli.support import run
from tests.cli.test_cat_golden import as_received, without_empty_headers
from tests.effort import by_tier, part
from tests.golden import sha16
from tests.golden_v2 import RECORDED_AT, SCENARIOS, Case, cases, scenario

HELD = [
    (name, queue)
    for name in SCENARIOS
    for queue, delivered in scenario(name).delivered.items()
    if delivered
]
EVERY = by_tier(quick=4, all=1, nightly=1)
NODES = ("3.10.8", "4.0.5", "4.3.6")

# Where all nodes drop a message, a segment or the queue, and what is kept here; where they differ
# in what they deliver, the one that gives most is followed.
BETTER = {
    ("01", "qr"): "m0 m1 m2 m3 m4",
    ("02", "qr"): "m0 m1 m2 m3 m4",
    ("04", "qr"): "m0 m1 m2",
    ("04", "qs"): "m0 m1 m2",
    ("09", "qr"): "m0 m1 m2",
    ("09c", "qr"): "",
    ("12", "qr"): "m0 m1 m2",
    ("13", "qr"): "m0 m1 m2",
    ("14", "qr"): "m0 m1 m2",
    ("14b", "qr"): "m0 m1 m2",
    ("15", "qr"): "m0 m1 m2",
    ("17", "qr"): "m0 m1 m2",
    ("18", "qr"): "m0 m1 m2",
    ("26", "qr"): "m0 m1 m2 m3",
    ("27", "qr"): "m0 m2",
}
# File and offset of what is wrong there, and where the node, too, loses what is damaged.
PLACES = {
    ("01", "qr"): ("0.qi", 224),
    ("02", "qr"): ("0.qi", 224),
    ("02b", "qr"): ("0.qi", 224),
    ("02c", "qr"): ("0.qi", 224),
    ("03", "qr"): ("0.qi", 0),
    ("04", "qr"): ("0.qi", 0),
    ("04", "qs"): ("0.qi", 0),
    ("05", "qr"): ("0.qi", 0),
    ("09", "qr"): ("0.qs", 0),
    ("09c", "qr"): ("0.qs", 0),
    ("10", "qr"): ("0.qs", 258),
    ("11", "qr"): ("0.qs", 418),
    ("12", "qr"): ("0.qs", 258),
    ("13", "qr"): ("0.qi", 96),
    ("14", "qr"): ("0.qi", 96),
    ("14b", "qr"): ("0.qi", 96),
    ("15", "qr"): ("0.qi", 96),
    ("16", "qr"): ("0.qi", 96),
    ("17", "qr"): ("0.qi", 96),
    ("18", "qr"): ("0.qi", 96),
    ("26", "qr"): ("0.qi", 64),
    ("27", "qr"): ("0.qi", 96),
}


@pytest.fixture(autouse=True)
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time at which the nodes delivered."""
    monkeypatch.setattr("qindex.view.queue_view.time_ns", lambda: RECORDED_AT * 10**9)


def props_of(row: dict[str, Any]) -> dict[str, Any]:
    props = dict(row["properties"])
    del props["exchange"]
    if row["headers"]:
        props["headers"] = row["headers"]
    return props


def test_all_kinds_of_directories_are_among_them() -> None:
    assert len(SCENARIOS) == 19
    assert len(HELD) == 61
    assert {scenario(name).rabbitmq for name in SCENARIOS} == set(NODES)
    assert sum(len(scenario(name).delivered[queue]) for name, queue in HELD) > 14_000


@pytest.mark.parametrize(("name", "queue"), part(HELD, EVERY, "version 2"))
def test_messages_order_redelivered_and_properties(name: str, queue: str) -> None:
    result = run("cat", scenario(name).vhost_dir, queue, "--json")
    assert (result.code, result.err) == (0, "")
    delivered = scenario(name).delivered[queue]
    assert len(result.rows) == len(delivered)
    for row, message in zip(result.rows, delivered, strict=True):
        body = base64.b64decode(row["body_base64"])
        assert (len(body), sha16(body)) == (message.body_len, message.sha16)
        assert row["size"] == message.body_len or queue == "ve.3v1"
        assert row["redelivered"] == message.redelivered
        assert (row["properties"]["exchange"], row["key"]) == (
            message.exchange,
            message.routing_key,
        )
        assert as_received(props_of(row)) == as_received(without_empty_headers(message.props))


@pytest.mark.parametrize("name", SCENARIOS)
def test_list_counts_what_is_delivered_and_tells_the_version(name: str) -> None:
    there = scenario(name)
    result = run("list", there.vhost_dir, "--json")
    assert (result.code, result.err) == (0, "")
    listed = {row["name"]: row for row in result.rows}
    for queue, delivered in there.delivered.items():
        if not delivered:
            assert queue not in listed or listed[queue]["messages"] == 0
            continue
        row = listed[queue]
        assert row["messages"] == len(delivered)
        assert row["versions"] == [there.versions[queue]] or queue.startswith("vi.")
        if there.clean:
            redelivered = sum(message.redelivered for message in delivered)
            assert row["delivered_before"] == redelivered
            # It was stopped: nobody has any of them.
            assert (row["ready"], row["unacked"]) == (len(delivered), 0)
        else:
            assert row["ready"] is row["unacked"] is row["delivered_before"] is None


def test_a_queue_that_was_converted_shows_its_version_in_the_table() -> None:
    lines = run("list", scenario("vi1").vhost_dir).text.splitlines()
    assert [line.split()[-1] for line in lines] == ["version", "1", "2"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_verify_and_stats_find_nothing_wrong(name: str) -> None:
    result = run("verify", scenario(name).vhost_dir, "--json")
    assert result.code == 0
    assert [row for row in result.rows if row.get("cause") == "damage"] == []
    assert run("stats", scenario(name).vhost_dir, "--json").code == 0


def delivered_in(case: Case, queue: str) -> list[str] | None:
    """The answer of the node that delivers most; ``None`` where each of them gives up."""
    answers = [case.nodes[node][queue] for node in NODES]
    sound = [answer for answer in answers if not any(one.startswith("EXC") for one in answer)]
    return max(sound, key=len, default=None)


@pytest.mark.parametrize("name", part(list(cases()), EVERY, "hand-made"))
@pytest.mark.parametrize("queue", ["qr", "qs"])
def test_hand_made_states(name: str, queue: str) -> None:
    case, short = cases()[name], name.partition("_")[0]
    result = run("cat", case.vhost_dir, queue, "--json")
    if result.code == 2:
        assert delivered_in(case, queue) == []
        return
    shown = [row for row in result.rows if row["body_base64"] is not None]
    bodies = [base64.b64decode(row["body_base64"]) for row in shown]
    if (short, queue) in BETTER:
        kept = BETTER[short, queue].split()
        assert [body[:2].decode() for body in bodies] == kept
    else:
        expected = delivered_in(case, queue)
        assert expected is not None
        assert len(bodies) == len(expected)
        for row, body, answer in zip(shown, bodies, expected, strict=True):
            start, _, length = answer.removesuffix("-").partition("..")
            assert body.decode().startswith(start)
            assert not length or len(body) == int(length)
            assert row["redelivered"]
    places = [line.split(" bytes: ")[0].split("/")[-1].split(", ")[0] for line in result.complaints]
    place = PLACES.get((short, queue))
    if short == "26" and places:
        assert places.pop() == "0.qi: at offset 96"  # two expire in 1970, which no node writes
    assert places == ([] if place is None else [f"{place[0]}: at offset {place[1]}"])
    assert result.code == (0 if place is None else 1)


@pytest.mark.parametrize(("name", "queue"), [("x40_g4", "vg.prio"), ("x43_g4", "vg.prio")])
def test_inspect_tells_index_and_messages(name: str, queue: str) -> None:
    store = scenario(name)
    found = 0
    for path in sorted(store.vhost_dir.glob("queues/*/*.qi")):
        entries = run("inspect", path, "--json")
        assert entries.code == 0
        here = [row for row in entries.rows if row.get("at") == "queue store"]
        if path.with_suffix(".qs").exists():
            result = run("inspect", path.with_suffix(".qs"), "--json")
            assert result.code == 0
            assert [row["offset"] for row in result.rows[1:]] == [
                row["store_offset"] for row in here
            ]
            found += sum(row.get("key") == queue for row in result.rows)
    small = [one for one in store.delivered[queue] if one.body_len < 4000]
    assert found == len(small) > 20


def test_a_read_only_engine_and_an_export_give_the_same(tmp_path: Path) -> None:
    store = scenario("x40_m")
    expected = {name: [one.sha16 for one in found] for name, found in store.delivered.items()}
    with qindex.open(store.vhost_dir, read_only=True) as engine:
        for name, hashes in expected.items():
            queue = engine.queue(name)
            assert [sha16(one.body) for one in queue] == hashes
            assert [sha16(one.body) for one in queue.peek(3)] == hashes[:3]
            assert len(queue) == len(hashes)
    result = run("export", store.vhost_dir, "--out", tmp_path / "all.jsonl")
    assert result.code == 0
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    exported = [sha16(base64.b64decode(row["body_base64"])) for row in rows if "queue" in row]
    assert exported == [one for name in sorted(expected) for one in expected[name]]
