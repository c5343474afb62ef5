"""``cat`` on directories that a real node left gives what that node delivered from them."""

from __future__ import annotations

import base64
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Result, run
from tests.effort import by_tier, part
from tests.golden import SCENARIOS, GoldenMessage, GoldenQueue, ManifestMessage, golden, sha16

THERE = [
    (scenario, name)
    for scenario in SCENARIOS
    for name, queue in golden(scenario).truth.queues.items()
    if queue.durable and (queue.directory_exists or queue.priority_directories)
]
CHOSEN = part(THERE, by_tier(quick=3, all=1, nightly=1), "cat")
NEVER_WRITTEN = [
    (scenario, name)
    for scenario in SCENARIOS
    for name, queue in golden(scenario).truth.queues.items()
    if not (queue.directory_exists or queue.priority_directories)
]


def queue_of(scenario: str, name: str) -> GoldenQueue:
    return golden(scenario).truth.queues[name]


@cache
def cat(scenario: str, name: str) -> tuple[Result, list[dict[str, Any]]]:
    """Give what ``cat`` says of a queue, and its rows."""
    result = run("cat", golden(scenario).vhost_dir, name, "--json")
    return result, result.rows


def test_the_six_scenarios_are_among_them() -> None:
    for scenario in ("a", "b", "c1", "f1", "g1", "h1"):
        assert any(one.startswith(f"{scenario}_") for one, _ in THERE)
    assert len(THERE) == 6 + 3 + 1 + 2 + 1 + 3 + 3 + 6 + 4


@pytest.mark.parametrize(("scenario", "name"), CHOSEN)
def test_messages_order_redelivered_and_bodies(scenario: str, name: str) -> None:
    result, rows = cat(scenario, name)
    assert (result.code, result.err) == (0, "")
    delivered = queue_of(scenario, name).delivered
    assert len(rows) == len(delivered)
    for row, message in zip(rows, delivered, strict=True):
        assert row["redelivered"] == message.redelivered
        assert row["size"] == message.body_len
        body = base64.b64decode(row["body_base64"])
        assert (len(body), sha16(body)) == (message.body_len, message.sha16)
        assert row["key"] == message.routing_key
        assert row["properties"]["exchange"] == message.exchange


@pytest.mark.parametrize(("scenario", "name"), CHOSEN)
def test_properties_and_headers(scenario: str, name: str) -> None:
    queue = queue_of(scenario, name)
    _, rows = cat(scenario, name)
    for row, message in zip(rows, queue.delivered, strict=True):
        props = dict(row["properties"])
        del props["exchange"]
        if row["headers"]:
            props["headers"] = row["headers"]
        assert as_received(props) == as_received(without_empty_headers(message.props))
        sent = queue.manifest_messages[message.publish_index]
        if sent.props is not None and not changed_by_the_broker(message):
            assert props == without_empty_headers(as_sent(sent))


def without_empty_headers(props: dict[str, Any]) -> dict[str, Any]:
    """A message with an empty table of headers is shown as one without."""
    return {name: value for name, value in props.items() if name != "headers" or value}


def changed_by_the_broker(message: GoldenMessage) -> bool:
    headers = message.props.get("headers")
    return isinstance(headers, dict) and "x-death" in headers


def as_received(value: Any) -> Any:
    """What is left of a value in the records of the client, which has no types, no fractions, and
    its own words for bytes, decimals and times; ours in the same words."""
    if isinstance(value, float):
        return int(value)
    if isinstance(value, list):
        return [as_received(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$base64"}:
        return {"hex": base64.b64decode(value["$base64"]).hex()}
    if value.keys() == {"$decimal"}:
        return {"dec": value["$decimal"]}
    if value.keys() == {"ts"}:
        return int(value["ts"])
    return {key: as_received(one) for key, one in value.items()}


def as_sent(message: ManifestMessage) -> dict[str, Any]:
    """What the client sent, exactly, in the words of ``cat --json``."""
    assert message.props is not None
    props: dict[str, Any] = dict(message.props)
    if "headers" in props:
        # A broker routes by BCC and takes it out.
        props["headers"] = {
            name: plain(one) for name, one in props["headers"].items() if name != "BCC"
        }
    return props


def plain(typed: Any) -> Any:
    tag, value = typed
    if tag == "t":
        return bool(value)
    if tag == "D":
        scale, digits = value
        return {"$decimal": f"{digits // 10**scale}.{digits % 10**scale:0{scale}}"}
    if tag == "x":
        return {"$base64": base64.b64encode(bytes.fromhex(value["hex"])).decode()}
    if tag == "A":
        return [plain(one) for one in value]
    if tag == "F":
        return {name: plain(one) for name, one in value.items()}
    return value


def test_headers_of_every_type_were_among_them() -> None:
    row = run("cat", golden("g1").vhost_dir, "qg.props", "--json", "--count", 1).rows[0]
    assert row["headers"]["f32"] == 1.5
    assert row["headers"]["f64"] == -2.25e300
    assert row["headers"]["dec"] == {"$decimal": "314.15"}
    assert row["headers"]["bin"]["$base64"].startswith("AAEC")
    assert row["headers"]["tab"] == {"a": 7, "n": {"deep": ""}}


def test_a_priority_queue_is_one_queue() -> None:
    queue = queue_of("g1", "qg.prio")
    _, rows = cat("g1", "qg.prio")
    sent = [queue.manifest_messages[message.publish_index] for message in queue.delivered]
    assert [(row["priority"], row["seq_id"]) for row in rows] == [
        (message.prio_queue, message.seq_id) for message in sent
    ]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_seq_ids_are_those_of_the_node(scenario: str) -> None:
    for name, queue in golden(scenario).truth.queues.items():
        if (scenario, name) in THERE and not queue.priority_directories:
            _, rows = cat(scenario, name)
            sent = [queue.manifest_messages[one.publish_index].seq_id for one in queue.delivered]
            assert [row["seq_id"] for row in rows] == sent


@pytest.mark.parametrize(("scenario", "name"), NEVER_WRITTEN)
def test_a_queue_that_left_nothing_on_disk_is_not_there(scenario: str, name: str) -> None:
    result = run("cat", golden(scenario).vhost_dir, name, "--json")
    assert result.code == 2
    assert result.out == b""
    assert f"there is no queue {name!r}" in result.complaints[0]
    assert queue_of(scenario, name).delivered == []


@pytest.mark.parametrize(
    ("scenario", "name"), [("a", "qa.part"), ("g1", "qg.prio"), ("a", "qa.ünicöde")]
)
def test_the_same_in_a_process_of_its_own(scenario: str, name: str) -> None:
    arguments = ["cat", str(golden(scenario).vhost_dir), name, "--json"]
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-m", "qindex.cli", *arguments], cwd=root, capture_output=True, check=False
    )
    assert (process.returncode, process.stderr) == (0, b"")
    assert process.stdout == run(*arguments).out


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_list(scenario: str) -> None:
    store = golden(scenario)
    result = run("list", store.vhost_dir, "--json")
    assert (result.code, result.err) == (0, "")
    listed = {row["name"]: row for row in result.rows}
    assert set(listed) == {name for one, name in THERE if one == scenario}
    for name, row in listed.items():
        delivered = store.truth.queues[name].delivered
        assert row["kind"] == "rabbitmq"
        assert row["messages"] == len(delivered)
        assert row["bytes"] == sum(message.body_len for message in delivered)
        if store.clean_shutdown:
            redelivered = sum(message.redelivered for message in delivered)
            assert row["delivered_before"] == redelivered
            # It was stopped: nobody has any of them.
            assert (row["ready"], row["unacked"]) == (len(delivered), 0)
        else:
            assert row["ready"] is row["unacked"] is row["delivered_before"] is None
