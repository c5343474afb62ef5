"""The kinds of files that messages are moved in, and the errors of reading them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from journal.errors import StoreError, UsageError
from qindex.transfer.moved import Moved
from qindex.view.reader import Row

__all__ = ["FORMATS", "FileFormat", "FormatError", "NamedRow", "format_of"]

FORMATS = {"jsonl": "qindex.transfer.jsonl", "parquet": "qindex.transfer.parquet"}
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}

NamedRow = tuple[str, Row]
"""A queue's name, and a message of it."""


class FormatError(StoreError):
    """A file that can't be imported. ``path``; ``place``: its line or row, from 1, or 0."""

    def __init__(self, path: Path, place: int, what: str, unit: str = "line") -> None:
        self.path = path
        self.place = place
        where = f"{unit} {place}: " if place else ""
        super().__init__(f"{path}: {where}{what}")


class FileFormat(Protocol):
    """The functions of a module of a format."""

    def write_chunk(self, path: Path, store: str, rows: Sequence[NamedRow]) -> None:
        """Write rows into a new file, a part of a whole."""

    def merge(self, target: Path, chunks: Sequence[Path], count: int) -> None:
        """Put the chunks, of ``count`` messages, together as ``target``."""

    def read(self, path: Path, start: int = 0) -> Iterator[Moved]:
        """Give the messages from number ``start`` on. Raises :class:`FormatError`."""


def format_of(path: Path, name: str | None = None) -> FileFormat:
    """Give the format of a file, by its ``name`` (``"jsonl"``, ``"parquet"``) or the path's end.

    Raises :class:`UsageError` where neither tells, or where pyarrow is missing.
    """
    chosen = name or _SUFFIXES.get(path.suffix.lower())
    if chosen not in FORMATS:
        raise UsageError(
            f"{path}: neither .jsonl nor .parquet: say which format it has ({', '.join(FORMATS)})"
        )
    try:
        module: FileFormat = importlib.import_module(FORMATS[chosen])
    except ModuleNotFoundError as error:
        raise UsageError(f"{chosen} needs {error.name}: pip install qindex[parquet]") from error
    return module
