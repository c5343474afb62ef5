"""The table of interned strings does not grow while memory is traced."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import msgpack
import pytest

from tests.traced_memory import ROOM, tracing
from tests.waiting import WAIT

ROOT = Path(__file__).parents[1]
AS_LARGE_AS_BEFORE = """
import sys
from tests.traced_memory import tracing

kept = [sys.intern(f"kept {number}") for number in range(100_000)]
with tracing():
    pass
for number in range(165_000):
    sys.intern(f"gone {number}")
with tracing():
    pass
"""


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


def test_a_table_that_is_as_large_as_the_one_before() -> None:
    """It was not told from none, for ever, where both were made while memory was traced. In a
    process of its own: how full the table is decides it."""
    subprocess.run([sys.executable, "-c", AS_LARGE_AS_BEFORE], cwd=ROOT, check=True, timeout=WAIT)
