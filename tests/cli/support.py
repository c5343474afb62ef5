"""Run the command line inside the test process, with its own standard streams."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

from qindex.cli.app import main

__all__ = ["Result", "run"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command gave: exit code, standard output, standard error."""

    code: int
    out: bytes
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of standard output as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def complaints(self) -> list[str]:
        """The lines of standard error; each must be one of ours."""
        lines = self.err.splitlines()
        assert all(line.startswith("qindex: ") for line in lines), self.err
        return lines


def run(*arguments: object, stdin: bytes = b"") -> Result:
    """Run ``qindex ARGUMENTS``."""
    streams = sys.stdin, sys.stdout, sys.stderr
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    sys.stdout = io.TextIOWrapper(out, "ascii")
    sys.stderr = io.TextIOWrapper(err, "utf-8")
    try:
        code = main([str(one) for one in arguments])
        sys.stdout.flush()
        sys.stderr.flush()
        return Result(code, out.getvalue(), err.getvalue().decode())
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
