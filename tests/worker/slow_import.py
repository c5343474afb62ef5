"""A module of handlers whose import takes as long as a process is told to."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

if multiprocessing.parent_process() is not None:
    time.sleep(float(os.environ["QINDEX_TEST_SLOW_IMPORT"]))


def handle(delivery: Any) -> None:
    """Do nothing."""
