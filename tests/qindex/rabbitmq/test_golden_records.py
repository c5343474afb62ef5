"""Every message record that real nodes left in the golden stores, against what was published."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from functools import cache
from typing import Any

import pytest

from qindex.format.rabbitmq.properties_format import decode_properties, encode_properties
from qindex.format.rabbitmq.record import decode_message, encode_message
from qindex.format.rabbitmq.term_format import decode, encode
from tests.golden import SCENARIOS, GoldenQueue, ManifestMessage, golden, sha16
from tests.qindex.rabbitmq.typed import typed
from tests.qindex.rabbitmq.walk import FoundRecord, published, records

RECORDS = {
    "a_clean_embedded": 728,
    "b_dirty_journal": 537,
    "c1_segments_dirty": 35464,
    "d1_store_gc_clean_1mb": 303,
    "d3_store_gc_16mb": 167,
    "e1_fanout_clean": 130,
    "f1_lazy_transient_dirty": 7113,
    "g1_props_ttl_clean": 77,
    "h1_heavy_dirty": 16170,
}


@cache
def queue_of_directory(scenario: str) -> dict[str, tuple[GoldenQueue, int | None]]:
    """Queue, and priority of a sub-queue, by directory name."""
    found: dict[str, tuple[GoldenQueue, int | None]] = {}
    for queue in golden(scenario).truth.queues.values():
        if queue.priority_directories:
            for priority, directory in queue.priority_directories.items():
                found[directory] = queue, priority
        else:
            found[queue.directory] = queue, None
    return found


@cache
def manifest(queue: str, scenario: str) -> dict[tuple[int | None, int], ManifestMessage]:
    """Messages of a queue by sub-queue and sequence id."""
    messages = golden(scenario).truth.queues[queue].manifest_messages
    return {(message.prio_queue, message.seq_id): message for message in messages}


def manifest_of(scenario: str, found: FoundRecord) -> ManifestMessage:
    queue, priority = queue_of_directory(scenario)[found.queue_directory]
    return manifest(queue.name, scenario)[priority, found.seq_id]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_record_is_read_and_agrees_with_its_entry(name: str) -> None:
    found = records(name)
    assert len(found) == RECORDS[name]
    for one in found:
        message = decode_message(one.record)
        assert message.vhost == b"/"
        assert message.msg_id == one.msg_id
        assert message.persistent == one.persistent
        assert one.size in (None, len(message.body))
        assert (message.properties_raw is None) != (message.properties_record is None)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_record_is_the_message_that_was_published(name: str) -> None:
    for one in published(name):
        message, sent = decode_message(one.record), manifest_of(name, one)
        assert message.msg_id == one.msg_id
        assert message.persistent == one.persistent == sent.persistent
        assert len(message.body) == one.size == sent.body_len
        if message.properties_raw is not None:
            assert message.properties_raw.hex() == sent.properties_hex
            assert typed(message.properties) == sent.props
        queue, _priority = queue_of_directory(name)[one.queue_directory]
        assert queue.name.encode() in message.routing_keys or message.exchange
    # Each queue's index is there but where everything was acknowledged.
    left = Counter(queue_of_directory(name)[one.queue_directory][0].name for one in published(name))
    for queue in golden(name).truth.queues.values():
        if queue.delivered:
            assert left[queue.name] >= len(queue.delivered)


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_the_node_delivers_is_what_the_records_hold(name: str) -> None:
    """Body, exchange, key and properties, message by message."""
    found: dict[tuple[str, int], FoundRecord] = {}
    for one in published(name):
        queue, _priority = queue_of_directory(name)[one.queue_directory]
        found[queue.name, manifest_of(name, one).index] = one
    delivered = 0
    for queue in golden(name).truth.queues.values():
        for message in queue.delivered:
            one = found[queue.name, message.publish_index]
            read = decode_message(one.record)
            assert sha16(read.body) == message.sha16
            assert read.exchange.decode() == message.exchange
            assert read.routing_keys[0].decode() == message.routing_key
            assert seen_properties(one) == message.props
            delivered += 1
    assert delivered == sum(len(queue.delivered) for queue in golden(name).truth.queues.values())
    assert delivered > 70


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_record_is_written_again_byte_for_byte(name: str) -> None:
    changed_by_the_broker = 0
    for one in records(name):
        message = decode_message(one.record)
        if message.properties_raw is None:
            changed_by_the_broker += 1
            continue
        again = encode_message(
            msg_id=message.msg_id,
            routing_keys=message.routing_keys,
            body=message.body,
            vhost=message.vhost,
            exchange=message.exchange,
            properties=message.properties_raw,
            persistent=message.persistent,
        )
        assert again == one.record
        assert encode_properties(decode_properties(message.properties_raw)) == (
            message.properties_raw
        )
    assert changed_by_the_broker == (7 if name == "g1_props_ttl_clean" else 0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_term_is_written_again_byte_for_byte(name: str) -> None:
    for one in records(name)[::7]:
        value, end = decode(one.record)
        assert end == len(one.record)
        assert encode(value) == one.record


# --- properties and headers, against what the node's client got ---------------------------------


def as_the_oracle_saw(one: Any) -> Any:
    """A typed header value as the recording client decoded it: it lost the floats' fractions."""
    tag, value = one
    if tag == "A":
        return [as_the_oracle_saw(item) for item in value]
    if tag == "F":
        return {name: as_the_oracle_saw(item) for name, item in value.items()}
    if tag in "fd":
        return int(value)
    if tag == "D":
        return {"dec": str(Decimal(value[1]).scaleb(-value[0]))}
    if tag == "T":
        return {"ts": float(value)}
    return value


def seen_properties(found: FoundRecord) -> dict[str, Any]:
    seen = typed(decode_message(found.record).properties)
    if "headers" in seen:
        seen["headers"] = as_the_oracle_saw(["F", seen["headers"]])
    return seen


def test_headers_of_every_type() -> None:
    first = golden("g1").truth.queues["qg.props"].manifest_messages[0]
    assert first.props is not None
    headers = first.props["headers"]
    assert isinstance(headers, dict)
    tags = {str(one[0]) for one in headers.values() if isinstance(one, list)}
    assert tags == set("tbBsuIilfdDSxTVAF")


def test_dead_lettered_messages_have_decoded_properties_with_the_death_added() -> None:
    dead = [
        decode_message(one.record)
        for one in records("g1_props_ttl_clean")
        if decode_message(one.record).exchange == b""
        and decode_message(one.record).routing_keys == [b"qg.dead"]
    ]
    assert len(dead) == 6
    for number, message in enumerate(sorted(dead, key=lambda m: str(m.properties.correlation_id))):
        assert message.properties_raw is None
        properties = message.properties
        assert properties.correlation_id == f"c{number}"
        headers = typed(properties)["headers"]
        assert headers["orig"] == ["I", number]
        assert headers["x-first-death-queue"] == ["S", "qg.src"]
        ((tag, death),) = headers["x-death"][1]
        assert tag == "F"
        assert death["count"] == ["l", 1]
        assert death["time"][0] == "T"
        # values that were decoded can be sent on as bytes
        assert decode_properties(encode_properties(properties)) == properties


def test_bcc_is_gone_and_its_keys_are_kept() -> None:
    (message,) = (
        decode_message(one.record)
        for one in records("g1_props_ttl_clean")
        if b"z" in decode_message(one.record).routing_keys
    )
    assert message.routing_keys == [b"qg.props", b"x", b"y", b"z"]
    assert message.properties.plain() == {"headers": {"CC": ["x", "y"]}, "delivery_mode": 2}


def test_bodies_of_several_frames_are_put_together_in_order() -> None:
    several = [
        message
        for one in records("d3_store_gc_16mb")
        if len((message := decode_message(one.record)).body) > 131064
    ]
    assert len(several) > 100
    known = {m.sha16 for m in golden("d3").truth.queues["qd3"].delivered}
    assert {sha16(message.body) for message in several} & known
