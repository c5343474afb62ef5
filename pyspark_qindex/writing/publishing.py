"""Publish a batch of rows into a queue exactly once, however often its publisher dies.

docs/spark.md has the steps. The latest batch of each query has a small file, which is replaced at
once, durably::

    data/qindex.spark/<query>.json      this file
    data/qindex.spark/<query>/<batch>/  the rows of a batch, a file for each task

A crash in a step leaves the first part of its rows published, and the queue's next seq_id less the
step's start tells how many. So nobody else may publish *into this queue* while a batch is
unfinished. After a loss of power the rows that are missing are published.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from time import time
from typing import Any, BinaryIO, Final

import pyarrow as pa
from pyspark.sql.types import StructType

import qindex
from journal import errors
from journal.fs.beneath import beneath
from journal.fs.files import REAL, FileSystem, make_dirs, names_in, read_optional, replace_file
from qindex.format import layout
from qindex.format.envelope import open_envelope
from qindex.format.message import Message
from qindex.queue import run_clock
from qindex.queue.producing import MAX_RESERVED
from qindex.transfer.moved import from_plain
from qindex.view.message_batches import MESSAGES
from qindex.view.reader import StoreReader

_TAKEN: Final = {
    "body": ("binary", "string"),
    "key": ("string",),
    "headers": ("string", "map<string,string>"),
    "properties": ("string", "map<string,string>"),
    "envelope": ("binary",),
    "timestamp": ("bigint", "int"),
    "expiry": ("bigint", "int"),
}
"""The columns of a row that are published. All messages are persistent: transient ones would end
with the publisher, which closes the store after each batch."""
_VERSION: Final = 1
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUFFIX: Final = ".json"
STEP: Final = MAX_RESERVED
"""Rows of a step at most."""
_ROWS_AT_ONCE: Final = 4096
_BYTES_AT_ONCE: Final = 8 << 20
_COMPARED: Final = 64


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish. ``expiry``: microseconds since 1970, 0 = never."""

    message: Message
    expiry: int


def check_columns(schema: StructType) -> list[str]:
    """Return the columns of a DataFrame that are published. Raises :class:`UsageError` for one that
    can't be, and for ``queue``: it would look as if it told where a row goes."""
    chosen = []
    for one in schema.fields:
        if one.name == "queue":
            what = "column 'queue' does not choose where a row goes, option queue does for all"
            raise errors.UsageError(f"{what}: drop it, or write each queue's rows by themselves")
        kinds = _TAKEN.get(one.name)
        if kinds is None:
            if one.name not in MESSAGES:
                names = ", ".join(_TAKEN)
                raise errors.UsageError(
                    f"column {one.name!r} can't be published; there are {names}"
                )
            continue
        kind = one.dataType.simpleString()
        if kind not in kinds:
            raise errors.UsageError(f"column {one.name!r} must be {' or '.join(kinds)}, not {kind}")
        chosen.append(one.name)
    if "body" not in chosen:
        raise errors.UsageError("there is no column 'body' to publish")
    return chosen


def stage(
    path: str, batches: Iterator[pa.RecordBatch], columns: list[str], fs: FileSystem = REAL
) -> int:
    """Write rows into a new file, durable on return; return their number. Without rows there is no
    file. Raises :class:`UsageError` for a row that has no body."""
    rows = 0
    with errors.storage_errors(path, "can't be written"), ExitStack() as opened:
        file: BinaryIO | None = None
        for batch in batches:
            chosen = batch.select(columns)
            if chosen.column("body").null_count:
                raise errors.UsageError("a row has no body: filter damaged ones with error IS NULL")
            if not chosen.num_rows:
                continue
            if file is None:
                make_dirs(fs, os.path.dirname(path))
                fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
                file = opened.enter_context(os.fdopen(fd, "wb"))
                writer = opened.enter_context(pa.ipc.new_stream(file, chosen.schema))
            writer.write_batch(chosen)
            rows += chosen.num_rows
        if file is not None:
            writer.close()
            file.flush()
            fs.fdatasync(file.fileno())
            fs.sync_dir(os.path.dirname(path))
    return rows


def read_staged(path: str, skip: int = 0) -> Iterator[Outgoing]:
    """Yield the rows of a staged file as messages, from row ``skip`` on."""
    failing = errors.storage_errors(path, "can't be read")
    with failing, pa.OSFile(path) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            if skip < batch.num_rows:
                yield from map(_outgoing, batch.slice(skip).to_pylist(maps_as_pydicts="strict"))
            skip = max(skip - batch.num_rows, 0)


def _outgoing(row: Mapping[str, Any]) -> Outgoing:
    body = row["body"]
    raw = body.encode() if isinstance(body, str) else body
    envelope = row.get("envelope")
    if envelope is not None:
        message = open_envelope(envelope, raw)
    else:
        message = Message(raw, row.get("key"), _values(row, "headers"), _values(row, "properties"))
    timestamp = row.get("timestamp")
    if timestamp is not None and timestamp != message.timestamp:
        message = replace(message, timestamp=timestamp)
    return Outgoing(message, row.get("expiry") or 0)


def _values(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = from_plain(json.loads(value))
        except ValueError as error:
            raise errors.UsageError(f"{name} is no JSON: {value[:80]!r}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise errors.UsageError(f"{name} must be a JSON object, not {str(value)[:80]!r}")
    return value


@dataclass(slots=True)
class Progress:
    """The latest batch of a query. ``files``: relative path and rows of each. ``done``: rows that
    are published durably. ``start``, ``rows``: seq_id and size of the step that is being published,
    0 rows when there is none. ``boot``: the run of the operating system that began it.
    ``incarnation``: of the queue that the batch was begun in."""

    query: str
    batch: int
    queue: str
    files: list[tuple[str, int]] = field(default_factory=list)
    done: int = 0
    start: int = 0
    rows: int = 0
    boot: str = ""
    finished: bool = False
    incarnation: int = 0

    @property
    def total(self) -> int:
        """Rows of the batch."""
        return sum(rows for _, rows in self.files)


class Staging:
    """The staging directory of a store. ``fs`` makes files with the mode of the store's
    directory."""

    def __init__(self, store: str) -> None:
        self.fs: FileSystem = beneath(REAL, store)
        self.path = os.path.join(store, layout.STAGING)

    def batch_directory(self, query: str, batch: int) -> str:
        """Return the directory for the rows of a batch."""
        return os.path.join(self.path, _name_of(query), str(batch))

    def load(self, query: str) -> Progress | None:
        """Read a query's file; ``None`` when it has none. Raises :class:`DamageError`."""
        return self._read(os.path.join(self.path, _name_of(query) + _SUFFIX))

    def save(self, progress: Progress) -> None:
        """Replace a query's file; durable on return."""
        path = os.path.join(self.path, _name_of(progress.query) + _SUFFIX)
        make_dirs(self.fs, self.path)
        value = {"version": _VERSION, **dataclasses.asdict(progress)}
        replace_file(self.fs, path, json.dumps(value).encode())

    def unfinished(self) -> Iterator[Progress]:
        """Yield the batches whose publishing was cut short, of all queries."""
        for name in self._names(self.path):
            if name.endswith(_SUFFIX):
                progress = self._read(os.path.join(self.path, name))
                if progress is not None and not progress.finished:
                    yield progress

    def sweep(self, query: str, batch: int) -> None:
        """Remove the rows of a query's batches up to ``batch``, whoever left them."""
        root = os.path.join(self.path, _name_of(query))
        for name in self._names(root):
            if name.isdigit() and int(name) <= batch:
                self._remove(os.path.join(root, name))

    def sweep_old(self, older_than: float) -> None:
        """Remove the rows that were staged before ``older_than`` (seconds since 1970) by queries
        with no batch to finish."""
        busy = {_name_of(progress.query) for progress in self.unfinished()}
        for query in self._names(self.path):
            if query.endswith(_SUFFIX) or query in busy:
                continue
            for name in self._names(os.path.join(self.path, query)):
                path = os.path.join(self.path, query, name)
                if self.fs.stat(path).st_mtime < older_than:
                    self._remove(path)

    def _remove(self, directory: str) -> None:
        names = self._names(directory)
        with errors.storage_errors(directory, "can't be removed"), suppress(FileNotFoundError):
            for name in names:
                self.fs.unlink(os.path.join(directory, name))
            self.fs.rmdir(directory)

    def _names(self, directory: str) -> list[str]:
        with errors.storage_errors(directory, "can't be listed"):
            return sorted(names_in(self.fs, directory))

    def _read(self, path: str) -> Progress | None:
        with errors.storage_errors(path, "can't be read"):
            data = read_optional(self.fs, path)
        if data is None:
            return None
        try:
            value: dict[str, Any] = json.loads(data)
            if value.pop("version") != _VERSION:
                raise errors.DamageError(path, 0, "the progress of a query, of another version")
            files = [(name, rows) for name, rows in value.pop("files")]
            return Progress(files=files, **value)
        except (ValueError, TypeError, KeyError) as error:
            raise errors.DamageError(path, 0, f"not the progress of a query: {error}") from error


def _name_of(query: str) -> str:
    """Return the name of a query's files: its id, which Spark makes plain, or a hash of it."""
    if _PLAIN.fullmatch(query):
        return query
    return hashlib.sha256(query.encode()).hexdigest()[:32]


class ForeignPublisherError(errors.StoreError):
    """While a batch was half published, someone else published into its queue: nobody can tell
    any more which of its rows are there."""


def make_store(store: str, queue: str) -> None:
    """Make store and queue if they do not exist. A store that is in use is left alone."""
    try:
        reader = StoreReader(store)
        if reader.kind == "qindex" and queue in reader.queue_names():
            return
    except errors.NotAStoreError:
        pass  # to be made, or to be refused, by the open that follows
    try:
        with qindex.open(store) as engine:
            engine.queue(queue)
    except errors.LockedError:
        return


def commit_batch(
    store: str,
    queue: str,
    query: str,
    batch: int,
    files: list[tuple[str, int]],
    *,
    lock_timeout: float,
    orphan_age: float,
) -> None:
    """Publish the rows of a batch, unless it was published before. Durable on return.

    ``files``: staged ones with their rows, in order. ``orphan_age``: seconds after which what other
    queries have staged is removed. After an error the next attempt, of any query, goes on.
    """
    staging = Staging(store)
    with qindex.open(store, lock_timeout=lock_timeout) as engine:
        for left in list(staging.unfinished()):
            if left.query == query or left.queue == queue:
                _publish(engine, staging, left, resumed=left.rows > 0)
        progress = staging.load(query)
        if progress is None or progress.batch < batch:
            progress = Progress(query, batch, queue, files)
            if progress.total:
                _publish(engine, staging, progress, resumed=False)
        staging.sweep(query, batch)
        staging.sweep_old(time() - orphan_age)


def _publish(engine: qindex.Engine, staging: Staging, progress: Progress, *, resumed: bool) -> None:
    queue = engine.queue(progress.queue)
    incarnation = queue._parts.state.incarnation
    if progress.incarnation != incarnation:
        # What was published before went with the queue that had the name.
        progress.incarnation, progress.done, resumed = incarnation, 0, False
    while progress.done < progress.total:
        if resumed:
            there = _published(queue, engine.directory, staging, progress)
            resumed = False
        else:
            progress.rows = min(STEP, progress.total - progress.done)
            progress.start = queue.reserve(progress.rows)
            progress.boot = _boot()
            there = set()
            staging.save(progress)
        rows = itertools.islice(_rows(staging, progress), progress.rows)
        _append(queue, (row for number, row in enumerate(rows) if number not in there))
        engine.sync()
        progress.done += progress.rows
        progress.rows = 0
        progress.finished = progress.done == progress.total
        staging.save(progress)


def _rows(staging: Staging, progress: Progress) -> Iterator[Outgoing]:
    """Yield the rows that are not done."""
    skip = progress.done
    for name, count in progress.files:
        if skip < count:
            yield from read_staged(os.path.join(staging.path, name), skip)
        skip = max(skip - count, 0)


def _append(queue: qindex.Queue, rows: Iterable[Outgoing]) -> None:
    """Publish rows in order, some at a time."""
    for expiry, some in itertools.groupby(rows, key=lambda row: row.expiry):
        # By the clock that the engine adds it to again.
        ttl = max(expiry - run_clock.time_ns() // 1000, 0) / 1e6 if expiry else None
        messages = []
        size = 0
        for row in some:
            messages.append(row.message)
            size += len(row.message.body)
            if len(messages) == _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
                queue.publish_many(messages, ttl=ttl)
                messages, size = [], 0
        if messages:
            queue.publish_many(messages, ttl=ttl)


def _published(queue: qindex.Queue, store: str, staging: Staging, progress: Progress) -> set[int]:
    """Tell which rows of a step that was cut short are published."""
    after = queue.reserve(0)
    count = after - progress.start
    if progress.boot == _boot() and count <= progress.rows:
        return set(range(count))
    _compare(queue.name, store, staging, progress)
    return _present(store, progress)


def _present(store: str, progress: Progress) -> set[int]:
    """Tell which rows of a step have an index entry, acknowledged or not."""
    reader = StoreReader(store)
    (directory,) = reader.queue(progress.queue).directories
    view = reader.pin(directory)
    found: set[int] = set()
    for number in view.numbers:
        for entries in view.entries(number):
            rows = entries.seqs - progress.start
            found.update(rows[(rows >= 0) & (rows < progress.rows)].tolist())
            del entries  # and with it the file's bytes, before the next one is read
    return found


def _compare(queue: str, store: str, staging: Staging, progress: Progress) -> None:
    """Raise :class:`ForeignPublisherError` when messages in the step's place are not its own."""
    inside = range(progress.start, progress.start + progress.rows)
    entries = StoreReader(store).queue(queue).entries()
    found = ((row.seq_id, row.body) for row in entries if row.seq_id in inside and row.body)
    bodies = dict(itertools.islice(found, _COMPARED))
    rows = itertools.islice(_rows(staging, progress), progress.rows)
    for seq_id, row in enumerate(rows, progress.start):
        if bodies.get(seq_id, row.message.body) != row.message.body:
            raise ForeignPublisherError(
                f"{store}: queue {queue!r}: someone published into it (seq_id {seq_id}) while "
                f"batch {progress.batch} of query {progress.query} was half published"
            )


def _boot() -> str:
    return REAL.boot_id().decode("ascii", "replace")
