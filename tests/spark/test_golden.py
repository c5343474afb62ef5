"""What real RabbitMQ nodes and RocketMQ brokers left, read through Spark, is what they deliver."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from rocketstore.format.commitlog_format import format_host
from rocketstore.repair.inspection import inspect_file
from tests.cli.test_cat_golden import as_received, without_empty_headers
from tests.golden import SCENARIOS, golden, rocket_golden, sha16
from tests.rocketstore.support import read_lines

pytest.importorskip("pyspark")
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def messages(spark: SparkSession) -> Rows:
    """All messages of all scenarios, by scenario and queue, in order of delivery."""
    paths = {str(golden(name).vhost_dir): name for name in SCENARIOS}
    table = spark.read.format("qindex").load(list(paths)).toArrow()
    found: Rows = {}
    for row in table.to_pylist():
        assert row["error"] is None
        found.setdefault((paths[row["store"]], row["queue"]), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: (-(row["priority"] or 0), row["seq_id"]))
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rabbitmq_messages_are_those_that_the_node_delivers(messages: Rows, scenario: str) -> None:
    compared = 0
    for name, queue in golden(scenario).truth.queues.items():
        delivered = queue.delivered if queue.durable else []
        rows = messages.get((scenario, name), [])
        assert len(rows) == len(delivered)
        for row, message in zip(rows, delivered, strict=True):
            assert row["redelivered"] == message.redelivered
            assert row["size"] == len(row["body"]) == message.body_len
            assert sha16(row["body"]) == message.sha16
            assert row["key"] == message.routing_key
            props = json.loads(row["properties"])
            assert props.pop("exchange") == message.exchange
            headers = json.loads(row["headers"])
            shown = props | ({"headers": headers} if headers else {})
            assert as_received(shown) == as_received(without_empty_headers(message.props))
            compared += 1
    assert compared or scenario.startswith("f1")


def test_a_rabbitmq_envelope_keeps_the_bytes_that_the_client_sent(messages: Rows) -> None:
    from qindex.format.envelope import open_envelope
    from qindex.format.rabbitmq.bridge import RabbitProperties

    queue = golden("g1").truth.queues["qg.props"]
    sent = queue.manifest_messages
    rows = messages[("g1_props_ttl_clean", "qg.props")]
    compared = 0
    for row, message in zip(rows, queue.delivered, strict=True):
        opened = open_envelope(row["envelope"], row["body"])
        assert isinstance(opened.properties, RabbitProperties)
        source = opened.properties.source
        assert (source.body, source.msg_id) == (row["body"], row["msg_id"])
        raw = sent[message.publish_index].properties_hex
        if raw is not None and "BCC" not in str(sent[message.publish_index].props):
            assert source.properties_raw == bytes.fromhex(raw)
            compared += 1
    assert compared > 5


def _golden_rows(kind: str) -> list[dict[str, Any]]:
    return read_lines(rocket_golden("gen"), kind)


def test_rocketmq_records_are_those_that_the_broker_reads(spark: SparkSession) -> None:
    store = str(rocket_golden("gen") / "store")
    table = spark.read.format("rocketstore").load(store).toArrow()
    found = {row["offset"]: row for row in table.to_pylist()}
    expected = [row for row in _golden_rows("messages") if "blank" not in row]
    assert len(expected) == len(found) > 100
    for row in expected:
        got = found[row["phyOffset"]]
        assert got["error"] is None
        assert got["record_size"] == row["size"]
        assert (got["topic"], got["queue_id"]) == (row["topic"], row["queueId"])
        assert got["queue_offset"] == row["queueOffset"]
        assert (got["flag"], got["sys_flag"]) == (row["flag"], row["sysFlag"])
        assert got["born_timestamp"] == row["bornTimestamp"]
        assert got["store_timestamp"] == row["storeTimestamp"]
        hosts = (format_host(bytes.fromhex(row[name])) for name in ("bornHost", "storeHost"))
        assert (got["born_host"], got["store_host"]) == tuple(hosts)
        assert got["reconsume_times"] == row["reconsumeTimes"]
        assert got["prepared_transaction_offset"] == row["preparedTransactionOffset"]
        assert got["body_crc"] == row["bodyCRC"]
        assert len(got["body"]) == row["bodyLen"]
        assert hashlib.sha256(got["body"]).hexdigest() == row["bodySha256"]
        assert (got["tags"], got["unique_key"]) == (row["tags"], row["uniqKey"])
        assert len(got["properties_raw"]) == row["propertiesLen"]
        if row["propertiesHex"]:  # long ones are given by their length alone
            assert got["properties_raw"].hex() == row["propertiesHex"]
        assert json.loads(got["properties"]) == (row["properties"] or {})


def test_rocketmq_units_are_those_of_its_queues(spark: SparkSession) -> None:
    store = str(rocket_golden("gen") / "store")
    table = spark.read.format("rocketstore").option("include", "units").load(store).toArrow()
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        assert row["error"] is None
        found.setdefault((row["topic"], row["queue_id"]), []).append(row)
    queues = _golden_rows("queues")
    assert set(found) == {(row["topic"], row["queueId"]) for row in queues if row["units"]}
    for row in queues:
        units = sorted(
            found.get((row["topic"], row["queueId"]), []), key=lambda one: one["queue_offset"]
        )
        got = [[one["offset"], one["record_size"], one["tags_code"]] for one in units]
        assert got == row["units"]


def test_rocketmq_index_entries_are_those_of_its_files(spark: SparkSession) -> None:
    store = rocket_golden("gen") / "store"
    table = spark.read.format("rocketstore").option("include", "index").load(str(store)).toArrow()
    rows = sorted(table.to_pylist(), key=lambda row: (row["file"], row["number"]))
    expected = []
    for path in sorted((store / "index").iterdir()):
        for row in inspect_file(str(path)):
            if row["kind"] == "entry":
                fields = ("number", "key_hash", "offset", "seconds", "previous")
                expected.append([f"index/{path.name}", *(row[name] for name in fields)])
    assert len(expected) > 100
    names = ("file", "number", "key_hash", "offset", "seconds", "previous")
    assert [[row[name] for name in names] for row in rows] == expected
