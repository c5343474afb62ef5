"""Profiles of hypothesis: ``ci`` (the default) and ``nightly`` (HYPOTHESIS_PROFILE=nightly); what
the end of a run says of the crash states."""

from __future__ import annotations

import os
import signal
from typing import Any

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("ci", deadline=None, max_examples=60, suppress_health_check=_SLOW)
settings.register_profile("nightly", deadline=None, max_examples=3000, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell without job control starts what is in the background so, and its children inherit
    # it; tests interrupt theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell how many crash states were explored (tests/crash), and how fast."""
    passed = terminalreporter.stats.get("passed", [])
    explored = [
        value
        for report in passed
        for name, value in report.user_properties
        if name == "crash states"
    ]
    if explored:
        states = sum(count for count, _ in explored)
        seconds = sum(spent for _, spent in explored)
        terminalreporter.write_line(
            f"crash states: {states:,} distinct ones explored, "
            f"{states / max(seconds, 1e-9):,.0f} a second in each process"
        )
