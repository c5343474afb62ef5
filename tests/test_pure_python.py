"""Without what is written in C: tests of queues and stores once more, in a process that does
without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import not_quick
from tests.ways import needs_compiled

ROOT = Path(__file__).parents[1]
FILES = (
    "qindex/aio/test_calls.py",
    "qindex/test_delivery_order.py",
    "qindex/test_engine.py",
    "qindex/test_fork.py",
    "qindex/test_keeping_up.py",
    "qindex/test_model.py",
    "journal/test_gate.py",
    "journal/test_patience.py",
    "journal/test_sync.py",
    "qindex/test_plain_run.py",
    "qindex/test_sync_counts.py",
    "qindex/test_threads.py",
    "rocketstore/test_model.py",
    "rocketstore/test_put_path.py",
    "rocketstore/test_store.py",
)


@needs_compiled
@not_quick("the tests of queues and stores once more")
@pytest.mark.timeout(600)
def test_in_pure_python() -> None:
    files = [str(ROOT / "tests" / name) for name in FILES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env=os.environ | {"QINDEX_PURE_PYTHON": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_the_variable_does_without() -> None:
    program = (
        "from qindex.queue.compiled import COMPILED; from qindex.queue.queue import Queue; "
        "from rocketstore import Store; "
        "assert COMPILED is None; assert 'publish' not in vars(Queue); "
        "assert 'put' not in vars(Store)"
    )
    environment = os.environ | {"QINDEX_PURE_PYTHON": "1"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True)
