"""What the tests of shared stores have in common."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic, sleep

from qindex.format import layout
from qindex.server import spawn
from tests.waiting import WAIT

__all__ = ["WAIT", "end_server", "log_of", "server_pid"]


def server_pid(directory: Path) -> int:
    """Give the process that has the store open."""
    deadline = monotonic() + WAIT
    while True:
        text = (directory / layout.LOCK).read_text().split()
        if text:
            return int(text[0])
        assert monotonic() < deadline
        sleep(0.01)


def log_of(directory: Path) -> str:
    return (directory / layout.SERVER_LOG).read_text()


def end_server(directory: Path) -> None:
    """Wait for the server's end, which its last client's has begun."""
    if os.path.isdir(directory):
        assert spawn.wait_until_gone(str(directory), WAIT), log_of(directory)
