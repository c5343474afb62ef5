"""One life of the demo's child process: start it, listen to it, kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import numpy as np

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
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(_paths())}
    command = [sys.executable, "-m", "qindex.cli.demo_child", directory]
    try:
        child = subprocess.Popen(
            [*command, str(writing), str(first_number)],
            pass_fds=(writing,),
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    finally:
        # From now on the child alone has the writing end: its death ends the log.
        os.close(writing)
    listener = _Listener(reading)
    try:
        _wait(child, listener, seconds, tell)
        child.send_signal(signal.SIGKILL)
        _, complaint = child.communicate(timeout=_PATIENCE)
        listener.join()
    finally:
        child.kill()
        child.wait()
        listener.join()
    tell(*listener.counts())
    if child.returncode != -signal.SIGKILL:
        last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ChildError(f"the child process ended by itself ({child.returncode}): {last}")
    return listener.log()


def _paths() -> list[str]:
    """Where the child finds this package, whether or not it is installed."""
    root = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH")
    return [root, given] if given else [root]


def _wait(
    child: subprocess.Popen[bytes],
    listener: _Listener,
    seconds: float,
    tell: Callable[[int, int], None],
) -> None:
    """Return when the child is in the middle of its work, or has ended."""
    deadline = monotonic() + _PATIENCE
    end: float | None = None
    while child.poll() is None:
        counts = listener.counts()
        tell(*counts)
        if end is None and counts[0]:
            end = monotonic() + seconds
        if end is not None and monotonic() >= end:
            return
        if monotonic() > deadline + seconds:
            raise ChildError(f"the child process published nothing for {_PATIENCE:.0f} seconds")
        sleep(_TICK)


class _Listener:
    """A thread that empties the pipe as fast as it is filled."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while piece := os.read(self._fd, _PIPE_READ):
            self._data += piece
        os.close(self._fd)

    def join(self) -> None:
        """Return when the pipe has ended."""
        self._thread.join()

    def counts(self) -> tuple[int, int]:
        """Count the publishes and acks that have returned by now."""
        kinds = bytes(self._data)[len(READY) :: RECORD.itemsize]
        return kinds.count(PUBLISHED), kinds.count(ACKED)

    def log(self) -> Log:
        """Give all notes. A killed process has written whole records."""
        data = bytes(self._data)[len(READY) :]
        return np.frombuffer(data[: len(data) - len(data) % RECORD.itemsize], RECORD)
