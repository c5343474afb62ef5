"""Our message record: bytes, checksums, what decoding refuses."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from types import MappingProxyType
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.compiled import COMPILED, build
from journal.errors import UsageError
from journal.format import PUBLISH_HEAD_SIZE, pack_publish
from qindex.format import tables
from qindex.format.message import Message, make_message
from qindex.format.message_record import (
    MAGIC,
    RecordError,
    decode_record,
    embedded_length,
    encode_middle,
    encode_record,
    gather_rows,
    plain_body_head,
    seal_embedded,
    seal_stored,
    stored_is_sound,
)

VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=10)
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
MESSAGE = st.builds(
    Message,
    st.binary(max_size=300),
    st.none() | st.text(max_size=10),
    st.dictionaries(st.text(max_size=5), VALUE, max_size=4),
    st.dictionaries(st.text(max_size=5), VALUE, max_size=2),
    st.integers(0, (1 << 64) - 1),
)


@given(MESSAGE)
def test_a_message_is_made_as_its_constructor_does(message: Message) -> None:
    made = make_message(
        message.body, message.key, message.headers, message.properties, message.timestamp
    )
    assert type(made) is Message
    assert made == message
    assert repr(made) == repr(message)
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == replace(made) == message
    with pytest.raises(FrozenInstanceError):
        made.body = b""  # type: ignore[misc]


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_keys_of_any_length(size: int) -> None:
    for key in ("k" * size, "\N{SNOWMAN}" * (size // 3)):
        record = encode_record(Message(b"body", key))
        assert msgpack.unpackb(record)[3] == key
        assert decode_record(record).key == key


def test_a_table_after_one_that_can_not_be_packed() -> None:
    """One packer is used for all of them, and does not keep the memory of a large one."""
    for bad in ({"a": "b" * 100, "n": 1 << 70}, {"a": 1, "text": "\ud800"}):
        with pytest.raises(UsageError):
            encode_record(Message(b"", headers=bad))
        assert decode_record(encode_record(Message(b"", headers={"a": 1}))).headers == {"a": 1}
    before = tables._SHARED
    large = {"a": bytes(100_000)}
    assert decode_record(encode_record(Message(b"", headers=large))).headers == large
    assert build() == COMPILED or tables._SHARED is not before


class Number(int):
    """Packed as the int that it is."""


EDGES = [
    sign * (1 << bits) + off
    for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63)
    for sign in (1, -1)
    for off in (-1, 0, 1)
]
LENGTHS = (0, 1, 31, 32, 255, 256, 900, 1100, 65_535, 65_536)
USUAL = [
    *(number for number in EDGES if -(1 << 63) <= number < 1 << 64),
    *("é" * (size // 2) + "x" * (size % 2) for size in LENGTHS),
    *map(bytes, LENGTHS),
    *(True, False, None, 0.0, -1.5, 1e300, float("inf")),
]
OTHERS = [[1, "a"], {"deeper": {"and": 1}}, [], Number(7)]


@pytest.mark.parametrize("value", [*USUAL, *OTHERS], ids=lambda value: f"{type(value).__name__}")
def test_tables_are_packed_as_msgpack_packs_them(value: object) -> None:
    """Each build packs the usual ones in its own way."""
    key = value if isinstance(value, str) else "k"
    for table in (
        {"n": value},
        {"a": 1, "b": value, "c": "x"},
        {"v": value, **dict(zip("abcdefghijklmno", range(15), strict=True))},
    ):
        for headers, properties in ((table, {}), ({}, table), (table, {"p": 1})):
            middle = encode_middle(key, headers, properties)
            parts = (key, headers or None, properties or None)
            assert middle == b"".join(msgpack.packb(part) for part in parts)
    assert encode_middle(None, MappingProxyType({"n": value}), {}) == encode_middle(
        None, {"n": value}, {}
    )


@given(MESSAGE)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    record = encode_record(message)
    assert decode_record(record) == message
    assert embedded_length(record + b"what follows", 0) == len(record)
    # It is what the diagram says: a msgpack array of seven.
    version, check, timestamp, key, headers, properties, body = msgpack.unpackb(
        record, strict_map_key=False
    )
    assert (version, check, timestamp, body) == (1, 0, message.timestamp, message.body)
    assert (key, headers or {}, properties or {}) == (
        message.key,
        message.headers,
        message.properties,
    )


@given(MESSAGE, st.integers(0, 1 << 20))
def test_a_stored_record_is_sound_until_a_bit_flips(message: Message, flip: int) -> None:
    msg_id = b"0123456789abcdef"
    sealed = seal_stored(msg_id, encode_record(message))
    assert stored_is_sound(msg_id, sealed)
    assert not stored_is_sound(b"another id......", sealed)
    flipped = bytearray(sealed)
    flipped[flip % len(sealed)] ^= 1 << flip % 8
    assert not stored_is_sound(msg_id, bytes(flipped))
    assert not stored_is_sound(msg_id, sealed[:-1])


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 70_000])
def test_the_head_of_a_body(size: int) -> None:
    body = bytes(size)
    assert plain_body_head(size) + body == msgpack.packb(body, use_bin_type=True)


@pytest.mark.parametrize(
    "value",
    [{"x": Ellipsis}, {"x": 1 << 64}, {"x": {(1, 2): 3}}, {"x": "\ud800"}, {"x": 1j}],
    ids=repr,
)
def test_what_can_not_be_stored(value: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="can't be stored"):
        encode_record(Message(b"", headers=value))
    with pytest.raises(UsageError, match="can't be stored"):
        encode_record(Message(b"", properties=value))


HEAD = MAGIC + bytes(8) + b"\xcf" + bytes(8)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x83h\x06",
        MAGIC,
        HEAD,
        HEAD + b"\xc0\xc0\xc0",
        HEAD + b"\xc0\xc0\xc0\xc4\x05abc",
        HEAD + b"\xc0\xc0\xc0\xc4\x01ab",
        HEAD + b"\x05\xc0\xc0\xc4\x00",
        HEAD + b"\xc0\x05\xc0\xc4\x00",
        HEAD + b"\xc0\xc0\x90\xc4\x00",
        HEAD + b"\xc0\xc0\xc0\xa0",
        HEAD + b"\xa1\xff\xc0\xc0\xc4\x00",
        HEAD + b"\xc0\x81\x91\x01\x02\xc0\xc4\x00",
        MAGIC + bytes(8) + b"\xa0\xc0\xc0\xc0\xc4\x00",
        HEAD + b"\x91" * 5000,
    ],
    ids=lambda record: record[:30].hex(),
)
def test_what_is_no_record(record: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(record)


def test_the_seal_covers_every_bit_of_the_publish_record() -> None:
    packed = pack_publish(5, True, b"i" * 16, 7, 2, encode_record(Message(b"ab", "k")))
    sealed = seal_embedded(packed)
    at = PUBLISH_HEAD_SIZE + 3
    assert sealed[:at] + bytes(8) + sealed[at + 8 :] == packed
    seals = set()
    for bit in range(len(packed) * 8):
        if at <= bit >> 3 < at + 8:
            continue
        flipped = bytearray(packed)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        seals.add(seal_embedded(bytes(flipped))[at : at + 8])
    assert len(seals) == (len(packed) - 8) * 8
    assert sealed[at : at + 8] not in seals


@pytest.mark.parametrize("offsets", [[0], [0, 10, 20], [3, 30, 11], [20, 10, 0], [5, 5]])
def test_rows_are_gathered_from_anywhere(offsets: list[int]) -> None:
    data = bytes(range(60))
    words = np.array([7 << 32 | at for at in range(len(offsets))], np.uint64)
    rows = gather_rows(data, np.array(offsets, np.int64), words, 18)
    for row, offset, word in zip(rows, offsets, words.tolist(), strict=True):
        assert row.tobytes() == word.to_bytes(8, "big") + data[offset : offset + 10]
