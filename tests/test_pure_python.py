"""Without what is written in C: the tests of queues once more, in a process that does without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ways import needs_compiled

ROOT = Path(__file__).parents[1]
FILES = (
    "aio/test_calls.py",
    "test_delivery_order.py",
    "test_engine.py",
    "test_fork.py",
    "test_keeping_up.py",
    "test_model.py",
    "test_patience.py",
    "test_plain_run.py",
    "test_sync_counts.py",
    "test_threads.py",
)


@needs_compiled
@pytest.mark.timeout(600)
def test_queues_in_pure_python() -> None:
    files = [str(ROOT / "tests" / "qindex" / name) for name in FILES]
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
        "from qindex.compiled import COMPILED; from qindex.queue import Queue; "
        "assert COMPILED is None; assert 'publish' not in vars(Queue)"
    )
    environment = os.environ | {"QINDEX_PURE_PYTHON": "1"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True)
