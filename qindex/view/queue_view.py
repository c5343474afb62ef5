"""The entries of one queue directory at one moment, in order, a segment at a time.

Columns (numpy arrays) of the entries, and from them rows with the messages. Memory: the journal,
and one segment file at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import time_ns
from typing import Any

import numpy as np

from journal.errors import DamageError, StoreError
from journal.findings import Cause, Finding, Kind
from journal.format import (
    PAYLOAD_SIZE,
    TYPE_SHIFT,
)
from journal.fs.files import FileSystem
from journal.memory.arrays import I64
from msgstore.errors import MissingMessageError
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
from qindex.index.pair_scan import Depth
from qindex.recovery.columns import (
    Columns,
    Entries,
    Location,
    Source,
    entries_of,
    in_order,
    take_rows,
)
from qindex.recovery.delivery_rules import DirectoryRules, Transient
from qindex.recovery.point_in_time import (
    Pinned,
)
from qindex.recovery.queue_image import QueueImage, SegmentImage
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
    by its number whether a segment is wanted; others are not looked at. ``busy`` returns whether a
    writer may be at work, whose records may be half written. ``depth``: of its image.

    ``findings``: those of the files; complete when all was read.
    Raises as :func:`qindex.recovery.point_in_time.pin_queue`.
    """

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
        depth: Depth = Depth.READ,
    ) -> None:
        self._fs = fs
        self.rules = rules
        self.priority = priority
        self._place = place
        self._busy = busy
        self._stored = StoredMessages(fs, place, self.stored_ids, self._current_ids)
        self._found: dict[Finding, None] = {}
        self.image: QueueImage = QueueImage(
            fs, directory, rules, depth=depth, pinned=pinned, only=only, busy=busy
        )
        self.pinned: Pinned = self.image.pinned
        self.numbers: list[int] = self.image.numbers
        self.entry_count: int = self.image.entry_count
        """Entries a segment."""

    # -- without reading a segment --------------------------------------------------------------

    @property
    def findings(self) -> list[Finding]:
        """Return the findings so far, each once."""
        return [*dict.fromkeys([*self.image.findings, *self._found]), *self._stored.findings]

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
        if not self.rules.of_node:
            return ()
        return (*((1,) if first else ()), *((2,) if self.pinned.pairs else ()))

    @property
    def seen(self) -> int:
        """One above the highest seq_id that the journal publishes."""
        published = self.image.records.entries.seqs
        return int(published[-1]) + 1 if len(published) else 0

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

    # -- columns --------------------------------------------------------------------------------

    def columns(self, number: int, *, counting: bool = False) -> Columns | None:
        """Read segment ``number``; ``None`` when nothing of it would be delivered. ``counting``:
        messages of a queue of version 2 are not looked at, so that it costs its index alone."""
        part = self.image.segment(number, Depth.COUNT if counting else None)
        if part is None:
            return None
        now = time_ns() // 1000
        pieces = []
        for which, source in enumerate(part.sources):
            rows, found = self._alive(part, source)
            expiry = found.expiry
            keep = ~found.dropped & (self.rules.keeps_expired | (expiry == 0) | (expiry > now))
            if self.rules.pending:
                keep &= ~np.isin(found.seqs, list(self.rules.pending))
            columns = Columns(
                sources=part.sources,
                seqs=found.seqs,
                sizes=found.sizes,
                persistent=found.persistent,
                redelivered=found.delivered,
                expiry=expiry,
                stored=found.embedded == 0,
                ids=found.ids,
                source_of=np.full(len(rows), which, np.uint8),
                row_of=rows,
            )
            pieces.append(columns if keep.all() else take_rows(columns, keep))
        return in_order([one for one in pieces if len(one.seqs)])

    def entries(self, number: int) -> list[Entries]:
        """Read all entries of segment ``number``, also acknowledged ones, file by file."""
        part = self.image.segment(number, Depth.DECODE)
        if part is None:
            return []
        return [
            entries_of(one, slice(None), part.states[one.seqs - part.base]) for one in part.sources
        ]

    def alive(self, number: int) -> Iterator[Entries]:
        """Read the entries of segment ``number`` that are not acknowledged, expired ones included:
        those in its file, then those in the journal."""
        part = self.image.segment(number)
        if part is not None:
            found = [self._alive(part, source)[1] for source in part.sources]
            yield from (one for one in found if len(one.seqs))

    def all_alive(self) -> Iterator[Entries]:
        """Read the entries of all segments that are not acknowledged, in order."""
        for number in self.numbers:
            yield from self.alive(number)

    def _alive(self, part: SegmentImage, source: Source) -> tuple[I64, Entries]:
        """Return the entries of a file that are not acknowledged, by the rules of the queue, and
        their rows in the source."""
        rows = np.flatnonzero(part.alive[source.seqs - part.base])
        found = entries_of(source, rows, part.states[source.seqs[rows] - part.base])
        self._judge_persistence(found)
        rules = self.rules
        if rules.redelivered_below is not None:
            found.delivered = found.seqs < rules.redelivered_below
        if rules.redelivered:
            found.delivered |= np.isin(found.seqs, list(rules.redelivered))
        # Times that only a flipped bit explains.
        wrong = np.flatnonzero((found.expiry > 0) & (found.expiry <= LONG_AGO))
        if len(wrong):
            # The checksum of a record of ours covers its expiry.
            wrong = wrong[(found.embedded[wrong] == 0) | np.isin(wrong, _records_of_nodes(found))]
        for at in wrong.tolist():
            self._find_entry(source, int(rows[at]), *EXPIRED_LONG_AGO)
        found.expiry[wrong] = 0
        return rows, found

    def _judge_persistence(self, found: Entries) -> None:
        """Tell which entries are persistent, and which are dropped for being transient."""
        if found.version2:
            found.dropped = ~found.persistent
        if found.version2 or self.rules.transient is Transient.KEPT:
            return
        flat = np.frombuffer(found.data, np.uint8)
        records, embedded = found.payloads + PAYLOAD_SIZE, found.embedded
        theirs = _records_of_nodes(found)
        # A record ends in the atom true or false: is_persistent.
        ends = flat[records[theirs] + embedded[theirs] - 2]
        said = ends != _LAST_BUT_ONE_OF_FALSE
        for at in theirs[said & ~found.persistent[theirs]].tolist():
            offset = int(found.offsets[at])
            length = int(records[at] + embedded[at]) - offset
            what = "the index has the message as transient, the message itself as persistent"
            kind = Kind.PERSISTENCE
            damage = Finding(found.path, offset, length, Cause.DAMAGE, what, kind=kind)
            self._found[damage] = None
        if self.rules.transient is Transient.BY_MESSAGE:
            found.persistent[theirs] = said
        found.dropped = ~found.persistent

    # -- rows -----------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """Yield the messages in order of seq_id. Those in the message store that are acknowledged
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

    def rows_of(self, columns: Columns, chosen: I64 | slice = _ALL) -> Iterator[Row]:
        """Yield the messages of the ``chosen`` entries (indexes into the columns); see
        :meth:`rows`."""
        table = zip(
            columns.seqs[chosen].tolist(),
            columns.redelivered[chosen].tolist(),
            columns.persistent[chosen].tolist(),
            columns.expiry[chosen].tolist(),
            columns.source_of[chosen].tolist(),
            columns.row_of[chosen].tolist(),
            strict=True,
        )
        for seq, redelivered, persistent, expiry, which, at in table:
            source = columns.sources[which]
            entry = self.read_entry(source, at, seq)
            location = source.location
            if entry.stored:
                location = "store"
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
                expiry=expiry,
                key=said.key,
                headers=said.headers,
                properties=said.properties,
                size=entry.size,
                body=None if message is None else message.body,
                location=location,
                error=entry.damage or None,
                timestamp=said.timestamp,
                priority=self.priority,
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

    def stored_record(self, msg_id: bytes) -> bytes:
        """Read the record of a message that is in the message store. Return nothing where it can't
        be read: :meth:`rows_of` tells why."""
        try:
            return self._stored.read(msg_id) or b""
        except (MissingMessageError, DamageError):
            return b""

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
            if columns is not None:
                found += columns.ids[columns.stored].view("V16").ravel().tolist()
        return found

    def doubtful(self, columns: Columns) -> I64:
        """Return the entries of version 2 whose messages a killed node may have lost."""
        if self.rules.clean:
            return np.empty(0, np.int64)
        is_pair = np.array([source.heads is not None for source in columns.sources])
        return np.flatnonzero(columns.stored & is_pair[columns.source_of])

    def _current_ids(self) -> list[bytes]:
        """Return what :meth:`stored_ids` would give of the queue as it is now."""
        directory = self.pinned.directory
        try:
            now = QueueView(self._fs, directory, self.rules, place=self._place, busy=self._busy)
        except FileNotFoundError:
            return []  # the queue was deleted
        return now.stored_ids()

    def _find_entry(
        self, source: Source, at: int, what: str, consequence: str, kind: Kind = Kind.RECORD
    ) -> None:
        offset = int(source.places_of(slice(at, at + 1))[0])
        length = source.head_size + PAYLOAD_SIZE
        damage = Finding(source.path, offset, length, Cause.DAMAGE, what, consequence, kind)
        self._found[damage] = None


def _records_of_nodes(found: Entries) -> I64:
    """Return which entries embed a record of RabbitMQ's. Shape ``(n,)``."""
    rows = np.flatnonzero(found.embedded)
    if not len(found.data):
        return rows  # of version 2, whose messages were not read
    firsts = np.frombuffer(found.data, np.uint8)[found.payloads[rows] + PAYLOAD_SIZE]
    chosen: I64 = rows[firsts == _RABBITMQ_FIRST]
    return chosen
