"""How the processes of a test run share its tests.

A file's tests stay together, for they share fixtures. All of Spark's that need a session in their
own process do, so that one JVM starts; the others keep another process busy meanwhile.
Each part of the schedules and each workload of the crash explorer goes by itself, to whichever
process is free: they come last, the longer ones first, so that all processes end at about the same
time. A workload of the explorer and the same in another durability stay together: what the one
opened the other need not.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

__all__ = ["Scheduler", "in_order"]

_ALONE = (
    "tests/schedules/",
    "tests/crash/test_explore.py::",
    "tests/crash/test_regressions.py::",
)
"""In this order: a part of the schedules takes longer than a workload of the explorer."""
_TOGETHER = ("tests/spark/",)
_NO_SESSION = tuple(
    f"tests/spark/test_{name}.py"
    for name in ("cluster", "kills", "logs", "many_files", "options", "publishing", "remote")
)
"""Of these, files whose tests have no JVM, or drivers in processes of their own."""
_FIRST = (*_TOGETHER, "tests/qindex/test_rabbitmq_node", "tests/interrupts/", "tests/worker/")
"""What takes longest: begun last, it would keep one process busy while the other is done."""


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Gives groups of tests to processes."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        """Give the group of a test."""
        if nodeid.startswith(_ALONE):
            return nodeid.removesuffix(", os]").removesuffix(", fsync]")
        together = (one for one in _TOGETHER if nodeid.startswith(one))
        file = nodeid.partition("::")[0]
        return file if nodeid.startswith(_NO_SESSION) else next(together, file)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Give the tests in the order in which they are to begin."""

    def place(item: pytest.Item) -> int:
        for at, start in enumerate(_FIRST):
            if item.nodeid.startswith(start):
                return at
        for at, start in enumerate(_ALONE, 1):
            if item.nodeid.startswith(start):
                return len(_FIRST) + at
        return len(_FIRST)

    return sorted(items, key=place)
