"""Out of a store into a file: streaming, lossless, and resumable.

Steps, for the target ``out.jsonl``::

    1. out.jsonl.parts/00000000, 00000001, ...  10,000 messages or 8 MiB each, written and synced
    2. out.jsonl.parts/progress.json            after each: how many chunks are whole, and up to
                                                which message of which queue (replaced at once)
    3. out.jsonl.parts/whole                    all of them, put together and synced
    4. rename to out.jsonl; the parts are removed

Interrupted anywhere and started again it goes on behind the last whole chunk, or puts all chunks
together when they are there: each message is in the file once. A store may be in use meanwhile: a
message that is acknowledged before the export comes to it is left out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from journal.errors import UsageError, storage_errors
from journal.files import REAL, PathLike, checked_path, read_optional, replace_file, sync_file
from journal.findings import Finding
from qindex.transfer.files import FileFormat, NamedRow, format_of
from qindex.transfer.jsonl import line_of
from qindex.view.reader import StoreReader

Progress = Callable[[int, int], None]
"""Told from time to time: messages done, and of how many (0: unknown)."""

_PARTS = ".parts"
_PROGRESS = "progress.json"
_CHUNK_ROWS = 10_000
_CHUNK_BYTES = 8 << 20


@dataclass(slots=True)
class ExportReport:
    """``messages``: in the file; ``resumed``: of them from earlier runs; ``damaged``: left out,
    they could not be read. ``findings``: those of the store."""

    path: str
    messages: int = 0
    resumed: int = 0
    damaged: int = 0
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Done:
    """The progress of an export: whole chunks, messages in them, and the last one's place."""

    chunks: int = 0
    messages: int = 0
    queue: str | None = None
    priority: int | None = None
    seq_id: int = -1


def export_messages(
    directory: PathLike,
    out: PathLike,
    queues: list[str] | None = None,
    *,
    format: str | None = None,
    progress: Progress | None = None,
    chunk_rows: int = _CHUNK_ROWS,
) -> ExportReport:
    """Write the messages of ``queues`` (``None``: of all), in order, into the new file ``out``.

    ``directory``: a store, in use or not, or a RabbitMQ vhost directory; nothing in it is changed.
    ``format``: ``"jsonl"`` or ``"parquet"``, by default as the file's name ends. Durable on
    return. Raises :class:`UsageError` for a queue that is not there and a file that is, and
    :class:`StorageError`. Memory: one chunk.
    """
    target = Path(checked_path(out))
    kind = format_of(target, format)
    if target.exists():
        # Finished, but for what it leaves behind.
        shutil.rmtree(target.with_name(target.name + _PARTS), ignore_errors=True)
        raise UsageError(f"{target}: is there already")
    store = StoreReader(directory)
    names = list(dict.fromkeys(queues)) if queues else store.queue_names()
    readers = [store.queue(name) for name in names]
    about = {
        "store": store.directory,
        "queues": names,
        "format": kind.__name__.rpartition(".")[2],  # type: ignore[attr-defined]
    }
    with storage_errors(target, "can't be exported to"):
        parts = _Parts(target, about)
        total = sum(reader.summary().messages for reader in readers) if progress else 0
        report = ExportReport(str(target), resumed=parts.done.messages)
        rows: list[NamedRow] = []
        size = 0
        for name, row in _rows_from(store, names, parts.done, report):
            rows.append((name, row))
            size += len(row.body or b"") + 100
            if len(rows) >= chunk_rows or size >= _CHUNK_BYTES:
                parts.write(kind, store.directory, rows)
                rows, size = [], 0
                if progress is not None:
                    progress(parts.done.messages, total)
        if rows:
            parts.write(kind, store.directory, rows)
        parts.finish(kind)
    report.messages = parts.done.messages
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
    """Give the messages of ``queues`` (``None``: of all), in order, to ``write``, each as a line of
    JSON Lines. ``import_messages`` takes such a file, and can't tell whether it was cut.

    Raises :class:`UsageError` for a queue that is not there, and another format. Memory: one
    message.
    """
    if format not in (None, "jsonl"):
        raise UsageError(f"a stream is of JSON Lines, not {format}")
    store = StoreReader(directory)
    names = list(dict.fromkeys(queues)) if queues else store.queue_names()
    total = sum(store.queue(name).summary().messages for name in names) if progress else 0
    report = ExportReport("-")
    for name, row in _rows_from(store, names, _Done(), report):
        write(line_of(name, row))
        report.messages += 1
        if progress is not None and report.messages % _CHUNK_ROWS == 0:
            progress(report.messages, total)
    report.findings += store.findings
    if progress is not None:
        progress(report.messages, max(total, report.messages))
    return report


def _rows_from(
    store: StoreReader, names: list[str], done: _Done, report: ExportReport
) -> Iterator[NamedRow]:
    """Give the rows behind what is done."""
    first = names.index(done.queue) if done.queue in names else 0
    for name in names[first:]:
        reader = store.queue(name)
        behind = done.queue != name
        for row in reader.entries():
            if not behind:
                # Sub-queues come one after the other, the highest priority first.
                same = row.priority == done.priority
                later = (row.priority or 0) < (done.priority or 0)
                if not (later or (same and row.seq_id > done.seq_id)):
                    continue
            if row.body is None:
                report.damaged += 1
            else:
                yield name, row
        report.findings += reader.findings


class _Parts:
    """The directory of chunks; made, or found with what an earlier run has left."""

    def __init__(self, target: Path, about: dict[str, Any]) -> None:
        self._target = target
        self._directory = target.with_name(target.name + _PARTS)
        self._about = about
        self.done = _Done()
        data = read_optional(REAL, self._directory / _PROGRESS)
        if data is not None:
            self.done = self._resume(data)
        elif self._directory.exists() and any(self._directory.iterdir()):
            # Without a list none of it counts.
            shutil.rmtree(self._directory)
        self._directory.mkdir(exist_ok=True)

    def _resume(self, data: bytes) -> _Done:
        try:
            values = json.loads(data)
            about, done = values["about"], _Done(**values["done"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self._directory}: damaged ({error}): remove it") from error
        if about != self._about:
            raise UsageError(f"{self._directory}: is of another export: finish or remove it")
        return done

    def _chunk(self, number: int) -> Path:
        return self._directory / f"{number:08d}"

    def write(self, kind: FileFormat, store: str, rows: list[NamedRow]) -> None:
        """Write a chunk durably, then note it."""
        path = self._chunk(self.done.chunks)
        kind.write_chunk(path, store, rows)
        sync_file(REAL, path)
        name, row = rows[-1]
        self.done = _Done(
            self.done.chunks + 1, self.done.messages + len(rows), name, row.priority, row.seq_id
        )
        done = {one: getattr(self.done, one) for one in _Done.__slots__}
        noted = json.dumps({"about": self._about, "done": done}).encode()
        replace_file(REAL, self._directory / _PROGRESS, noted)

    def finish(self, kind: FileFormat) -> None:
        """Put the chunks together under the target's name, and remove them."""
        whole = self._directory / "whole"
        chunks = [self._chunk(number) for number in range(self.done.chunks)]
        kind.merge(whole, chunks, self.done.messages)
        sync_file(REAL, whole)
        whole.rename(self._target)
        REAL.sync_dir(self._target.parent)
        shutil.rmtree(self._directory)
