"""Out of files into a store: checked before, lossless, and resumable to the message.

Steps:

1. All files are read once and checked. A bad line raises an error with its number, and nothing is
   done.
2. Of each 16,000 messages, those of one queue go together: files may name queues in turn. For each
   batch of up to 1,000 messages of one queue:
   a. seq_ids are reserved, so that a crash skips none;
   b. ``qindex.import`` in the store is replaced: the files, how many of their messages are done,
      which batch of the next it is, the queue, the seq_id that the batch starts with;
   c. the batch is published.
3. The queues that the files list, those without messages also, get their settings where they have
   none, now that no limit and no expiry can meet the messages on their way.
4. The store is synced, and ``qindex.import`` removed.

After a crash in c, the queue's next seq_id tells how many of the batch are published: the import
goes on after them. That holds only if no other publisher has used the queue before it is
resumed; an import notices that.

Where a server has the store open others publish and consume meanwhile. There the note has a ticket
of the server, which knows how many of its messages are published as long as it runs. When it has
ended, and nobody has the store open, the seq_ids tell as above.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import qindex
from journal.arguments import listed
from journal.errors import UsageError, storage_errors
from journal.format import MAX_SEQ_ID
from journal.fs.beneath import beneath
from journal.fs.files import (
    REAL,
    PathLike,
    checked_path,
    make_dirs,
    read_optional,
    replace_file,
    unlink_if_there,
)
from journal.schema import Int, ListOf, Optional, Record, Row, Text, check
from qindex.client.shared_queue import SharedQueue
from qindex.format import layout
from qindex.format.envelope import Moved
from qindex.format.layout import MAX_NAME_BYTES
from qindex.format.priorities import LOW, SHIFT, priority_of
from qindex.format.settings import NO_SETTINGS, checked_name
from qindex.queue.parts import QueueParts
from qindex.queue.plain_queue import Queue
from qindex.queue.restoring import mark_delivered, restore_level
from qindex.transfer.ends import restore_shared, restored, ticket_for
from qindex.transfer.exporting import Progress
from qindex.transfer.files import FileFormat, Queues, format_of

IMPORT_FILE = layout.IMPORT
"""Name, in the store's directory, of the note about an import that is not finished."""
_BATCH = 1000
_TOGETHER = 16
"""Batches of messages that are sorted by queue."""
_TOGETHER_BYTES = 16 << 20
_MAX_PATH = 1 << 16


@dataclass(slots=True)
class ImportReport:
    """``messages``: that the files have; ``resumed``: of them from earlier runs; ``queues``: how
    many came into each, in this run, 0 for a queue without messages."""

    messages: int = 0
    resumed: int = 0
    queues: dict[str, int] = field(default_factory=dict)


def import_messages(
    files: Sequence[PathLike],
    directory: PathLike,
    queue: str | None = None,
    *,
    format: str | None = None,
    progress: Progress | None = None,
    batch: int = _BATCH,
    **options: Any,
) -> ImportReport:
    """Publish the messages of files. They are durable on return.

    All files are checked before anything is published. An interrupted import resumes when it is
    called again; a finished one publishes the messages once more.

    Args:
        files: The files, in order.
        directory: The store, made if there is none.
        queue: The queue for all messages. None: the queues that the files name.
        format: ``"jsonl"`` or ``"parquet"``. None: by the end of each file's name.
        progress: Called with the messages published and the messages in all.
        batch: Messages of a publish.
        options: The keyword arguments of :func:`qindex.open`.

    Returns:
        A report of the import.

    Raises:
        FormatError: A file can't be imported; nothing was done.
        UsageError: Another import into the store is not finished.
        StoreError: As :func:`qindex.open`.
    """
    if queue is not None:
        checked_name(queue)
    sources = [_Source(Path(checked_path(path)), format) for path in listed(files, "files")]
    if not sources:
        raise UsageError("no files to import")
    about = {"files": [source.about for source in sources], "queue": queue}
    where = os.path.abspath(checked_path(directory))
    with _alone(where) if options.get("shared") else nullcontext():
        note = _Note(os.path.join(where, IMPORT_FILE), about)
        total = note.total
        if total is None:
            total = _check(sources, queue)
        with qindex.open(directory, **options) as engine:
            return _Import(engine, sources, queue, note, total, batch).run(progress)


@contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Keep other imports out of a store that a server has open for them all."""
    with storage_errors(directory, "the store can't be opened"):
        make_dirs(REAL, directory)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not REAL.lock(fd):
            raise UsageError(f"{directory}: another import is under way")
        yield
    finally:
        os.close(fd)


class _Source:
    """One file to import."""

    def __init__(self, path: Path, format: str | None) -> None:
        self.path = path
        self.kind: FileFormat = format_of(path, format)
        with storage_errors(path, "can't be read"):
            stat = path.stat()
        self.about = [str(path.absolute()), stat.st_size, stat.st_mtime_ns]

    def queues(self) -> Queues:
        with storage_errors(self.path, "can't be read"):
            return self.kind.queues(self.path)

    def read(self, start: int = 0) -> Iterator[Moved]:
        with storage_errors(self.path, "can't be read"):
            yield from self.kind.read(self.path, start)


def _check(sources: Sequence[_Source], queue: str | None) -> int:
    """Read all files; returns the number of their messages. Raises as :func:`import_messages`."""
    total = 0
    for source in sources:
        source.queues()
        for number, moved in enumerate(source.read(), 1):
            if queue is None and not moved.queue:
                raise UsageError(f"{source.path}: message {number} names no queue: say which")
            total += 1
    return total


_COUNT = Int(0, MAX_SEQ_ID)
_NOTE = Record(
    {
        "about": Record(
            {
                "files": ListOf(Row((Text(_MAX_PATH), _COUNT, Int(-MAX_SEQ_ID, MAX_SEQ_ID)))),
                "queue": Optional(Text(MAX_NAME_BYTES)),
            }
        ),
        "total": _COUNT,
        "done": _COUNT,
        "batch": Row((Text(MAX_NAME_BYTES, least=1), Int(0, (1 << 63) - 1), Int(1, MAX_SEQ_ID))),
    },
    {"at": Row((_COUNT, Int(1, MAX_SEQ_ID), _COUNT, _COUNT)), "ticket": Text(64)},
)

_At = tuple[int, int, int, int]
"""Messages that are sorted together, those of a batch, which batch of them it is, and how many of
it are done."""


class _Note:
    """The content of :data:`IMPORT_FILE`; ``total`` is ``None`` where there is none yet."""

    def __init__(self, path: str, about: dict[str, Any]) -> None:
        self._path = path
        self._fs = beneath(REAL, os.path.dirname(path))
        self._about = about
        self.total: int | None = None
        self.done = 0
        self.together = self.size = self.batch = self.into = 0
        self.queue: str | None = None
        self.first = 0
        self.count = 0
        self.ticket = b""
        with storage_errors(path, "can't be read"):
            data = read_optional(self._fs, path)
        if data is None:
            return
        try:
            values = json.loads(data)
            check(values, _NOTE)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: damaged ({error}): remove it") from error
        self.total, self.done = values["total"], values["done"]
        self.queue, self.first, self.count = values["batch"]
        self.ticket = bytes.fromhex(values.get("ticket", ""))
        alone = self.count, self.count, 0, 0
        self.together, self.size, self.batch, self.into = values.get("at", alone)
        if values["about"] != about:
            names = ", ".join(one[0] for one in values["about"]["files"])
            raise UsageError(f"{path}: an import of {names} is not finished (or they changed)")

    def write(
        self, total: int, done: int, at: _At, queue: str, first: int, count: int, ticket: bytes
    ) -> None:
        values = {
            "about": self._about,
            "total": total,
            "done": done,
            "at": at,
            "batch": [queue, first, count],
            "ticket": ticket.hex(),
        }
        replace_file(self._fs, self._path, json.dumps(values).encode())

    def remove(self) -> None:
        if unlink_if_there(self._fs, self._path):
            self._fs.sync_dir(os.path.dirname(self._path))


class _Import:
    def __init__(
        self,
        engine: qindex.AnyEngine,
        sources: Sequence[_Source],
        queue: str | None,
        note: _Note,
        total: int,
        batch: int,
    ) -> None:
        self._engine = engine
        self._sources = sources
        self._queue = queue
        self._note = note
        self._total = total
        self._batch = batch
        self._priorities: dict[str, int] = {}

    def run(self, progress: Progress | None) -> ImportReport:
        report = ImportReport(self._total)
        if self._queue is None:
            self._make_priority_queues()
        note, done = self._note, self._note.done
        moved = self._rest(done)
        windows = self._windows(moved)
        resuming = note.queue is not None
        if resuming:
            windows = chain([list(islice(moved, note.together))], windows)
        for window in windows:
            done_before, size = done, note.size if resuming else self._batch
            for at, (name, batch) in enumerate(self._batches(window, size)):
                into = 0
                if resuming and at < note.batch:
                    done += len(batch)
                    continue
                if resuming:
                    into = note.into + self._finish_batch(name, batch[note.into :])
                    report.resumed = done + into
                    resuming = False
                if into < len(batch):
                    self._publish(name, batch, done_before, (len(window), size, at, into))
                    count = report.queues.get(name, 0) + len(batch) - into
                    report.queues[name] = count
                done += len(batch)
                if progress is not None:
                    progress(done, self._total)
        if self._queue is None:
            self._make_queues(report)
        self._engine.sync()
        note.remove()
        return report

    def _make_priority_queues(self) -> None:
        """Make the priority queues first, if there are no queues of their names."""
        known = self._engine.queue_names()
        for source in self._sources:
            for name, settings in source.queues().items():
                if settings.max_priority is not None and name not in known:
                    self._engine.queue(name, max_priority=settings.max_priority)

    def _make_queues(self, report: ImportReport) -> None:
        for source in self._sources:
            for name, settings in source.queues().items():
                report.queues.setdefault(name, 0)
                given = asdict(settings)
                max_priority = given.pop("max_priority")
                there = self._engine.queue(name).settings
                if replace(there, max_priority=None) == NO_SETTINGS:
                    if len(self._engine.queue(name)) == 0:
                        given["max_priority"] = max_priority
                    self._engine.queue(name, **given)

    def _publish(self, name: str, batch: list[Moved], done: int, at: _At) -> None:
        """Publish the rest of a batch; ``done``: messages before the ones sorted with it."""
        rest = batch[at[-1] :]
        queue = self._engine.queue(name)
        if isinstance(queue, SharedQueue):
            priority = priority_of(rest[0].message.properties, self._highest(name))
            ticket, first = ticket_for(queue, priority, len(rest))
            self._note.write(self._total, done, at, name, first, len(rest), ticket)
            restore_shared(queue, ticket, rest)
            return
        assert isinstance(queue, Queue)
        level = queue._parts.level_for(rest[0].message)
        first = level.state.base + level.producer.reserve(len(rest))
        self._note.write(self._total, done, at, name, first, len(rest), b"")
        for _ in restore_level(level, rest):
            pass

    def _finish_batch(self, name: str, batch: list[Moved]) -> int:
        """See how much of the batch that was under way is there."""
        queue = self._engine.queue(name)
        if isinstance(queue, SharedQueue):
            known = restored(queue, self._note.ticket)
            if known is None:
                raise UsageError(
                    "the import was begun without the server that has the store now, which can't "
                    "tell how much of it is there: end the server, and import again"
                )
            return known
        assert isinstance(queue, Queue)
        level = queue._parts.level_at(self._note.first)
        there = 0 if level is None else self._published(queue, level)
        if level is not None:
            mark_delivered(level, self._note.first & LOW, batch[:there])
        return there

    def _published(self, queue: Queue, level: QueueParts) -> int:
        count = level.state.base + level.state.index.next_seq - self._note.first
        if 0 <= count <= self._note.count:
            return count
        # After a loss of power seq_ids are skipped: then the messages in the queue have to tell.
        last = self._note.first - 1
        for delivery in queue.peek(len(queue)):
            if self._note.first <= delivery.seq_id < self._note.first + self._note.count:
                last = max(last, delivery.seq_id)
            elif delivery.seq_id >= self._note.first and (
                delivery.priority == self._note.first >> SHIFT
            ):
                raise UsageError(
                    f"queue {queue.name!r} was published to since the import was interrupted: "
                    f"it can't be told where to go on"
                )
        return last + 1 - self._note.first

    def _rest(self, done: int) -> Iterator[Moved]:
        for source in self._sources:
            if not done:
                yield from source.read()
                continue
            size = 0
            for size, moved in enumerate(source.read(), 1):
                if size > done:
                    yield moved
            done = max(done - size, 0)

    def _windows(self, moved: Iterator[Moved]) -> Iterator[list[Moved]]:
        """Yield so many messages as are sorted by queue together."""
        window, size = list[Moved](), 0
        for one in moved:
            window.append(one)
            size += len(one.message.body)
            if len(window) >= _TOGETHER * self._batch or size >= _TOGETHER_BYTES:
                yield window
                window, size = [], 0
        if window:
            yield window

    def _highest(self, name: str) -> int:
        """Return the highest priority of a queue, which is fixed once it holds messages."""
        if name not in self._priorities:
            self._priorities[name] = self._engine.queue(name).settings.max_priority or 0
        return self._priorities[name]

    def _batches(self, window: list[Moved], size: int) -> Iterator[tuple[str, list[Moved]]]:
        """Yield the messages of each queue, in order, a batch at a time."""
        by_queue: dict[tuple[str, int], list[Moved]] = {}
        for one in window:
            its = self._queue or one.queue
            assert its
            place = its, priority_of(one.message.properties, self._highest(its))
            by_queue.setdefault(place, []).append(one)
        for (name, _), its_own in by_queue.items():
            for at in range(0, len(its_own), size):
                yield name, its_own[at : at + size]
