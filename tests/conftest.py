"""Profiles of hypothesis: ``ci`` (the default) and ``nightly`` (HYPOTHESIS_PROFILE=nightly); which
tests run in one process."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("ci", deadline=None, max_examples=60, suppress_health_check=_SLOW)
settings.register_profile("nightly", deadline=None, max_examples=3000, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell without job control starts what is in the background so, and its children inherit
    # it; tests interrupt theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in this hook, too
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes: the tests of a file run in one, and all of Spark's, for a session
    costs more than most of them."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        parts = item.path.relative_to(config.rootpath).parts
        group = "spark" if "spark" in parts else "/".join(parts)
        item.add_marker(pytest.mark.xdist_group(group))


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
