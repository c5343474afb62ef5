"""The clock of a run begins where the wall clock is, whatever else the processor did then."""

from __future__ import annotations

import time
from itertools import chain, repeat

import pytest

from qindex.queue import run_clock

APART = 1_700_000_000 * 10**9
"""Nanoseconds between the two clocks."""


def test_the_processor_is_taken_away_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = chain([10**7, 10**7, 10**7, 100, 100, 100], repeat(10**7))
    now = 0

    def look() -> int:
        nonlocal now
        now += next(looks)
        return now

    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: look())
    monkeypatch.setattr(time, "time_ns", lambda: APART + look())
    assert abs(run_clock._wall_clock_at_zero() - APART) <= 100
