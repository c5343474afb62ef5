"""RabbitMQ's own index and message store in an Erlang VM: no broker, no AMQP.

``benchmarks/erlang/qindex_bench.erl`` is compiled against the node that Debian's package
``rabbitmq-server`` brings, and runs as one process that is asked line by line.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Sample

__all__ = ["ErlangError", "ErlangVM", "Took", "node_paths"]

_SOURCE = Path(__file__).parent / "erlang" / "qindex_bench.erl"
_LIBRARY = Path("/usr/lib/rabbitmq/lib")
_SECONDS = 180.0


class Took(NamedTuple):
    """Microseconds of one figure: ``cpu`` of the whole VM. A count stands in ``wall``."""

    wall: int
    cpu: int

    def sample(self, count: int) -> Sample:
        """As a rate of ``count`` operations."""
        return Sample(count / self.wall * 1e6, self.cpu / count, count)


class ErlangError(Exception):
    """The VM answered with an error, or did not answer."""


def node_paths() -> tuple[str, list[Path], str]:
    """``(version, code paths, reason)``: without a node the reason says what is not there."""
    for program in ("erl", "erlc"):
        if shutil.which(program) is None:
            return "", [], f"{program} is not installed"
    found = sorted(_LIBRARY.glob("rabbitmq_server-3.10.*/plugins"))
    if not found:
        return "", [], "rabbitmq-server 3.10 is not installed"
    version = found[-1].parent.name.removeprefix("rabbitmq_server-")
    return version, sorted(found[-1].glob("*/ebin")), ""


class ErlangVM:
    """A VM with the node's code, and ``directory`` as the node's. Raises :class:`ErlangError`."""

    def __init__(self, directory: Path, code: list[Path]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["erlc", "-o", str(directory), str(_SOURCE)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ErlangError(f"{_SOURCE.name} was not compiled: {done.stdout.strip()}")
        paths = [word for path in (directory, *code) for word in ("-pa", str(path))]
        self._process = subprocess.Popen(
            ["erl", "-noshell", *paths, "-run", "qindex_bench", "main", str(directory / "node")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._unread = b""

    def ask(self, *words: object) -> dict[str, Took]:
        """Give the figures of one command by name."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ErlangError("the VM has ended") from None
        answer = self._line()
        parts = answer.split()
        if not parts or parts[0] == "error" or len(parts) % 3:
            raise ErlangError(f"{' '.join(map(str, words))}: {answer}")
        return {
            name: Took(int(wall), int(cpu))
            for name, wall, cpu in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        }

    def _line(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _SECONDS
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise ErlangError(f"no answer within {_SECONDS:.0f} s")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise ErlangError(f"the VM has ended: {self._unread.decode(errors='replace')}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def kill(self) -> None:
        """End it as SIGKILL does."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was not yet written is of no use to a dead process
