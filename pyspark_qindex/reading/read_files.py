"""Files and stored records as Arrow batches: the live bytes in each, and the garbage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from journal import format as journal_format
from journal.errors import StoreError
from journal.findings import Finding
from journal.fs.files import FileSystem
from msgstore.scan import scan_file
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import tell
from pyspark_qindex.reading.read_queues import StorePart, message_files
from qindex.format.rabbitmq.queue_index_v2 import ENTRY_SIZE
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as INDEX_SUFFIX
from qindex.format.rabbitmq.queue_store_v2 import ENTRY_HEAD
from qindex.format.rabbitmq.queue_store_v2 import SUFFIX as STORE_SUFFIX
from qindex.format.segment import PUBLISH_HEAD_SIZE, STEP_SIZE
from qindex.index.messages import check_record
from qindex.index.pair_scan import Depth, PinnedPair, read_pair
from qindex.index.segment import DELIVERED, PUBLISHED
from qindex.recovery.columns import Entries
from qindex.view.arrow import arrow_schema, plain_text
from qindex.view.freed_room import concerning
from qindex.view.queue_view import QueueView
from qindex.view.reader import StoreReader


@dataclass(slots=True)
class _File:
    """A row of the table of files."""

    queue: str | None
    path: str
    kind: str
    size: int
    live: int = 0
    records: int = 0
    live_records: int = 0


def _batch(options: ReadOptions, rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(options.columns))


def read_stored(part: StorePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of a part's message store files."""
    fs = part.store.file_system()
    for path in part.files:
        found: list[Finding | StoreError] = []
        try:
            scan = scan_file(fs, path, check=check_record, verify=True)
        except StoreError as error:
            found.append(error)
        else:
            gaps = scan.gaps
            if gaps and StoreReader(part.store.path, fs).place.has_holes:
                gaps = concerning(fs, gaps, set())
            found += gaps
            place = {"store": part.store.url, "file": part.store.relative(path)}
            records = [
                {**place, "offset": offset, "record_size": size, "msg_id": msg_id}
                for msg_id, offset, size in scan.records
            ]
            if records:
                yield _batch(options, records)
        yield from tell(part.store, options, found)


def read_files(part: StorePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield a row for each journal, segment and message store file. Live in the last are the
    records that an index entry names. Memory: the ids of the messages in the message store."""
    store = part.store
    fs = store.file_system()
    found: list[Finding | StoreError] = []
    files: list[_File] = []
    names: set[bytes] = set()
    reader = StoreReader(store.path, fs)
    for queue in reader.readers():
        for one in queue.directories:
            try:
                view = reader.pin(one)
            except FileNotFoundError:
                if store.is_deleted(reader.path_of(one)):
                    continue
                raise
            except StoreError as error:
                found.append(error)
                continue
            if not options.names or one.name in options.names:
                files += _index_files(fs, view, one.name)
            names.update(view.stored_ids())
            found += view.findings
    if not options.names:
        for path, size in message_files(fs, store).items():
            try:
                scan = scan_file(fs, path, check=check_record)
            except StoreError as error:
                found.append(error)
                continue
            alive = [total for msg_id, _, total in scan.records if msg_id in names]
            counts = (sum(alive), len(scan.records), len(alive))
            files.append(_File(None, path, "messages", size, *counts))
            gaps = scan.gaps
            found += concerning(fs, gaps, set()) if reader.place.has_holes else gaps
    rows = [
        {
            **asdict(one),
            "store": store.url,
            "queue": plain_text(one.queue),
            "file": store.relative(one.path),
            "garbage": one.size - one.live,
        }
        for one in files
    ]
    yield _batch(options, rows)
    yield from tell(store, options, found)


def _index_files(fs: FileSystem, view: QueueView, queue: str) -> Iterator[_File]:
    """Measure the journal and the segment files of one queue directory."""
    pinned = view.pinned
    journal = _File(queue, pinned.journal_path, "journal", pinned.journal_size)
    journal.records = view.journal_entries
    for number in view.numbers:
        for entries in view.entries(number):
            if entries.location == "segment" and number in pinned.pairs:
                yield from _pair_files(fs, view, pinned.pairs[number], entries, queue)
                continue
            in_journal = entries.location == "journal"
            alive = (entries.states == PUBLISHED) | (entries.states == DELIVERED)
            head = journal_format.PUBLISH_HEAD_SIZE if in_journal else PUBLISH_HEAD_SIZE
            steps = 0 if in_journal else STEP_SIZE * int((entries.states == DELIVERED).sum())
            live = int((entries.embedded[alive] + head).sum()) + steps
            if in_journal:
                journal.live += live
                journal.live_records += int(alive.sum())
            else:
                size = pinned.segments[number].size
                count = len(entries.seqs)
                yield _File(queue, entries.path, "segment", size, live, count, int(alive.sum()))
            del entries  # and with it the file's bytes, before the next one is read
    if journal.size:
        yield journal


def _pair_files(
    fs: FileSystem, view: QueueView, pinned: PinnedPair, entries: Entries, queue: str
) -> Iterator[_File]:
    """Measure a segment of version 2: its index, and the messages beside it."""
    pair = read_pair(fs, view.pinned.directory, pinned, view.entry_count, Depth.COUNT, clean=False)
    alive = entries.seqs[(entries.states == PUBLISHED) | (entries.states == DELIVERED)]
    is_alive = np.isin(pair.seqs, alive)
    count, live = len(is_alive), int(is_alive.sum())
    yield _File(queue, entries.path, "segment", pinned.size, ENTRY_SIZE * live, count, live)
    if pinned.store_size >= 0:
        sizes = pair.heads["embedded"].astype(np.int64)
        held = sizes > 0
        bytes_alive = int((sizes[held & is_alive] + ENTRY_HEAD.size).sum())
        path = entries.path.removesuffix(INDEX_SUFFIX) + STORE_SUFFIX
        count, live = int(held.sum()), int((held & is_alive).sum())
        yield _File(queue, path, "messages", pinned.store_size, bytes_alive, count, live)
