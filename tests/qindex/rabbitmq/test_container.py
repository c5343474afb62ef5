"""Message containers of 3.13 and later: what an AMQP 0-9-1 consumer of such a node sees."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from qindex.format.rabbitmq.amqp10_format import data_body, decode_section
from qindex.format.rabbitmq.bridge import basic_message, decode_rabbitmq, read_rabbitmq
from qindex.format.rabbitmq.properties_format import Properties, encode_properties
from qindex.format.rabbitmq.table_format import table
from qindex.format.rabbitmq.term_format import Atom, TermError

MSG_ID = bytes(range(16))
MODES = encode_properties(Properties(delivery_mode=2))


def erl(value: Any, wide: bool) -> bytes:
    """A term as Erlang 25 (``wide``: atoms with tag 100) or 26 and later write it."""
    if isinstance(value, Atom):
        raw = value.encode()
        return b"d" + struct.pack(">H", len(raw)) + raw if wide else b"w%c%b" % (len(raw), raw)
    if isinstance(value, bool):
        return erl(Atom(str(value).lower()), wide)
    if isinstance(value, bytes):
        return b"m" + struct.pack(">I", len(value)) + value
    if isinstance(value, int):
        if 0 <= value < 256:
            return b"a%c" % value
        return b"n\x08" + (b"\1" if value < 0 else b"\0") + abs(value).to_bytes(8, "little")
    if isinstance(value, tuple):
        return b"h%c" % len(value) + b"".join(erl(one, wide) for one in value)
    if isinstance(value, list):
        if not value:
            return b"j"
        return (
            b"l" + struct.pack(">I", len(value)) + b"".join(erl(one, wide) for one in value) + b"j"
        )
    assert isinstance(value, dict)
    pairs = b"".join(erl(key, wide) + erl(one, wide) for key, one in value.items())
    return b"t" + struct.pack(">I", len(value)) + pairs


def record(protocol: str, data: Any, notes: dict[Any, Any], wide: bool = False) -> bytes:
    given = {Atom("id"): MSG_ID, Atom("x"): b"ex", Atom("rk"): [b"k", b"cc"], Atom("rts"): 1}
    given.update({Atom(key) if isinstance(key, str) else key: one for key, one in notes.items()})
    return b"\x83" + erl((Atom("mc"), Atom(protocol), data, given), wide)


def content(properties: bytes, *fragments: bytes) -> tuple[Any, ...]:
    protocol = Atom("rabbit_framing_amqp_0_9_1")
    return (Atom("content"), 60, Atom("none"), properties, protocol, list(fragments[::-1]))


def seen(data: bytes) -> dict[str, Any]:
    message = decode_rabbitmq(data, MSG_ID)
    return {**message.properties, "headers": dict(message.headers)}


@pytest.mark.parametrize("wide", [False, True])
def test_both_encodings_of_erlang(wide: bool) -> None:
    data = record("mc_amqpl", content(MODES, b"ab", b"cd"), {}, wide)
    message, end = read_rabbitmq(data)
    assert end == len(data)
    assert (message.body, message.exchange) == (b"abcd", b"ex")
    assert (message.routing_keys, message.msg_id) == ([b"k", b"cc"], MSG_ID)
    assert message.persistent
    assert message.properties_raw == MODES
    assert read_rabbitmq(data + bytes(7)) == (message, end)
    with pytest.raises(TermError, match="after its term"):
        decode_rabbitmq(data + bytes(7), MSG_ID)


def test_the_order_of_annotations_is_any() -> None:
    notes: dict[Any, Any] = {**{f"later{n}": n for n in range(40)}, b"x-b": b"v"}
    assert seen(record("mc_amqpl", content(MODES, b"a"), notes))["headers"] == {"x-b": "v"}


@pytest.mark.parametrize(
    ("sent", "notes", "expected"),
    [
        ({}, {}, {"delivery_mode": 2}),
        ({}, {"d": Atom("false")}, {}),
        ({"delivery_mode": 1}, {"d": Atom("false")}, {"delivery_mode": 1}),
        ({"delivery_mode": 2}, {"ts": 1_700_000_000_999}, {"timestamp": 1_700_000_000}),
        ({"timestamp": 5}, {}, {"delivery_mode": 2}),
        ({"expiration": "60"}, {"ttl": Atom("undefined")}, {"delivery_mode": 2}),
        ({"expiration": "60"}, {"ttl": 70}, {"expiration": "70"}),
        ({"expiration": "60"}, {}, {"expiration": "60"}),
        ({}, {"p": 4}, {"priority": 4}),
        ({"priority": 1}, {"p": 4}, {"priority": 1}),
    ],
)
def test_annotations_and_properties(
    sent: dict[str, Any], notes: dict[str, Any], expected: dict[str, Any]
) -> None:
    raw = encode_properties(Properties(**sent))
    found = seen(record("mc_amqpl", content(raw, b"a"), notes))
    assert found == {
        "exchange": "ex",
        "headers": {},
        **({} if notes.get("d") == "false" else {"delivery_mode": 2}),
        **expected,
    }


def test_annotations_become_headers_and_win() -> None:
    raw = encode_properties(Properties(headers=table({"x-a": "sent", "own": 1})))
    notes = {b"x-a": b"noted", b"x-n": 5, b"x-t": True, b"timestamp_in_ms": 9, b"other": b"no"}
    assert seen(record("mc_amqpl", content(raw, b"a"), notes))["headers"] == {
        "x-a": "noted",
        "x-n": 5,
        "x-t": True,
        "timestamp_in_ms": 9,
        "own": 1,
    }


def death(queue: bytes, time: int, **more: int) -> tuple[Any, Any]:
    notes = {Atom("first_time"): time, Atom("last_time"): time}
    notes.update({Atom(key): value for key, value in more.items()})
    return (queue, Atom("expired")), (Atom("death"), b"e", [b"r"], 2, notes)


def test_deaths_of_both_releases() -> None:
    newest, oldest = death(b"q2", 9_000, ttl=60), death(b"q1", 5_000)
    late = record("mc_amqpl", content(MODES, b"a"), {"deaths": [newest, oldest]})
    early = (Atom("deaths"), oldest[0], newest[0], dict([oldest, newest]))
    early_data = record("mc_amqpl", content(MODES, b"a"), {"deaths": early})
    for data in (late, early_data):
        deaths = seen(data)["headers"]["x-death"]
        assert [one["queue"] for one in deaths] == ["q2", "q1"]
        assert deaths[0] == {
            "original-expiration": "60",
            "count": 2,
            "reason": "expired",
            "queue": "q2",
            "time": 9,
            "exchange": "e",
            "routing-keys": ["r"],
        }


# --- AMQP 1.0 ----------------------------------------------------------------------------------


def section(code: int, value: bytes) -> bytes:
    return b"\0S%c" % code + value


def binary(raw: bytes) -> bytes:
    return (
        b"\xa0%c" % len(raw) + raw
        if len(raw) < 256
        else b"\xb0" + struct.pack(">I", len(raw)) + raw
    )


def utf8(text: str) -> bytes:
    return b"\xa1%c" % len(text.encode()) + text.encode()


def listed(*items: bytes) -> bytes:
    inner = b"".join(items)
    return b"\xd0" + struct.pack(">II", len(inner) + 4, len(items)) + inner


def mapped(*items: bytes) -> bytes:
    return b"\xd1" + listed(*items)[1:]


def amqp10(
    body: bytes, code: int, properties: bytes = b"", application: bytes = b"", notes: Any = ()
) -> tuple[Any, ...]:
    first = section(0x73, properties) if properties else b""
    second = section(0x74, application) if application else b""
    places: tuple[Any, Any] = (0 if first else [], len(first) if second else [])
    annotations = [((Atom("symbol"), key), value) for key, value in notes]
    bare = first + second + body
    return (Atom("v1"), annotations, bare, *places, len(first + second), code)


def test_data_sections_up_to_the_footer() -> None:
    body = section(0x75, binary(b"one")) + section(0x75, binary(b"x" * 300))
    footer = section(0x78, mapped(utf8("k"), utf8("v")))
    data = record("mc_amqp", amqp10(body + footer, 0x75), {"d": Atom("true")})
    assert read_rabbitmq(data)[0].body == b"one" + b"x" * 300
    assert seen(data) == {"exchange": "ex", "headers": {}, "delivery_mode": 2}
    transient = record("mc_amqp", amqp10(body, 0x75), {"d": Atom("false")})
    assert not read_rabbitmq(transient)[0].persistent
    assert "delivery_mode" not in seen(transient)


@pytest.mark.parametrize("code", [0x76, 0x77])
def test_other_bodies_stay_encoded(code: int) -> None:
    body = section(code, listed(b"\x54\x05", utf8("x")))
    data = record("mc_amqp", amqp10(body, code), {})
    assert read_rabbitmq(data)[0].body == body
    assert seen(data)["type"] == "amqp-1.0"


def test_properties_and_application_properties() -> None:
    application = mapped(
        *(utf8("s"), utf8("text"), utf8("t"), b"\x41", utf8("i"), b"\x54\xff"),
        *(utf8("u"), b"\x80" + b"\xff" * 8, utf8("d"), b"\x82" + struct.pack(">d", 1.5)),
        *(utf8("n"), b"\x40", utf8("ts"), b"\x83" + struct.pack(">q", 5000)),
        *(utf8("l"), listed(utf8("a"), b"\x43"), utf8("m"), mapped(b"\xa3\x01k", b"\x56\x00")),
    )
    properties = listed(
        *(utf8("mid"), binary(b"guest"), b"\x40", utf8("subject"), utf8("/queues/x")),
        *(b"\x80" + (77).to_bytes(8, "big"), b"\xa3\x0atext/plain", b"\x40", b"\x40"),
        *(b"\x83" + struct.pack(">q", 1_699_999_999_500), utf8("group")),
    )
    notes = [(b"x-opt-a", (Atom("utf8"), b"b")), (b"x-cc", (Atom("list"), [(Atom("utf8"), b"c")]))]
    body = section(0x75, binary(b"b"))
    data = record(
        "mc_amqp",
        amqp10(body, 0x75, properties, application, notes),
        {"d": Atom("true"), "ttl": 300, "p": 7, "ts": 1_699_999_999_500},
    )
    assert seen(data) == {
        "exchange": "ex",
        "message_id": "mid",
        "user_id": "guest",
        "reply_to": "/queues/x",
        "correlation_id": "77",
        "content_type": "text/plain",
        "timestamp": 1_699_999_999,
        "app_id": "group",
        "delivery_mode": 2,
        "priority": 7,
        "expiration": "300",
        "headers": {
            "x-opt-a": "b",
            "CC": ["c"],
            "s": "text",
            "t": True,
            "i": -1,
            "u": -1,
            "d": 1.5,
            "n": None,
            "ts": 5,
            "l": ["a", 0],
            "m": {"k": False},
        },
    }


@pytest.mark.parametrize(
    ("value", "message_id", "header"),
    [
        (b"\x98" + MSG_ID, "urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f", None),
        (b"\x44", "0", None),
        (binary(b"\xff\x00"), None, b"\xff\x00"),
        (b"\xb1" + struct.pack(">I", 300) + b"i" * 300, None, "i" * 300),
    ],
)
def test_message_ids_of_each_type(value: bytes, message_id: str | None, header: Any) -> None:
    body = section(0x75, binary(b"b"))
    found = seen(record("mc_amqp", amqp10(body, 0x75, listed(value)), {}))
    assert found.get("message_id") == message_id
    assert found["headers"].get("x-message-id") == header


def test_damaged_sections() -> None:
    good = section(0x75, binary(b"abc"))
    assert data_body(good, 0) == b"abc"
    for cut in range(1, len(good)):
        with pytest.raises(TermError):
            data_body(good[:cut], 0)
    for raw in (
        b"\0S\x75\xd0\xff\xff\xff\xff\0\0\0\1",
        b"\0S\x74\xd1\0\0\0\5\0\0\0\1\x43",
        b"\0S\x73\x3f",
    ):
        with pytest.raises(TermError):
            decode_section(raw, 0)
    deep = b"\x43"
    for _ in range(100):
        deep = listed(deep)
    with pytest.raises(TermError, match="nested"):
        decode_section(section(0x77, deep), 0)


# --- MQTT --------------------------------------------------------------------------------------


def mqtt(payload: Any, qos: int = 1, **props: Any) -> tuple[Any, ...]:
    names = {Atom(name.replace("_", "-")): value for name, value in props.items()}
    true = Atom("true")
    return (Atom("mqtt_msg"), true, qos, b"a/b", true, 1, payload, names, Atom("undefined"))


def test_mqtt_messages() -> None:
    user = [(b"u", b"1"), (b"u", b"2"), (b"a", b"\xff")]
    data = mqtt(
        [b"ab", [99, b"d"]],
        Content_Type=b"text/x",
        Response_Topic=b"r/+/t",
        Correlation_Data=b"corr",
        User_Property=user,
    )
    found = record("mc_mqtt", data, {"d": Atom("true"), "ttl": 5000, "ts": 7000})
    assert read_rabbitmq(found)[0].body == b"abcd"
    assert seen(found) == {
        "exchange": "ex",
        "content_type": "text/x",
        "correlation_id": "corr",
        "expiration": "5000",
        "timestamp": 7,
        "delivery_mode": 2,
        "headers": {"u": "1", "a": b"\xff", "x-reply-to-topic": "r.*.t"},
    }
    binary_id = mqtt(b"", Correlation_Data=b"\xff")
    headers = seen(record("mc_mqtt", binary_id, {"d": Atom("true")}))["headers"]
    assert headers == {"x-correlation-id": b"\xff"}


# --- all of them -------------------------------------------------------------------------------


def test_what_is_no_container() -> None:
    for protocol, data in (
        ("mc_amqpl", (Atom("content"), 61)),
        ("mc_amqp", (Atom("v1"), [], b"", 0, [], 9, 0x75)),
        ("mc_amqp", (Atom("v2"),)),
        ("mc_mqtt", (Atom("mqtt_msg"),)),
        ("mc_mqtt", mqtt(5)),
        ("mc_mqtt", mqtt(b"", User_Property=[1])),
        ("mc_other", ()),
    ):
        with pytest.raises(TermError):
            read_rabbitmq(record(protocol, data, {}))
    with pytest.raises(TermError, match="message id"):
        read_rabbitmq(record("mc_amqpl", content(MODES, b""), {"id": b"short"}))


def test_as_a_node_before_3_13_reads_it() -> None:
    raw = encode_properties(Properties(headers=table({"n": 1})))
    data = record("mc_amqpl", content(raw, b"body"), {b"x-a": b"1", "p": 3})
    basic = basic_message(data, b"vhost")
    message, end = read_rabbitmq(basic)
    assert end == len(basic)
    assert b"basic_message" in basic
    assert (message.vhost, message.body, message.msg_id) == (b"vhost", b"body", MSG_ID)
    assert message.routing_keys == [b"k", b"cc"]
    assert seen(basic) == seen(data)
    assert basic_message(basic, b"vhost") == basic
