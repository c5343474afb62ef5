"""More queues than the process may have files open: published to, consumed from, killed, opened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import qindex
from qindex.tools.verify import verify
from tests.effort import not_quick
from tests.qindex.many_queues_child import MAX_OPEN, QUEUES, name_of
from tests.qindex.support import queue_directory


def _step(directory: Path, step: str) -> tuple[dict[str, Any], int]:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.qindex.many_queues_child", str(directory), step],
        cwd=root,
        stdout=subprocess.PIPE,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    return json.loads(done.stdout), done.returncode


@not_quick("200 queues that fall idle again and again")
def test_many_queues_on_few_file_handles(tmp_path: Path) -> None:
    found, status = _step(tmp_path, "kill")
    assert status == -signal.SIGKILL
    assert found["most"] <= MAX_OPEN
    # Rest has flushed none of them.
    sizes = [
        (queue_directory(tmp_path, name_of(number)) / "journal.jif").read_bytes().strip(b"\0")
        for number in range(QUEUES)
    ]
    assert all(sizes)
    found, status = _step(tmp_path, "close")
    assert status == 0
    assert found["most"] <= MAX_OPEN
    assert found["held"] == QUEUES
    report = verify(tmp_path)
    assert not report.findings
    assert (report.figures.queues, report.figures.entries) == (QUEUES, QUEUES)
    found, status = _step(tmp_path, "drain")
    assert status == 0
    assert found["most"] <= MAX_OPEN
    assert (found["held"], found["names"], found["findings"]) == (0, QUEUES, 0)
    with qindex.open(tmp_path) as engine:
        assert not engine.findings
        assert len(engine.queue_names()) == QUEUES
