"""One life of the demo's child process: start it, listen to it, kill it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from time import monotonic

import numpy as np

from journal.child import command
from journal.errors import StoreError
from qindex.cli.demo_child import READY
from qindex.cli.demo_log import ACKED, PUBLISHED, RECORD, Log

_TICK = 0.05
_PATIENCE = 30.0
_PIPE_READ = 1 << 16


class ChildError(StoreError):
    """The child process did not do its part: it did not start, or ended by itself."""


def run_and_kill(
    directory: str, first_number: int, seconds: float, tell: Callable[[int, int], None]
) -> Log:
    """Run one child on the store for about ``seconds`` from its first message, and SIGKILL it.

    ``tell(published, acknowledged)`` is called now and then. Gives all that the child had noted
    by the time of its death. Raises :class:`ChildError` unless it was that signal it died of.
    """
    reading, writing = os.pipe()
    store = os.path.abspath(directory)
    try:
        child = subprocess.Popen(
            command("qindex.cli.demo_child", store, str(writing), str(first_number)),
            pass_fds=(writing,),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    finally:
        # From now on the child alone has the writing end: its death ends the log.
        os.close(writing)
    data = bytearray()
    try:
        _listen(reading, data, seconds, tell)
        child.send_signal(signal.SIGKILL)
        _, complaint = child.communicate(timeout=_PATIENCE)
        while piece := os.read(reading, _PIPE_READ):
            data += piece
    finally:
        child.kill()
        child.wait()
        os.close(reading)
    tell(*_counts(data))
    if child.returncode != -signal.SIGKILL:
        last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ChildError(f"the child process ended by itself ({child.returncode}): {last}")
    # A killed process has written whole records.
    return np.frombuffer(data, RECORD, (len(data) - len(READY)) // RECORD.itemsize, len(READY))


def _listen(fd: int, data: bytearray, seconds: float, tell: Callable[[int, int], None]) -> None:
    """Take what the child notes until it is in the middle of its work, or has ended."""
    deadline = monotonic() + _PATIENCE
    end: float | None = None
    next_look = 0.0
    while end is None or monotonic() < end:
        if select.select([fd], [], [], _TICK)[0]:
            piece = os.read(fd, _PIPE_READ)
            if not piece:
                return
            data += piece
        if monotonic() < next_look:
            continue
        next_look = monotonic() + _TICK
        counts = _counts(data)
        tell(*counts)
        if end is None and counts[0]:
            end = monotonic() + seconds
        if monotonic() > deadline + seconds:
            raise ChildError(f"the child process published nothing for {_PATIENCE:.0f} seconds")


def _counts(data: bytearray) -> tuple[int, int]:
    """Count the publishes and acks that have returned by now."""
    kinds = data[len(READY) :: RECORD.itemsize]
    return kinds.count(PUBLISHED), kinds.count(ACKED)
