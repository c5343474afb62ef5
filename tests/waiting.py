"""Wait for another thread or process in a test."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WAIT", "wait_until"]

WAIT = 120.0
"""Seconds until a test gives up: it hangs then, however busy the machine is."""


def wait_until(holds: Callable[[], object], told: Callable[[], object] = str) -> None:
    """Wait until something holds; ``told`` says what there is if it never does."""
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline, told()
        time.sleep(0.005)
