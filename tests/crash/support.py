"""What the files of explorations share: several, so that processes share the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.crash.driver import Workload
from tests.crash.explorer import Explorer, Limits

__all__ = ["assert_enough", "explore", "new_explorer"]

Record = Callable[[str, object], None]


def new_explorer() -> Explorer:
    """Give an explorer with the bounds of the tests."""
    return Explorer(Limits())


def explore(explorer: Explorer, workload: Workload, record_property: Record) -> None:
    """Explore a workload to its end; the counts go to the summary of the run."""
    report = explorer.explore(workload)
    record_property("crash states", (report.distinct, report.seconds))
    assert report.points > 5
    if report.failures:
        pytest.fail(str(report.failures[0]), pytrace=False)
    assert report.complete


def assert_enough(explorer: Explorer, workloads: Sequence[Workload], enough: int) -> None:
    """See that the workloads gave as many distinct states as they should."""
    if explorer.explored != list(workloads):
        pytest.skip(f"only {len(explorer.explored)} of {len(workloads)} workloads were asked for")
    assert explorer.distinct >= enough
