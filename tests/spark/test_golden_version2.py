"""Queues of RabbitMQ's version 2, read through Spark, are what the nodes deliver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.test_cat_golden import as_received, without_empty_headers
from tests.golden import sha16
from tests.golden_v2 import SCENARIOS, scenario

pytest.importorskip("pyspark")
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXPIRED = {("x40_m_protocols_clean", "vm.amqp10")}
"""Queues with a message that has expired since the node delivered it."""


def read(spark: SparkSession, include: str) -> list[dict[str, Any]]:
    paths = [str(scenario(name).vhost_dir) for name in SCENARIOS]
    table = spark.read.format("qindex").option("include", include).load(paths).toArrow()
    rows: list[dict[str, Any]] = table.to_pylist()
    assert [row for row in rows if row.get("error")] == []
    return rows


def test_messages_are_those_that_the_nodes_deliver(spark: SparkSession) -> None:
    names = {str(scenario(name).vhost_dir): name for name in SCENARIOS}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in read(spark, "messages"):
        found.setdefault((names[row["store"]], row["queue"]), []).append(row)
    compared = 0
    for name in SCENARIOS:
        for queue, delivered in scenario(name).delivered.items():
            rows = found.pop((name, queue), [])
            rows.sort(key=lambda row: (-(row["priority"] or 0), row["seq_id"]))
            if (name, queue) in EXPIRED:
                bodies = {sha16(row["body"]) for row in rows}
                delivered = [one for one in delivered if one.sha16 in bodies]
            assert len(rows) == len(delivered)
            for row, message in zip(rows, delivered, strict=True):
                assert row["redelivered"] == message.redelivered
                assert sha16(row["body"]) == message.sha16
                assert row["key"] == message.routing_key
                props = json.loads(row["properties"])
                assert props.pop("exchange") == message.exchange
                headers = json.loads(row["headers"])
                shown = props | ({"headers": headers} if headers else {})
                assert as_received(shown) == as_received(without_empty_headers(message.props))
                compared += 1
    assert found == {}
    assert compared > 14_000


def test_entries_files_and_records(spark: SparkSession) -> None:
    entries = read(spark, "entries")
    pairs = [row for row in entries if row["file"].endswith(".qi")]
    assert len(pairs) > 14_000
    assert all(row["offset"] % 32 == 0 for row in pairs)
    assert len({(row["store"], row["file"], row["offset"]) for row in pairs}) == len(pairs)
    files = read(spark, "files")
    assert {row["file"].rsplit(".", 1)[-1] for row in files} >= {"qi", "qs", "idx", "rdq"}
    by_file = {(row["store"], row["file"]): row for row in files}
    first = pairs[0]
    there = by_file[first["store"], first["file"]]
    assert there["live_records"] == sum(
        (row["store"], row["file"]) == (first["store"], first["file"]) for row in pairs
    )
    assert there["garbage"] >= 64
    assert read(spark, "stored")
