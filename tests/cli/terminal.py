"""A command in a pseudo-terminal, whose screen is read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from time import monotonic

import pyte

from tests.qindex.support import WAIT

__all__ = ["Terminal"]

ROOT = Path(__file__).parents[2]


class Terminal:
    """``qindex ARGUMENTS`` in a pseudo-terminal; ``lines``: what its screen shows; ``raw``: all
    that was written to it; ``errors_too``: standard error goes there."""

    def __init__(
        self, *arguments: object, columns: int = 120, rows: int = 24, errors_too: bool = False
    ) -> None:
        self.raw = b""
        self._fd, child = pty.openpty()
        self.resize(columns, rows)
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qindex.cli", *map(str, arguments)],
            cwd=ROOT,
            stdin=child,
            stdout=child,
            stderr=child if errors_too else subprocess.PIPE,
            env=environment,
        )
        os.close(child)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, key: str) -> None:
        os.write(self._fd, key.encode())

    def read(self, seconds: float) -> None:
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                with contextlib.suppress(OSError):  # the other end is closed
                    data = os.read(self._fd, 1 << 16)
                    self.raw += data
                    self._stream.feed(data)

    def wait_for(self, text: str) -> str:
        """Read until a line has ``text``; gives the line."""
        until = monotonic() + WAIT
        while monotonic() < until:
            self.read(0.05)
            found = [line for line in self.lines if text in line]
            if found:
                return found[0]
        raise AssertionError(f"no {text!r} in\n" + "\n".join(self.lines))

    def end(self) -> int:
        until = monotonic() + WAIT
        while self.process.poll() is None and monotonic() < until:
            self.read(0.05)
        return self.process.wait(1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        os.close(self._fd)
