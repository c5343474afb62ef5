"""Every crash state, within stated bounds, of the fixed workloads.

Every tier opens every state that the death of the process leaves. Those of a loss of power it opens
at some points; which ones, and which steps of recoveries are crashed, rotates. The nightly tier
opens them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from tests.crash.driver import Workload
from tests.crash.explorer import Explorer, Known, Limits
from tests.crash.states import Bounds
from tests.crash.workloads import FIRST, LATER, LIMITS, TOGETHER, WORKLOADS
from tests.effort import SEED, by_tier

_FEW = Bounds(product=2, pairs=0, subset=1, moments=1)
_QUICK = Limits(bounds=_FEW, power=40, second=96, goes_on=64, turn=SEED)
_LIMITS = Limits(bounds=_FEW, second=31, goes_on=64, turn=SEED)
"""Of the workloads on dead letters, leases and limits. The order of writes to several files is new
in them, so fewer pages of one file are varied than elsewhere."""
_TOGETHER = replace(_LIMITS, power=2)
"""Of those on delays, unique keys, transactions (so publish_to) and priorities, which write most.
Each commit tries a loss of power at every other point."""
_WHOLE = Limits(turn=SEED)
_NIGHTLY = Limits(Bounds(product=64, pairs=64, subset=4, moments=6), goes_on=8, turn=SEED)


def limits_of(workload: Workload) -> Limits:
    whole = _LIMITS if workload in LIMITS else _WHOLE
    steps = {step[0] for step in workload.steps}
    if workload in LATER + TOGETHER + FIRST or "publish_to" in steps:
        whole = _TOGETHER
    return by_tier(quick=_QUICK, all=whole, nightly=_NIGHTLY)


@lru_cache(1)
def known_of(name: str) -> Known:
    """Give what the workload of this name, in each durability, and those of its run have opened."""
    return Known()


@pytest.mark.rotates(4)
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_state_keeps_the_promises(
    workload: Workload, record_property: Callable[[str, object], None]
) -> None:
    # Those on dead letters move messages as they are looked at: how, the durability decides.
    known = None if workload in LIMITS else known_of(workload.name.rpartition(", ")[0])
    report = Explorer(limits_of(workload), known).explore(workload)
    record_property("crash states", (report.distinct, report.seconds))
    assert report.points > 5
    if report.failures:
        pytest.fail(str(report.failures[0]), pytrace=False)
    assert report.complete
