"""The table of interned strings does not grow while memory is traced."""

from __future__ import annotations

import sys
import tracemalloc

import msgpack
import pytest

from tests.traced_memory import ROOM, tracing


@pytest.mark.parametrize("before", [0, 40_000])
def test_interned_strings_have_room(before: int) -> None:
    kept = [sys.intern(f"before {number}") for number in range(before)]
    packed = [msgpack.packb({f"key {number}": None}) for number in range(ROOM)]
    with tracing():
        for one in packed:
            msgpack.unpackb(one)
        held, _ = tracemalloc.get_traced_memory()
    assert held < 1 << 16
    assert len(kept) == before


def test_what_is_held_is_counted() -> None:
    with tracing():
        kept = [bytes(1000) for _ in range(1000)]
        held, _ = tracemalloc.get_traced_memory()
    assert 1_000_000 < held < 1_100_000
    assert len(kept) == 1000
