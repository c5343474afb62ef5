"""AMQP properties and header tables: bytes, values, and the broker's decoded form."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.errors import StoreError
from qindex.format.rabbitmq.properties_format import (
    PERSISTENT_ONLY,
    TRANSIENT_ONLY,
    Properties,
    decode_properties,
    encode_properties,
    properties_of_record,
)
from qindex.format.rabbitmq.table_format import (
    MAX_DEPTH,
    Field,
    PropertiesError,
    Table,
    decode_table,
    encode_table,
    field,
    plain_table,
    table,
    table_of_term,
)
from qindex.format.rabbitmq.term_format import Atom, Term
from tests.qindex.rabbitmq.terms import tables
from tests.qindex.rabbitmq.typed import typed, typed_table

ALL_14 = Properties(
    content_type="application/json",
    content_encoding="gzip",
    headers=table({"a": "b"}),
    delivery_mode=2,
    priority=7,
    correlation_id="corr",
    reply_to="rt",
    expiration="60000",
    message_id="mid",
    timestamp=1699999999,
    type="typ",
    user_id="guest",
    app_id="app",
    cluster_id="clu",
)
ALL_14_BYTES = bytes.fromhex(
    "fffc106170706c69636174696f6e2f6a736f6e04677a6970000000080161530000000162020704636f7272027274"
    "053630303030036d6964000000006553f0ff037479700567756573740361707003636c75"
)
UNDEFINED = Atom("undefined")


def record(**values: Term) -> Term:
    names = [one.name for one in dataclasses.fields(Properties)]
    return (Atom("P_basic"), *(values.get(name, UNDEFINED) for name in names))


# --- properties --------------------------------------------------------------------------------


def test_all_properties() -> None:
    assert encode_properties(ALL_14) == ALL_14_BYTES
    assert decode_properties(ALL_14_BYTES) == ALL_14


def test_the_two_usual_ones() -> None:
    assert decode_properties(PERSISTENT_ONLY) == Properties(delivery_mode=2)
    assert decode_properties(TRANSIENT_ONLY) == Properties(delivery_mode=1)
    assert encode_properties(Properties(delivery_mode=2)) == PERSISTENT_ONLY
    assert encode_properties(Properties()) == b"\0\0"
    assert decode_properties(b"\0\0") == Properties()


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(Properties)])
def test_each_property_alone(name: str) -> None:
    value = getattr(ALL_14, name)
    alone = Properties(**{name: value})
    raw = encode_properties(alone)
    assert int.from_bytes(raw[:2], "big").bit_count() == 1
    assert decode_properties(raw) == alone
    shown: object = {"a": "b"} if name == "headers" else value
    assert alone.plain() == {name: shown}
    assert set(typed(ALL_14)) == {one.name for one in dataclasses.fields(Properties)}


def test_views() -> None:
    assert ALL_14.plain()["headers"] == {"a": "b"}
    assert typed(ALL_14)["headers"] == {"a": ["S", "b"]}
    assert Properties(headers=()).plain() == {"headers": {}}


def test_every_cut_is_refused() -> None:
    for cut in range(len(ALL_14_BYTES)):
        with pytest.raises(PropertiesError):
            decode_properties(ALL_14_BYTES[:cut])


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", "cut off in their flags"),
        ("10", "cut off in their flags"),
        ("1000", "cut off in delivery_mode"),
        ("0040 00000000000000", "cut off in timestamp"),
        ("8000", "cut off in a short string"),
        ("8000 02 61", "cut off in a short string"),
        ("2000 0000", "cut off in a value"),
        ("2000 00000001", "cut off in a value"),
        ("2000 ffffffff 00", "cut off in a value"),
        ("2000 00000001 00", "cut off before a type"),
        ("2000 00000002 05 61", "cut off in a short string"),
        ("2000 00000006 01 61 53 000000", "cut off in a value"),
        ("2000 00000008 01 61 53 00000002 61", "cut off in a value"),
        ("2000 00000006 01 61 49 000000 00", "cut off in a value"),
        ("2000 00000003 01 61 74", "cut off in a value"),
        ("2000 00000007 01 61 44 02 000000", "cut off in a value"),
        ("2000 00000007 01 61 46 00000001", "cut off in a value"),
        ("2000 00000008 01 61 41 00000001 49", "cut off in a value"),
        ("2000 00000008 01 61 41 00000002 49", "cut off in a value"),
        ("2000 00000004 01 61 55 00", "unknown type 'U'"),
        ("2000 00000003 01 61 ff", "unknown type"),
        ("2000 00000007 01 61 66 7f800000", "not finite"),
        ("2000 0000000b 01 61 64 7ff8000000000000", "not finite"),
        ("1000 02 00", "1 bytes left over"),
        ("0000 00", "1 bytes left over"),
        ("1001 0000 02", "2 bytes left over"),
    ],
)
def test_malformed_properties_are_refused_with_the_reason(raw: str, reason: str) -> None:
    with pytest.raises(PropertiesError, match=reason):
        decode_properties(bytes.fromhex(raw))


@pytest.mark.parametrize("flags", ["1001", "1002", "1003"])
def test_flags_of_no_meaning_are_passed_over_as_the_node_does(flags: str) -> None:
    assert decode_properties(bytes.fromhex(flags) + b"\2") == Properties(delivery_mode=2)


@pytest.mark.parametrize(
    "values",
    [
        {"content_type": "x" * 256},
        {"content_type": 7},
        {"content_type": b"x"},
        {"content_type": "\ud800"},
        {"delivery_mode": 256},
        {"delivery_mode": -1},
        {"priority": "7"},
        {"priority": 1.0},
        {"timestamp": -1},
        {"timestamp": 1 << 64},
        {"timestamp": "now"},
        {"headers": {"a": "b"}},
        {"headers": 7},
        {"headers": (("a", "b"),)},
        {"headers": (("a" * 256, Field("V", None)),)},
        {"headers": ((b"a", Field("V", None)),)},
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(PropertiesError):
        encode_properties(Properties(**values))


def test_errors_are_the_projects() -> None:
    assert issubclass(PropertiesError, StoreError)


def test_text_that_is_not_utf8_survives() -> None:
    raw = b"\xa0\x00\x02\xff\xfe" + b"\0\0\0\x08\x01\xff" + b"S\0\0\0\1\xfe"
    properties = decode_properties(raw)
    assert encode_properties(properties) == raw
    assert properties.plain() == {
        "content_type": "\udcff\udcfe",
        "headers": {"\udcff": b"\xfe"},
    }
    assert typed(properties)["headers"] == {"\udcff": ["S", {"hex": "fe"}]}


# --- header tables -----------------------------------------------------------------------------

FIELDS: list[tuple[Field, str, object, object, Term]] = [
    # field, bytes, plain, typed, Erlang's (type, value)
    (Field("t", True), "7401", True, True, ("bool", Atom("true"))),
    (Field("t", False), "7400", False, False, ("bool", Atom("false"))),
    (Field("b", -5), "62fb", -5, -5, ("byte", -5)),
    (Field("B", 250), "42fa", 250, 250, ("unsignedbyte", 250)),
    (Field("s", -300), "73fed4", -300, -300, ("short", -300)),
    (Field("u", 60000), "75ea60", 60000, 60000, ("unsignedshort", 60000)),
    (Field("I", -(1 << 31)), "4980000000", -(1 << 31), -(1 << 31), ("signedint", -(1 << 31))),
    (Field("i", 0xFFFFFFFF), "69ffffffff", 0xFFFFFFFF, 0xFFFFFFFF, ("unsignedint", 0xFFFFFFFF)),
    (Field("l", -(1 << 63)), "6c8000000000000000", -(1 << 63), -(1 << 63), ("long", -(1 << 63))),
    (
        Field("T", 1700000000),
        "54000000006553f100",
        1700000000,
        1700000000,
        ("timestamp", 1700000000),
    ),
    (Field("f", 1.5), "663fc00000", 1.5, 1.5, ("float", 1.5)),
    (Field("d", -2.5), "64c004000000000000", -2.5, -2.5, ("double", -2.5)),
    (
        Field("D", (2, 31415)),
        "44020000 7ab7",
        Decimal("314.15"),
        [2, 31415],
        ("decimal", (2, 31415)),
    ),
    (Field("D", (2, -1)), "4402ffffffff", Decimal("-0.01"), [2, -1], ("decimal", (2, 0xFFFFFFFF))),
    (Field("S", "hé".encode()), "530000000368c3a9", "hé", "hé", ("longstr", "hé".encode())),
    (Field("S", b"\xff"), "5300000001ff", b"\xff", {"hex": "ff"}, ("longstr", b"\xff")),
    (Field("x", b"a"), "780000000161", b"a", {"hex": "61"}, ("binary", b"a")),
    (Field("V", None), "56", None, None, ("void", UNDEFINED)),
    (Field("A", ()), "4100000000", [], [], ("array", [])),
    (
        Field("A", (Field("I", 1), Field("A", (Field("V", None),)))),
        "410000000b 4900000001 4100000001 56",
        [1, [None]],
        [["I", 1], ["A", [["V", None]]]],
        ("array", [(Atom("signedint"), 1), (Atom("array"), [(Atom("void"), UNDEFINED)])]),
    ),
    (Field("F", ()), "4600000000", {}, {}, ("table", [])),
    (
        Field("F", (("k", Field("F", (("", Field("t", True)),))),)),
        "460000000a 016b 4600000003 00 7401",
        {"k": {"": True}},
        {"k": ["F", {"": ["t", True]}]},
        ("table", [(b"k", Atom("table"), [(b"", Atom("bool"), Atom("true"))])]),
    ),
]


@pytest.mark.parametrize(("one", "raw", "plain", "shown", "term"), FIELDS)
def test_each_type(one: Field, raw: str, plain: object, shown: object, term: Term) -> None:
    content = b"\x01h" + bytes.fromhex(raw)
    data = len(content).to_bytes(4, "big") + content
    fields: Table = (("h", one),)
    assert decode_table(data, 0, len(data)) == (fields, len(data))
    assert encode_table(fields) == data
    assert plain_table(fields) == {"h": plain}
    assert type(plain_table(fields)["h"]) is type(plain)
    assert typed_table(fields) == {"h": [one.tag, shown]}
    json.dumps(typed_table(fields))
    kind, value = term
    assert table_of_term([(b"h", Atom(kind), value)]) == fields


def test_l_is_long_too_and_any_bool_but_zero_is_true() -> None:
    data = b"\0\0\0\x0b\1hL" + (7).to_bytes(8, "big")
    assert decode_table(data, 0, len(data))[0] == (("h", Field("L", 7)),)
    assert encode_table((("h", Field("L", 7)),)) == data
    assert decode_table(b"\0\0\0\4\1ht\2", 0, 8)[0] == (("h", Field("t", True)),)


def test_order_and_equal_names_are_kept() -> None:
    fields: Table = (("b", Field("I", 1)), ("a", Field("I", 2)), ("b", Field("I", 3)))
    data = encode_table(fields)
    assert decode_table(data, 0, len(data))[0] == fields
    assert plain_table(fields) == {"b": 3, "a": 2}


@pytest.mark.parametrize(
    ("value", "one"),
    [
        (True, Field("t", True)),
        (7, Field("I", 7)),
        (1 << 31, Field("l", 1 << 31)),
        (-(1 << 31) - 1, Field("l", -(1 << 31) - 1)),
        (1.5, Field("d", 1.5)),
        ("é", Field("S", "é".encode())),
        (b"\0", Field("x", b"\0")),
        (None, Field("V", None)),
        (Decimal("314.15"), Field("D", (2, 31415))),
        (Decimal("-1E+2"), Field("D", (0, -100))),
        (Decimal("0E-9"), Field("D", (9, 0))),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), Field("T", 1700000000)),
        ([1, "a"], Field("A", (Field("I", 1), Field("S", b"a")))),
        ((), Field("A", ())),
        ({"k": [None]}, Field("F", (("k", Field("A", (Field("V", None),))),))),
        (Field("b", 1), Field("b", 1)),
        ([Field("b", 1)], Field("A", (Field("b", 1),))),
    ],
)
def test_types_chosen_for_plain_values(value: object, one: Field) -> None:
    assert field(value) == one
    encode_table((("h", one),))


@pytest.mark.parametrize(
    "value",
    [
        1 << 63,
        -(1 << 63) - 1,
        object(),
        {1, 2},
        "\ud800",
        Decimal("NaN"),
        Decimal("1E+100"),
        Decimal("1E-256"),
        Decimal("4294967296"),
        Decimal(1 << 31),
        datetime(2023, 11, 14),
        datetime(1969, 12, 31, tzinfo=UTC),
        [object()],
    ],
)
def test_plain_values_without_a_type_are_refused(value: object) -> None:
    with pytest.raises(PropertiesError):
        field(value)


@pytest.mark.parametrize(
    "one",
    [
        Field("b", 128),
        Field("B", -1),
        Field("s", 1 << 15),
        Field("u", 1 << 16),
        Field("I", 1 << 31),
        Field("i", -1),
        Field("l", 1 << 63),
        Field("T", -1),
        Field("f", 1e300),
        Field("f", float("inf")),
        Field("d", float("nan")),
        Field("d", "x"),
        Field("d", 10**400),
        Field("D", (256, 0)),
        Field("D", (0, 1 << 31)),
        Field("D", 7),
        Field("S", "text"),
        Field("S", None),
        Field("x", 7),
        Field("U", 1),
        Field("", 1),
        Field("Sx", b""),
    ],
)
def test_fields_that_do_not_fit_are_refused(one: Field) -> None:
    with pytest.raises(PropertiesError):
        encode_table((("h", one),))


def nested(depth: int, kind: str) -> Field:
    one = Field("V", None)
    for _ in range(depth):
        one = Field("F", (("", one),)) if kind == "F" else Field("A", (one,))
    return one


def nested_bytes(depth: int, kind: str) -> bytes:
    raw = b"V"
    for _ in range(depth):
        content = b"\0" + raw if kind == "F" else raw
        raw = kind.encode() + len(content).to_bytes(4, "big") + content
    content = b"\0" + raw
    return len(content).to_bytes(4, "big") + content


def nested_term(depth: int, kind: str) -> Term:
    value: Term = (Atom("void"), UNDEFINED)
    for _ in range(depth):
        if kind == "F":
            value = (Atom("table"), [(b"", *value)])
        else:
            value = (Atom("array"), [value])
    return [(b"", *value)]


@pytest.mark.parametrize("kind", ["F", "A"])
def test_nesting_up_to_the_limit(kind: str) -> None:
    fields = (("", nested(MAX_DEPTH - 1, kind)),)
    data = nested_bytes(MAX_DEPTH - 1, kind)
    assert encode_table(fields) == data
    assert decode_table(data, 0, len(data)) == (fields, len(data))
    assert table_of_term(nested_term(MAX_DEPTH - 1, kind)) == fields
    assert table(plain_table(fields)) == fields
    json.dumps(typed_table(fields))


@pytest.mark.parametrize("kind", ["F", "A"])
@pytest.mark.parametrize("depth", [MAX_DEPTH, 2000])
def test_nesting_above_the_limit_is_refused(kind: str, depth: int) -> None:
    data = nested_bytes(depth, kind)
    with pytest.raises(PropertiesError, match="nested more than 64 deep"):
        decode_table(data, 0, len(data))
    with pytest.raises(PropertiesError, match="nested more than 64 deep"):
        encode_table((("", nested(depth, kind)),))
    with pytest.raises(PropertiesError, match="nested more than 64 deep"):
        table_of_term(nested_term(depth, kind))
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(PropertiesError, match="nested more than 64 deep"):
        field(endless)


@given(tables)
def test_tables_round_trip(fields: Table) -> None:
    raw = encode_properties(Properties(headers=fields, delivery_mode=1))
    read = decode_properties(raw)
    assert read == Properties(headers=fields, delivery_mode=1)
    assert encode_properties(read) == raw
    json.dumps(typed(read))
    read.plain()


def gives_properties_or_an_error(raw: bytes) -> None:
    try:
        read = decode_properties(raw)
    except PropertiesError:
        return
    json.dumps(typed(read))
    read.plain()
    assert decode_properties(encode_properties(read)) == read


@given(tables, st.data())
def test_damaged_properties_give_properties_or_an_error(fields: Table, data: st.DataObject) -> None:
    raw = bytearray(encode_properties(dataclasses.replace(ALL_14, headers=fields)))
    for cut in range(0, len(raw), 3):
        with pytest.raises(PropertiesError):
            decode_properties(bytes(raw[:cut]))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    gives_properties_or_an_error(bytes(raw))


@given(st.binary(max_size=60))
def test_any_bytes_give_properties_or_an_error(raw: bytes) -> None:
    gives_properties_or_an_error(raw)
    gives_properties_or_an_error(b"\x20\x00" + len(raw).to_bytes(4, "big") + raw)


# --- the decoded record ------------------------------------------------------------------------


def test_a_record_of_all_properties() -> None:
    values = {
        name: value.encode() if isinstance(value, str) else value
        for name, value in ((n, getattr(ALL_14, n)) for n in ALL_14.plain())
    }
    values["headers"] = [(b"a", Atom("longstr"), b"b")]
    assert properties_of_record(record(**values)) == ALL_14
    assert properties_of_record(record()) == Properties()
    assert properties_of_record(record(headers=[])) == Properties(headers=())


def test_charlists_stand_for_strings() -> None:
    properties = properties_of_record(
        record(app_id=[97, 98], headers=[([104], Atom("longstr"), [99])])
    )
    assert properties == Properties(app_id="ab", headers=(("h", Field("S", b"c")),))


def test_an_integer_stands_for_a_float() -> None:
    properties = properties_of_record(record(headers=[(b"h", Atom("double"), 3)]))
    assert properties.headers == (("h", Field("d", 3.0)),)


@pytest.mark.parametrize(
    "term",
    [
        None,
        (),
        (Atom("P_basic"),),
        (Atom("P_other"), *[UNDEFINED] * 14),
        (Atom("P_basic"), *[UNDEFINED] * 15),
        [Atom("P_basic"), *[UNDEFINED] * 14],
        record(content_type=Atom("text")),
        record(content_type=[300]),
        record(content_type=b"x" * 256),
        record(delivery_mode=b"2"),
        record(delivery_mode=256),
        record(priority=-1),
        record(timestamp=1.5),
        record(timestamp=1 << 64),
        record(headers=Atom("none")),
        record(headers=[()]),
        record(headers=[(b"h", Atom("longstr"))]),
        record(headers=[(Atom("h"), Atom("longstr"), b"")]),
        record(headers=[(b"h" * 256, Atom("longstr"), b"")]),
        record(headers=[(b"h", b"longstr", b"")]),
        record(headers=[(b"h", Atom("text"), b"")]),
        record(headers=[(b"h", Atom("longstr"), 7)]),
        record(headers=[(b"h", Atom("bool"), 1)]),
        record(headers=[(b"h", Atom("bool"), Atom("yes"))]),
        record(headers=[(b"h", Atom("byte"), 128)]),
        record(headers=[(b"h", Atom("byte"), Atom("x"))]),
        record(headers=[(b"h", Atom("double"), b"x")]),
        record(headers=[(b"h", Atom("double"), 10**400)]),
        record(headers=[(b"h", Atom("float"), 1e300)]),
        record(headers=[(b"h", Atom("decimal"), 7)]),
        record(headers=[(b"h", Atom("decimal"), (0, 1 << 32))]),
        record(headers=[(b"h", Atom("decimal"), (Atom("x"), b""))]),
        record(headers=[(b"h", Atom("timestamp"), -1)]),
        record(headers=[(b"h", Atom("table"), b"")]),
        record(headers=[(b"h", Atom("array"), b"")]),
        record(headers=[(b"h", Atom("array"), [b""])]),
        record(headers=[(b"h", Atom("array"), [(b"h", Atom("byte"), 1)])]),
    ],
)
def test_a_malformed_record_is_refused(term: Term) -> None:
    with pytest.raises(PropertiesError):
        properties_of_record(term)
