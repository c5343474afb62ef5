"""RocketMQ stores: CommitLog records, ConsumeQueue units and IndexFile entries as Arrow batches.

A plan has a part for each file, and says where a CommitLog ends: what a writer appends later is not
read. Of a file whose end was cut off, the rest is read. Remote logs are backups, and end where they
end when a task reads them: to find that out in the plan, much would have to be fetched.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import sleep
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from journal.errors import StorageError, StoreError
from journal.fs.files import FileSystem, is_there, read_file
from journal.memory.arrays import I64, Bools
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import FailedStore, parts_of_stores, tell
from pyspark_qindex.stores import ROCKET, Store
from qindex.format.json_value import plain_json
from qindex.view.arrow import Maker, batch_of, constant, numbers, slices, texts_of
from rocketstore.format.commitlog_format import BLANK_MAGIC, START, file_name, format_host
from rocketstore.format.consumequeue_format import PRE_BLANK, UNIT_SIZE, count_valid, parse_units
from rocketstore.format.properties import KEYS, TAGS, UNIQ_KEY, decode_properties, property_columns
from rocketstore.index.index_file import IndexFile
from rocketstore.layout import Layout, Paths, look
from rocketstore.log.commitlog import CommitLog
from rocketstore.log.log_end import log_end
from rocketstore.log.scan import Records
from rocketstore.log.walk import LogWalk, SkipDamage, find_survivor
from rocketstore.options import Options

_BAD_BODY = "the body does not match its checksum"
_NO_RECORD = "no sound record stands here"
_SETTLE_PAUSES = (0.002, 0.01, 0.05)
"""Seconds between looks at an index file that may be being written."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A CommitLog file. ``start``: its first offset. Records from offset ``low`` on, and up to
    ``high`` if that is known, are wanted. ``ends``: the log ends there, or may end in this file.
    ``held``: bytes that are left of it, where its end was cut off."""

    store: Store
    file_size: int
    start: int
    low: int
    high: int | None
    ends: bool
    weight: int
    held: int | None = None


@dataclass(frozen=True, slots=True)
class UnitsPart:
    """A ConsumeQueue file; ``start``: its first byte in the queue."""

    store: Store
    topic: str
    queue_id: int
    path: str
    start: int
    weight: int


@dataclass(frozen=True, slots=True)
class IndexPart:
    """An IndexFile."""

    store: Store
    path: str
    slots: int
    entries: int
    weight: int


def plan_rocket(options: ReadOptions) -> list[Any]:
    """Return the parts of RocketMQ stores."""
    return parts_of_stores(options, ROCKET, _store_parts)


def _store_parts(store: Store, fs: FileSystem, options: ReadOptions) -> Iterator[Any]:
    layout = look_at(fs, store)
    yield from _file_parts(store, fs, layout, options)
    left = {log_path(store, start) for start in layout.short}  # their reads tell of them
    for one in layout.strangers:
        # Another name is another program's.
        if os.path.basename(one.path).isdigit() and not (
            options.include == "records" and one.path in left
        ):
            yield FailedStore(store, f"{one.path}: {one.what}")
    if options.include == "records":
        for start in layout.lost():
            yield FailedStore(store, f"{log_path(store, start)}: this file of the log is missing")


def look_at(fs: FileSystem, store: Store) -> Layout:
    """List a store's files. Raises :class:`StoreError`."""
    return look(fs, Paths(store.path), Options(read_only=True))


def open_log(store: Store, file_size: int, starts: list[int], short: dict[int, int]) -> CommitLog:
    """Open files of a CommitLog to read; nothing is changed. ``short``: bytes of those whose end
    was cut off, by start. Raises as :meth:`~pyspark_qindex.stores.Store.file_system`."""
    log = CommitLog(store.file_system(), Paths(store.path).commitlog, file_size, writable=False)
    log.files.load(starts, short)
    return log


def end_of_log(store: Store, layout: Layout, known: int = 0) -> int:
    """Return the offset after the last record, as it is now; it is at least ``known``. Raises
    :class:`StoreError`."""
    log = open_log(store, layout.commitlog_file_size, layout.readable, layout.short)
    try:
        return log_end(log, known)
    finally:
        log.files.close()


def is_in_use(store: Store) -> bool:
    """Return whether a store is open for writing, or was left so by a crash."""
    return is_there(store.file_system(), Paths(store.path).abort)


def _file_parts(
    store: Store, fs: FileSystem, layout: Layout, options: ReadOptions
) -> Iterator[LogPart | UnitsPart | IndexPart]:
    paths = Paths(store.path)
    if options.include == "records":
        size = layout.commitlog_file_size
        end = None if store.place[0] else end_of_log(store, layout)
        for start in layout.readable:
            if end is not None and start > end:
                break
            ends = end is None or end <= start + size
            weight = _bytes(fs, log_path(store, start))
            yield LogPart(store, size, start, start, end, ends, weight, layout.short.get(start))
    elif options.include == "units":
        for (topic, queue_id), starts in sorted(layout.queues.items()):
            if options.names and topic not in options.names:
                continue
            if options.queue_id not in (None, queue_id):
                continue
            directory = os.path.join(paths.consumequeue, topic, str(queue_id))
            for start in starts:
                path = os.path.join(directory, file_name(start))
                yield UnitsPart(store, topic, queue_id, path, start, _bytes(fs, path))
    else:
        for name in layout.index:
            path = os.path.join(paths.index, name)
            yield IndexPart(store, path, layout.index_slots, layout.index_entries, _bytes(fs, path))


def log_path(store: Store, start: int) -> str:
    """Return the path of a CommitLog file."""
    return os.path.join(Paths(store.path).commitlog, file_name(start))


def _bytes(fs: FileSystem, path: str) -> int:
    """Return the bytes a sparse file takes."""
    info = fs.stat(path)
    blocks = getattr(info, "st_blocks", None)
    return min(info.st_size, info.st_size if blocks is None else blocks * 512) or 1


def read_records(part: LogPart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of a CommitLog file in order, 1 MiB at a time, and a row with ``error`` for
    each place without a record."""
    found: list[StoreError | str] = []
    short = {} if part.held is None else {part.start: part.held}
    log = open_log(part.store, part.file_size, [part.start], short)
    try:
        skip = SkipDamage(log)
        walk = LogWalk(
            log, part.low, strict=True, keep_bad_bodies=True, on_damage=skip, limit=part.high
        )
        try:
            for _, records in walk:
                batch = _Columns(part, options, records, walk.bad_bodies).batch()
                if batch.num_rows:
                    yield batch
        except StorageError as error:
            found.append(error)
        if part.held is not None:
            what = f"is {part.held} bytes long, not {part.file_size}"
            found.append(f"{part.store.url}/commitlog/{part.start:020d}: {what}")
        if not options.permissive:  # else rows tell of them
            found += [_at(part, offset, _BAD_BODY) for offset in walk.bad_bodies]
        found += [_at(part, offset, _NO_RECORD) for offset in _damaged(log, part, skip, walk)]
    finally:
        log.files.close()
    yield from tell(part.store, options, found)


def _at(part: LogPart, offset: int, what: str) -> str:
    name = f"{part.start:020d}"
    return f"{part.store.url}/commitlog/{name}: at offset {offset - part.start}: {what}"


def _damaged(log: CommitLog, part: LogPart, skip: SkipDamage, walk: LogWalk) -> list[int]:
    """Return the places without a record; the one where the log ends is none of them, nor is that
    where a file is cut off, which its length tells."""
    places = skip.skipped
    if part.held is not None or (part.ends and part.high is None):
        is_last = bool(places) and walk.end == places[-1]
        is_end = is_last and (part.held is not None or not _is_junk(log, part, walk.end))
        return places[:-1] if is_end else places
    if part.ends and part.high is not None and _is_junk(log, part, part.high):
        return [*places, part.high]
    return places


def _is_junk(log: CommitLog, part: LogPart, end: int) -> bool:
    """Return whether there is junk after the last record of a log that was closed. An append that a
    writer has not finished, at work or killed, is not junk, nor is a record put there since."""
    at = end - part.start
    start = log.files.read(log.files.files[part.start], at, START.size)
    if len(start) < START.size or not start.strip(b"\0"):
        return False
    if START.unpack(start)[1] == BLANK_MAGIC or find_survivor(log, end) == end:
        return False
    return not is_in_use(part.store)


@dataclass
class _Columns:
    """Consecutive records as columns, each made when it is wanted. ``bad_bodies``: offsets of
    records, perhaps of these."""

    part: LogPart
    options: ReadOptions
    records: Records
    bad_bodies: list[int]

    def batch(self) -> pa.RecordBatch:
        """Return the records that are wanted."""
        batch = batch_of(self.options.columns, len(self.records), self._makers())
        wanted = self._wanted()
        return batch if wanted is None else batch.filter(pa.array(wanted))

    def _wanted(self) -> Bools | None:
        options, records = self.options, self.records
        if not options.names and options.queue_id is None and options.key is None:
            return None
        wanted = np.ones(len(records), np.bool_)
        if options.names:
            names = pa.array([name.encode() for name in options.names], pa.binary())
            wanted &= np.asarray(pc.is_in(self._topics, names))
        if options.queue_id is not None:
            wanted &= records.queue_ids == options.queue_id
        if options.key is not None:
            both = (self._properties[name].to_pylist() for name in (KEYS, UNIQ_KEY))
            found = [
                unique == options.key or options.key in (keys or "").split(" ")
                for keys, unique in zip(*both, strict=True)
            ]
            wanted &= np.array(found, np.bool_)
        return wanted

    @functools.cached_property
    def _places(self) -> I64:
        return self.records.positions + self.part.start

    @functools.cached_property
    def _is_bad(self) -> Bools:
        return np.isin(self._places, self.bad_bodies)

    @functools.cached_property
    def _topics(self) -> pa.Array:
        records = self.records
        return slices(records.data, records.topic_at, records.properties_at - 2)

    @property
    def _bounds(self) -> tuple[I64, I64]:
        """The bounds of the properties."""
        starts = self.records.properties_at
        return starts, starts + self.records.property_lengths

    @functools.cached_property
    def _properties(self) -> dict[str, pa.Array]:
        """The properties as JSON, under ``""``, and the values of those that are indexed."""
        records, (starts, ends) = self.records, self._bounds
        texts, bounds, places, told = property_columns(records.data, starts, ends)
        spans = np.array(places, np.int64).reshape(-1, 6)
        columns = {"": texts_of(texts, bounds)}
        for name, first in ((KEYS, 0), (UNIQ_KEY, 2), (TAGS, 4)):
            start, end = spans[:, first], spans[:, first + 1]
            found = slices(records.data, start, end).cast(pa.string())
            columns[name] = found if (start < end).all() else pc.if_else(start < end, found, None)
        if 0 not in told:
            return columns
        rest = np.frombuffer(told, np.bool_)
        rare = np.flatnonzero(~rest).tolist()
        decoded = [
            decode_properties(records.data[start:end])
            for start, end in zip(starts[rare].tolist(), ends[rare].tolist(), strict=True)
        ]
        for name, column in columns.items():
            values = [one.get(name) if name else plain_json(one) for one in decoded]
            new = pa.array(values, pa.string())
            columns[name] = pc.replace_with_mask(column, pa.array(~rest), new)
        return columns

    def _makers(self) -> dict[str, Maker]:
        records, count = self.records, len(self.records)
        hosts = (records.sys_flags >> 4 & 1) * 12
        both = hosts + (records.sys_flags >> 5 & 1) * 12
        at = records.positions - records.origin

        def integer(places: I64, kind: str, arrow: pa.DataType) -> pa.Array:
            return pa.array(_gather(records.data, places, kind), arrow)

        def ids(values: I64) -> pa.Array:
            return pa.array(values.astype(np.int32))

        def hosts_at(starts: I64, lengths: I64) -> pa.Array:
            found = slices(records.data, starts, starts + lengths)
            return _distinct(found, format_host)

        return {
            "store": lambda: constant(self.part.store.url, count),
            "offset": lambda: numbers(self._places),
            "record_size": lambda: numbers(records.sizes),
            "topic": lambda: _distinct(self._topics, lambda raw: raw.decode(errors="replace")),
            "queue_id": lambda: ids(records.queue_ids),
            "queue_offset": lambda: numbers(records.queue_offsets),
            "tags": lambda: self._properties[TAGS],
            "keys": lambda: self._properties[KEYS],
            "unique_key": lambda: self._properties[UNIQ_KEY],
            "flag": lambda: integer(at + 16, ">i4", pa.int32()),
            "sys_flag": lambda: ids(records.sys_flags),
            "born_timestamp": lambda: integer(at + 40, ">i8", pa.int64()),
            "born_host": lambda: hosts_at(at + 48, 8 + hosts),
            "store_timestamp": lambda: numbers(records.store_times),
            "store_host": lambda: hosts_at(at + 64 + hosts, 8 + both - hosts),
            "reconsume_times": lambda: integer(at + 72 + both, ">i4", pa.int32()),
            "prepared_transaction_offset": lambda: integer(at + 76 + both, ">i8", pa.int64()),
            "body_crc": lambda: integer(at + 8, ">i4", pa.int64()),
            "properties": lambda: self._properties[""],
            "properties_raw": lambda: slices(records.data, *self._bounds),
            "body": lambda: self._bodies(at + 84 + both),
            "error": self._errors,
        }

    def _bodies(self, length_at: I64) -> pa.Array:
        data = self.records.data
        found = slices(data, length_at + 4, length_at + 4 + _gather(data, length_at, ">i4"))
        return pc.if_else(pa.array(~self._is_bad), found, None) if self._is_bad.any() else found

    def _errors(self) -> pa.Array:
        if not self._is_bad.any():
            return pa.nulls(len(self.records), pa.string())
        texts = [
            _at(self.part, at, _BAD_BODY) if bad else None
            for at, bad in zip(self._places.tolist(), self._is_bad.tolist(), strict=True)
        ]
        return pa.array(texts, pa.string())


def _gather(buffer: bytes, at: I64, kind: str) -> I64:
    flat = np.frombuffer(buffer, np.uint8)
    taken = np.ascontiguousarray(flat[at[:, None] + np.arange(np.dtype(kind).itemsize)])
    values: I64 = taken.view(kind).reshape(-1).astype(np.int64)
    return values


def _distinct(values: pa.Array, decode: Callable[[bytes], str]) -> pa.Array:
    """Decode each value once."""
    found = values.dictionary_encode()
    names = [decode(raw) for raw in found.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(found.indices)


def read_units(part: UnitsPart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the units of a ConsumeQueue file, without those that only fill its beginning."""
    found: list[StoreError | str] = []
    try:
        data = read_file(part.store.file_system(), part.path)
    except OSError as error:
        found.append(StorageError(part.path, "can't be read", error))
        data = b""
    units = parse_units(data)
    valid = count_valid(units)
    if data[valid * UNIT_SIZE :].strip(b"\0"):
        found.append(f"{part.path}: at offset {valid * UNIT_SIZE}: bytes that are no unit")
    blank = parse_units(PRE_BLANK)[0]
    chosen = np.flatnonzero(units[:valid] != blank)
    count, units = len(chosen), units[chosen]
    if count:
        yield batch_of(
            options.columns,
            count,
            {
                "store": lambda: constant(part.store.url, count),
                "topic": lambda: constant(part.topic, count),
                "queue_id": lambda: constant(part.queue_id, count, pa.int32()),
                "queue_offset": lambda: numbers(chosen + part.start // UNIT_SIZE),
                "offset": lambda: numbers(units["offset"].astype(np.int64)),
                "record_size": lambda: numbers(units["size"].astype(np.int32)),
                "tags_code": lambda: numbers(units["tags_code"].astype(np.int64)),
                "file": lambda: constant(part.store.relative(part.path), count),
            },
        )
    yield from tell(part.store, options, found, part.topic)


def read_index(part: IndexPart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the entries of an IndexFile. Raises as :func:`read_records`."""
    found: list[StoreError | str] = []
    file = IndexFile(part.store.file_system(), part.path, part.slots, part.entries, writable=False)
    try:
        file.load()
        entries = file.entries_from(1, file.header.count - 1)
        count = len(entries)
        if count:
            yield batch_of(
                options.columns,
                count,
                {
                    "store": lambda: constant(part.store.url, count),
                    "file": lambda: constant(part.store.relative(part.path), count),
                    "number": lambda: numbers(np.arange(1, count + 1)),
                    "key_hash": lambda: numbers(entries["hash"].astype(np.int32)),
                    "offset": lambda: numbers(entries["offset"].astype(np.int64)),
                    "seconds": lambda: numbers(entries["seconds"].astype(np.int32)),
                    "previous": lambda: numbers(entries["prev"].astype(np.int32)),
                },
            )
        if not _is_sound(file, part):
            found.append(f"{part.path}: slots and links do not agree with the entries")
    except StoreError as error:
        found.append(error)
    finally:
        file.close()
    yield from tell(part.store, options, found)


def _is_sound(file: IndexFile, part: IndexPart) -> bool:
    """Return whether the chains of an index file lead to all of its entries. One that is being
    written is looked at again: its slots may be ahead of its header."""
    for pause in (*_SETTLE_PAUSES, None):
        if file.chains_are_sound():
            return True
        if pause is None or not is_in_use(part.store):
            break
        sleep(pause)
        before = file.header
        file.load()
        if file.header != before:
            return True  # it is being written: a later look judges it
    return False
