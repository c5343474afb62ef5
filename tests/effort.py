"""How much effort a run of the tests spends, and which slices of the long tests it takes.

Three tiers: ``quick`` is ``sh scripts/test.sh``, ``all`` is ``--all``, ``nightly`` is
``--nightly``. :data:`TIER` comes from the environment variable ``QINDEX_TIER``. Without it, as
where pytest is run by hand on one file, it is ``all``.

A test that is too long to run whole runs a slice, and the next commit's run takes another one.
:data:`ROTATION` decides which. It is the commit's id, so that each run of one commit takes the same
slices. ``QINDEX_ROTATION`` sets it: with the rotation that the header of a failed run shows, the
same slices run again.
"""

from __future__ import annotations

import os
import random
import subprocess
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

__all__ = [
    "NIGHTLY",
    "QUICK",
    "ROTATION",
    "SEED",
    "TIER",
    "Tier",
    "by_tier",
    "chance",
    "examples",
    "load_profile",
    "not_quick",
    "part",
    "skip_in_quick",
    "turn",
]

_Value = TypeVar("_Value")


class Tier(StrEnum):
    """How long a run may take: three minutes, 25 minutes, hours."""

    QUICK = "quick"
    ALL = "all"
    NIGHTLY = "nightly"


def _commit() -> str:
    """Give the first digits of the commit's id, or ``"0"`` outside a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return "0"


def _rotation() -> str:
    """Give the commit; for a nightly run, the night as well, so that each tries other things."""
    night = f"-{datetime.now(UTC):%Y-%m-%d}" if TIER is Tier.NIGHTLY else ""
    return _commit() + night


TIER = Tier(os.environ.get("QINDEX_TIER") or Tier.ALL)
QUICK = TIER is Tier.QUICK
NIGHTLY = TIER is Tier.NIGHTLY
ROTATION = os.environ.get("QINDEX_ROTATION") or _rotation()
SEED = zlib.crc32(ROTATION.encode())
"""The rotation as a number, hypothesis's seed among others."""


def by_tier(*, quick: _Value, all: _Value, nightly: _Value) -> _Value:
    """Give the value for the tier of this run."""
    return {Tier.QUICK: quick, Tier.ALL: all, Tier.NIGHTLY: nightly}[TIER]


def turn(slices: int, name: str = "") -> int:
    """Tell which of so many slices is this run's: a number from 0 to ``slices - 1``.

    Tests with different ``name`` take different slices.
    """
    return zlib.crc32(name.encode(), SEED) % slices


def part(items: Sequence[_Value], slices: int, name: str = "") -> Sequence[_Value]:
    """Give one of so many slices of ``items``: every ``slices``-th, from this run's turn on.

    It has one item at least: of fewer items than slices, each is a slice.
    """
    return items[turn(min(slices, len(items)), name) :: slices] if items else items


def chance(*names: object) -> random.Random:
    """Give a generator of random values that is the same in each run of one rotation; different
    ``names`` give different values."""
    return random.Random(f"{ROTATION} {names}")


def skip_in_quick(reason: str) -> None:
    """Skip the calling test, or the tests that use the calling fixture, in the quick tier."""
    if QUICK:
        pytest.skip(_left_to_all(reason))


def not_quick(reason: str) -> pytest.MarkDecorator:
    """Give the mark of tests that the quick tier leaves to ``--all``."""
    return pytest.mark.skipif(QUICK, reason=_left_to_all(reason))


def _left_to_all(reason: str) -> str:
    return f"{reason}: left to sh scripts/test.sh --all"


def examples(all: int, *, nightly: int | None = None) -> int:
    """Give the number of examples that a test of hypothesis tries in this tier.

    ``all``: in --all. The quick tier has a quarter of them, ``nightly`` 50 times as many unless
    it says otherwise.
    """
    return by_tier(quick=max(1, all // 4), all=all, nightly=nightly or all * 50)


def load_profile() -> None:
    """Set the number of examples that tests try which do not set their own."""
    settings.register_profile(
        TIER,
        deadline=None,
        max_examples=examples(60),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile(TIER)
