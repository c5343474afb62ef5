"""The entries of one queue directory at one moment, in order, a segment at a time.

Columns (numpy arrays) of what is there, and from them rows with the messages. Memory: the journal,
and one segment file at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import time_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError, StoreError
from journal.findings import Cause, Finding, Kind
from journal.format import (
    ACTION_SIZE,
    DELIVER,
    MAX_SEQ_ID,
    PAYLOAD_SIZE,
    PUBLISH_HEAD_SIZE,
    PUBLISH_PERSISTENT,
    TYPE_SHIFT,
)
from journal.fs.files import FileSystem
from journal.memory.arrays import I64, U8, U64, Bools
from journal.poison import Poison
from journal.replay import Walk
from msgstore.errors import MissingMessageError
from qindex.format.delivery_rules import DirectoryRules, Transient
from qindex.format.entries import (
    EXPIRED_LONG_AGO,
    LONG_AGO,
    Entry,
    decode_any,
    make_entry,
    read_entry,
    read_unnamed,
)
from qindex.format.message import Message
from qindex.format.rabbitmq.queue_index_v2 import file_name as index_file
from qindex.format.record_layouts import journal_layout
from qindex.format.resynchronise import Elsewhere, Layout
from qindex.format.segment import STEP_SIZE
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.index.merge import JournalRecords
from qindex.index.pair_scan import Depth, Pair, PinnedPair, entry_count_of, read_pair
from qindex.index.segment import ABSENT, DELIVERED, PUBLISHED, segment_numbers
from qindex.index.segment_file import segment_path, size_of
from qindex.index.segment_scan import SegmentScan, read_healed, scan_segment
from qindex.index.seq_ids import SeqFile
from qindex.view.columns import (
    Columns,
    IndexEntries,
    Location,
    Source,
    all_entries,
    pair_source,
    source_of,
    take_rows,
)
from qindex.view.point_in_time import Pinned, PinnedSegment, has_moved_on, pin_queue, read_segment
from qindex.view.stored_messages import StoredMessages, StorePlace

__all__ = ["Location", "QueueView", "Row"]


_RABBITMQ_FIRST = 0x83
_LAST_BUT_ONE_OF_FALSE = ord("s")
_ALL = slice(None)
_NOTHING = Message(b"")
"""Tells of a message that can't be read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One message, in its place.

    ``expiry``: microseconds since 1970, 0 = never. ``timestamp``: of publishing, nanoseconds
    since 1970, 0 = the record keeps none. ``size``: bytes of the body, as the index has it.
    ``body``: ``None`` where it can't be given; then ``error`` says why. ``location``: where the
    message is, or should be.
    ``priority``: of the sub-queue it is in, ``None`` for a queue without priorities.
    """

    seq_id: int
    msg_id: bytes
    persistent: bool
    redelivered: bool
    expiry: int
    key: str | None
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    size: int
    body: bytes | None
    location: Location
    error: str | None = None
    timestamp: int = 0
    priority: int | None = None


class QueueView:
    """One queue directory, pinned when this is made, or as it was ``pinned`` before. ``only`` tells
    by its number whether a segment is wanted; others are not looked at. ``busy`` tells whether a
    writer may be at work, whose records may be half written.

    ``findings``: those of the files; complete when all was read.
    Raises as :func:`qindex.view.point_in_time.pin_queue`.
    """

    _trust_sums = True
    """Whether records of blocks whose checksum holds are taken for sound, unseen."""
    _rescues = False
    """Whether messages of version 2 count that no entry names, as their index is lost."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        rules: DirectoryRules,
        *,
        priority: int | None = None,
        place: StorePlace,
        pinned: Pinned | None = None,
        only: Callable[[int], bool] | None = None,
        busy: Callable[[], bool] = lambda: True,
    ) -> None:
        self._fs = fs
        self.rules = rules
        self._priority = priority
        self._place = place
        self._busy = busy
        self._stored = StoredMessages(fs, place, self.stored_ids, self._current_ids)
        self._found: dict[Finding, None] = {}
        self._unreadable: set[int] = set()
        self._power_lost = False
        self.pinned: Pinned = pinned or pin_queue(
            fs,
            directory,
            self._layout_of(directory),
            trust_sums=self._trust_sums,
            of_node=rules.repeats_are_damage,
            pairs=rules.repeats_are_damage or rules.journalled_pairs,
            only=only,
            busy=busy,
        )
        """The moment that is shown; it can be shown again, here or in another process."""
        walk = self.pinned.reading.walk
        publishes = walk.kinds < DELIVER
        self._elsewhere: Elsewhere | None = None
        if not rules.repeats_are_damage:
            self._elsewhere = Elsewhere.of(walk, PUBLISH_HEAD_SIZE)
        self._records = JournalRecords(self.pinned.journal_path, walk)
        self._entries = self._records.entries
        self._find(self.pinned.reading.findings)
        if rules.repeats_are_damage and len(self._entries) < np.count_nonzero(publishes):
            self._find_repeats(walk.take(publishes))
        # A loss of power may have cut a flush short in these. The journal still holds what that
        # flush was writing.
        self._touched = segment_numbers(walk.seqs, rules.entry_count)
        numbers = sorted({*self.pinned.segments, *self._touched})
        self.entry_count: int = rules.entry_count
        """Entries a segment."""
        self._version1 = numbers
        self._last: tuple[int, tuple[list[Source], U8] | None] | None = None
        if self.pinned.pairs:
            self.entry_count = entry_count_of(self.pinned.pairs)
            older = {
                base // self.entry_count
                for number in numbers
                for base in range(
                    number * rules.entry_count, (number + 1) * rules.entry_count, self.entry_count
                )
            }
            numbers = sorted({*self.pinned.pairs, *older})
        self.numbers: list[int] = numbers if only is None else list(filter(only, numbers))

    def _layout_of(self, directory: str) -> Callable[[], Layout]:
        def layout() -> Layout:
            if self.rules.repeats_are_damage:
                return journal_layout(MAX_SEQ_ID)  # a node's
            seq_file = SeqFile(self._fs, os.path.join(directory, SEQ_FILE_NAME), Poison())
            # The writer's recovery takes what is not there for lost by the power, too.
            self._power_lost = seq_file.power_lost
            limit = seq_file.reserved - 1 if seq_file.reserved else MAX_SEQ_ID
            return journal_layout(limit, power_lost=self._power_lost)

        return layout

    # -- what is known without reading a segment ------------------------------------------------

    @property
    def findings(self) -> list[Finding]:
        """Give the findings so far, each once."""
        return [*self._found, *self._stored.findings]

    @property
    def journal_entries(self) -> int:
        """Records in the journal."""
        return len(self.pinned.reading.walk)

    @property
    def segment_files(self) -> int:
        """Segment files."""
        pairs = self.pinned.pairs.values()
        return len(self.pinned.segments) + sum(pair.size >= 0 for pair in pairs)

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions of RabbitMQ's queue files that there are, as the files tell."""
        first = self.pinned.segments or self.pinned.journal_size
        if not self.rules.repeats_are_damage:
            return ()
        return (*((1,) if first else ()), *((2,) if self.pinned.pairs else ()))

    @property
    def seen(self) -> int:
        """One above the highest seq_id that the journal publishes."""
        return int(self._entries.seqs[-1]) + 1 if len(self._entries) else 0

    @property
    def file_bytes(self) -> int:
        """Bytes that journal and segment files hold."""
        sizes = [segment.size for segment in self.pinned.segments.values()]
        pairs = [pair.file_bytes for pair in self.pinned.pairs.values()]
        return self.pinned.journal_size + sum(sizes) + sum(pairs)

    @property
    def journal_bytes(self) -> int:
        """Bytes of the journal file, a zero-filled tail included."""
        return self.pinned.journal_size

    def _find(self, findings: list[Finding]) -> None:
        self._found.update(dict.fromkeys(findings))

    def _find_repeats(self, walk: Walk) -> None:
        kept = set(self._entries.offsets.tolist())
        columns = (walk.seqs.tolist(), walk.offsets.tolist(), walk.lengths.tolist())
        for seq, offset, length in zip(*columns, strict=True):
            if offset not in kept:
                what = f"seq_id {seq} is published once more behind this"
                path = self.pinned.journal_path
                lost, kind = "the last one counts", Kind.DUPLICATE_SEQ_ID
                self._find([Finding(path, offset, length, Cause.DAMAGE, what, lost, kind)])

    # -- columns --------------------------------------------------------------------------------

    def columns(self, number: int, *, counting: bool = False) -> Columns | None:
        """Read segment ``number``; ``None`` when nothing of it would be delivered. ``counting``:
        messages of a queue of version 2 are not looked at, so that it costs its index alone."""
        merged = self._merged(number, Depth.COUNT if counting else Depth.READ)
        if merged is None:
            return None
        return self._deliverable(*merged)

    def entries(self, number: int) -> list[IndexEntries]:
        """Read all entries of segment ``number``, also those that are done with, file by file."""
        sources, states, base = self._merged(number, Depth.DECODE) or ([], np.empty(0, np.uint8), 0)
        return [all_entries(source, states, base) for source in sources]

    def _merged(self, number: int, depth: Depth) -> tuple[list[Source], U8, int] | None:
        """Give the files that hold entries of segment ``number``, the state of each entry, and the
        first seq_id; ``None`` when the segment is gone."""
        if not self.pinned.pairs:
            merged = self._merged_version1(number)
            return None if merged is None else (*merged, number * self.entry_count)
        pinned = self.pinned.pairs.get(number)
        if pinned is None or (self.rules.journalled_pairs and not any(pinned.head)):
            # A flush of ours was cut short that made the index or deleted it.
            base, sources = number * self.entry_count, []
            states = np.zeros(self.entry_count, np.uint8)
        else:
            pair = self._read_pair(pinned, depth)
            if pair is None:
                return None
            base, sources = pair.base, [pair_source(pair)]
            states = np.zeros(pair.count, np.uint8)
            states[pair.rows] = PUBLISHED
        if self.rules.journalled_pairs:
            self._add_journal(sources, states, base)
        else:
            self._add_version1(sources, states, base)
        return sources, states, base

    def _read_pair(self, pinned: PinnedPair, depth: Depth) -> Pair | None:
        directory = self.pinned.directory
        try:
            pair = read_pair(
                self._fs,
                directory,
                pinned,
                self.entry_count,
                depth,
                clean=self.rules.clean,
                ignored=self._in_journal if self.rules.journalled_pairs else None,
                rescue=self._rescues and not self.rules.journalled_pairs,
            )
        except OSError as error:
            path = os.path.join(directory, index_file(pinned.number))
            self._find_unreadable(path, max(pinned.size, 0), error)
            return None
        self._find(pair.findings)
        return pair

    @property
    def _in_journal(self) -> I64:
        """The seq_ids that the journal publishes or acknowledges: a flush that was cut short may
        have left anything in their slots."""
        walk = self.pinned.reading.walk
        seqs: I64 = walk.seqs[walk.kinds != DELIVER]
        return seqs

    def _add_version1(self, sources: list[Source], states: U8, base: int) -> None:
        """Add what the files of version 1 hold of a segment, where a node was stopped in the
        middle of converting them: entries that version 2 does not have yet."""
        own = self.rules.entry_count
        first, last = base // own, (base + len(states) - 1) // own
        for number in self._version1:
            if not first <= number <= last:
                continue
            if self._last is None or self._last[0] != number:
                self._last = (number, self._merged_version1(number))
            if self._last[1] is None:
                continue
            older, filed = self._last[1]
            for source in older:
                rels = source.seqs - base
                rows = np.flatnonzero((rels >= 0) & (rels < len(states)))
                rows = rows[states[rels[rows]] == ABSENT]
                if len(rows):
                    states[rels[rows]] = filed[source.seqs[rows] - number * own]
                    sources.append(take_rows(source, rows))

    def _merged_version1(self, number: int) -> tuple[list[Source], U8] | None:
        count = self.rules.entry_count
        base = number * count
        states = np.zeros(count, np.uint8)
        sources = []
        pinned = self.pinned.segments.get(number)
        if pinned is not None and pinned.size:
            in_file = self._read(pinned)
            if in_file is None:
                return None
            if in_file:
                sources.append(self._segment_source(pinned, in_file, states))
        self._add_journal(sources, states, base)
        return sources, states

    def _add_journal(self, sources: list[Source], states: U8, base: int) -> None:
        """Merge the journal into the ``states`` of a segment, and add the entries that it alone
        has."""
        merged = self._records.merge_into(states, base)
        if base // len(states) not in self._unreadable:
            self._find(merged.findings)
        if merged.fresh.any():
            path, data = self.pinned.journal_path, self.pinned.reading.data
            fresh = merged.entries.take(merged.fresh)
            sources.append(source_of(path, data, "journal", ACTION_SIZE, fresh))

    def _read(self, pinned: PinnedSegment) -> bytes | None:
        """Read a segment file, empty where it can't be read.

        ``None`` when it is gone: then all entries of the segment, also those in the journal, were
        acknowledged since.
        """
        directory = self.pinned.directory
        try:
            return read_segment(self._fs, directory, pinned)
        except OSError as error:
            path = segment_path(directory, pinned.number)
            self._find_unreadable(path, pinned.size, error)
            self._unreadable.add(pinned.number)
            return b""

    def _segment_source(self, pinned: PinnedSegment, data: bytes, states: U8) -> Source:
        number, directory = pinned.number, self.pinned.directory
        path = segment_path(directory, number)
        count = self.rules.entry_count
        findings: list[Finding] = []
        healed = read_healed(self._fs, path, findings, data, self._power_lost)
        verified = healed.sound if self._trust_sums else 0
        lost = self._power_lost
        complete = 0 if lost and number in self._touched else healed.end
        if complete > len(data) and size_of(self._fs, path) > len(data):
            # A flush has written to the file since, and may have been half-way when it was pinned.
            complete = healed.sound
        scan = scan_segment(
            path, healed.data, number, count, verified, self._elsewhere, lost, complete
        )
        findings += scan.findings
        findings += self._more_findings(path, scan)
        if findings and not has_moved_on(self._fs, directory, pinned, findings, self._busy):
            self._find(findings)
        states[:] = np.frombuffer(scan.filed, np.uint8)
        return source_of(path, scan.data, "segment", STEP_SIZE, scan.entries)

    def _find_unreadable(self, path: str, size: int, error: OSError) -> None:
        what = f"can't be read: {error.strerror or error}"
        lost, kind = "its messages are not shown", Kind.UNREADABLE
        self._find([Finding(path, 0, size, Cause.DAMAGE, what, lost, kind)])

    def _more_findings(self, _path: str, _scan: SegmentScan) -> list[Finding]:
        """Look for what does not keep a message from being read."""
        return []

    def _deliverable(self, sources: list[Source], states: U8, base: int) -> Columns | None:
        """Put the sources together, without what is done with, expired, or dropped."""
        now = time_ns() // 1000
        parts: list[tuple[I64, I64, Bools, U8, I64]] = []
        for index, source in enumerate(sources):
            state = states[source.seqs - base]
            is_ready = (state == PUBLISHED) | (state == DELIVERED)
            if self.rules.pending:
                is_ready &= ~np.isin(source.seqs, list(self.rules.pending))
            rows = np.flatnonzero(is_ready)
            if not len(rows):
                continue
            heads = source.heads_of(rows)
            persistent, dropped = self._persistence(source, rows, heads)
            expiry = self.expiry_of(source, rows, heads)
            keep = ~dropped & (self.rules.keeps_expired | (expiry == 0) | (expiry > now))
            which = np.full(int(keep.sum()), index, np.uint8)
            sizes = heads["size"][keep].astype(np.int64)
            parts.append((source.seqs[rows][keep], sizes, persistent[keep], which, rows[keep]))
        if not parts:
            return None
        seqs, sizes, persistent, which, rows = (
            np.concatenate([part[column] for part in parts]) for column in range(5)
        )
        if not len(seqs):
            return None
        order = np.argsort(seqs, kind="stable")
        return Columns(
            seqs[order],
            states[seqs[order] - base],
            sizes[order],
            persistent[order].astype(np.bool_),
            sources,
            which[order].astype(np.uint8),
            rows[order],
        )

    def expiry_of(self, source: Source, rows: I64, heads: npt.NDArray[np.void]) -> U64:
        """Return when these entries expire, without times that only a flipped bit explains."""
        expiry = heads["expiry"].astype(np.uint64)
        wrong = (expiry > 0) & (expiry <= LONG_AGO) & (heads["embedded"] == 0)
        for row in rows[wrong].tolist():
            self._find_entry(source, row, *EXPIRED_LONG_AGO)
        expiry[wrong] = 0
        return expiry

    def _persistence(
        self, source: Source, rows: I64, heads: npt.NDArray[np.void]
    ) -> tuple[Bools, Bools]:
        """Tell which entries are persistent, and which are dropped for being transient."""
        by_index = source.kinds[rows] == PUBLISH_PERSISTENT
        persistent = by_index.copy()
        if source.heads is not None:
            return persistent, ~persistent
        if self.rules.transient is Transient.KEPT:
            return persistent, np.zeros(len(rows), np.bool_)
        flat = np.frombuffer(source.data, np.uint8)
        records = source.offsets[rows] + source.head_size + PAYLOAD_SIZE
        embedded = heads["embedded"].astype(np.int64)
        theirs = np.flatnonzero(embedded)
        theirs = theirs[flat[records[theirs]] == _RABBITMQ_FIRST]
        # A record ends in the atom true or false: is_persistent.
        ends = flat[records[theirs] + embedded[theirs] - 2]
        said = ends != _LAST_BUT_ONE_OF_FALSE
        for at in theirs[said & ~by_index[theirs]].tolist():
            offset = int(source.offsets[rows[at]])
            length = source.head_size + PAYLOAD_SIZE + int(embedded[at])
            what = "the index has the message as transient, the message itself as persistent"
            kind = Kind.PERSISTENCE
            self._find([Finding(source.path, offset, length, Cause.DAMAGE, what, kind=kind)])
        if self.rules.transient is Transient.BY_MESSAGE:
            persistent[theirs] = said
        return persistent, ~persistent

    # -- rows -----------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """Give the messages in order of seq_id. Those in the message store that are acknowledged
        before this comes to them are left out."""
        try:
            for number in self.numbers:
                columns = self.columns(number)
                if columns is not None:
                    yield from self.rows_of(columns)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the message store's files; they are opened again when they are needed."""
        self._stored.close()

    def redelivered(self, columns: Columns) -> Bools:
        """Tell which entries were delivered before. Shape ``(n,)``."""
        return self._redelivered(columns.seqs, columns.states)

    def _redelivered(self, seqs: I64, states: U8) -> Bools:
        below = self.rules.redelivered_below
        again: Bools = states == DELIVERED if below is None else seqs < below
        if self.rules.redelivered:
            again |= np.isin(seqs, list(self.rules.redelivered))
        return again

    def rows_of(self, columns: Columns, chosen: I64 | slice = _ALL) -> Iterator[Row]:
        """Give the messages of the ``chosen`` entries (indexes into the columns); see
        :meth:`rows`."""
        table = zip(
            columns.seqs[chosen].tolist(),
            self.redelivered(columns)[chosen].tolist(),
            columns.persistent[chosen].tolist(),
            columns.source_of[chosen].tolist(),
            columns.row_of[chosen].tolist(),
            strict=True,
        )
        for seq, redelivered, persistent, which, at in table:
            source = columns.sources[which]
            entry = self.read_entry(source, at, seq)
            location = source.location
            if entry.stored:
                location = "store"
                if entry.expired_long_ago:
                    entry = replace(entry, expiry=0)
                stored = self._read_stored(entry, source.heads is not None)
                if stored is None:
                    continue
                entry = stored
            if entry.damage:
                what = f"the message with seq_id {seq} can't be read: {entry.damage}"
                self._find_entry(source, at, what, "shown without its body")
            message = entry.message
            said = _NOTHING if message is None else message
            yield Row(
                seq_id=seq,
                msg_id=entry.msg_id,
                persistent=persistent,
                redelivered=redelivered,
                expiry=entry.expiry,
                key=said.key,
                headers=said.headers,
                properties=said.properties,
                size=entry.size,
                body=None if message is None else message.body,
                location=location,
                error=entry.damage or None,
                timestamp=said.timestamp,
                priority=self._priority,
            )

    @staticmethod
    def read_entry(source: Source, at: int, seq: int) -> Entry:
        """Read entry ``at`` of a source."""
        offset = int(source.offsets[at])
        if source.heads is None:
            word = int(source.kinds[at]) << TYPE_SHIFT | seq
            return read_entry(source.data, offset + source.head_size, word)
        head = source.heads[at]
        msg_id, expiry, size = head["id"].tobytes(), int(head["expiry"]), int(head["size"])
        embedded = int(head["embedded"])
        if not embedded:
            return make_entry(msg_id, expiry, size, None, stored=True)
        start = offset + source.head_size + PAYLOAD_SIZE
        return read_unnamed(bytes(source.data[start : start + embedded]), expiry, size)

    def _read_stored(self, entry: Entry, version2: bool) -> Entry | None:
        message, damage = None, ""
        try:
            record = self._stored.read(entry.msg_id)
        except MissingMessageError:
            if version2 and not self.rules.clean:
                return None  # its acknowledgement had not reached the index
            damage = f"it is not in the message store, where it should be as {entry.msg_id.hex()}"
        except DamageError as error:
            damage = str(error)
        else:
            if record is None:
                return None
            try:
                message = decode_any(record, entry.msg_id)
            except StoreError as error:
                damage = str(error)
        # A node counts all sections of a message of AMQP 1.0.
        size = len(message.body) if version2 and message is not None else entry.size
        return Entry(entry.msg_id, entry.expiry, size, message, damage=damage)

    def stored_ids(self) -> list[bytes]:
        """Return the ids of the messages that are in the message store. Reads all segments."""
        found: list[bytes] = []
        for number in self.numbers:
            columns = self.columns(number, counting=True)
            if columns is None:
                continue
            for which, source in enumerate(columns.sources):
                mine = columns.source_of == which
                rows = columns.row_of[mine]
                if not len(rows):
                    continue
                heads = source.heads_of(rows)
                bare = heads["embedded"] == 0
                found += heads["id"][bare].tolist()
        return found

    def doubtful(self, columns: Columns) -> tuple[I64, npt.NDArray[np.bytes_]]:
        """Give the entries of version 2 whose messages a killed node may have lost, with their
        ids. Shapes ``(n,)``."""
        rows, ids = [np.empty(0, np.int64)], [np.empty(0, "S16")]
        for which, source in enumerate(columns.sources):
            if source.heads is None or self.rules.clean:
                continue
            mine = np.flatnonzero(columns.source_of == which)
            heads = source.heads_of(columns.row_of[mine])
            bare = heads["embedded"] == 0
            rows.append(mine[bare])
            ids.append(np.ascontiguousarray(heads["id"][bare]).view("S16"))
        return np.concatenate(rows), np.concatenate(ids)

    def _current_ids(self) -> list[bytes]:
        """Return what :meth:`stored_ids` would give of the queue as it is now."""
        directory = self.pinned.directory
        try:
            now = QueueView(self._fs, directory, self.rules, place=self._place, busy=self._busy)
        except FileNotFoundError:
            return []  # the queue was deleted
        return now.stored_ids()

    def _find_entry(self, source: Source, at: int, what: str, consequence: str) -> None:
        offset = int(source.places_of(slice(at, at + 1))[0])
        length = source.head_size + PAYLOAD_SIZE
        self._find([Finding(source.path, offset, length, Cause.DAMAGE, what, consequence)])
