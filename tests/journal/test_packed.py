"""msgpack from a stranger: what it claims is not what it costs."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.packed import unpack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.binary() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text() | st.integers(0, 9), inner)
    ),
)


@given(VALUES)
def test_what_was_packed_comes_back(value: object) -> None:
    assert unpack(msgpack.packb(value)) == value


@pytest.mark.parametrize("count", [127, 128, 129, 70_000])
def test_large_containers(count: int) -> None:
    items = list(range(count))
    assert unpack(msgpack.packb([items, items])) == [items, items]
    assert unpack(msgpack.packb(dict.fromkeys(items))) == dict.fromkeys(items)


@pytest.mark.parametrize("head", [b"\xdd\0\0\xc0\0", b"\xdf\0\0\x60\0", b"\xdd\xff\xff\xff\xff"])
def test_nested_claims_cost_no_memory(head: bytes) -> None:
    data = (head * 500).ljust(60_000, b"\xc0")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="no msgpack"):
            unpack(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\xc0\xc0", b"\x91", b"\xa2a", b"\x81\x90\xc0", b"\xa1\xff", b"\x91" * 2000]
    + [b"\xdd\0\0\1\0" + b"\xc0" * 255, b"\xdd\0\0\1\0" + b"\xc0" * 257]
    + [b"\xdf\0\0\1\0" + b"\x90\xc0" * 256, b"\xd6\xff\0", b"\xd5\xff\0\0"],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="no msgpack"):
        unpack(data)
