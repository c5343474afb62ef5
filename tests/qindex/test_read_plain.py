"""The quick way to read a plain message gives what the careful one gives, or nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from journal.format import PAYLOAD_SIZE, PUBLISH_HEAD, PUBLISH_HEAD_SIZE, pack_publish
from qindex.format.entries import read_entry
from qindex.format.message import Message
from qindex.format.message_record import CHECK_OFFSET, CHECK_SIZE, encode_record, seal_embedded
from qindex.format.plain_record import read_plain

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


def messages() -> Iterator[Message]:
    for size in SIZES:
        for key in KEYS:
            yield Message(random.Random(size).randbytes(size), key, {}, {}, 1_700_000_000 * 10**9)


def carefully(data: bytes, payload: int, word: int) -> tuple[bytes, int] | None:
    """Give the body and timestamp of a sound message that is plain."""
    entry = read_entry(data, payload, word)
    message = entry.message
    if message is None or entry.damage or entry.corrected or entry.expiry:
        return None
    if message.key is not None or message.headers or message.properties:
        return None
    return message.body, message.timestamp


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("expiry", [0, 1, (1 << 64) - 1])
@pytest.mark.parametrize("before", [0, 5])
def test_plain_messages_are_read_and_no_others(verified: bool, expiry: int, before: int) -> None:
    for message in messages():
        for persistent in (True, False):
            record = record_of(message, expiry=expiry, persistent=persistent)
            data, payload = bytes(before) + record + b"behind it", before + WORD
            found = read_plain(data, payload, word_of(record), verified)
            if message.key is not None or expiry:
                assert found is None
            else:
                assert found == (message.body, message.timestamp)


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
    assert read_plain(record, WORD, word_of(record), False) is None
    assert read_plain(record, WORD, word_of(record), True) is None


@pytest.mark.parametrize("size", [0, 30, 300])
def test_no_flipped_bit_is_taken(size: int) -> None:
    record = record_of(Message(bytes(size), None, {}, {}, 1 << 60))
    data = bytearray(record)
    for bit in range(8 * len(record)):
        data[bit >> 3] ^= 1 << (bit & 7)
        assert read_plain(data, WORD, word_of(data), False) is None, bit
        read_plain(data, WORD, word_of(data), True)  # whatever the caller vouches for
        data[bit >> 3] ^= 1 << (bit & 7)
    assert read_plain(data, WORD, word_of(record) ^ 1, False) is None


def test_nothing_is_read_beyond_the_end() -> None:
    """Of a record whose head is whole: readers look for that first."""
    record = record_of(Message(b"some body", None, {}, {}, 1))
    for end in range(WORD + PAYLOAD_SIZE, len(record)):
        assert read_plain(record[:end], WORD, word_of(record), False) is None


def resealed(record: bytearray) -> bytes:
    """Give a record whose checksum holds for the length that it says it has."""
    end = PUBLISH_HEAD_SIZE + int.from_bytes(
        record[PUBLISH_HEAD_SIZE - 4 : PUBLISH_HEAD_SIZE], "big"
    )
    check = PUBLISH_HEAD_SIZE + CHECK_OFFSET
    record[check : check + CHECK_SIZE] = bytes(CHECK_SIZE)
    end = max(end, check + CHECK_SIZE)
    return seal_embedded(bytes(record[:end])) + record[end:]


def test_lengths_and_tags_that_are_made_up() -> None:
    chance = random.Random(3)
    places = [*range(PUBLISH_HEAD_SIZE - 8, PUBLISH_HEAD_SIZE), 51, *range(60, 72)]
    values = [0, 1, 2, 40, 0xA1, 0xA4, 0xC0, 0xC4, 0xC5, 0xC6, 0xD9, 0xFF]
    taken = 0
    for _ in range(20_000):
        key = chance.choice([None, None, "k"])
        made = bytearray(record_of(Message(bytes(chance.choice([0, 40])), key, {}, {}, 1)))
        for _ in range(chance.randrange(1, 4)):
            made[min(chance.choice(places), len(made) - 1)] = chance.choice(values)
        record = resealed(made)
        found = read_plain(record, WORD, word_of(record), False)
        if found is not None:
            taken += 1
            assert found == carefully(record, WORD, word_of(record))
    assert taken > 100


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
def test_only_the_shortest_form_is_read(body: bytes, is_read: bool) -> None:
    """Of a body that is all the rest; a sound record that somebody else made is left."""
    front = b"\x97\x01\xcf" + bytes(8) + b"\xcf" + (1 << 60).to_bytes(8, "big")
    packed = pack_publish(7, True, ID, 0, 4, front + b"\xc0\xc0\xc0" + body)
    record = resealed(bytearray(packed))
    for verified in (False, True):
        found = read_plain(record, WORD, 7, verified)
        assert (found is not None) == is_read
        assert found is None or found == carefully(record, WORD, 7)


def test_an_entry_of_the_message_store_is_left() -> None:
    record = PUBLISH_HEAD.pack(7, ID, 0, 5000, 0)
    assert read_plain(record + bytes(100), WORD, 7, True) is None
