"""Crash states of the workloads on dead letters, leases and limits.

What is new in them is the order of writes to several files, so fewer pages of one file are varied
than elsewhere, and fewer steps of a recovery crashed.
"""

from __future__ import annotations

import pytest

from tests.crash.driver import Workload
from tests.crash.explorer import Explorer, Limits
from tests.crash.states import Bounds
from tests.crash.support import Record, assert_enough, explore
from tests.crash.workloads import LIMITS

_ENOUGH = 10_000
"""Distinct states."""
_LIMITS = Limits(bounds=Bounds(product=2, pairs=0, subset=1, moments=1), second=31, goes_on=64)


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer(_LIMITS)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", LIMITS, ids=lambda workload: workload.name)
def test_every_state_keeps_the_promises(
    workload: Workload, explorer: Explorer, record_property: Record
) -> None:
    explore(explorer, workload, record_property)


def test_that_was_enough(explorer: Explorer) -> None:
    assert_enough(explorer, LIMITS, _ENOUGH)
