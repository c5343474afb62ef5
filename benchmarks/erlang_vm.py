"""RabbitMQ's own index and message store in an Erlang VM: no broker, no AMQP.

``benchmarks/erlang/qindex_bench.erl`` is compiled against the node that Debian's package
``rabbitmq-server`` brings, and runs as one process that is asked line by line.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from benchmarks.stopwatch import Sample
from qindex.compare.child import ChildError, Process

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


class ErlangError(ChildError):
    """The VM answered with an error."""


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


class ErlangVM(Process):
    """A VM with the node's code, and ``directory`` as the node's. Raises :class:`ChildError`."""

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
        node = str(directory / "node")
        words = ["erl", "-noshell", *paths, "-run", "qindex_bench", "main", node]
        super().__init__(words, _SECONDS)

    def figures(self, *words: object) -> dict[str, Took]:
        """Return the figures of one command by name."""
        request = " ".join(map(str, words))
        self.tell(request)
        answer = self.answer()
        parts = answer.split()
        if not parts or parts[0] == "error" or len(parts) % 3:
            raise ErlangError(f"{request}: {answer}")
        return {
            name: Took(int(wall), int(cpu))
            for name, wall, cpu in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        }
