"""Pure functions over bytes, each against the format or against golden bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rocketstore
from journal.errors import DamageError, UsageError
from rocketstore.format.checkpoint_format import Checkpoint
from rocketstore.format.commitlog_format import (
    blank_record,
    body_crc,
    encode_record,
    format_host,
    host_bytes,
    message_id,
    parse_message_id,
)
from rocketstore.format.consumequeue_format import PRE_BLANK, build_units, count_valid, parse_units
from rocketstore.format.consumequeue_format import round_file_size as round_size
from rocketstore.format.delay import deliver_time
from rocketstore.format.index_format import IndexHeader, file_size, index_name, time_difference
from rocketstore.format.message import StoredMessage
from rocketstore.format.properties import decode_properties, encode_properties, java_map_order
from rocketstore.log.dispatch_note import DispatchNote, load_note
from tests.golden import rocket_golden
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.support import read_lines


def test_record_of_the_format_page() -> None:
    """The worked example of docs/rocketstore.md."""
    record = encode_record(
        topic=b"T",
        body=b"hi",
        properties=encode_properties({"KEYS": "k"}),
        queue_id=3,
        queue_offset=5,
        offset=0x1234,
        flag=7,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        born_host=host_bytes("10.1.2.3:54321"),
        store_timestamp=1_700_000_000_001,
        store_host=host_bytes(("192.168.0.7", 10911)),
        reconsume_times=0,
        prepared_transaction_offset=0,
    )
    assert record.hex(" ", 4) == (
        "00000064 daa320a7 58932aac 00000003 00000007 00000000 00000005 00000000 "
        "00001234 00000000 0000018b cfe56800 0a010203 0000d431 0000018b cfe56801 "
        "c0a80007 00002a9f 00000000 00000000 00000000 00000002 68690154 00064b45 "
        "5953016b"
    )
    message = StoredMessage(record, 0x1234)
    message.check()
    assert (message.body, message.topic, message.keys) == (b"hi", "T", ["k"])
    text = Path(__file__).parents[2].joinpath("docs", "rocketstore.md").read_text()
    assert record[:8].hex(" ") in text
    assert record[-14:].hex(" ") in text


def test_golden_records_encode_to_themselves() -> None:
    golden = rocket_golden("gen")
    with rocketstore.open(golden / "store", read_only=True) as store:
        for row in read_lines(golden, "messages"):
            if "blank" in row:
                continue
            message = store.lookup(row["phyOffset"])
            assert message is not None
            fields = message.fields
            again = encode_record(
                topic=message.topic.encode(),
                body=message.body,
                properties=message.properties_bytes,
                queue_id=message.queue_id,
                queue_offset=message.queue_offset,
                offset=message.offset,
                flag=message.flag,
                sys_flag=message.sys_flag & ~48,
                born_timestamp=message.born_timestamp,
                born_host=fields[9],
                store_timestamp=message.store_timestamp,
                store_host=fields[11],
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.prepared_transaction_offset,
            )
            assert again == message.raw


def test_blank_and_crc() -> None:
    assert blank_record(8).hex() == "00000008cbd43194"
    assert body_crc(b"") == 0
    assert body_crc(b"123456789") == 0xCBF43926 & 0x7FFFFFFF


@pytest.mark.parametrize("host", ["10.1.2.3:54321", "[::1]:10911", "0.0.0.0:0"])
def test_hosts(host: str) -> None:
    data = host_bytes(host)
    assert len(data) in (8, 20)
    assert format_host(data) == host
    assert host_bytes(data) is data
    text = message_id(data, 77)
    assert len(text) == 2 * len(data) + 16
    assert parse_message_id(text) == (data, 77)


@pytest.mark.parametrize("host", ["x:1", "1.2.3.4", "1.2.3.4:-1", b"123", ("1.2.3.4", 1 << 31)])
def test_bad_hosts(host: str) -> None:
    with pytest.raises(UsageError):
        host_bytes(host)


def test_properties_are_read_as_the_real_reader_does() -> None:
    assert decode_properties(b"a\x01b\x02c\x01d") == {"a": "b", "c": "d"}
    assert decode_properties(b"a\x01b\x02") == {"a": "b"}
    assert decode_properties(b"empty\x01\x02noseparator\x02\x01v\x02a\x01b\x01c") == {"a": "b\x01c"}
    assert decode_properties(b"a\x01old\x02a\x01new") == {"a": "new"}


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\0\1\2", codec="utf-8"), min_size=1),
        st.text(st.characters(exclude_characters="\0\2", codec="utf-8"), min_size=1),
        max_size=30,
    )
)
def test_properties_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties
    assert sorted(java_map_order(tuple(properties))) == sorted(properties)


def test_units() -> None:
    data = build_units([5, 6], [100, 200], [-1, 1 << 40], 2)
    assert len(data) == 40
    units = parse_units(data + PRE_BLANK + bytes(20))
    assert count_valid(units) == 3
    assert [int(unit["tags_code"]) for unit in units] == [-1, 1 << 40, 0, 0]
    assert round_size(799) == 800


def test_index_header_and_names() -> None:
    assert file_size(5_000_000, 20_000_000) == 420_000_040
    assert IndexHeader.parse(bytes(40)) == IndexHeader()
    header = IndexHeader(begin_timestamp=10, end_timestamp=20)
    matching = [(0, 30), (10, 30), (20, 30), (0, 10), (12, 13)]
    assert all(header.matches(begin, end) for begin, end in matching)
    assert not header.matches(0, 9)
    assert not header.matches(21, 30)
    assert [time_difference(at, 5000) for at in (4000, 5999, 6000, 1 << 50)] == [0, 0, 1, 2**31 - 1]
    assert time_difference(5000, 0) == 0
    name = index_name(1_700_000_000_123)
    assert len(name) == 17
    assert name.endswith("123")


def test_checkpoint_and_delay() -> None:
    found = Checkpoint(5, 7000, 9)
    assert Checkpoint.parse(found.to_bytes()) == found
    assert Checkpoint.parse(None) == Checkpoint.parse(b"short") == Checkpoint()
    assert found.safe_time(with_index=False) == 0
    assert Checkpoint(9000, 7000, 3).safe_time(with_index=True) == 3
    assert [deliver_time(level, 0) for level in (1, 4, 18, 99)] == [1000, 30_000, 7.2e6, 7.2e6]


@given(st.binary(max_size=200))
def test_no_bytes_break_a_message(data: bytes) -> None:
    """Whatever stands there: an answer or DamageError, nothing else."""
    message = StoredMessage(data.ljust(91, b"\0"), 0)
    try:
        message.check()
    except DamageError:
        return
    assert message.body is not None


GOOD_NOTE: dict[str, Any] = {
    "version": 1,
    "offset": 1000,
    "boot": "b",
    "last": [900, 100, 5],
    "queues": [["T", 0, 0, 7]],
    "index": [["20260101000000000", 1, 2, 0, 900, 3, 4]],
    "sizes": [4096, 200, 7, 12],
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"offset": "1"},
        {"offset": -1},
        {"offset": True},
        {"boot": 5},
        {"last": [1, 2]},
        {"last": 5},
        {"queues": [["T", 0, 0]]},
        {"queues": [[5, 0, 0, 7]]},
        {"queues": [["T", 0, 0, None]]},
        {"index": [["x", 1, 2, 0, 900, 3, 13]]},
        {"index": [["x", 1, 2, 0, 900, 3, 0]]},
        {"index": [["x", 1, 2, 0, 900, 4]]},
        {"index": [[5, 1, 2, 0, 900, 3, 4]]},
        {"sizes": [4096, 200, 7]},
        {"sizes": [4096, 0, 7, 12]},
        {"sizes": None},
    ],
    ids=str,
)
def test_note_that_makes_no_sense(wrong: dict[str, Any]) -> None:
    """Even with the right checksum: the log is read whole then."""

    def load(content: dict[str, Any]) -> DispatchNote | None:
        text = json.dumps(content)
        outer = json.dumps({"crc": crc32(text.encode()), "derived": text})
        return load_note(MemoryFileSystem({"note": outer.encode()}), "/note")

    good = load(GOOD_NOTE)
    assert good is not None
    assert good.queues == {("T", 0): (0, 7)}
    assert load({**GOOD_NOTE, **wrong}) is None
    for name in GOOD_NOTE:
        assert load({key: value for key, value in GOOD_NOTE.items() if key != name}) is None


def test_message_ids() -> None:
    """Both lengths; and a client's unique key is a key like others."""
    for text in ("C0A8000700002A9F000000000000013E", "0" * 39 + "1" + "00002A9F" + "0" * 8):
        host, offset = parse_message_id(text)
        assert message_id(host, offset) == text
        assert parse_message_id(text.lower()) == (host, offset)
    for wrong in (
        "",
        "0" * 31,
        "0" * 33,
        "G" * 32,
        "00 " * 10 + "00",
        "\N{ARABIC-INDIC DIGIT ONE}" * 32,
    ):
        with pytest.raises(UsageError, match="message id"):
            parse_message_id(wrong)
