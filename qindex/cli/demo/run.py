"""One life of the demo's child process: start it, listen to it, kill it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from time import monotonic

import numpy as np

from journal.child import command
from qindex.cli.demo.child import READY
from qindex.cli.demo.log import ACKED, PUBLISHED, RECORD, Log
from qindex.compare.child import ChildError, Process

_TICK = 0.05
_PATIENCE = 30.0
_PIPE_READ = 1 << 16


def run_and_kill(
    directory: str, first_number: int, seconds: float, tell: Callable[[int, int], None]
) -> Log:
    """Run one child on the store for about ``seconds`` from its first message, and SIGKILL it.

    ``tell(published, acknowledged)`` is called now and then. Returns all that the child had noted
    by the time of its death. Raises :class:`ChildError` unless it died of that signal.
    """
    data = bytearray()
    words = command("qindex.cli.demo.child", os.path.abspath(directory), "1", str(first_number))
    with Process(words) as child:
        _listen(child.output, data, seconds, tell)
        status = child.kill()
        while piece := os.read(child.output, _PIPE_READ):
            data += piece
        tell(*_counts(data))
        if status != -signal.SIGKILL:
            raise child.ended()
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
