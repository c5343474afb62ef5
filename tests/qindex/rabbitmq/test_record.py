"""Message records: the exact bytes, everything that is refused, and damage of every kind."""

from __future__ import annotations

import dataclasses
import re
import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from journal.errors import StoreError, UsageError
from qindex.format.rabbitmq import record as record_module
from qindex.format.rabbitmq.properties_format import Properties
from qindex.format.rabbitmq.record import (
    MAX_FRAGMENT,
    RabbitMessage,
    decode_message,
    encode_message,
)
from qindex.format.rabbitmq.table_format import PropertiesError, table
from qindex.format.rabbitmq.term_format import Atom, Term, TermError, decode, encode
from tests.qindex.rabbitmq.typed import typed
from tests.qindex.rabbitmq.walk import records

MSG_ID = bytes(range(16))
HI = bytes.fromhex(
    "83 68 06 64 00 0d 62 61 73 69 63 5f 6d 65 73 73 61 67 65"
    "68 04 64 00 08 72 65 73 6f 75 72 63 65 6d 00 00 00 01 2f"
    "64 00 08 65 78 63 68 61 6e 67 65 6d 00 00 00 00"
    "6c 00 00 00 01 6d 00 00 00 01 71 6a"
    "68 06 64 00 07 63 6f 6e 74 65 6e 74 61 3c 64 00 04 6e 6f 6e 65"
    "6d 00 00 00 03 10 00 02"
    "64 00 19 72 61 62 62 69 74 5f 66 72 61 6d 69 6e 67 5f 61 6d 71 70 5f 30 5f 39 5f 31"
    "6c 00 00 00 01 6d 00 00 00 02 68 69 6a"
    "6d 00 00 00 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f"
    "64 00 04 74 72 75 65"
)
PROTOCOL = Atom("rabbit_framing_amqp_0_9_1")
NONE = Atom("none")


def term(**changes: Term) -> Term:
    """The term of ``HI`` with some of its parts replaced."""
    part: dict[str, Term] = {
        "name": Atom("basic_message"),
        "resource": (Atom("resource"), b"/", Atom("exchange"), b""),
        "keys": [b"q"],
        "class_id": 60,
        "properties": NONE,
        "raw": b"\x10\0\2",
        "protocol": PROTOCOL,
        "fragments": [b"hi"],
        "msg_id": MSG_ID,
        "persistent": Atom("true"),
    }
    part.update(changes)
    content = (
        *(Atom("content"), part["class_id"], part["properties"]),
        *(part["raw"], part["protocol"], part["fragments"]),
    )
    return (
        *(part["name"], part["resource"], part["keys"]),
        *(part.get("content", content), part["msg_id"], part["persistent"]),
    )


def test_the_worked_example() -> None:
    assert encode_message(msg_id=MSG_ID, routing_keys=[b"q"], body=b"hi") == HI
    assert encode(term()) == HI
    assert decode_message(HI) == RabbitMessage(
        vhost=b"/",
        exchange=b"",
        routing_keys=[b"q"],
        properties_raw=b"\x10\0\2",
        body=b"hi",
        msg_id=MSG_ID,
        persistent=True,
    )
    assert decode_message(HI).properties == Properties(delivery_mode=2)


def test_a_message_is_frozen_and_does_not_print_its_body() -> None:
    message = decode_message(HI)
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.body = b""  # type: ignore[misc]
    assert "hi" not in repr(message)


@pytest.mark.parametrize("wrap", [bytearray, memoryview])
def test_other_buffers_are_taken(wrap: Callable[[bytes], bytes]) -> None:
    message = decode_message(wrap(HI))
    assert message == decode_message(HI)
    assert type(message.body) is bytes


# --- encoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "fragments"),
    [
        (0, []),
        (1, [1]),
        (MAX_FRAGMENT, [MAX_FRAGMENT]),
        (MAX_FRAGMENT + 1, [1, MAX_FRAGMENT]),
        (3 * MAX_FRAGMENT, [MAX_FRAGMENT] * 3),
        (3 * MAX_FRAGMENT + 5, [5] + [MAX_FRAGMENT] * 3),
    ],
)
def test_fragments(size: int, fragments: list[int]) -> None:
    body = bytes(n % 251 for n in range(size))
    written = encode_message(msg_id=MSG_ID, routing_keys=[b"q"], body=body)
    value, _ = decode(written)
    assert [len(fragment) for fragment in value[3][5]] == fragments
    assert b"".join(reversed(value[3][5])) == body
    assert written == encode(value)
    assert decode_message(written).body == body


names = st.binary(max_size=255)


@given(
    vhost=names,
    exchange=names,
    key=names,
    msg_id=st.binary(min_size=16, max_size=16),
    properties=st.binary(max_size=40),
    body=st.binary(max_size=300),
    persistent=st.booleans(),
)
def test_any_message_round_trips(
    vhost: bytes,
    exchange: bytes,
    key: bytes,
    msg_id: bytes,
    properties: bytes,
    body: bytes,
    persistent: bool,
) -> None:
    written = encode_message(
        msg_id=msg_id,
        routing_keys=[key],
        body=body,
        vhost=vhost,
        exchange=exchange,
        properties=properties,
        persistent=persistent,
    )
    assert decode_message(written) == RabbitMessage(
        vhost, exchange, [key], properties, body, msg_id, persistent
    )
    assert encode(decode(written)[0]) == written


def test_several_routing_keys_and_none() -> None:
    for keys in ([], [b""], [b"a", b"b" * 255, b"\xff"]):
        written = encode_message(msg_id=MSG_ID, routing_keys=keys, body=b"x")
        assert decode_message(written).routing_keys == keys
        assert encode(decode(written)[0]) == written


def test_properties_are_bytes_or_values_or_the_delivery_mode_alone() -> None:
    def raw(**options: object) -> bytes | None:
        written = encode_message(msg_id=MSG_ID, routing_keys=[b"q"], body=b"", **options)  # type: ignore[arg-type]
        return decode_message(written).properties_raw

    assert raw() == b"\x10\0\2"
    assert raw(persistent=False) == b"\x10\0\1"
    assert raw(properties=b"\0\0") == b"\0\0"
    assert raw(properties=Properties(priority=3, delivery_mode=2)) == b"\x18\0\2\3"
    with pytest.raises(PropertiesError):
        raw(properties=Properties(priority=300))


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_msg_id_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(UsageError):
        encode_message(msg_id=bytes(size), routing_keys=[b"q"], body=b"")


def test_names_that_amqp_can_not_carry_are_refused() -> None:
    long = b"x" * 256
    with pytest.raises(UsageError):
        encode_message(msg_id=MSG_ID, routing_keys=[b"q"], body=b"", exchange=long)
    with pytest.raises(UsageError):
        encode_message(msg_id=MSG_ID, routing_keys=[b"q", long], body=b"")
    with pytest.raises(UsageError):
        encode_message(msg_id=MSG_ID, routing_keys=[b"q"], body=b"", vhost=long)
    with pytest.raises(UsageError):
        encode_message(msg_id=MSG_ID, routing_keys=[b"q"], body=b"", exchange=long)


# --- records of another form -------------------------------------------------------------------


def test_atoms_of_newer_nodes_are_read() -> None:
    newer = HI.replace(b"d\0\x0d", b"w\x0d").replace(b"d\0\x08", b"w\x08")
    newer = newer.replace(b"d\0\4", b"w\4").replace(b"d\0\7", b"w\7").replace(b"d\0\x19", b"w\x19")
    assert b"d\0" not in newer
    assert decode_message(newer) == decode_message(HI)


def test_another_protocol_and_a_body_in_small_pieces() -> None:
    other = encode(
        term(protocol=Atom("rabbit_framing_amqp_0_8"), fragments=[b"", b"o", b"", b"hell"])
    )
    assert decode_message(other).body == b"hello"


def test_decoded_properties() -> None:
    headers = [(b"h", Atom("bool"), Atom("true"))]
    undefined = Atom("undefined")
    basic = (Atom("P_basic"), undefined, undefined, headers, 2, *[undefined] * 10)
    message = decode_message(encode(term(properties=basic, raw=NONE, protocol=NONE)))
    assert message.properties_raw is None
    assert message.properties == Properties(headers=table({"h": True}), delivery_mode=2)


def test_properties_as_bytes_come_before_decoded_ones() -> None:
    message = decode_message(encode(term(properties=(Atom("P_basic"),))))
    assert message.properties_raw == b"\x10\0\2"
    assert message.properties_record is None


def test_malformed_properties_do_not_hide_the_body() -> None:
    for changes in ({"raw": b"\xff"}, {"raw": NONE, "properties": (Atom("P_basic"), 1)}):
        message = decode_message(encode(term(**changes)))
        assert message.body == b"hi"
        with pytest.raises(PropertiesError):
            _ = message.properties


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": Atom("other")}, "no basic_message"),
        ({"name": b"basic_message"}, "no basic_message"),
        ({"resource": (Atom("resource"), b"/", Atom("queue"), b"")}, "no exchange"),
        ({"resource": (Atom("resource"), b"/", b"exchange", b"")}, "no exchange"),
        ({"resource": (Atom("other"), b"/", Atom("exchange"), b"")}, "no exchange"),
        ({"resource": Atom("undefined")}, "no exchange"),
        ({"resource": (Atom("resource"), list(b"/"), Atom("exchange"), b"")}, "not a binary"),
        ({"resource": (Atom("resource"), b"/", Atom("exchange"), Atom("x"))}, "not a binary"),
        ({"keys": b"q"}, "routing keys"),
        ({"keys": [list(b"q")]}, "routing keys"),
        ({"keys": Atom("undefined")}, "routing keys"),
        ({"content": (Atom("content"), 60)}, "no content of the basic class"),
        ({"class_id": 61}, "no content of the basic class"),
        ({"class_id": Atom("none")}, "no content of the basic class"),
        ({"raw": NONE}, "no properties"),
        ({"raw": Atom("other")}, "no properties"),
        ({"raw": Atom("other"), "properties": (Atom("P_basic"),)}, "no properties"),
        ({"protocol": NONE}, "unknown protocol"),
        ({"protocol": b"rabbit_framing_amqp_0_9_1"}, "unknown protocol"),
        ({"fragments": b"hi"}, "not a list of binaries"),
        ({"fragments": list(b"hi")}, "not a list of binaries"),
        ({"fragments": [b"h", Atom("i")]}, "not a list of binaries"),
        ({"msg_id": bytes(15)}, "message id"),
        ({"msg_id": bytes(17)}, "message id"),
        ({"msg_id": list(bytes(16))}, "message id"),
        ({"persistent": Atom("maybe")}, "persistent flag"),
        ({"persistent": b"true"}, "persistent flag"),
    ],
)
def test_terms_that_are_no_message_are_refused_with_the_reason(
    changes: dict[str, Term], reason: str
) -> None:
    with pytest.raises(TermError, match=reason) as caught:
        decode_message(encode(term(**changes)))
    assert isinstance(caught.value, StoreError)


@pytest.mark.parametrize(
    "data", [b"", b"\x83", b"\x83j", b"\x93\1\2\3", bytes(200), HI[:-1], HI + b"\0", HI[1:], HI * 2]
)
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(TermError):
        decode_message(data)


def test_bytes_behind_the_term_are_refused() -> None:
    with pytest.raises(TermError, match="has 3 bytes after its term"):
        decode_message(HI + b"abc")


# --- damage ------------------------------------------------------------------------------------


def gives_a_message_or_an_error(data: bytes) -> RabbitMessage | None:
    """Also: both ways of reading a record agree, so the quick one takes nothing that is wrong."""
    usual = record_module.decode_usual(data)
    try:
        message = record_module._decode_any(data)
    except TermError:
        message = None
    if message is None:
        assert usual is None
        with pytest.raises(TermError):
            decode_message(data)
        return None
    assert usual is None or usual == message
    assert decode_message(data) == message
    assert len(message.body) <= len(data)
    try:
        typed(message.properties)
    except PropertiesError:
        return message
    return message


SAMPLES = [
    HI,
    encode_message(msg_id=MSG_ID, routing_keys=[b"a", b"", b"c"], body=b"", exchange=b"x"),
    *[found.record for found in records("g1_props_ttl_clean") if len(found.record) < 3000][::9],
]
samples = st.sampled_from(SAMPLES)


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_cut_is_refused(sample: bytes) -> None:
    for cut in range(len(sample)):
        assert gives_a_message_or_an_error(sample[:cut]) is None


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_gives_a_message_or_an_error(mask: int) -> None:
    for sample in SAMPLES:
        for at in range(len(sample)):
            data = sample[:at] + bytes((sample[at] ^ mask,)) + sample[at + 1 :]
            gives_a_message_or_an_error(data)


@given(samples, st.data())
def test_any_damage_gives_a_message_or_an_error(sample: bytes, data: st.DataObject) -> None:
    image = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(image)))
        change = data.draw(st.sampled_from(("set", "insert", "delete", "zero")))
        few = data.draw(st.binary(min_size=1, max_size=6))
        if change == "set":
            image[at : at + len(few)] = few
        elif change == "insert":
            image[at:at] = few
        elif change == "delete":
            del image[at : at + len(few)]
        else:
            image[at : at + 40] = bytes(len(image[at : at + 40]))
    gives_a_message_or_an_error(bytes(image))


@given(samples, samples, st.data())
def test_two_records_cut_together(first: bytes, second: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(first)))
    rest = data.draw(st.integers(0, len(second)))
    gives_a_message_or_an_error(first[:cut] + second[rest:])


@given(st.binary(max_size=80))
@example(b"\x83h\6")
def test_any_bytes_give_a_message_or_an_error(data: bytes) -> None:
    gives_a_message_or_an_error(data)
    gives_a_message_or_an_error(HI[:38] + data)


LENGTHS = [match.start() + 1 for match in re.finditer(rb"[lm]\0\0\0[\0-\x10]", HI)]


@pytest.mark.parametrize("at", LENGTHS)
@pytest.mark.parametrize("length", [0, 3, 0x01000000, 0x7FFFFFFF, 0xFFFFFFFF])
def test_lengths_that_lie(at: int, length: int) -> None:
    assert len(LENGTHS) == 8
    lie = struct.pack(">I", length)
    data = HI[:at] + lie + HI[at + 4 :]
    assert (gives_a_message_or_an_error(data) is None) is (data != HI)


def test_reading_takes_memory_in_proportion_to_the_record() -> None:
    big = encode_message(msg_id=MSG_ID, routing_keys=[b"q"], body=bytes(5 * MAX_FRAGMENT))
    claims = HI[:56] + struct.pack(">I", 0xFFFFFFFF) + b"m\0\0\0\0" * 100_000
    tracemalloc.start()
    try:
        decode_message(big)
        assert tracemalloc.get_traced_memory()[1] < 3.5 * len(big)
        tracemalloc.reset_peak()
        with pytest.raises(TermError):
            decode_message(claims)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(claims)
    finally:
        tracemalloc.stop()
