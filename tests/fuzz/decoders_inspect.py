"""``qindex inspect`` of a file of any bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.cli.support import run
from tests.fuzz.frame import Decoder
from tests.fuzz.seeds import files_named

__all__ = ["DECODERS"]


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="qindex-fuzz-")


def _inspect(name: str) -> Callable[[bytes], None]:
    def inspect(data: bytes) -> None:
        path = Path(_directory().name) / name
        path.write_bytes(data)
        more = ["--entries", "16"] if name.endswith(".idx") else []
        for arguments in ([], ["--json"]):
            result = run("inspect", path, *more, *arguments)
            assert result.code in (0, 1), result.err
            assert all(line.isprintable() for line in result.complaints), result.err

    return inspect


def _seeds(pattern: str) -> Callable[[], list[bytes]]:
    # Each line of each record is printed twice: some files will do.
    return lambda: files_named(pattern)[:5]


DECODERS = tuple(
    Decoder(f"inspect-{name.rpartition('.')[2]}", _inspect(name), _seeds(pattern), per_byte=1024)
    for name, pattern in (("journal.jif", "*.jif"), ("1.idx", "*.idx"), ("0.rdq", "*.rdq"))
)
