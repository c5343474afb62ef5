"""Out of a store into a file: streaming, lossless, and resumable.

Steps, for the target ``out.jsonl``::

    1. out.jsonl.parts/00000000, 00000001, ...  10,000 messages or 8 MiB each, written and synced
    2. out.jsonl.parts/progress                 after each chunk: a line with its messages, and the
                                                last seq_id of each queue in it, appended and synced
    3. out.jsonl.parts/whole                    all of them, put together and synced
    4. rename to out.jsonl; the parts are removed

An export that was interrupted anywhere and is started again looks at all queues again, and writes
what follows the last message of each that is in a whole chunk. So each message is in the file
once, also if it was published between the two runs. A store may be in use meanwhile: the
export leaves out a message that is acknowledged before it gets there.

The parts are in a directory of this user's own, which is held open: another user who plants links
or files there is refused. The file that is made can be read by this user alone.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from journal.arguments import listed
from journal.errors import UsageError, storage_errors
from journal.findings import Finding
from journal.format import MAX_SEQ_ID
from journal.fs.beneath import leave, private_directory
from journal.fs.files import PathLike, checked_path, create, read_optional, write_all
from journal.schema import Int, ListOf, Optional, Record, Row, Shape, check
from qindex.format.rabbitmq.names import MAX_PRIORITY
from qindex.recovery.queue_directory import remove_queue_directory as remove_tree
from qindex.transfer import jsonl
from qindex.transfer.files import FileFormat, Piece, Queues, format_of
from qindex.view.reader import QueueReader, StoreReader
from qindex.view.row_json import json_line

_log = logging.getLogger("qindex.transfer")

Progress = Callable[[int, int], None]
"""Told from time to time: messages done, and of how many (0: unknown)."""

_PARTS = ".parts"
_PROGRESS = "progress"
_WHOLE = "whole"
_CHUNK_ROWS = 10_000
_CHUNK_BYTES = 8 << 20
_NAME = Shape("a text", lambda value: isinstance(value, str))  # a node's may be no valid Unicode
_LAST = Row((_NAME, Optional(Int(0, MAX_PRIORITY)), Int(0, MAX_SEQ_ID)))
_CHUNK = Record({"messages": Int(1, MAX_SEQ_ID), "last": ListOf(_LAST)})


@dataclass(slots=True)
class ExportReport:
    """``messages``: in the file; ``resumed``: of them from earlier runs; ``damaged``: left out,
    they could not be read. ``findings``: those of the store."""

    path: str
    messages: int = 0
    resumed: int = 0
    damaged: int = 0
    findings: list[Finding] = field(default_factory=list)


_Place = tuple[str, int | None]
"""A queue, and the priority of a sub-queue."""
_NamedPiece = tuple[str, Piece]
"""A queue's name, and messages of it."""


def export_messages(
    directory: PathLike,
    out: PathLike,
    queues: list[str] | None = None,
    *,
    format: str | None = None,
    progress: Progress | None = None,
    chunk_rows: int = _CHUNK_ROWS,
) -> ExportReport:
    """Write messages into a new file, in order. It is durable on return.

    An interrupted export resumes when it is called again. Memory: one chunk.

    Args:
        directory: A store, in use or not, or a RabbitMQ vhost directory. It is not changed.
        out: The new file.
        queues: The names of the queues. None: all.
        format: ``"jsonl"`` or ``"parquet"``. None: by the end of the file's name.
        progress: Called with the messages written and the messages in all.
        chunk_rows: Messages of a chunk.

    Returns:
        A report of the export.

    Raises:
        UsageError: There is no such queue, or the file exists.
        StorageError: The system refused.
    """
    queues = listed(queues or [], "queues")
    target = Path(checked_path(out))
    kind = format_of(target, format)
    if target.exists():
        # Finished, except for its leftovers.
        shutil.rmtree(target.with_name(target.name + _PARTS), ignore_errors=True)
        raise UsageError(f"{target}: exists already; name another file, or delete it")
    store = StoreReader(directory)
    readers = _readers(store, queues)
    about = {
        "store": store.directory,
        "queues": sorted(set(queues)),
        "format": kind.PARTS,
    }
    with storage_errors(target, "can't be exported to"), _Parts(target, about) as parts:
        report = ExportReport(str(target), resumed=parts.messages)
        found = _settings(readers, report)
        total = sum(reader.summary().messages for reader in readers) if progress else 0
        pieces: list[_NamedPiece] = []
        count = size = 0
        for name, piece in _pieces_from(readers, kind, parts.last, chunk_rows, report):
            pieces.append((name, piece))
            count += piece.count
            size += piece.size
            if count >= chunk_rows or size >= _CHUNK_BYTES:
                parts.write(kind, pieces)
                pieces, count, size = [], 0, 0
                if progress is not None:
                    progress(parts.messages, total)
        if pieces:
            parts.write(kind, pieces)
        parts.finish(kind, found)
    report.messages = parts.messages
    report.findings += store.findings
    if progress is not None:
        progress(report.messages, max(total, report.messages))
    return report


def stream_messages(
    directory: PathLike,
    write: Callable[[bytes], object],
    queues: list[str] | None = None,
    *,
    format: str | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write messages as lines of JSON Lines, in order.

    ``import_messages`` takes them, but can't tell whether they were cut. Memory: one message.

    Args:
        directory: A store, in use or not, or a RabbitMQ vhost directory. It is not changed.
        write: Called with each line.
        queues: The names of the queues. None: all.
        format: ``"jsonl"`` or None.
        progress: Called with the messages written and the messages in all.

    Returns:
        A report of the export.

    Raises:
        UsageError: There is no such queue, or the format is another.
    """
    if format not in (None, "jsonl"):
        raise UsageError(f"a stream is of JSON Lines, not {format}")
    store = StoreReader(directory)
    readers = _readers(store, listed(queues or [], "queues"))
    total = sum(reader.summary().messages for reader in readers) if progress else 0
    report = ExportReport("-")
    for _, line in _pieces_from(readers, jsonl, {}, 1, report):
        write(line.data)
        report.messages += 1
        if progress is not None and report.messages % _CHUNK_ROWS == 0:
            progress(report.messages, total)
    report.findings += store.findings
    if progress is not None:
        progress(report.messages, max(total, report.messages))
    return report


def _readers(store: StoreReader, queues: list[str]) -> list[QueueReader]:
    if not queues:
        return store.readers()
    return [store.queue(name) for name in dict.fromkeys(queues)]


def _settings(readers: list[QueueReader], report: ExportReport) -> Queues:
    found = {}
    for reader in readers:
        try:
            reader.name.encode()
        except UnicodeEncodeError:
            continue  # no queue of ours can have that name
        found[reader.name] = reader.settings_if_sound()
        report.findings += reader.findings
    return found


def _pieces_from(
    readers: list[QueueReader],
    kind: FileFormat,
    last: Mapping[_Place, int],
    most: int,
    report: ExportReport,
) -> Iterator[_NamedPiece]:
    """Yield the messages that follow the last ones written."""
    for reader in readers:
        after = {priority: seq for (name, priority), seq in last.items() if name == reader.name}
        try:
            for piece in kind.pieces(reader, after, most):
                report.damaged += piece.damaged
                if piece.count:
                    yield reader.name, piece
        except UsageError as error:  # deleted meanwhile
            _log.info("%s", error)
        report.findings += reader.findings


class _Parts:
    """The directory of chunks: made, or found with what an earlier run has left.

    A context manager. `messages` are in whole chunks; `last`: the seq_id of the last one of each
    queue and priority.
    """

    def __init__(self, target: Path, about: dict[str, Any]) -> None:
        self._target = os.path.abspath(target)
        self._directory = self._target + _PARTS
        self._progress = os.path.join(self._directory, _PROGRESS)
        self._chunks = 0
        self.messages = 0
        self.last: dict[_Place, int] = {}
        self._fs = private_directory(self._directory)
        head = json_line(about)
        noted = read_optional(self._fs, self._progress) or b""
        lines = noted[: noted.rfind(b"\n") + 1].splitlines(keepends=True)
        if lines and lines[0] != head:
            raise UsageError(f"{self._directory}: is of another export: finish or remove it")
        for line in lines[1:]:
            self._resume(line)
        if not lines:
            # Without a list none of it counts.
            for name in self._fs.listdir(self._directory):
                self._fs.unlink(os.path.join(self._directory, name))
        self._fd = self._fs.open(self._progress, os.O_WRONLY | os.O_CREAT)
        size = sum(map(len, lines))
        self._fs.truncate(self._fd, size)  # a line that was cut
        self._fs.lseek(self._fd, size, os.SEEK_SET)
        if not lines:
            self._note(head)
            self._fs.sync_dir(self._directory)

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_ended: object) -> None:
        self._fs.close(self._fd)
        leave(self._fs)

    def _resume(self, line: bytes) -> None:
        try:
            values = json.loads(line)
            check(values, _CHUNK)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self._directory}: damaged ({error}): remove it") from error
        self._count(values)

    def _count(self, values: dict[str, Any]) -> None:
        self._chunks += 1
        self.messages += values["messages"]
        self.last.update({(name, priority): seq for name, priority, seq in values["last"]})

    def _note(self, line: bytes) -> None:
        write_all(self._fs, self._fd, line)
        self._fs.fdatasync(self._fd)

    def _chunk(self, number: int) -> str:
        return os.path.join(self._directory, f"{number:08d}")

    @contextmanager
    def _new(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file in the block after ``with``; durable at the end of the block."""
        fd = create(self._fs, path)
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            self._fs.fdatasync(fd)

    def write(self, kind: FileFormat, pieces: list[_NamedPiece]) -> None:
        """Write a chunk durably, then note it."""
        with self._new(self._chunk(self._chunks)) as file:
            kind.write_chunk(file, [piece.data for _, piece in pieces])
        self._fs.sync_dir(self._directory)
        last = {(name, piece.priority): piece.last for name, piece in pieces}
        places = [(name, priority, seq) for (name, priority), seq in last.items()]
        values = {"messages": sum(piece.count for _, piece in pieces), "last": places}
        self._note(json_line(values))
        self._count(values)

    def _written(self) -> Iterator[BinaryIO]:
        for number in range(self._chunks):
            fd = self._fs.open(self._chunk(number), os.O_RDONLY)
            with os.fdopen(fd, "rb") as file:
                yield file

    def finish(self, kind: FileFormat, queues: Queues) -> None:
        """Put the chunks together under the target's name, and remove them."""
        whole = os.path.join(self._directory, _WHOLE)
        with self._new(whole) as file:
            kind.merge(file, self._written(), self.messages, queues)
        self._fs.rename(whole, self._target)
        self._fs.sync_dir(os.path.dirname(self._target))
        remove_tree(self._fs, self._directory)
