"""Java's string hash: one by one and many at once against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.format.javahash import BLOCK, hash_code, hash_many, index_hash, index_hash_many

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


def reference(text: str, seed: int = 0) -> int:
    """``h = 31 * h + unit`` over the UTF-16 units, as signed 32 bits."""
    data = text.encode("utf-16-be")
    value = seed & 0xFFFFFFFF
    for at in range(0, len(data), 2):
        value = (value * 31 + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("T#k", 81_916),
        ("polygenelubricants", -(1 << 31)),
        ("\x7f" * 511, reference("\x7f" * 511)),
        ("\x7f" * 512, reference("\x7f" * 512)),
        ("~" * 513, reference("~" * 513)),
        ("标签", 857_175),
    ],
)
def test_one(text: str, value: int) -> None:
    assert reference(text) == value
    assert hash_code(text) == value


@given(TEXTS, st.integers(-(1 << 31), (1 << 31) - 1))
def test_one_after_a_prefix(text: str, seed: int) -> None:
    assert hash_code(text, seed) == reference(text, seed)


@given(st.lists(TEXTS, max_size=60), st.integers(-(1 << 31), (1 << 31) - 1))
def test_many(texts: list[str], seed: int) -> None:
    """Texts with NUL in them among them, empty ones, and some outside the basic plane."""
    assert hash_many(texts, seed).view(np.int32).tolist() == [reference(t, seed) for t in texts]
    assert index_hash_many(texts, seed).tolist() == [index_hash(text, seed) for text in texts]


@pytest.mark.parametrize(
    "texts",
    [
        [f"{number:032X}" for number in range(BLOCK * 2 + 7)],
        [f"order-{number}" for number in range(BLOCK + 1)],
        ["x" * (number % 90) for number in range(1000)],
        ["标" * (number % 40) + "\0" for number in range(300)],
        ["", "", ""],
        ["a\0b", "\0", "", "c"],
    ],
    ids=["one length", "few lengths", "many lengths", "wide, with NUL", "empty", "NUL"],
)
def test_many_of_each_shape(texts: list[str]) -> None:
    seeds = np.arange(len(texts), dtype=np.int64) * 7919 - 5000
    expected = [reference(text, int(seed)) for text, seed in zip(texts, seeds, strict=True)]
    assert hash_many(texts, seeds).view(np.int32).tolist() == expected
    assert hash_many(texts).view(np.int32).tolist() == [reference(text) for text in texts]
