"""Reading the entries of a queue index: their states, their places, and their messages.

Everything here is called with the queue's lock held.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from journal import format as journal_format
from journal.errors import DamageError, StorageError
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, ReadBuffer, pread_all
from journal.journal import Journal
from journal.memory.arrays import I64
from qindex.format import plain_rows
from qindex.format.entries import (
    Entry,
    Reader,
    journal_words,
    plain_entries,
    read_entry,
    read_one_by_one,
)
from qindex.format.message_record import NOTHING, column, gather_bytes
from qindex.format.plain_record import SHORTEST_RUN, read_plain
from qindex.format.segment import PERSISTENT, PUBLISH_HEAD_SIZE, STEP_SIZE
from qindex.index.quarantine import quarantine_findings
from qindex.index.read_ahead import EMPTY_WINDOW, Window
from qindex.index.segment import ABSENT, ACKED, DELIVERED, HELD, PUBLISHED, Segment, Segments
from qindex.index.segment_file import SegmentPlan, scan_file, segment_path
from qindex.index.segment_scan import SegmentScan, empty_scan, stored_entries

_log = logging.getLogger("qindex.index")

FEW = 24
"""Entries up to this number are read one by one."""
_WINDOW_BYTES = 1 << 20
_KEPT_BYTES = 8 << 20
"""The bytes of the segment being read are kept, once scanned, if they are at most this many."""
_SIZE_AT = journal_format.PAYLOAD_SIZE - 8
"""Where in a payload the size of the body is: before that of the embedded record."""
_EMBEDDED_AT = journal_format.PAYLOAD_SIZE - 4
"""Where that of the embedded record is."""
_word_at = journal_format.ACTION_WORD.unpack_from
_JOURNAL_HEAD = journal_format.PUBLISH_HEAD_SIZE - journal_format.PAYLOAD_SIZE
_READY = frozenset((PUBLISHED, DELIVERED))


class IndexReader:
    """The half of a :class:`~qindex.index.queue_index.QueueIndex` that reads.

    ``positions``: journal offsets of the publish records of seq_ids ``positions_base,
    positions_base + 1, ...``, -1 where the journal has none. ``lost_entries``: entries were lost
    to damage, and with them their references to messages. ``tail``: the segment that the next
    publish goes to. ``findings``: those since the queue was opened. ``damaged``: one of them is in
    this queue.
    """

    # Slots: the attributes that the paths of single messages use.
    __slots__ = ("__dict__", "__weakref__", "journal", "next_seq", "positions", "tail")

    journal: Journal

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        entry_count: int,
        segments: dict[int, Segment],
        next_seq: int,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.entry_count = entry_count
        self.segments: Segments = Segments(segments)
        self.next_seq: int = next_seq
        self.findings: list[Finding] = []
        self.positions: array[int] = array("q")
        self.positions_base: int = next_seq
        # The middle of the messages that need only a timestamp beside their bodies.
        self.middle: bytes = NOTHING
        self.lost_entries: bool = False
        self.damaged: bool = False
        self._live_before = sum(segment.unacked for segment in segments.values())
        # A tail that covers no seq_id: the first publish finds it full and takes the right one.
        self.tail: Segment = EMPTY_WINDOW.segment
        self._reading = self.tail

    def segment_of(self, seq_id: int) -> Segment:
        """Return the loaded segment of a seq_id that was published. Raises as :meth:`load`."""
        number = seq_id // self.entry_count
        segment: Segment | None = self.segments.get(number)
        if segment is None:
            segment = self.segments[number] = Segment(number, self.entry_count)
        elif not segment.loaded:
            self.bring(segment)
        return segment

    def bring(self, segment: Segment) -> None:
        """Bring the state maps of a segment into memory that are not. Raises as :meth:`load`."""
        if not segment.unpack():
            self.load(segment)

    def load(self, segment: Segment) -> None:
        """Bring the state maps of ``segment`` into memory, and where its records are.

        Raises :class:`DamageError` when the file holds fewer sound entries than it should, the
        first finding in it; the segment is loaded all the same, with the sound ones.
        """
        unacked = segment.stored_unacked
        path, scan = self._scan(segment)
        segment.packed = b""
        segment.load(scan.filed, *scan.located())
        self._keep(segment, scan)
        self.report(scan.findings)
        if segment.unacked != unacked:
            self._live_before += segment.unacked - unacked
            self.lost_entries = True
            count = unacked - segment.unacked
            if scan.findings:
                quarantine_findings(self.fs, scan.findings)
                at, what = scan.findings[0].offset, scan.findings[0].what
            elif scan.size:
                at, what = scan.size, f"the file has {scan.size} bytes of {segment.file_size}"
            else:
                at, what = 0, "the file is gone, or empty"
            lost = f"{count} of {unacked} messages are lost"
            missing = Finding(path, at, 0, Cause.DAMAGE, what, lost, Kind.MISSING_FILE)
            self.report([missing])
            raise DamageError(path, at, f"{what}; {lost}")

    def report(self, findings: Sequence[Finding]) -> None:
        """Tell the user of damage that was met while the queue is open."""
        for finding in findings:
            _log.warning("%s", finding)
            self.damaged = True
        self.findings += findings

    def report_missing(self, planned: SegmentPlan) -> None:
        """Tell the user that a flush found less of a segment's file than was written before."""
        path = segment_path(self.directory, planned.number)
        what = f"another program has taken {planned.missing} bytes of the file away"
        lost = "the messages in them are lost"
        self.report([Finding(path, 0, 0, Cause.DAMAGE, what, lost, Kind.MISSING_FILE)])

    def _scan(self, segment: Segment) -> tuple[str, SegmentScan]:
        path = segment_path(self.directory, segment.number)
        number, count = segment.number, self.entry_count
        self._turn_to(segment)
        if not segment.file_size:
            return path, empty_scan(number, count)
        try:
            return path, scan_file(self.fs, self.directory, number, count)
        except FileNotFoundError:
            return path, empty_scan(number, count)
        except OSError as error:
            raise StorageError(path, "the segment can't be read", error) from error

    def _keep(self, segment: Segment, scan: SegmentScan) -> None:
        """Keep the bytes of the segment that is read."""
        segment.verified = scan.data if scan.size <= _KEPT_BYTES else b""

    def place(self, segment: Segment) -> None:
        """Find out where in its file the records of a loaded segment are."""
        if segment.offsets is None:
            _, scan = self._scan(segment)
            offsets, segment.lengths = scan.located()
            segment.offsets = offsets
            self._keep(segment, scan)
            self.report(scan.findings)
            if ((np.frombuffer(segment.filed, np.uint8) != ABSENT) & (offsets < 0)).any():
                # Damaged since it was written: a read of such an entry finds nothing there.
                quarantine_findings(self.fs, scan.findings)

    def trim(self, keep: tuple[Segment, ...], next_fetch: int) -> None:
        """Release the maps of segments that are not in use; those in ``keep``, and that of seq_id
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

    def fetch(self, start: int, most: int) -> tuple[Window | None, int]:
        """Read ready entries in order from seq_id ``start`` on, ``most`` at the most.

        Return them and the seq_id to continue from, or None if there are none. Entries come from
        one segment and one file (journal or segment) at a time, about 1 MiB at the most.
        Raises :class:`DamageError` as :meth:`load` (asking again goes on after it), and
        :class:`StorageError`.
        """
        if self.next_seq - start <= FEW:
            few = self.fetch_few(start, most)
            if few is not None:
                return few, start + len(few.seqs)
        count = self.entry_count
        while start < self.next_seq:
            number = start // count
            segment: Segment | None = self.segments.get(number)
            if segment is None:
                following = self.segments.following(number)
                if following is None:
                    return None, self.next_seq
                start = following * count
                continue
            if not segment.loaded:
                self.bring(segment)
            rel = start - segment.base
            end = min(rel + most, count, self.next_seq - segment.base)
            if segment.states.count(PUBLISHED, rel, end) == end - rel:
                run = self._read_run(segment, rel, end)
                if run is not None:
                    return run, run.seqs[-1] + 1
            window = np.frombuffer(segment.states, np.uint8, end - rel, rel)
            rels = np.flatnonzero((window == PUBLISHED) | (window == DELIVERED)) + rel
            if len(rels):
                fetched, behind = self.read(segment, rels)
                if len(fetched.seqs) == len(rels):
                    behind = segment.base + end
                return fetched, behind
            start = segment.base + end
        return None, start

    def fetch_few(self, start: int, most: int = FEW) -> Window | None:
        """Read the newest entries, from ``start`` on, when they are few, and all of them
        persistent, ready, sound and in the journal: so a consumer finds them that keeps up with
        the publishers."""
        end = self.next_seq
        segment = self.tail
        base = segment.base
        first = self.positions_base
        if not 0 < end - start <= min(FEW, most) or start < base or start < first:
            return None
        if self.journal.at_rest:
            return None  # a publish that failed has taken the tail
        states = segment.states
        bodies: list[bytes] = []
        extras: list[int | Entry] = []
        for seq in range(start, end):
            if states[seq - base] not in _READY:
                return None
            found = self.read_new(seq)
            if found is None:
                return None
            bodies.append(found[0])
            extras.append(found[1])
        return Window.few(segment, range(start, end), bodies, extras)

    def read_new(self, seq: int) -> tuple[bytes, int | Entry] | None:
        """Read an entry that is in the journal, persistent and sound; ``None`` for any other. The
        journal is not at rest."""
        data, offset = self.journal.map, self.positions[seq - self.positions_base]
        if offset < 0 or _word_at(data, offset) != (seq,):
            return None
        found = read_plain(data, offset + _JOURNAL_HEAD, seq, False, self.middle)
        if found is not None:
            return found
        entry = read_entry(data, offset + _JOURNAL_HEAD, seq)
        if entry.damage or entry.corrected:
            return None
        return b"" if entry.message is None else entry.message.body, entry

    def read_one(self, seq: int) -> tuple[bytes, int | Entry]:
        """Read a ready entry: its body, and its timestamp or the entry. Raises as :meth:`fetch`."""
        window, _ = self.fetch(seq, 1)
        assert window is not None
        assert window.seqs[0] == seq
        return window.bodies[0], window.extras[0]

    def read_held(self, seq: int) -> tuple[bytes, int | Entry]:
        """Read an entry that is ready or delayed; as :meth:`read_one`."""
        segment = self.segment_of(seq)
        rel = seq - segment.base
        if segment.filed[rel] == ABSENT and not self.journal.at_rest:
            found = self.read_new(seq)
            if found is not None:
                return found
        window, _ = self.read(segment, np.array([rel]))
        return window.bodies[0], window.extras[0]

    def last_ready(self, below: int | None = None) -> int | None:
        """Return the highest seq_id (under ``below``) of an entry that is ready."""
        for number in reversed(self.segments):
            segment = self.segments[number]
            if below is not None and segment.base >= below:
                continue
            if not segment.loaded:
                if not segment.stored_unacked:
                    continue
                self.bring(segment)
            states = segment.states
            end = len(states) if below is None else below - segment.base
            rel = max(states.rfind(PUBLISHED, 0, end), states.rfind(DELIVERED, 0, end))
            if rel >= 0:
                return segment.base + rel
        return None

    def _journal_data(self) -> ReadBuffer:
        """Return the journal's bytes. Where it is at rest, this wakes it, and ``positions``."""
        if self.journal.at_rest:
            self.journal.wake()
        return self.journal.map

    def _read_run(self, segment: Segment, rel: int, end: int) -> Window | None:
        """Read entries that were never delivered, from ``rel`` on, which are in the journal as
        publishers left them, or in a file as a flush did; ``None`` where they do not."""
        count, first_seq = end - rel, segment.base + rel
        absent = segment.filed.count(ABSENT, rel, end)
        if absent == count and first_seq >= self.positions_base:
            data = self._journal_data()
            at = first_seq - self.positions_base
            columns = plain_rows.read_run(
                data, self.positions, at, count, first_seq, _WINDOW_BYTES, True, self.middle
            )
        elif not absent:
            self.place(segment)
            self._turn_to(segment)
            assert segment.offsets is not None
            data, offsets = segment.verified, segment.offsets
            columns = plain_rows.read_run(
                data, offsets, rel, count, first_seq, _WINDOW_BYTES, False, self.middle
            )
        else:
            return None
        if len(columns[0]) < min(count, SHORTEST_RUN):
            return None
        return Window.run(segment, first_seq, *columns)

    def read(self, segment: Segment, rels: I64) -> tuple[Window, int]:
        """Read these entries of a loaded segment, ascending, or the first of them: those in one
        file, about 1 MiB. Returns them, and the seq_id after the last."""
        in_file = np.frombuffer(segment.filed, np.uint8)[rels] != ABSENT
        changes = np.flatnonzero(in_file != in_file[0])
        if len(changes):
            rels = rels[: changes[0]]
        if in_file[0]:
            self.place(segment)
            assert segment.offsets is not None
            assert segment.lengths is not None
            offsets, lengths = segment.offsets[rels], segment.lengths[rels]
            gone = np.flatnonzero(offsets < 0)
            if len(gone) and not gone[0]:
                return _gone(segment, rels[:1])
            if len(gone):
                rels, offsets, lengths = rels[: gone[0]], offsets[: gone[0]], lengths[: gone[0]]
            # One piece of the file is read, with all acknowledged entries in between.
            spans = np.maximum.accumulate(offsets + lengths) - np.minimum.accumulate(offsets)
            fit = _window(spans)
            rels, offsets, lengths = rels[:fit], offsets[:fit], lengths[:fit]
            data, low, verified = self._bytes_from(segment, offsets, lengths)
            offsets = offsets - low
            heads = np.frombuffer(data, np.uint8)[offsets]
            kinds = np.where(heads & (PERSISTENT >> 8), 0, 1).astype(np.uint8)
            payloads = offsets + STEP_SIZE
            embedded = lengths - PUBLISH_HEAD_SIZE
        else:
            data, verified = self._journal_data(), False
            first = int(rels[0]) + segment.base - self.positions_base
            last = int(rels[-1]) + segment.base - self.positions_base
            offsets = np.array(self.positions[first : last + 1])[rels - rels[0]]
            flat = np.frombuffer(data, np.uint8)
            kinds = flat[offsets] >> 6
            payloads = offsets + _JOURNAL_HEAD
            embedded = _sizes_at(data, payloads + _EMBEDDED_AT)
            fit = _window(np.cumsum(embedded))
            rels, kinds, payloads = rels[:fit], kinds[:fit], payloads[:fit]
            embedded = embedded[:fit]
        seqs = rels + segment.base
        states = np.frombuffer(segment.states, np.uint8)[rels].tobytes()
        behind = int(seqs[-1]) + 1
        words = journal_words(kinds, seqs)
        middle = self.middle
        columns = plain_entries(data, payloads, words, embedded, verified=verified, middle=middle)
        if columns is not None:
            return Window(segment, seqs, states, *columns, True), behind
        read = read_plain if middle is NOTHING else _with_middle(middle)
        bodies, extras = read_one_by_one(data, payloads, words, read, verified=verified)
        all_plain = Entry not in set(map(type, extras))
        return Window(segment, seqs, states, bodies, extras, all_plain), behind

    def _bytes_from(
        self, segment: Segment, offsets: I64, lengths: I64
    ) -> tuple[ReadBuffer, int, bool]:
        """Return bytes that hold these records, the file offset of the first byte, and whether
        the records' checksums were verified when they were read."""
        self._turn_to(segment)
        if int((offsets + lengths).max()) <= len(segment.verified):
            return segment.verified, 0, True
        return *self._pread(segment, offsets, lengths), False

    def _turn_to(self, segment: Segment) -> None:
        """Drop the bytes of the segment that was read before this one."""
        if segment is not self._reading:
            self._reading.verified = b""
            self._reading = segment

    def _pread(self, segment: Segment, offsets: I64, lengths: I64) -> tuple[ReadBuffer, int]:
        """Read the bytes that hold these records; return them and the offset of the first."""
        low = int(offsets.min())
        high = int((offsets + lengths).max())
        path = segment_path(self.directory, segment.number)
        data = b""
        try:
            fd = self.fs.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = pread_all(self.fs, fd, high - low, low)
            finally:
                self.fs.close(fd)
        except FileNotFoundError:
            pass  # another program has deleted it
        except OSError as error:
            raise StorageError(path, "the segment can't be read", error) from error
        # Another program has cut the file: the bytes that are gone read as zeros, and no checksum
        # of zeros holds.
        return data.ljust(high - low, b"\0"), low

    def where(self, seq_id: int) -> tuple[str, int]:
        """Return the file and offset of the publish record of a seq_id."""
        segment = self.segment_of(seq_id)
        rel = seq_id - segment.base
        if segment.filed[rel] != ABSENT:
            self.place(segment)
            assert segment.offsets is not None
            path = segment_path(self.directory, segment.number)
            return path, max(int(segment.offsets[rel]), 0)
        self._journal_data()
        return self.journal.path, self.positions[seq_id - self.positions_base]

    def bytes_of(self, seq_id: int) -> bytes:
        """Return the bytes of the publish record of a seq_id, as they are in its file."""
        segment = self.segment_of(seq_id)
        rel = seq_id - segment.base
        if segment.filed[rel] != ABSENT:
            self.place(segment)
            assert segment.offsets is not None
            assert segment.lengths is not None
            if segment.offsets[rel] < 0:
                return b""  # it was damaged since it was written
            part = slice(rel, rel + 1)
            offsets, lengths = segment.offsets[part], segment.lengths[part]
            data, low, _ = self._bytes_from(segment, offsets, lengths)
            start = int(offsets[0]) - low
            return bytes(data[start : start + int(lengths[0])])
        data = self._journal_data()
        offset = self.positions[seq_id - self.positions_base]
        head = journal_format.PUBLISH_HEAD.unpack_from(data, offset)
        return bytes(data[offset : offset + journal_format.PUBLISH_HEAD_SIZE + head[4]])

    def stored_ids(self, segment: Segment, rels: I64) -> list[bytes]:
        """Return the message ids of those entries (published, of a loaded segment) whose messages
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
            data = self._journal_data()
            positions = np.array(self.positions, np.int64)
            payloads = positions[fresh + segment.base - self.positions_base] + _JOURNAL_HEAD
            embedded = _sizes_at(data, payloads + _EMBEDDED_AT)
            found += stored_entries(data, fresh, payloads, embedded)
        return [msg_id for _, msg_id in found]

    def all_stored_ids(self) -> list[bytes]:
        """Return the message ids of all entries not acknowledged whose messages are in the message
        store, of the readable messages. Reads all segments."""
        found: list[bytes] = []
        for segment in self.segments.values():
            if not segment.loaded:
                with suppress(DamageError):  # logged; the sound entries are loaded
                    self.bring(segment)
            states = np.frombuffer(segment.states, np.uint8)
            alive = np.flatnonzero((states != ABSENT) & (states != ACKED))
            found += self.stored_ids(segment, alive)
        return found

    def ready_bytes(self) -> int:
        """Count the bytes of the bodies of all ready and delayed entries. Reads all segments."""
        total = 0
        for segment in self.segments.values():
            was_loaded = segment.loaded
            if not was_loaded:
                with suppress(DamageError):  # logged; the sound entries are loaded
                    self.bring(segment)
            states = np.frombuffer(segment.states, np.uint8)
            ready = (states == PUBLISHED) | (states == DELIVERED) | (states >= HELD)
            rels = np.flatnonzero(ready)
            total += self._body_bytes(segment, rels)
            if not was_loaded and not segment.dirty:
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
            total += int(_sizes_at(data, offsets - low + (STEP_SIZE + _SIZE_AT)).sum())
        if len(fresh):
            data = self._journal_data()
            positions = np.array(self.positions, np.int64)
            payloads = positions[fresh + segment.base - self.positions_base] + _JOURNAL_HEAD
            total += int(_sizes_at(data, payloads + _SIZE_AT).sum())
        return total


def _window(spans: I64) -> int:
    """Count the entries that one window holds, one at least; ``spans``: bytes up to the end of
    each."""
    if spans[-1] <= _WINDOW_BYTES:
        return len(spans)  # as a rule: a search would let go of the interpreter
    return max(1, int(np.searchsorted(spans, _WINDOW_BYTES, side="right")))


def _gone(segment: Segment, rels: I64) -> tuple[Window, int]:
    """Return the window of one entry whose record is not found in its file any more."""
    seqs = rels + segment.base
    states = np.frombuffer(segment.states, np.uint8)[rels].tobytes()
    entry = Entry(bytes(16), 0, 0, None, damage="its record is no longer found in the file")
    return Window(segment, seqs, states, [b""], [entry], False), int(seqs[0]) + 1


def _with_middle(middle: bytes) -> Reader:
    """Return what reads messages with this middle as :func:`read_plain` reads plain ones."""

    def read(
        data: ReadBuffer, payload: int, word: int, verified: bool, /
    ) -> tuple[bytes, int | Entry] | None:
        return read_plain(data, payload, word, verified, middle)

    return read


def _sizes_at(data: ReadBuffer, places: I64) -> I64:
    """Return the sizes, of four bytes each, that are at these places."""
    return column(gather_bytes(data, places, 4), 0, ">u4").astype(np.int64)
