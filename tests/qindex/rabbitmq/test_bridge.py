"""RabbitMQ's records as messages and back: nothing may be lost on the way."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qindex
from journal.errors import UsageError
from qindex.format.message import Message
from qindex.format.rabbitmq.bridge import (
    RAW,
    TERM,
    RabbitHeaders,
    RabbitProperties,
    decode_rabbitmq,
    encode_rabbitmq,
    message_of,
)
from qindex.format.rabbitmq.properties_format import (
    Properties,
    decode_properties,
    encode_properties,
)
from qindex.format.rabbitmq.record import RabbitMessage, decode_message, encode_message
from qindex.format.rabbitmq.table_format import Field, Table
from qindex.format.rabbitmq.term_format import Atom, TermError
from tests.golden import SCENARIOS
from tests.qindex.rabbitmq.terms import tables
from tests.qindex.rabbitmq.walk import records

MSG_ID = bytes(range(16))
EVERY_TYPE: Table = (
    ("b", Field("b", -5)),
    ("B", Field("B", 200)),
    ("s", Field("s", -300)),
    ("u", Field("u", 60000)),
    ("I", Field("I", -70000)),
    ("i", Field("i", 4_000_000_000)),
    ("l", Field("l", 5)),
    ("T", Field("T", 1_700_000_000)),
    ("f", Field("f", 0.5)),
    ("d", Field("d", 2.25)),
    ("t", Field("t", True)),
    ("D", Field("D", (2, 314))),
    ("S", Field("S", "käse".encode())),
    ("S-binary", Field("S", b"\xff\xfe")),
    ("x", Field("x", b"\x00\x01")),
    ("V", Field("V", None)),
    ("F", Field("F", (("b", Field("b", 1)), ("u", Field("u", 2))))),
    ("A", Field("A", (Field("B", 7), Field("t", False), Field("F", ())))),
)
PLAIN: dict[str, Any] = {
    "b": -5,
    "B": 200,
    "s": -300,
    "u": 60000,
    "I": -70000,
    "i": 4_000_000_000,
    "l": 5,
    "T": 1_700_000_000,
    "f": 0.5,
    "d": 2.25,
    "t": True,
    "D": Decimal("3.14"),
    "S": "käse",
    "S-binary": b"\xff\xfe",
    "x": b"\x00\x01",
    "V": None,
    "F": {"b": 1, "u": 2},
    "A": [7, False, {}],
}


def record_of(
    properties: bytes | Properties | None = None,
    keys: tuple[bytes, ...] = (b"q",),
    persistent: bool = True,
    exchange: bytes = b"",
) -> bytes:
    return encode_message(
        msg_id=MSG_ID,
        routing_keys=keys,
        body=b"the body",
        exchange=exchange,
        properties=properties,
        persistent=persistent,
    )


def again(message: Message, persistent: bool = True) -> bytes:
    return encode_rabbitmq(message, b"/", MSG_ID, persistent)


def properties_of(record: bytes) -> Properties:
    return decode_message(record).properties


# --- unmodified: the identical record ------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_golden_record_comes_back_identical(name: str) -> None:
    """Also those whose properties the broker had changed and stored decoded."""
    found = records(name)
    assert found
    for one in found:
        message = decode_rabbitmq(one.record, one.msg_id)
        assert encode_rabbitmq(message, b"/", one.msg_id, one.persistent) == one.record


@given(
    headers=st.one_of(st.none(), tables),
    mode=st.sampled_from([None, 0, 1, 2]),
    persistent=st.booleans(),
    keys=st.lists(st.binary(max_size=6), max_size=3).map(tuple),
    exchange=st.binary(max_size=6),
)
def test_any_record_comes_back_identical(
    headers: Table | None,
    mode: int | None,
    persistent: bool,
    keys: tuple[bytes, ...],
    exchange: bytes,
) -> None:
    properties = Properties(headers=headers, delivery_mode=mode, app_id="a")
    record = record_of(properties, keys, persistent, exchange)
    message = decode_rabbitmq(record, MSG_ID)
    assert again(message, persistent) == record
    assert again(copy.deepcopy(message), persistent) == record
    assert again(pickle.loads(pickle.dumps(message)), persistent) == record


def test_headers_are_plain_values_with_their_types_beside() -> None:
    message = decode_rabbitmq(record_of(Properties(headers=EVERY_TYPE, delivery_mode=2)), MSG_ID)
    assert isinstance(message.headers, RabbitHeaders)
    assert message.headers == PLAIN
    assert message.headers.fields == EVERY_TYPE
    assert isinstance(message.properties, RabbitProperties)
    assert message.properties == {"exchange": "", "delivery_mode": 2}
    assert message.properties.source.properties.headers == EVERY_TYPE


def test_a_name_that_stands_twice_stays_twice() -> None:
    twice: Table = (("n", Field("I", 1)), ("n", Field("B", 2)))
    record = record_of(Properties(headers=twice, delivery_mode=2))
    message = decode_rabbitmq(record, MSG_ID)
    assert message.headers == {"n": 2}
    assert again(message) == record
    changed = replace(message, properties={"content_type": "text/plain"})
    assert properties_of(again(changed)).headers == twice


# --- modified: the rest keeps its types ----------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, _ in EVERY_TYPE])
def test_a_changed_header_leaves_the_types_of_the_others(name: str) -> None:
    message = decode_rabbitmq(record_of(Properties(headers=EVERY_TYPE, delivery_mode=2)), MSG_ID)
    assert isinstance(message.headers, RabbitHeaders)
    message.headers[name] = "changed"
    message.headers["new"] = 5
    expected = dict(EVERY_TYPE) | {name: Field("S", b"changed"), "new": Field("I", 5)}
    found = properties_of(again(message)).headers
    assert found == tuple(expected.items())


def test_types_inside_a_changed_table_stay() -> None:
    message = decode_rabbitmq(record_of(Properties(headers=EVERY_TYPE, delivery_mode=2)), MSG_ID)
    message.headers["F"]["b"] = "changed in place"
    found = properties_of(again(message)).headers
    assert found is not None
    assert dict(found)["F"] == Field(
        "F", (("b", Field("S", b"changed in place")), ("u", Field("u", 2)))
    )


@pytest.mark.parametrize(("before", "after"), [(1, True), (True, 1), (1, 1.0), ([1], [True])])
def test_an_equal_value_of_another_type_is_a_change(before: object, after: object) -> None:
    first = Message(b"", "q", {"n": before})
    message = decode_rabbitmq(again(first), MSG_ID)
    changed = replace(message, headers={"n": after})
    assert repr(decode_rabbitmq(again(changed), MSG_ID).headers["n"]) == repr(after)


def test_headers_taken_away_are_gone() -> None:
    message = decode_rabbitmq(record_of(Properties(headers=EVERY_TYPE, delivery_mode=2)), MSG_ID)
    assert properties_of(again(replace(message, headers={}))) == Properties(delivery_mode=2)


def test_a_changed_property_leaves_the_others_and_the_headers() -> None:
    before = Properties(headers=EVERY_TYPE, timestamp=7, type="t", user_id="guest")
    message = decode_rabbitmq(record_of(before, persistent=False), MSG_ID)
    properties = message.properties
    assert isinstance(properties, RabbitProperties)
    properties["type"] = "other"
    found = properties_of(again(message, persistent=False))
    assert found == replace(before, type="other")


@pytest.mark.parametrize(
    ("mode", "persistent", "after"),
    [
        (2, False, 1),
        (1, True, 2),
        (None, True, 2),
        (2, True, 2),
        (1, False, 1),
        (None, False, None),
    ],
)
def test_delivery_mode_follows_persistent(
    mode: int | None, persistent: bool, after: int | None
) -> None:
    record = record_of(Properties(delivery_mode=mode, app_id="a"), persistent=mode == 2)
    found = decode_message(again(decode_rabbitmq(record, MSG_ID), persistent))
    assert found.persistent == persistent
    assert found.properties == Properties(delivery_mode=after, app_id="a")


def test_the_exchange_can_change_alone() -> None:
    record = record_of(b"\x10\x00\x02", exchange=b"before")
    message = decode_rabbitmq(record, MSG_ID)
    assert message.properties["exchange"] == "before"
    properties = message.properties
    assert isinstance(properties, RabbitProperties)
    properties["exchange"] = "after"
    assert again(message) == record_of(b"\x10\x00\x02", exchange=b"after")


# --- routing keys --------------------------------------------------------------------------------


def test_cc_and_bcc_keys_survive() -> None:
    record = record_of(keys=(b"q", b"cc", b"bcc"))
    message = decode_rabbitmq(record, MSG_ID)
    assert message.key == "q"
    assert isinstance(message.properties, RabbitProperties)
    assert message.properties.source.routing_keys == [b"q", b"cc", b"bcc"]
    assert again(message) == record
    moved = replace(message, key="other")
    assert again(moved) == record_of(keys=(b"other", b"cc", b"bcc"))


def test_blind_copies_are_not_shown() -> None:
    message = decode_rabbitmq(record_of(keys=(b"q", b"secret")), MSG_ID)
    assert "secret" not in json.dumps([message.key, message.headers, message.properties])


def test_a_message_without_routing_keys() -> None:
    message = decode_rabbitmq(record_of(keys=()), MSG_ID)
    assert message.key == ""
    assert again(message) == record_of(keys=())
    assert again(replace(message, key="q")) == record_of(keys=(b"q",))


def test_names_that_are_not_utf_8() -> None:
    record = record_of(keys=(b"k\xff", b"\xfe"), exchange=b"\x80x")
    message = decode_rabbitmq(record, MSG_ID)
    assert (message.key, message.properties["exchange"]) == ("k\udcff", "\udc80x")
    assert again(message) == record


# --- malformed properties ------------------------------------------------------------------------

SOUND = encode_properties(Properties(content_type="text/plain", headers=EVERY_TYPE, type="t"))
MALFORMED = {
    "empty": b"",
    "half its flags": b"\x10",
    "cut off": SOUND[:-1],
    "left over": SOUND + b"\0",
    "a wrong flag": bytes([SOUND[0] ^ 0x40]) + SOUND[1:],
    "an unknown type": SOUND.replace(b"\x01bb", b"\x01b?"),
    "a table too long": SOUND.replace(b"\x01xx\0\0\0\x02", b"\x01xx\0\0\x02\x02"),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_malformed_properties_cost_nothing_but_themselves(raw: bytes) -> None:
    record = record_of(raw, keys=(b"q", b"cc"), exchange=b"e")
    message = decode_rabbitmq(record, MSG_ID)
    assert (message.body, message.key) == (b"the body", "q")
    assert message.headers == {}
    assert message.properties == {"exchange": "e", RAW: raw.hex()}
    assert again(message) == record
    # the flag in the record can change all the same
    transient = decode_message(again(message, persistent=False))
    assert (transient.persistent, transient.properties_raw) == (False, raw)


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_malformed_properties_survive_json(raw: bytes) -> None:
    message = decode_rabbitmq(record_of(raw), MSG_ID)
    properties = json.loads(json.dumps(message.properties))
    assert again(Message(message.body, message.key, {}, properties)) == record_of(raw)


def test_properties_put_in_place_of_malformed_ones() -> None:
    message = decode_rabbitmq(record_of(b"", exchange=b"e"), MSG_ID)
    mended = replace(message, properties={"exchange": "e", "type": "t"})
    found = decode_message(again(mended))
    assert found.exchange == b"e"
    assert found.properties == Properties(delivery_mode=2, type="t")


def dead_lettered() -> RabbitMessage:
    """A message whose properties the broker had changed."""
    found = [decode_message(one.record) for one in records("g1_props_ttl_clean")]
    return next(message for message in found if message.properties_raw is None)


def test_malformed_decoded_properties() -> None:
    sound = dead_lettered()
    term = sound.properties_record
    assert isinstance(term, tuple)
    bad = replace(sound, properties_record=(*term[:-1], Atom("undefinee")))
    message = message_of(bad)
    assert message.body == sound.body
    assert set(message.properties) == {"exchange", TERM}
    record = encode_rabbitmq(message, bad.vhost, bad.msg_id, bad.persistent)
    assert decode_message(record) == bad


def test_decoded_properties_that_change_become_bytes() -> None:
    sound = dead_lettered()
    message = message_of(sound)
    assert isinstance(message.headers, RabbitHeaders)
    message.headers["more"] = 1
    record = encode_rabbitmq(message, sound.vhost, sound.msg_id, sound.persistent)
    changed = decode_message(record)
    assert changed.properties_raw is not None
    headers = sound.properties.headers
    assert headers is not None
    expected = replace(sound.properties, headers=(*headers, ("more", Field("I", 1))))
    assert decode_properties(changed.properties_raw) == expected


# --- wrong use -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Message(b"", "\ud800"), "key must be valid Unicode"),
        (Message(b"", "q", {}, {"exchange": "\udfff\ud800"}), "exchange must be valid Unicode"),
        (Message(b"", "q", {}, {"exchange": 5}), "exchange must be a str, not int"),
        (Message(b"", "k" * 256), "longer than 255"),
        (Message(b"", "q", {}, {"exchange": "é" * 128}), "longer than 255"),
        (Message(b"", "q", {}, {"colour": "red"}), "not a property.*colour"),
        (Message(b"", "q", {}, {"headers": {"a": 1}}), "headers are not a property"),
        (Message(b"", "q", {}, {"priority": 256}), "priority does not fit"),
        (Message(b"", "q", {}, {"timestamp": -1}), "timestamp does not fit"),
        (Message(b"", "q", {}, {"content_type": 5}), "content_type does not fit"),
        (Message(b"", "q", {}, {"type": "\ud800"}), "lone surrogate"),
        (Message(b"", "q", {}, {"type": "t" * 256}), "more than 255"),
        (Message(b"", "q", {"n": 1 << 63}), "more than 64 bits"),
        (Message(b"", "q", {"n": {1, 2}}), "no field for a set"),
        (Message(b"", "q", {"n" * 256: 1}), "more than 255"),
        (Message(b"", "q", {"n": "\ud800"}), "lone surrogate"),
        (Message(b"", "q", {"n": float("nan")}), "not finite"),
        (Message(b"", "q", {}, {RAW: "xy"}), "must be bytes in hex"),
        (Message(b"", "q", {}, {RAW: b"\0"}), "must be bytes in hex"),
        (Message(b"", "q", {}, {RAW: "00", "type": "t"}), "no headers or properties"),
        (Message(b"", "q", {"a": 1}, {RAW: "00"}), "no headers or properties"),
    ],
)
def test_what_amqp_can_not_hold_is_wrong_use(message: Message, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        again(message)


def test_headers_nested_in_themselves_are_wrong_use() -> None:
    endless: dict[str, Any] = {}
    endless["more"] = endless
    with pytest.raises(UsageError, match="nested more than"):
        again(Message(b"", "q", endless))


def test_a_record_of_another_message_is_refused() -> None:
    with pytest.raises(TermError, match=MSG_ID.hex()):
        decode_rabbitmq(record_of(), bytes(16))


# --- through the engine --------------------------------------------------------------------------


def stored_record(message: Message) -> RabbitMessage:
    assert isinstance(message.properties, RabbitProperties)
    return message.properties.source


def test_what_was_delivered_can_be_published_again_without_loss(tmp_path: Path) -> None:
    source = message_of(
        RabbitMessage(
            vhost=b"/",
            exchange=b"e",
            routing_keys=[b"q", b"cc"],
            properties_raw=SOUND,
            body=b"x",
            msg_id=MSG_ID,
            persistent=False,
        )
    )
    with qindex.open(tmp_path / "store", record_format="rabbitmq") as engine:
        first, second = engine.queue("first"), engine.queue("second")
        first.publish(
            source.body,
            key=source.key,
            headers=source.headers,
            properties=source.properties,
            persistent=False,
        )
        with first.get(timeout=0) as delivery:  # type: ignore[union-attr]
            second.publish(
                delivery.body,
                key=delivery.key,
                headers=delivery.headers,
                properties=delivery.properties,
            )
            found = stored_record(delivery.message)
            assert found.properties_raw == SOUND
            assert found.routing_keys == [b"q", b"cc"]
        with second.get(timeout=0) as delivery:  # type: ignore[union-attr]
            found = stored_record(delivery.message)
            assert found.properties == replace(decode_properties(SOUND), delivery_mode=2)
            assert found.routing_keys == [b"q", b"cc"]
            assert (found.exchange, found.persistent) == (b"e", True)


def test_wrong_use_of_publish_changes_nothing(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "store", record_format="rabbitmq") as engine:
        queue = engine.queue("orders")
        before = queue.stats()
        for wrong in (
            {"key": "\ud800"},
            {"properties": {"priority": 256}},
            {"headers": {"n": {1}}},
        ):
            with pytest.raises(UsageError):
                queue.publish(b"x", **wrong)
        assert queue.stats() == before


def test_a_message_with_malformed_properties_is_delivered(tmp_path: Path) -> None:
    raw = MALFORMED["cut off"]
    with qindex.open(tmp_path / "store", record_format="rabbitmq") as engine:
        engine.queue("orders").publish(b"sound body", properties={RAW: raw.hex()})
    with qindex.open(tmp_path / "store", record_format="rabbitmq") as engine:
        with engine.queue("orders").get(timeout=0) as delivery:  # type: ignore[union-attr]
            assert delivery.body == b"sound body"
            assert delivery.properties == {"exchange": "", RAW: raw.hex()}
        assert not engine.findings
