"""The audit of RocketMQ stores: each file is held against the CommitLog, each by itself.

Three kinds of task, none of which needs what another one found:

* a **CommitLog file**: its frames and checksums; of each message, whether its ConsumeQueue has it
  where it should, and whether an IndexFile has it under each of its keys;
* a **ConsumeQueue**: whether each unit points to a message with that queue offset;
* an **IndexFile**: header, slots and links, and whether each entry points to a message.

The last two look into the log at the places that are named there: a few numbers of each record.
A store in use (``abort`` is there) may be behind with its queues and index, and is read while it
grows: what is at the end of either is not held against it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from time import sleep
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from journal.arrays import I64, U8, Bools
from journal.errors import StoreError
from journal.findings import Cause, Finding, Kind
from pyspark_qindex.jobs.findings import RocketKind, damage
from pyspark_qindex.rocket_planning import is_in_use, look_at
from pyspark_qindex.stores import Store
from rocketstore.checkpoint_format import Checkpoint
from rocketstore.commitlog_format import COMMON_FIELDS, MESSAGE_MAGIC, ROLLBACK, file_name
from rocketstore.consumequeue import ConsumeQueue
from rocketstore.consumequeue_format import UNIT_SIZE, Units, count_valid
from rocketstore.dispatch import DispatchBatch, from_records
from rocketstore.index_file import IndexFile
from rocketstore.layout import Paths
from rocketstore.log_end import log_end
from rocketstore.mapped_files import Stranger
from rocketstore.options import Options
from rocketstore.parts import Parts, build_parts
from rocketstore.scan import Stop
from rocketstore.walk import LogWalk, find_survivor

_UNITS_AT_ONCE: Final = 1 << 16
_SETTLE_PAUSES: Final = (0.002, 0.01, 0.05)
"""Seconds between looks at a file that may be being written."""
_HASH_BITS: Final = 31
_FLAGS_AT: Final = 39
_BODY_LENGTH_AT: Final = 84
"""Low byte of sysFlag, and the body's length with two IPv4 hosts: bytes from a record's start."""
_PIECE: Final = 64 << 10
_HEAD: Final = np.dtype(list(COMMON_FIELDS[:7]))
"""How each record begins, up to its physical offset."""


@dataclass(frozen=True, slots=True)
class RocketItem:
    """One file or queue to be audited. ``part``: log, queue or index. ``start``: of the log file;
    ``topic``, ``queue_id``; ``name``: of the index file. ``weight``: bytes. ``missing``: ranges of
    the log that are missing, files or their ends, as is reported once for all."""

    store: Store
    part: str
    weight: int
    start: int = 0
    topic: str = ""
    queue_id: int = 0
    name: str = ""
    missing: tuple[tuple[int, int], ...] = ()

    def in_log(self, offsets: I64, parts: Parts) -> npt.NDArray[np.intp]:
        """Tell which of the places the log should have. Beside a writer a new file may have come
        since the directory was listed: what is there is not looked at."""
        wanted = (offsets >= max(parts.commitlog.min_offset, 0)) | (offsets < 0)
        last = parts.commitlog.files.last
        if last is not None and in_use(parts):
            wanted &= offsets < last.start + last.size
        for first, end in self.missing:
            wanted &= (offsets < first) | (offsets >= end)
        return np.flatnonzero(wanted)


@dataclass(slots=True)
class Span:
    """Queue offsets that one log file has of one queue; where the first of them stands."""

    store: str
    topic: str
    queue_id: int
    start: int
    position: int
    first: int
    last: int


Found = Finding | Span | tuple[str, int]
"""What an audit gives; a pair says how many things of a sort were looked at."""


def plan_rocket_store(store: Store) -> tuple[list[RocketItem], list[Finding]]:
    """List what is to be audited in a store, and what is wrong with its file names.

    Raises :class:`StoreError` for a directory that is no store, or can't be listed.
    """
    layout = look_at(store.file_system(), store)
    size = layout.commitlog_file_size
    lost = layout.lost()
    missing = tuple((start, start + size) for start in lost)
    missing += tuple((start + held, start + size) for start, held in sorted(layout.short.items()))
    items = [
        RocketItem(store, "log", layout.short.get(start, size), start=start)
        for start in layout.readable
    ]
    for (topic, queue_id), starts in sorted(layout.queues.items()):
        weight = len(starts) * layout.consumequeue_file_size
        items.append(RocketItem(store, "queue", weight, 0, topic, queue_id, "", missing))
    items += [
        RocketItem(store, "index", 20 * layout.index_entries, name=name, missing=missing)
        for name in layout.index
    ]
    findings = [_of_stranger(one) for one in layout.strangers]
    for start in lost:
        path = os.path.join(Paths(store.path).commitlog, file_name(start))
        what, gone = "this file of the commit log is missing", "its messages are lost"
        findings.append(damage(path, 0, 0, Kind.MISSING_FILE, what, gone))
    return items, findings


def _of_stranger(one: Stranger) -> Finding:
    if one.is_placed and one.is_short:
        lost = "what stood behind is lost"
        return damage(one.path, one.length, one.wanted - one.length, Kind.TORN, one.what, lost)
    return damage(one.path, 0, 0, Kind.FOREIGN_FILE, one.what)


def audit_rocket_item(item: RocketItem) -> Iterator[Found]:
    """Audit one item; gives findings, and of a log file the queue offsets it has."""
    parts = _parts(item)
    try:
        if item.part == "log":
            yield from _LogAudit(item, parts).run()
        elif item.part == "queue":
            queue = parts.queue(item.topic, item.queue_id)
            yield from _audit_queue(item, parts, queue)
            yield "units", queue.max_offset - queue.min_offset
        else:
            yield from _audit_index(item, parts)
    except StoreError as error:
        path = getattr(error, "path", item.store.path)
        if in_use(parts) and not os.path.exists(path):
            return  # its time was up
        yield damage(path, 0, 0, Kind.UNREADABLE, str(error))
    finally:
        parts.close()


def in_use(parts: Parts) -> bool:
    """Whether the store is open for writing, or was left so by a crash."""
    return is_in_use(parts.fs, parts.paths)


def _parts(item: RocketItem) -> Parts:
    """Of the index files those that the item is about: a store may have thousands."""
    fs = item.store.file_system()
    layout = look_at(fs, item.store)
    layout = replace(layout, commitlog=layout.readable)
    if item.part != "log":
        layout = replace(layout, index=[name for name in layout.index if name == item.name])
    options = Options(fs=fs, read_only=True)
    return build_parts(options, Paths(item.store.path), layout, Checkpoint())


# -- a file of the CommitLog ----------------------------------------------------------------------


class _LogAudit:
    """One CommitLog file."""

    def __init__(self, item: RocketItem, parts: Parts) -> None:
        self._item = item
        self._parts = parts
        self._busy = in_use(parts)
        self._file = parts.commitlog.files.files[item.start]
        self._end = item.start + self._file.held
        if self._busy:
            # What is put from now on is not looked at.
            self._end = min(self._end, log_end(parts.commitlog))
        self._spans: dict[tuple[str, int], Span] = {}
        self._index_files = [
            file
            for file in parts.index.files
            if file.header.count > 1
            and file.header.end_offset >= item.start
            and file.header.begin_offset < self._end
        ]
        self._indexed_to = parts.index.end_offset
        # Before the log is read: what is put meanwhile must not look as if it pointed nowhere.
        self._entries = [
            _entries_between(file, item.start, self._end) for file in self._index_files
        ]
        self._keys: list[I64] = []
        self._offsets: list[I64] = []

    def run(self) -> Iterator[Found]:
        at: int | None = self._item.start
        previous = -1
        while at is not None:
            walk = LogWalk(self._parts.commitlog, at, keep_bad_bodies=True, limit=self._end)
            for base, records in walk:
                moved = np.flatnonzero(records.offsets != records.positions + base)
                for row in moved.tolist():
                    what = f"a record says that it stands at {int(records.offsets[row])}"
                    position = int(records.positions[row])
                    yield damage(self._file.path, position, 36, RocketKind.OFFSET, what)
                for row in np.flatnonzero(
                    np.diff(records.store_times, prepend=previous) < 0
                ).tolist():
                    position = int(records.positions[row])
                    what = "store times run backwards"
                    yield damage(self._file.path, position, 0, RocketKind.TIME, what)
                previous = int(records.store_times[-1])
                yield from self._check(from_records(records, base))
            for offset in walk.bad_bodies:
                what = "a record's body does not match its checksum"
                lost = "reading this message raises an error"
                position = offset - self._item.start
                yield damage(self._file.path, position, 0, Kind.CHECKSUM, what, lost)
            at = yield from self._after(walk)
        yield from self._check_index()
        yield from self._spans.values()
        yield "records", sum(map(len, self._offsets))

    def _after(self, walk: LogWalk) -> Generator[Found, None, int | None]:
        """Say why the walk ended; gives where a sound record stands behind that, if any."""
        if walk.stop is not Stop.BAD or walk.end >= self._end:
            return None
        commitlog = self._parts.commitlog
        position = walk.end - self._item.start
        survivor = find_survivor(commitlog, walk.end)
        if survivor == walk.end:
            return survivor  # it was written just now
        if self._file.held < self._file.size and (survivor is None or survivor >= self._end):
            return None  # cut off, as its length says
        if survivor is not None:
            lost = min(survivor, self._end) - walk.end
            what = f"no record stands here, but sound ones do from offset {survivor} on"
            yield damage(self._file.path, position, lost, Kind.RECORD, what, "these bytes are lost")
            return survivor if survivor < self._end else None
        head = commitlog.files.read(self._file, position, 16)
        if head.strip(b"\0") and not self._busy:
            what, then = "a torn record at the log's end", "open removes it"
            yield damage(self._file.path, position, 0, Kind.TORN, what, then, Cause.CRASH)
        return None

    def _check(self, batch: DispatchBatch) -> Iterator[Finding]:
        for key, chosen in batch.by_queue():
            yield from self._check_queue(key, batch, chosen)
        wanted = batch.transactions[batch.key_messages] != ROLLBACK
        messages = batch.key_messages[wanted]
        self._keys.append(_words(batch.key_hashes[wanted], batch.offsets[messages] - self._start))
        self._offsets.append(batch.offsets)

    @property
    def _start(self) -> int:
        return self._item.start

    def _check_queue(
        self, key: tuple[str, int], batch: DispatchBatch, chosen: I64
    ) -> Iterator[Finding]:
        numbers, offsets = batch.queue_offsets[chosen], batch.offsets[chosen]
        first, last = int(numbers[0]), int(numbers[-1])
        span = self._spans.get(key)
        before = first - 1 if span is None else span.last
        steps = np.diff(numbers, prepend=before)
        for row in np.flatnonzero(steps > 1).tolist():
            position = int(offsets[row]) - self._start
            what = f"queue offset {int(numbers[row])} of {key[0]}/{key[1]} follows on "
            what += str(int(numbers[row] - steps[row]))
            yield damage(self._file.path, position, 0, Kind.GAP, what, "messages are missing")
        if span is None:
            position = int(offsets[0]) - self._start
            self._spans[key] = Span(self._item.store.url, *key, self._start, position, first, last)
        else:
            span.last = last
        yield from self._check_units(key, batch, chosen)

    def _check_units(
        self, key: tuple[str, int], batch: DispatchBatch, chosen: I64
    ) -> Iterator[Finding]:
        """Each message at its queue offset. A unit that is there and points elsewhere is for the
        queue's own audit to report."""
        queue = self._parts.queue(*key)
        numbers = batch.queue_offsets[chosen]
        low = int(numbers.min())
        units = _units_from(queue, low, int(numbers.max()) + 1)
        inside = numbers - low < len(units)
        found = units[(numbers - low)[inside]]
        there = np.zeros(len(numbers), np.bool_)
        there[inside] = found["size"] > 0
        if self._busy and not there.all():
            queue.recover()
            there |= numbers >= queue.max_offset
        for row in np.flatnonzero(~there).tolist():
            offset = int(batch.offsets[chosen[row]])
            number = int(numbers[row])
            what = f"the message at offset {offset} (queue offset {number}) is not in the queue"
            path = queue.path(number * UNIT_SIZE // queue.file_size * queue.file_size)
            lost = "consumers do not get it; build-index writes it"
            yield damage(
                path, number * UNIT_SIZE % queue.file_size, 0, RocketKind.UNIT_MISSING, what, lost
            )
        rows = np.flatnonzero(inside)
        same = found["offset"] == batch.offsets[chosen][rows]
        wrong = same & (found["tags_code"] != batch.tags_codes[chosen][rows])
        for row in rows[wrong].tolist():
            yield _unit_finding(queue, int(numbers[row]), "its tags code is not the message's")

    def _check_index(self) -> Iterator[Finding]:
        offsets = np.concatenate([*self._offsets, np.empty(0, np.int64)])
        keys = np.concatenate([*self._keys, np.empty(0, np.int64)])
        indexed = [_words(entries["hash"], entries["offset"] - self._start)
                   for _, entries in self._entries]  # fmt: skip
        for file, (numbers, entries), words in zip(
            self._index_files, self._entries, indexed, strict=True
        ):
            known = np.isin(entries["offset"].astype(np.int64), offsets)
            for row in np.flatnonzero(known & ~np.isin(words, keys)).tolist():
                what = f"no key of the message at offset {int(entries['offset'][row])} has its hash"
                yield _entry_finding(file, int(numbers[row]), what)
        missing = np.unique(keys[~np.isin(keys, np.concatenate([*indexed, np.empty(0, np.int64)]))])
        places = (missing >> _HASH_BITS) + self._start
        if self._busy:
            places = places[places < self._indexed_to]
        places = np.unique(places)
        if len(places) == 0:
            return
        path = self._index_files[-1].path if self._index_files else self._parts.index.directory
        what = f"{len(places)} messages of {os.path.basename(self._file.path)} are not in the index"
        what += f" under all their keys, the first at offset {int(places[0])}"
        lost = "queries miss them; build-index writes the index anew"
        # RocketMQ itself leaves this behind when it recovers from a crash.
        yield damage(path, 0, 0, RocketKind.INDEX_MISSING, what, lost, Cause.CRASH)


def _words(hashes: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> I64:
    """Put hash and place within the file into one number."""
    return (offsets.astype(np.int64) << _HASH_BITS) | hashes.astype(np.int64)


def _entries_between(file: IndexFile, first: int, end: int) -> tuple[I64, npt.NDArray[np.void]]:
    """The entries that point into a range of the log, and their numbers."""
    entries = file.entries_from(1, file.header.count)
    offsets = entries["offset"]
    chosen = np.flatnonzero((offsets >= first) & (offsets < end) & (entries["hash"] >= 0))
    return chosen + 1, entries[chosen]


def _units_from(queue: ConsumeQueue, first: int, last: int) -> Units:
    if queue.starts and first * UNIT_SIZE < queue.starts[0]:
        # The front of the queue is gone: what is asked for before it reads as unwritten.
        missing = queue.starts[0] // UNIT_SIZE - first
        rest = queue.units(first + missing, last)
        return np.concatenate([np.zeros(min(missing, last - first), rest.dtype), rest])
    return queue.units(first, last)


# -- a ConsumeQueue -------------------------------------------------------------------------------


def _audit_queue(item: RocketItem, parts: Parts, queue: ConsumeQueue) -> Iterator[Finding]:
    for start, after in zip(queue.starts, queue.starts[1:], strict=False):
        if after != start + queue.file_size:
            path = queue.path(start + queue.file_size)
            yield damage(path, 0, 0, Kind.MISSING_FILE, "this file of the queue is missing")
            return
    queue.recover()
    if not queue.starts:
        return
    first, last = queue.starts[0] // UNIT_SIZE, queue.max_offset
    for number in range(first, last, _UNITS_AT_ONCE):
        units = queue.units(number, min(number + _UNITS_AT_ONCE, last))
        offsets = units["offset"].astype(np.int64)
        current = item.in_log(offsets, parts)
        blank = (units["size"] == 0x7FFFFFFF) & (offsets == 0) & (units["tags_code"] == 0)
        current = current[~blank[current]]
        heads, there = _record_heads(parts, offsets[current])
        good = there & (heads["magic"] == MESSAGE_MAGIC) & (heads["offset"] == offsets[current])
        for row in np.flatnonzero(~good).tolist():
            what = f"it points to {int(offsets[current[row]])}, where no record stands"
            yield _unit_finding(queue, number + int(current[row]), what)
        agrees = heads["queue_offset"] == number + current
        agrees &= (heads["queue_id"] == queue.queue_id) & (heads["size"] == units["size"][current])
        agrees &= _have_topic(parts, offsets[current], queue.topic, good)
        for row in np.flatnonzero(good & ~agrees).tolist():
            head = heads[row]
            what = f"it points to {int(head['offset'])}, a message of {int(head['size'])} bytes "
            what += (
                f"with queue offset {int(head['queue_offset'])} in queue {int(head['queue_id'])}"
            )
            yield _unit_finding(queue, number + int(current[row]), what)
    yield from _behind(queue)


def _behind(queue: ConsumeQueue) -> Iterator[Finding]:
    """Units behind one that is unwritten: nobody will ever read them. A file that is written to
    just then is read again: its pages may be of different moments."""
    for start in queue.starts:
        for pause in (*_SETTLE_PAUSES, None):
            units = queue.file_units(start)
            valid = count_valid(units)
            behind = int(np.count_nonzero(units["size"][valid:] > 0))
            if not behind:
                break
            if pause is not None:
                sleep(pause)
        if behind:
            what = f"it is unwritten, but {behind} units stand behind it"
            yield _unit_finding(queue, start // UNIT_SIZE + valid, what)
            return


def _unit_finding(queue: ConsumeQueue, number: int, what: str) -> Finding:
    position = number * UNIT_SIZE
    start = position // queue.file_size * queue.file_size
    what = f"unit {number}: {what}"
    lost = "consumers get another message, or none; build-index writes it anew"
    return damage(queue.path(start), position - start, UNIT_SIZE, RocketKind.UNIT, what, lost)


# -- an IndexFile ---------------------------------------------------------------------------------


def _audit_index(item: RocketItem, parts: Parts) -> Iterator[Found]:
    file = next((file for file in parts.index.files if file.name == item.name), None)
    if file is None:
        return
    yield from _header_findings(parts, file)
    for first in range(1, file.header.count, _UNITS_AT_ONCE):
        entries = file.entries_from(first, _UNITS_AT_ONCE)
        offsets = entries["offset"].astype(np.int64)
        current = item.in_log(offsets, parts)
        heads, there = _record_heads(parts, offsets[current])
        good = there & (heads["magic"] == MESSAGE_MAGIC) & (heads["offset"] == offsets[current])
        for row in np.flatnonzero(~good).tolist():
            what = f"it points to {int(offsets[current[row]])}, where no record stands"
            yield _entry_finding(file, first + int(current[row]), what)
    yield "index entries", file.header.count - 1


def _header_findings(parts: Parts, file: IndexFile) -> Iterator[Finding]:
    """Header, slots and links. Of a file that is being written they are looked at until they keep
    still, or not judged."""
    for pause in (*_SETTLE_PAUSES, None):
        file.load()
        before = file.header
        findings = list(_unsound(file))
        if not findings or not in_use(parts):
            break
        if pause is not None:
            sleep(pause)  # slots are stored before the header
        file.load()
        if pause is None and file.header != before:
            return
    yield from findings


def _unsound(file: IndexFile) -> Iterator[Finding]:
    header = file.header
    if header.count == 1:
        return
    ends = file.entries_from(1, 1), file.entries_from(header.count - 1, 1)
    for at, name, value, end in (
        (16, "begins", header.begin_offset, ends[0]),
        (24, "ends", header.end_offset, ends[1]),
    ):
        if int(end["offset"][0]) != value:
            what = f"the header says that it {name} at offset {value}, its entries say "
            what += str(int(end["offset"][0]))
            yield damage(file.path, at, 8, Kind.COUNT, what)
    used = int(np.count_nonzero(file.slot_table()))
    if used != header.used_slots:
        what = f"the header counts {header.used_slots} slots in use, there are {used}"
        yield damage(file.path, 32, 4, Kind.COUNT, what)
    if not file.chains_are_sound():
        what = "slots or links do not lead to all entries"
        lost = "queries miss messages; build-index writes the index anew"
        yield damage(file.path, 40, 0, RocketKind.INDEX_CHAIN, what, lost)


def _entry_finding(file: IndexFile, number: int, what: str) -> Finding:
    at = 40 + 4 * file.slots + 20 * number
    return damage(file.path, at, 20, RocketKind.INDEX_ENTRY, f"entry {number}: {what}")


# -- the log, at given places ---------------------------------------------------------------------


def _record_heads(parts: Parts, offsets: I64) -> tuple[npt.NDArray[np.void], Bools]:
    """Give the beginnings of the records at ``offsets``, and which of the places are in the log at
    all."""
    block, there = _bytes_at(parts, offsets, _HEAD.itemsize)
    return block.view(_HEAD).ravel(), there


def _have_topic(parts: Parts, offsets: I64, topic: str, good: Bools) -> Bools:
    """Whether the records at ``offsets`` are of that topic. ``good``: those that are looked at."""
    field = np.frombuffer(b"%c%b" % (len(topic.encode()), topic.encode()), np.uint8)
    found = np.zeros(len(offsets), np.bool_)
    rows = np.flatnonzero(good)
    flags, _ = _bytes_at(parts, offsets[rows] + _FLAGS_AT, 1)
    hosts = (flags >> 4 & 1).ravel().astype(np.int64) + (flags >> 5 & 1).ravel()
    body_at = offsets[rows] + _BODY_LENGTH_AT + 12 * hosts
    block, there = _bytes_at(parts, body_at, 4)
    lengths = block.view(">i4").ravel().astype(np.int64)
    there &= lengths >= 0
    rows, topic_at = rows[there], (body_at + 4 + lengths)[there]
    names, there = _bytes_at(parts, topic_at, len(field))
    found[rows] = there & (names == field).all(axis=1)
    return found


def _bytes_at(parts: Parts, offsets: I64, width: int) -> tuple[U8, Bools]:
    """Give ``width`` bytes from each of the offsets on, shape ``(n, width)``, and which of them
    are in the log at all: zeros stand for the others. Places close together are read at once.
    Raises :class:`journal.errors.StorageError`."""
    files = parts.commitlog.files
    block = np.zeros((len(offsets), width), np.uint8)
    there = np.zeros(len(offsets), np.bool_)
    rows = np.argsort(offsets, kind="stable")
    rows = rows[np.searchsorted(offsets[rows], 0) :]
    # Pieces do not reach over the border of a file: its size is a multiple of theirs or not.
    pieces = offsets[rows] // files.size * (files.size // _PIECE + 1)
    pieces += offsets[rows] % files.size // _PIECE
    for near in np.split(rows, np.flatnonzero(np.diff(pieces)) + 1):
        file = files.find(int(offsets[near[0]])) if len(near) else None
        if file is None:
            continue
        at = offsets[near] - file.start
        data = files.read(file, int(at[0]), int(at[-1] - at[0]) + width)
        inside = at + width <= int(at[0]) + len(data)
        near, at = near[inside], at[inside] - at[0]
        if len(near):
            block[near] = np.frombuffer(data, np.uint8)[at[:, None] + np.arange(width)]
            there[near] = True
    return block, there
