"""Every crash state, within stated bounds, of the workloads on the queue index."""

from __future__ import annotations

import pytest

from tests.crash.driver import Workload
from tests.crash.explorer import Explorer
from tests.crash.support import Record, assert_enough, explore, new_explorer
from tests.crash.workloads import INDEX

_ENOUGH = 50_000
"""Distinct states; the three files of this kind have 100,000."""


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return new_explorer()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", INDEX, ids=lambda workload: workload.name)
def test_every_state_keeps_the_promises(
    workload: Workload, explorer: Explorer, record_property: Record
) -> None:
    explore(explorer, workload, record_property)


def test_that_was_enough(explorer: Explorer) -> None:
    assert_enough(explorer, INDEX, _ENOUGH)
