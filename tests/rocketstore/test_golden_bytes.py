"""Written with the same inputs, clock, hosts and sizes, our files are the real store's, bit for
bit."""

from __future__ import annotations

from pathlib import Path

import rocketstore
from tests.golden import rocket_golden
from tests.rocketstore.support import SIZES, Clock, replay, store_files


def test_written_files_are_identical(tmp_path: Path) -> None:
    golden = rocket_golden("gen")
    replay(golden, tmp_path / "ours")
    ours = dict(store_files(tmp_path / "ours"))
    real = dict(store_files(golden / "store"))
    assert sorted(ours) == sorted(real)
    assert [name for name in real if ours[name] != real[name]] == []
    assert len(real) == 8 + 30 + 6


def test_columns_write_what_single_puts_write(tmp_path: Path) -> None:
    bodies = [bytes([number % 251]) * (number % 90) for number in range(3000)]
    keys = [f"order-{number % 400}" for number in range(3000)]
    unique = [f"{number:032X}" for number in range(3000)]
    clock = Clock()
    with rocketstore.open(tmp_path / "a", clock=clock, background=False, **SIZES) as single:
        for body, key, one in zip(bodies, keys, unique, strict=True):
            single.put("T", body, keys=key, unique_key=one, tags="x", queue_id=2)
    with rocketstore.open(tmp_path / "b", clock=clock, background=False, **SIZES) as many:
        for at in range(0, 3000, 700):
            part = slice(at, at + 700)
            many.put_many(
                "T", bodies[part], keys=keys[part], unique_keys=unique[part], tags="x", queue_id=2
            )
    assert dict(store_files(tmp_path / "a")) == dict(store_files(tmp_path / "b"))
