"""The queue index: one queue's journal, its segments with their state maps, and the flush.

Everything here is called with the queue's lock held, but for :func:`qindex.flush.write_plan`,
which the flush calls without it. The hot paths (publish, deliver, ack) are in
:mod:`qindex.queue`, which works on the attributes of this class directly.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from journal import format as journal_format
from journal.block_sums import Healed
from journal.errors import DamageError, StorageError
from journal.files import FileSystem, ReadBuffer, pread_all
from journal.findings import Finding
from journal.format import ACK, DELIVER, TYPE_SHIFT
from journal.journal import Journal, Retired
from journal.poison import Poison
from qindex.entries import Entry, journal_words, plain_entries, read_entry
from qindex.flush import FlushPlan, SegmentPlan, plan_segment, remove_sums
from qindex.load import SegmentScan, read_healed, scan_segment, stored_entries
from qindex.quarantine import quarantine_findings
from qindex.record_format import gather_bytes
from qindex.segment import ABSENT, ACKED, DELIVERED, OUT, PUBLISHED, Segment
from qindex.segment_format import PERSISTENT, PUBLISH_HEAD_SIZE, STEP_SIZE, file_name
from qindex.seq_file import SeqFile

__all__ = ["NOTHING_FETCHED", "Fetched", "QueueIndex"]

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_log = logging.getLogger("qindex.index")

_WINDOW_BYTES = 1 << 20
_KEPT_BYTES = 8 << 20
"""The bytes of the segment that is being read are kept, once scanned, when they are no more."""
_SIZE_AT = journal_format.PAYLOAD_SIZE - 8
"""Where in a payload the size of the body stands: before that of the embedded record."""
_JOURNAL_HEAD = journal_format.PUBLISH_HEAD_SIZE - journal_format.PAYLOAD_SIZE


class Fetched:
    """Entries of one segment that were read ahead: columns of equal length, in order of seq_id.

    ``states``: :data:`qindex.segment.PUBLISHED`, or ``DELIVERED`` for an entry that was delivered
    before. ``extras``: of a plain message its timestamp (nanoseconds), of another the
    :class:`Entry`; ``plain``: all are plain. ``bodies``: empty for a message that is damaged.
    ``delivers``: the deliver record of each. ``base``: seq_id of the segment's first entry.
    """

    __slots__ = ("base", "bodies", "delivers", "extras", "plain", "segment", "seqs", "states")

    def __init__(
        self,
        segment: Segment,
        seqs: I64,
        states: bytes,
        bodies: list[bytes],
        extras: Sequence[int | Entry],
        plain: bool,
    ) -> None:
        self.segment = segment
        self.base = segment.base
        self.seqs: list[int] = seqs.tolist()
        self.states = states
        self.bodies = bodies
        self.extras = extras
        self.plain = plain
        words = seqs.astype(np.uint64) | np.uint64(DELIVER << TYPE_SHIFT)
        self.delivers: list[bytes] = words.astype(">u8").view("V8").tolist()

    def __len__(self) -> int:
        return len(self.seqs)


NOTHING_FETCHED = Fetched(Segment(0, 0), np.empty(0, np.int64), b"", [], [], True)


class QueueIndex:
    """Journal, segments and counters of one queue.

    Counters, each raised by one statement of a hot path, from which the others follow: ``taken``
    (deliveries), ``acks`` (of deliveries), ``nacks``, ``dropped`` (acknowledged without having
    been delivered). ``positions``: journal offsets of the publish records
    of seq_ids ``positions_base, positions_base + 1, ...``, -1 where the journal has none.
    ``lost_entries``: entries were lost to damage, and with them which messages they referred to.
    ``tail``: the segment that the next publish goes to; ``tail_end`` is the first seq_id behind.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        entry_count: int,
        poison: Poison,
        *,
        segments: dict[int, Segment],
        next_seq: int,
        seq_file: SeqFile,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.entry_count = entry_count
        self.poison = poison
        self.segments = SortedDict(segments)
        self.seq_file = seq_file
        self.next_seq = next_seq
        self.findings: list[Finding] = []
        """What was met since the queue was opened; the engine puts its own list here."""
        self.taken = 0
        self.acks = 0
        self.nacks = 0
        self.dropped = 0
        self._live_before = sum(segment.unacked for segment in segments.values())
        self._first_seq = next_seq
        self._actions_flushed = next_seq
        self.positions: array[int] = array("q")
        self.positions_base = next_seq
        self.transient: set[int] = set()
        self.lost_entries = False
        self.flushes = 0
        self.flushed_bytes = 0
        self.journal = Journal(fs, os.path.join(directory, journal_format.FILE_NAME), poison)
        # A tail that covers no seq_id: the first publish finds it full and takes the right one.
        self.tail = Segment(0, 0)
        self.tail_end = 0
        self._reading = self.tail

    @property
    def live(self) -> int:
        """Messages published and not acknowledged."""
        published = self.next_seq - self._first_seq
        return self._live_before + published - self.acks - self.dropped

    @property
    def out(self) -> int:
        """Messages that are with a consumer."""
        return self.taken - self.acks - self.nacks

    @property
    def dirty(self) -> int:
        """Actions since the last flush (RabbitMQ's dirty_count)."""
        return self.actions - self._actions_flushed

    @property
    def actions(self) -> int:
        """Publishes, deliveries and acks since the queue was opened (counted from any number)."""
        return self.next_seq + self.taken + self.acks + 2 * self.dropped

    # -- segments -------------------------------------------------------------------------------

    def segment_of(self, seq_id: int) -> Segment:
        """Give the loaded segment of a seq_id that was published. Raises as :meth:`load`."""
        number = seq_id // self.entry_count
        segment: Segment | None = self.segments.get(number)
        if segment is None:
            segment = self.segments[number] = Segment(number, self.entry_count)
        elif not segment.loaded:
            self.load(segment)
        return segment

    def roll(self) -> Segment:
        """Take the segment of ``next_seq`` as the tail; reserves seq_ids when they run out.

        Raises :class:`StorageError`; nothing has changed then.
        """
        if self.next_seq + self.entry_count > self.seq_file.reserved:
            self.seq_file.reserve(self.next_seq)
        self.tail = self.segment_of(self.next_seq)
        self.tail_end = self.tail.base + self.entry_count
        return self.tail

    def load(self, segment: Segment) -> None:
        """Bring the state maps of ``segment`` into memory, and where its records stand.

        Raises :class:`DamageError` when the file holds fewer sound entries than it should, the
        first finding in it; the segment is loaded all the same, with the sound ones.
        """
        unacked = segment.stored_unacked
        path, scan = self._scan(segment)
        segment.load(scan.filed, scan.offsets, scan.lengths)
        segment.verified = scan.data if scan.size <= _KEPT_BYTES else b""
        self.report(scan.findings)
        if segment.unacked != unacked:
            self._live_before += segment.unacked - unacked
            self.lost_entries = True
            at, what = segment.file_size, f"{unacked - segment.unacked} entries are missing"
            if scan.findings:
                quarantine_findings(self.fs, scan.findings)
                at, what = scan.findings[0].offset, f"{scan.findings[0].what}; {what}"
            raise DamageError(path, at, what)

    def report(self, findings: Sequence[Finding]) -> None:
        """Tell the user of damage that was met while the queue is open."""
        for finding in findings:
            _log.warning("%s", finding)
        self.findings += findings

    def _scan(self, segment: Segment) -> tuple[str, SegmentScan]:
        path = os.path.join(self.directory, file_name(segment.number))
        findings: list[Finding] = []
        try:
            healed = read_healed(self.fs, path, findings) if segment.file_size else Healed(b"")
        except FileNotFoundError:
            healed = Healed(b"")
        except OSError as error:
            raise StorageError(path, "the segment can't be read", error) from error
        number, count = segment.number, self.entry_count
        scan = scan_segment(path, healed.data, number, count, healed.whole)
        scan.findings[:0] = findings
        return path, scan

    def place(self, segment: Segment) -> None:
        """Find out where in its file the records of a loaded segment stand."""
        if segment.offsets is None:
            _, scan = self._scan(segment)
            segment.offsets, segment.lengths = scan.offsets, scan.lengths
            segment.verified = scan.data if scan.size <= _KEPT_BYTES else b""

    def trim(self, keep: tuple[Segment, ...], next_fetch: int) -> None:
        """Give back the maps of segments that nobody uses; those in ``keep``, and that of seq_id
        ``next_fetch``, are in use."""
        reading = next_fetch // self.entry_count
        for segment in self.segments.values():
            if (
                segment.loaded
                and segment is not self.tail
                and segment not in keep
                and segment.number != reading
                and not segment.outstanding
                and not segment.dirty
            ):
                segment.unload()

    # -- reading --------------------------------------------------------------------------------

    def fetch(self, start: int, most: int) -> tuple[Fetched | None, int]:
        """Read ready entries in order from seq_id ``start`` on, ``most`` at the most.

        Gives them, and the seq_id to go on from; ``None`` when there are none. Entries come from
        one segment and one file (journal or segment) at a time, about 1 MiB at the most.
        Raises :class:`DamageError` as :meth:`load` (asking again goes on behind), and
        :class:`StorageError`.
        """
        count = self.entry_count
        while start < self.next_seq:
            number = start // count
            segment: Segment | None = self.segments.get(number)
            if segment is None:
                following = next(self.segments.irange(number), None)
                if following is None:
                    return None, self.next_seq
                start = following * count
                continue
            if not segment.loaded:
                self.load(segment)
            rel = start - segment.base
            end = min(rel + most, count, self.next_seq - segment.base)
            window = np.frombuffer(segment.states, np.uint8, end - rel, rel)
            rels = np.flatnonzero((window == PUBLISHED) | (window == DELIVERED)) + rel
            if len(rels):
                fetched, behind = self._read(segment, rels)
                if len(fetched.seqs) == len(rels):
                    behind = segment.base + end
                return fetched, behind
            start = segment.base + end
        return None, start

    def _read(self, segment: Segment, rels: I64) -> tuple[Fetched, int]:
        in_file = np.frombuffer(segment.filed, np.uint8)[rels] != ABSENT
        changes = np.flatnonzero(in_file != in_file[0])
        if len(changes):
            rels = rels[: changes[0]]
        if in_file[0]:
            self.place(segment)
            assert segment.offsets is not None
            assert segment.lengths is not None
            offsets, lengths = segment.offsets[rels], segment.lengths[rels]
            # What is read is one piece of the file, with all that was acknowledged in between.
            spans = np.maximum.accumulate(offsets + lengths) - np.minimum.accumulate(offsets)
            fit = max(1, int(np.searchsorted(spans, _WINDOW_BYTES, side="right")))
            rels, offsets, lengths = rels[:fit], offsets[:fit], lengths[:fit]
            data, low, verified = self._bytes_from(segment, offsets, lengths)
            offsets = offsets - low
            heads = np.frombuffer(data, np.uint8)[offsets]
            kinds = np.where(heads & (PERSISTENT >> 8), 0, 1).astype(np.uint8)
            payloads = offsets + STEP_SIZE
            embedded = lengths - PUBLISH_HEAD_SIZE
        else:
            first = int(rels[0]) + segment.base - self.positions_base
            last = int(rels[-1]) + segment.base - self.positions_base
            offsets = np.array(self.positions[first : last + 1])[rels - rels[0]]
            data, verified = self.journal.map, False
            flat = np.frombuffer(data, np.uint8)
            kinds = flat[offsets] >> 6
            payloads = offsets + _JOURNAL_HEAD
            at = payloads[:, None] + (journal_format.PAYLOAD_SIZE - 4 + np.arange(4))
            embedded = flat[at].view(">u4").ravel().astype(np.int64)
            ends = np.cumsum(embedded)
            fit = max(1, int(np.searchsorted(ends, _WINDOW_BYTES, side="right")))
            rels, kinds, payloads = rels[:fit], kinds[:fit], payloads[:fit]
            embedded = embedded[:fit]
        seqs = rels + segment.base
        states = np.frombuffer(segment.states, np.uint8)[rels].tobytes()
        behind = int(seqs[-1]) + 1
        words = journal_words(kinds, seqs)
        columns = plain_entries(data, payloads, words, embedded, verified=verified)
        if columns is not None:
            return Fetched(segment, seqs, states, *columns, True), behind
        entries = [
            read_entry(data, payload, word)
            for payload, word in zip(payloads.tolist(), words.tolist(), strict=True)
        ]
        bodies = [b"" if one.message is None else one.message.body for one in entries]
        return Fetched(segment, seqs, states, bodies, entries, False), behind

    def _bytes_from(
        self, segment: Segment, offsets: I64, lengths: I64
    ) -> tuple[ReadBuffer, int, bool]:
        """Give bytes that hold these records, the file offset of the first byte, and whether
        the records' checksums were verified when they were read."""
        if segment is not self._reading:
            self._reading.verified = b""
            self._reading = segment
        if int((offsets + lengths).max()) <= len(segment.verified):
            return segment.verified, 0, True
        return *self._pread(segment, offsets, lengths), False

    def _pread(self, segment: Segment, offsets: I64, lengths: I64) -> tuple[ReadBuffer, int]:
        """Read the bytes that hold these records; gives them and the offset of the first."""
        low = int(offsets.min())
        high = int((offsets + lengths).max())
        path = os.path.join(self.directory, file_name(segment.number))
        try:
            fd = self.fs.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = pread_all(self.fs, fd, high - low, low)
            finally:
                self.fs.close(fd)
        except OSError as error:
            raise StorageError(path, "the segment can't be read", error) from error
        # A file that was cut behind our back: what is gone reads as zeros, and no checksum of
        # zeros holds.
        return data.ljust(high - low, b"\0"), low

    def where(self, seq_id: int) -> tuple[str, int]:
        """Tell the file and offset of the publish record of a seq_id."""
        segment = self.segment_of(seq_id)
        rel = seq_id - segment.base
        if segment.filed[rel] != ABSENT:
            self.place(segment)
            assert segment.offsets is not None
            path = os.path.join(self.directory, file_name(segment.number))
            return path, int(segment.offsets[rel])
        return self.journal.path, self.positions[seq_id - self.positions_base]

    def bytes_of(self, seq_id: int) -> bytes:
        """Give the bytes of the publish record of a seq_id, as they stand in its file."""
        segment = self.segment_of(seq_id)
        rel = seq_id - segment.base
        if segment.filed[rel] != ABSENT:
            self.place(segment)
            assert segment.offsets is not None
            assert segment.lengths is not None
            length = int(segment.lengths[rel])
            data, _ = self._pread(segment, segment.offsets[rel : rel + 1], np.array([length]))
            return bytes(data)
        offset = self.positions[seq_id - self.positions_base]
        head = journal_format.PUBLISH_HEAD.unpack_from(self.journal.map, offset)
        return self.journal.map[offset : offset + journal_format.PUBLISH_HEAD_SIZE + head[4]]

    def stored_ids(self, segment: Segment, rels: I64) -> list[bytes]:
        """Give the message ids of those entries (published, of a loaded segment) whose messages
        are in the message store."""
        if not len(rels):
            return []
        in_file = np.frombuffer(segment.filed, np.uint8)[rels] != ABSENT
        found: list[tuple[int, bytes]] = []
        filed, fresh = rels[in_file], rels[~in_file]
        if len(filed):
            self.place(segment)
            assert segment.offsets is not None
            assert segment.lengths is not None
            bare = filed[segment.lengths[filed] == PUBLISH_HEAD_SIZE]
            offsets, lengths = segment.offsets[bare], segment.lengths[bare]
            if len(bare):
                data, low, _ = self._bytes_from(segment, offsets, lengths)
                payloads = offsets - low + STEP_SIZE
                found += stored_entries(data, bare, payloads, np.zeros(len(bare), np.int64))
        if len(fresh):
            positions = np.array(self.positions, np.int64)
            payloads = positions[fresh + segment.base - self.positions_base] + _JOURNAL_HEAD
            at = payloads + (journal_format.PAYLOAD_SIZE - 4)
            embedded = gather_bytes(self.journal.map, at, 4).copy().view(">u4").ravel()
            found += stored_entries(self.journal.map, fresh, payloads, embedded.astype(np.int64))
        return [msg_id for _, msg_id in found]

    def all_stored_ids(self) -> list[bytes]:
        """Give the message ids of all entries not acknowledged whose messages are in the message
        store, of those that can be read. Reads all segments."""
        found: list[bytes] = []
        for segment in self.segments.values():
            if not segment.loaded:
                with suppress(DamageError):  # logged; the sound entries are loaded
                    self.load(segment)
            states = np.frombuffer(segment.states, np.uint8)
            alive = np.flatnonzero((states != ABSENT) & (states != ACKED))
            found += self.stored_ids(segment, alive)
        return found

    def ready_bytes(self) -> int:
        """Count the bytes of the bodies of all ready entries. Reads all segments."""
        total = 0
        for segment in self.segments.values():
            was_loaded = segment.loaded
            if not was_loaded:
                with suppress(DamageError):  # logged; the sound entries are loaded
                    self.load(segment)
            states = np.frombuffer(segment.states, np.uint8)
            rels = np.flatnonzero((states == PUBLISHED) | (states == DELIVERED))
            total += self._body_bytes(segment, rels)
            if not was_loaded:
                segment.unload()
        return total

    def _body_bytes(self, segment: Segment, rels: I64) -> int:
        """Add up the sizes that these entries of a loaded segment state."""
        in_file = np.frombuffer(segment.filed, np.uint8)[rels] != ABSENT
        filed, fresh = rels[in_file], rels[~in_file]
        total = 0
        if len(filed):
            self.place(segment)
            assert segment.offsets is not None
            assert segment.lengths is not None
            offsets = segment.offsets[filed]
            data, low, _ = self._bytes_from(segment, offsets, segment.lengths[filed])
            total += _sum_sizes(data, offsets - low + STEP_SIZE)
        if len(fresh):
            positions = np.array(self.positions, np.int64)
            payloads = positions[fresh + segment.base - self.positions_base] + _JOURNAL_HEAD
            total += _sum_sizes(self.journal.map, payloads)
        return total

    # -- actions on many entries ----------------------------------------------------------------

    def append_actions(self, kind: int, seqs: I64) -> None:
        """Append a deliver or ack record for each seq_id, in one piece."""
        if len(seqs):
            words = seqs.astype(np.uint64) | np.uint64(kind << TYPE_SHIFT)
            self.journal.append(words.astype(">u8").tobytes())

    def set_states(self, seqs: I64, state: int) -> None:
        """Set the state of entries whose segments are loaded."""
        for segment, inside in self._by_segment(seqs):
            np.frombuffer(segment.states, np.uint8)[seqs[inside] - segment.base] = state

    def _by_segment(self, seqs: I64) -> Iterator[tuple[Segment, slice | Bools]]:
        """Group seq_ids by their segments; each group as an index into ``seqs``."""
        if not len(seqs):
            return
        numbers = seqs // self.entry_count
        if (numbers == numbers[0]).all():
            yield self.segment_of(int(seqs[0])), slice(None)
            return
        for number in np.unique(numbers).tolist():
            yield self.segment_of(number * self.entry_count), numbers == number

    def states_of(self, seqs: I64) -> U8:
        """Give the states of entries that were published."""
        states = np.zeros(len(seqs), np.uint8)
        for segment, inside in self._by_segment(seqs):
            states[inside] = np.frombuffer(segment.states, np.uint8)[seqs[inside] - segment.base]
        return states

    def drop(self, seqs: I64) -> None:
        """Acknowledge ready entries that no consumer will get (expired, purged, damaged):
        deliver and ack go to the journal, as for any other."""
        states = self.states_of(seqs)
        self.append_actions(DELIVER, seqs[states == PUBLISHED])
        self.append_actions(ACK, seqs)
        self.set_states(seqs, ACKED)
        self.dropped += len(seqs)
        self.transient.difference_update(seqs.tolist() if self.transient else ())

    def drop_transient(self) -> None:
        """Acknowledge the transient messages: they end with the engine's run."""
        if self.transient:
            seqs = np.array(sorted(self.transient), np.int64)
            states = self.states_of(seqs)
            self.set_states(seqs[states == OUT], DELIVERED)
            self.drop(seqs[(states != ABSENT) & (states != ACKED)])

    def purge(self, stored: list[bytes] | None) -> int:
        """Drop all ready entries; gives their number, and puts the message ids of those in the
        message store into ``stored`` as they go, if it is given. No flush may be under way.

        The files of segments that are not in memory (nothing of theirs is with a consumer or in
        the journal) are deleted at once; for the others acks are appended.
        """
        self.poison.check()
        dropped = 0
        unlinked = False
        for segment in list(self.segments.values()):
            if not segment.loaded:
                path = os.path.join(self.directory, file_name(segment.number))
                going: list[bytes] = []
                if stored is not None:
                    self.load(segment)
                    states = np.frombuffer(segment.states, np.uint8)
                    alive = np.flatnonzero((states == PUBLISHED) | (states == DELIVERED))
                    going = self.stored_ids(segment, alive)
                    segment.unload()
                try:
                    if segment.file_size:
                        remove_sums(self.fs, path)
                        self.fs.unlink(path)
                        unlinked = True
                except OSError as error:
                    raise StorageError(path, "the segment can't be deleted", error) from error
                dropped += segment.stored_unacked
                self._live_before -= segment.stored_unacked
                del self.segments[segment.number]
                if stored is not None:
                    stored += going
                continue
            states = np.frombuffer(segment.states, np.uint8)
            ready = np.flatnonzero((states == PUBLISHED) | (states == DELIVERED))
            going = [] if stored is None else self.stored_ids(segment, ready)
            self.drop(ready + segment.base)
            dropped += len(ready)
            if stored is not None:
                stored += going
        if unlinked:
            # A sync of the queue syncs the journal only: the names are made durable here.
            try:
                self.fs.sync_dir(self.directory)
            except OSError as error:
                raise StorageError(
                    self.directory, "the directory can't be synced", error
                ) from error
        return dropped

    # -- flush ----------------------------------------------------------------------------------

    def plan(self) -> FlushPlan | None:
        """Part 1 of a flush (:mod:`qindex.flush`), or ``None`` when nothing is to be done."""
        front = self.journal.tell()
        positions = np.array(self.positions, np.int64)
        plans = []
        for segment in self.segments.values():
            if segment.dirty:
                first = self.positions_base - segment.base
                rel = max(first, 0)
                offsets = positions[rel - first : rel - first + self.entry_count - rel]
                plans.append(plan_segment(segment, rel, offsets))
        if not plans and not front:
            # Deliveries of what had been delivered before count as actions, and write nothing.
            self._actions_flushed = self.actions
            return None
        return FlushPlan(
            self.directory, self.journal.map, front, self.actions, self.next_seq, plans
        )

    def finish(self, plan: FlushPlan, prepared: Retired | None) -> Retired | None:
        """Part 3 of a flush: empty the journal up to the plan's point, and take over what the
        segment files hold now. Gives what :meth:`Journal.retire` is to have, without the lock.
        Raises :class:`StorageError`; writes are then refused."""
        old = self.journal.rebase(plan.front, prepared)
        done = plan.next_seq - self.positions_base
        rest = np.array(self.positions[done:], np.int64)
        rest[rest >= 0] -= plan.front
        self.positions = array("q", rest.tobytes())
        self.positions_base = plan.next_seq
        self._actions_flushed = plan.actions
        self.flushes += 1
        for planned in plan.segments:
            self._take_over(planned)
        return old

    def _take_over(self, planned: SegmentPlan) -> None:
        segment = self.segments[planned.number]
        segment.file_size = planned.file_size
        if planned.deleted:
            segment.filed = bytearray(self.entry_count)
            segment.offsets = segment.lengths = None
            # What the file held, acknowledged, is now as if it had never been there.
            states = np.frombuffer(segment.states, np.uint8)
            states[np.frombuffer(planned.states, np.uint8) == ACKED] = ABSENT
            if segment is not self.tail and not states.any():
                del self.segments[planned.number]
                # Who remembers this object (the read and ack paths do) must find it empty: a
                # later publish makes another segment of this number.
                segment.unload()
            return
        filed = np.frombuffer(planned.states, np.uint8).copy()
        vanished = (np.frombuffer(planned.filed, np.uint8) == ABSENT) & (filed == ACKED)
        filed[vanished] = ABSENT
        segment.filed = bytearray(filed.tobytes())
        if planned.rewritten:
            segment.offsets = segment.lengths = None
            segment.verified = b""
        if segment.offsets is not None and segment.lengths is not None:
            segment.offsets[planned.rels] = planned.offsets
            segment.lengths[planned.rels] = planned.lengths
        # An entry that came and went within one journal leaves no trace in the state map either.
        states = np.frombuffer(segment.states, np.uint8)
        states[vanished] = ABSENT

    def outstanding_up_to(self, seq_id: int) -> I64:
        """Give the seq_ids up to ``seq_id`` that are with a consumer, ascending."""
        found = [
            np.flatnonzero(np.frombuffer(segment.states, np.uint8) == OUT) + segment.base
            for segment in self.segments.values()
            if segment.loaded and segment.base <= seq_id
        ]
        seqs = np.concatenate(found) if found else np.empty(0, np.int64)
        return seqs[seqs <= seq_id]


def _sum_sizes(data: ReadBuffer, payloads: I64) -> int:
    """Add up the sizes of the bodies of entries whose message ids stand at ``payloads``."""
    sizes = gather_bytes(data, payloads + _SIZE_AT, 4).copy().view(">u4")
    return int(sizes.sum(dtype=np.int64))
