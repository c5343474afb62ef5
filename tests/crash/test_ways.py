"""What is written in C makes the same stores as the methods in Python, so what is proven of the
states that a crash leaves of the one holds for the other."""

from __future__ import annotations

import pytest

from tests.crash.disk import Note, Operation
from tests.crash.driver import Workload, record
from tests.crash.workloads import WORKLOADS
from tests.ways import in_python, needs_compiled


def stores(workload: Workload) -> list[Operation]:
    fs, _ = record(workload)
    return [operation for operation in fs.log if not isinstance(operation, Note)]


@needs_compiled
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_both_ways_leave_the_same_log(workload: Workload) -> None:
    compiled = stores(workload)
    with in_python():
        assert stores(workload) == compiled
    assert len(compiled) > 5
