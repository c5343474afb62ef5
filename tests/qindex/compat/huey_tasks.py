"""Tasks for the consumers that tests/qindex/compat/test_huey.py kills."""

from __future__ import annotations

import os
import time
from pathlib import Path

from qindex.compat.huey import QindexHuey

PLACE = Path(os.environ["PLACE"])
huey = QindexHuey("tasks", directory=PLACE / "data", read_timeout=0.2, delivery_limit=3)


def note(line: str) -> None:
    notes = os.open(PLACE / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(notes, f"{line}\n".encode())
    os.close(notes)


@huey.task()
def hold(name: str) -> str:
    """Take as long as there is a file named so."""
    with huey.lock_task(name):
        note(f"begin {name} {os.getpid()}")
        while (PLACE / name).exists():
            time.sleep(0.01)
        note(f"end {name}")
    return name


@huey.task()
def deadly() -> None:
    note("deadly")
    os.kill(os.getpid(), 9)
