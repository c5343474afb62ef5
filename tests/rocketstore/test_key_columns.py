"""Keys and tags of many messages at once, against reading the properties of each by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.format import key_columns as subject
from rocketstore.format.javahash import Seed, hash_code, index_hash, tags_code
from rocketstore.format.key_columns import KeyColumns, key_columns
from rocketstore.format.properties import decode_properties, index_keys

SEED = hash_code("TopicTest#")
# What separates, what Java's UTF-16 sees otherwise than UTF-8, what a value may not begin with.
VALUES = st.text(st.sampled_from("ab7- \x00\x01\x7f\x80é标😀"), max_size=5)
NAMES = st.sampled_from(["KEYS", "UNIQ_KEY", "TAGS", "WAIT", "é", "", "KEYS "])
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=4)


def of(rows: Sequence[bytes], seed: Seed = SEED) -> KeyColumns:
    # Something stands before, between and behind them, as in a log.
    data = np.frombuffer(b"<<" + b"".join(row + b"\x02|" for row in rows), np.uint8)
    lengths = np.array([len(row) for row in rows], np.int64)
    return key_columns(data, 2 + np.cumsum(lengths + 2) - lengths - 2, lengths, seed)


def check(rows: Sequence[bytes], seeds: Sequence[int]) -> None:
    one = of(rows) if set(seeds) <= {SEED} else of(rows, np.array(seeds, np.int64))
    hashes, messages, codes = [], [], []
    for number, (row, seed) in enumerate(zip(rows, seeds, strict=True)):
        found = decode_properties(row)
        keys = index_keys(found)
        hashes += [index_hash(key, seed) for key in keys]
        messages += [number] * len(keys)
        codes.append(tags_code(found.get("TAGS")))
    assert one.hashes.tolist() == hashes
    assert one.messages.tolist() == messages
    assert one.tags_codes.tolist() == codes


def encoded(pairs: Sequence[tuple[str, str]], digits: str = "") -> bytes:
    """Pairs as they stand on disk, 7 replaced by a digit: rows that look alike, or nearly."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    for digit in digits:
        text = text.replace("7", digit, 1)
    return text.encode()


@given(
    st.lists(st.tuples(PAIRS, st.text("0 \x029", max_size=4)), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=80),
    st.booleans(),
)
def test_any_properties(
    shapes: list[tuple[list[tuple[str, str]], str]], chosen: list[int], topics: bool
) -> None:
    kinds = [shapes[number % len(shapes)] for number in chosen]
    rows = [
        encoded(pairs, digits if number % 3 else "") for number, (pairs, digits) in enumerate(kinds)
    ]
    check(rows, [SEED + number % 2 * 1_000_003 * topics for number in range(len(rows))])


@given(st.lists(st.binary(max_size=12), max_size=40))
def test_any_bytes(rows: list[bytes]) -> None:
    check(rows, [SEED] * len(rows))


USUAL = [
    [f"KEYS\x01order-{n}\x02UNIQ_KEY\x01{n:032X}" for n in range(90_000, 110_000, 7)],
    [f"KEYS\x01k{n}\x02UNIQ_KEY\x01u{n % 11}\x02TAGS\x01t{n % 3}" for n in range(3000)],
    [f"UNIQ_KEY\x01{n:08X}\x02WAIT\x01true\x02TAGS\x01Täg\x02" for n in range(40)],
    ["KEYS\x01a b  c\x02X\x01y z"] * 30,
    ["" for _ in range(100)],
]


@pytest.mark.parametrize("texts", USUAL, ids=["order", "shapes", "producer", "words", "none"])
def test_usual_properties(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are right; and few are read by themselves."""
    rows = [text.encode() for text in texts]
    check(rows, [SEED] * len(rows))
    check(rows, [SEED, 7] * (len(rows) // 2) + [7] * (len(rows) % 2))
    read: list[bytes] = []

    def decode(data: bytes) -> dict[str, str]:
        read.append(data)
        return decode_properties(data)

    monkeypatch.setattr(subject, "decode_properties", decode)
    of(rows)
    odd = [row for row in rows if not row.isascii()]
    assert len(read) <= 3 * 24 + len(odd)


def test_long_properties_are_read_by_themselves() -> None:
    rows = [b"KEYS\x01" + b"%d" % (number % 10) * 5000 for number in range(50)]
    check(rows, [SEED] * 50)
