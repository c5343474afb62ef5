"""What the tests of shared stores have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from signal import SIGTERM
from time import monotonic, sleep
from typing import Any

from qindex.format import layout
from qindex.server import spawn
from tests.waiting import WAIT

__all__ = ["WAIT", "end_server", "log_of", "serve", "server_pid"]

_ROOT = Path(__file__).parents[2]


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


def end_store(directory: Path) -> None:
    """End the server of a store that nobody uses any more; it would linger."""
    os.kill(server_pid(directory), SIGTERM)
    end_server(directory)


def end_in_order(process: subprocess.Popen[Any]) -> None:
    """Send SIGTERM to a program that handles it, once it does, and wait for its clean end."""
    status = Path(f"/proc/{process.pid}/status")
    deadline = monotonic() + WAIT
    while not int(status.read_text().split("SigCgt:")[1].split()[0], 16) >> SIGTERM - 1 & 1:
        assert process.poll() is None
        assert monotonic() < deadline
        sleep(0.005)
    process.terminate()
    assert process.wait(WAIT) == 0, process.args


def serve(directory: Path, *arguments: str, before: str = "true") -> subprocess.Popen[str]:
    """Run `qindex serve` in another process; return when it serves. ``before``: what a shell does
    first."""
    command = [sys.executable, "-P", "-m", "qindex.cli", "serve", str(directory), *arguments]
    shell = ["sh", "-c", f'{before} && exec "$0" "$@"', *command]
    server = subprocess.Popen(shell, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("serving")
    return server
