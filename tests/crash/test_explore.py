"""Every crash state, within stated bounds, of the fixed workloads.

The quick tier opens every state that the death of the process leaves, and those of a loss of power
at some points; which ones, and which steps of recoveries are crashed, rotates.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.driver import Workload
from tests.crash.explorer import Explorer, Limits
from tests.crash.states import Bounds
from tests.crash.workloads import LIMITS, WORKLOADS
from tests.effort import QUICK, SEED

_FEW = Bounds(product=2, pairs=0, subset=1, moments=1)
_QUICK = Limits(bounds=_FEW, power=16, second=64, goes_on=64, turn=SEED)
_LIMITS = Limits(bounds=_FEW, second=31, goes_on=64, turn=SEED)
"""Of the workloads on dead letters, leases and limits. The order of writes to several files is new
in them, so fewer pages of one file are varied than elsewhere."""
_WHOLE = Limits(turn=SEED)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_state_keeps_the_promises(
    workload: Workload, record_property: Callable[[str, object], None]
) -> None:
    limits = _QUICK if QUICK else _LIMITS if workload in LIMITS else _WHOLE
    report = Explorer(limits).explore(workload)
    record_property("crash states", (report.distinct, report.seconds))
    assert report.points > 5
    if report.failures:
        pytest.fail(str(report.failures[0]), pytrace=False)
    assert report.complete
