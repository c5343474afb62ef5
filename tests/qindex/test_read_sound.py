"""Single messages read by what is written in C: the same as the way in Python gives, or nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from journal.format import PUBLISH_HEAD, PUBLISH_HEAD_SIZE, pack_publish
from qindex.format.entries import Entry, read_entry
from qindex.format.message import Message
from qindex.format.message_record import CHECK_OFFSET, CHECK_SIZE, encode_record, seal_embedded
from qindex.format.plain_record import read_plain
from qindex.queue.compiled import COMPILED
from tests.ways import needs_compiled

pytestmark = needs_compiled

compiled: Any = COMPILED
WORD = 8
KEYS = [None, "", "k", "k" * 31, "k" * 32, "k" * 255, "k" * 256, "\0", "ключ", "\U0001f511" * 9]
SIZES = [0, 1, 255, 256, 3000, 65_535, 65_536]
ID = bytes(range(16))


def record_of(message: Message, *, seq: int = 7, expiry: int = 0, persistent: bool = True) -> bytes:
    size = len(message.body)
    packed = pack_publish(seq, persistent, ID, expiry, size, encode_record(message))
    return seal_embedded(packed)


def word_of(record: bytes | bytearray) -> int:
    return int.from_bytes(record[:WORD], "big")


def in_python(data: bytes, payload: int, word: int, verified: bool) -> tuple[bytes, int | Entry]:
    found = read_plain(data, payload, word, verified)
    if found is not None:
        return found
    entry = read_entry(data, payload, word)
    return b"" if entry.message is None else entry.message.body, entry


def messages() -> Iterator[Message]:
    for size in SIZES:
        for key in KEYS:
            yield Message(random.Random(size).randbytes(size), key, {}, {}, 1_700_000_000 * 10**9)


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("expiry", [0, 1, (1 << 64) - 1])
@pytest.mark.parametrize("before", [0, 5])
def test_it_gives_what_the_way_in_python_gives(verified: bool, expiry: int, before: int) -> None:
    read = 0
    for message in messages():
        for persistent in (True, False):
            record = record_of(message, expiry=expiry, persistent=persistent)
            data, payload = bytes(before) + record + b"behind it", before + WORD
            found = compiled.read_sound(data, payload, word_of(record), verified)
            expected = in_python(data, payload, word_of(record), verified)
            if message.key is not None and len(message.key) == 256:
                assert found is None
                continue
            assert found == expected
            assert [type(one) for one in found] == [type(one) for one in expected]
            extra = found[1]
            if isinstance(extra, Entry):
                assert extra.message == message
                assert extra.message is not None
                assert extra.message.body is found[0]
                assert extra.message.headers is not extra.message.properties
            read += 1
    assert read == 2 * len(SIZES) * (len(KEYS) - 1)


@pytest.mark.parametrize(
    "message",
    [
        Message(b"body", "k", {"h": 1}),
        Message(b"body", None, {"h": 1}),
        Message(b"body", "k", {}, {"p": b""}),
        Message(b"body", None, {}, {"p": None}),
    ],
)
def test_what_has_headers_or_properties_is_left(message: Message) -> None:
    record = record_of(message)
    assert compiled.read_sound(record, WORD, word_of(record), False) is None
    assert compiled.read_sound(record, WORD, word_of(record), True) is None


@pytest.mark.parametrize("key", [None, "some key", "k" * 40])
@pytest.mark.parametrize("size", [0, 30, 300])
def test_no_flipped_bit_is_taken(key: str | None, size: int) -> None:
    record = record_of(Message(bytes(size), key, {}, {}, 1 << 60))
    data = bytearray(record)
    for bit in range(8 * len(record)):
        data[bit >> 3] ^= 1 << (bit & 7)
        assert compiled.read_sound(data, WORD, word_of(data), False) is None, bit
        compiled.read_sound(data, WORD, word_of(data), True)  # whatever the caller vouches for
        data[bit >> 3] ^= 1 << (bit & 7)
    assert compiled.read_sound(data, WORD, word_of(record) ^ 1, False) is None


def test_nothing_is_read_beyond_the_end() -> None:
    record = record_of(Message(b"some body", "some key", {}, {}, 1))
    for end in range(len(record)):
        for verified in (False, True):
            assert compiled.read_sound(record[:end], WORD, word_of(record), verified) is None
    for payload in (-1, -(1 << 62), len(record), (1 << 63) - 1, len(record) - 31):
        assert compiled.read_sound(record, payload, 0, True) is None


def resealed(record: bytearray) -> bytes:
    """Give a record whose checksum holds for the length that it says it has."""
    end = PUBLISH_HEAD_SIZE + int.from_bytes(
        record[PUBLISH_HEAD_SIZE - 4 : PUBLISH_HEAD_SIZE], "big"
    )
    check = PUBLISH_HEAD_SIZE + CHECK_OFFSET
    record[check : check + CHECK_SIZE] = bytes(CHECK_SIZE)
    return seal_embedded(bytes(record[:end])) + record[end:]


def test_lengths_and_tags_that_are_made_up() -> None:
    chance = random.Random(3)
    places = [
        *range(PUBLISH_HEAD_SIZE - 8, PUBLISH_HEAD_SIZE),
        51,
        *range(60, 72),
        *range(100, 107),
    ]
    values = [0, 1, 2, 40, 0xA1, 0xA4, 0xC0, 0xC4, 0xC5, 0xC6, 0xD9, 0xFF]
    taken = 0
    for _ in range(30_000):
        key = chance.choice([None, "k", "k" * 40])
        made = bytearray(record_of(Message(bytes(chance.choice([0, 40])), key, {}, {}, 1)))
        for _ in range(chance.randrange(1, 4)):
            made[min(chance.choice(places), len(made) - 1)] = chance.choice(values)
        record = resealed(made)
        for verified in (False, True):
            found = compiled.read_sound(record, WORD, word_of(record), verified)
            if found is not None:
                taken += 1
                assert found == in_python(record, WORD, word_of(record), verified)
    assert taken > 1000


@pytest.mark.parametrize("key", [b"\xc0", b"\xa1k", b"\xd9\x01k"])
@pytest.mark.parametrize(
    ("body", "is_read"),
    [
        (b"\xc4\x04body", True),
        (b"\xc4\x04body and more", False),
        (b"\xc4\x05body", False),
        (b"\xc5\x00\x04body", False),
        (b"\xc6\x00\x00\x00\x04body", False),
        (b"\xa4body", False),
    ],
)
def test_only_the_shortest_form_is_read(key: bytes, body: bytes, is_read: bool) -> None:
    """Of a body that is all the rest; a sound record that somebody else made is left."""
    front = b"\x97\x01\xcf" + bytes(8) + b"\xcf" + (1 << 60).to_bytes(8, "big")
    record = resealed(bytearray(pack_publish(7, True, ID, 0, 4, front + key + b"\xc0\xc0" + body)))
    for verified in (False, True):
        found = compiled.read_sound(record, WORD, 7, verified)
        assert (found is not None) == is_read
        assert found is None or found == in_python(record, WORD, 7, verified)


def test_a_key_that_is_no_text_is_left() -> None:
    record = bytearray(record_of(Message(b"body", "key", {}, {}, 1)))
    record[record.index(b"key")] = 0xFF
    assert compiled.read_sound(record, WORD, word_of(record), True) is None


def test_an_entry_of_the_message_store_is_left() -> None:
    record = PUBLISH_HEAD.pack(7, ID, 0, 5000, 0)
    assert compiled.read_sound(record + bytes(100), WORD, 7, True) is None


def test_wrong_use() -> None:
    record = record_of(Message(b"body"))
    for arguments in [(), (record, WORD, 7), ("text", WORD, 7, True), (record, "8", 7, True)]:
        with pytest.raises(TypeError):
            compiled.read_sound(*arguments)
    for arguments in [(record, 1 << 80, 7, True), (record, WORD, -1, True)]:
        with pytest.raises(OverflowError):
            compiled.read_sound(*arguments)
