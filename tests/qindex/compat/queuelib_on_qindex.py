"""A pytest plugin: queuelib's own tests then run on our classes.

Those of its disk queues' file layout (chunks, size headers) are left out: there is nothing of that
kind here.
"""

from __future__ import annotations

import pytest
import queuelib
import queuelib.queue

from qindex.compat.queuelib import FifoDiskQueue, LifoDiskQueue

LAYOUT = {"test_not_szhdr", "test_chunks", "test_clear_removes_chunks"}

for module in (queuelib, queuelib.queue):
    for name in ("FifoDiskQueue", "FifoSQLiteQueue"):
        setattr(module, name, FifoDiskQueue)
    for name in ("LifoDiskQueue", "LifoSQLiteQueue"):
        setattr(module, name, LifoDiskQueue)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [one for one in items if one.name in LAYOUT]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [one for one in items if one.name not in LAYOUT]
