"""The kinds of files that messages are moved in, and the errors of reading them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from journal.errors import StoreError, UnsafeFileError, UsageError
from journal.fs.files import REAL, refuse_hole
from qindex.format.envelope import Moved
from qindex.format.settings import QueueSettings, checked_name, settings_of_values
from qindex.view.reader import QueueReader

FORMATS = {"jsonl": "qindex.transfer.jsonl", "parquet": "qindex.transfer.parquet"}
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}


@dataclass(slots=True)
class Piece:
    """Some messages of one sub-queue, in order.

    `last`: the seq_id of the last one. `damaged`: how many others could not be read. `size`: bytes.
    `data`: the messages, as the format has them.
    """

    priority: int | None
    last: int
    count: int
    damaged: int
    size: int
    data: Any


Queues = dict[str, QueueSettings]
"""Queues by name, with or without messages."""


class FormatError(StoreError):
    """A file that can't be imported. ``path``; ``place``: its line or row, from 1, or 0."""

    def __init__(self, path: Path, place: int, what: str, unit: str = "line") -> None:
        self.path = path
        self.place = place
        where = f"{unit} {place}: " if place else ""
        super().__init__(f"{path}: {where}{what}")


def open_input(path: Path) -> BinaryIO:
    """Open a file to import. Raises :class:`FormatError` if it is not a regular file, which might
    never end, and for a hole that takes no room on disk and all of the memory; :class:`OSError`."""
    fd = -1
    try:
        fd = REAL.open(path, os.O_RDONLY | os.O_CLOEXEC)
        refuse_hole(REAL, fd, os.fstat(fd).st_size, 0)
        return os.fdopen(fd, "rb")
    except BaseException as error:
        if fd >= 0:
            os.close(fd)
        if isinstance(error, UnsafeFileError):
            raise FormatError(path, 0, str(error.strerror)) from error
        raise


class FileFormat(Protocol):
    """The functions of a module of a format."""

    PARTS: str
    """The format in which parts of a file are written."""

    def pieces(
        self, reader: QueueReader, after: Mapping[int | None, int], most: int
    ) -> Iterator[Piece]:
        """Yield the messages of a queue in order, at most `most` at a time.

        `after`: the last seq_id to leave out, by the priority of the sub-queue. Raises as
        :meth:`QueueReader.entries`.
        """

    def write_chunk(self, file: BinaryIO, data: Sequence[Any]) -> None:
        """Write the data of pieces into a new file, a part of a whole."""

    def merge(
        self, whole: BinaryIO, chunks: Iterable[BinaryIO], count: int, queues: Queues
    ) -> None:
        """Write the chunks, `count` messages in all, and the names and settings of `queues`."""

    def queues(self, path: Path) -> Queues:
        """Return the queues that a file lists, if it does. Raises :class:`FormatError`."""

    def read(self, path: Path, start: int = 0) -> Iterator[Moved]:
        """Yield the messages from number ``start`` on. Raises :class:`FormatError`."""


def queues_of_values(path: Path, value: object) -> Queues:
    """Return the queues of a file's list: a name, and settings as the settings file keeps them.

    Raises :class:`FormatError`.
    """
    try:
        if not isinstance(value, dict):
            raise ValueError(f"a list of queues must be an object, not {value!r}")
        for name in value:
            checked_name(name)
        return {name: settings_of_values(kept) for name, kept in value.items()}
    except ValueError as error:
        raise FormatError(path, 0, f"the list of queues is damaged: {error}") from error


def format_of(path: Path, name: str | None = None) -> FileFormat:
    """Return the format of a file, by its ``name`` (``"jsonl"``, ``"parquet"``) or the path's end.

    Raises :class:`UsageError` where neither tells, or where pyarrow is missing.
    """
    chosen = name or _SUFFIXES.get(path.suffix.lower())
    if chosen not in FORMATS:
        raise UsageError(
            f"{path}: ends in neither .jsonl nor .parquet; say which it is: format= or --format "
            f"({', '.join(FORMATS)})"
        )
    try:
        module: FileFormat = importlib.import_module(FORMATS[chosen])
    except ModuleNotFoundError as error:
        raise UsageError(f"{chosen} needs {error.name}: pip install qindex[parquet]") from error
    return module
