"""The queue index: the owner of every entry's life.

It alone holds the state maps, the positions, the counters and the journal. Each verb is written
once: *append, deliver, acknowledge, requeue, drop, purge*, and *begin, undo and end of a move* to
another queue, *hold and release* of a delayed entry, *pend and admit* of an entry that a
transaction has published. Two rules make it easy to believe:

1. The commit of a verb is its store into the journal. Everything that can fail comes before it; the
   step in memory after it does not fail.
2. The journal is the truth. ``changing`` is raised before the first change of a verb and lowered
   after its last. Where it is found raised, a call was cut short (Ctrl-C, no memory):
   :meth:`QueueIndex.rebuild` forgets the memory and reads the journal again.

Everything here is called with the queue's lock held, but for
:func:`qindex.index.flush.write_plan`, which the flush calls without it.
"""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from journal import format as journal_format
from journal.errors import DamageError, StorageError, storage_errors
from journal.format import ACK, ACK_BITS, DELIVER, DELIVER_BITS, PUBLISH_TRANSIENT, TYPE_SHIFT
from journal.fs.files import FileSystem, opened
from journal.journal import Journal, Retired
from journal.memory import words
from journal.memory.arrays import I64, U8, Bools
from journal.poison import Poison
from journal.replay import walk_journal
from qindex.index import segment_file
from qindex.index.flush import FlushPlan
from qindex.index.index_reader import IndexReader
from qindex.index.merge import JournalRecords
from qindex.index.read_ahead import EMPTY_WINDOW, ReadAhead
from qindex.index.segment import (
    ABSENT,
    ACKED,
    DELIVERED,
    HELD,
    HELD_AGAIN,
    MOVING,
    OUT,
    PENDING,
    PUBLISHED,
    Segment,
    segment_numbers,
)
from qindex.index.segment_file import SegmentPlan, plan_segment, segment_path
from qindex.index.seq_ids import SeqFile

Seqs = range | I64
"""seq_ids: a run of them, which costs nothing, or any."""

_WORD_SIZE = journal_format.ACTION_SIZE
_FEW_POSITIONS = 32
"""No more than these are kept as they are at rest."""
_NONE = np.empty(0, np.int64)


class QueueIndex(IndexReader):
    """Journal, segments and counters of one queue.

    Counters, from which the others follow: ``taken`` (deliveries), ``acks`` (of deliveries),
    ``nacks``, ``dropped`` (acknowledged without having been delivered).
    ``ahead``: the entries that were read ahead or given back.
    ``journal``: at rest until it is needed, and after :meth:`rest`; ``before_waking`` is called
    before its file is opened.
    """

    # Slots: the attributes that the verbs use.
    __slots__ = (
        "acks",
        "ahead",
        "changing",
        "dropped",
        "handing",
        "handing_one",
        "nacks",
        "recent",
        "tail_end",
        "taken",
        "transient",
    )

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
        super().__init__(fs, directory, entry_count, segments, next_seq)
        self.poison = poison
        self.seq_file = seq_file
        self.taken: int = 0
        self.acks: int = 0
        self.nacks: int = 0
        self.dropped: int = 0
        self.changing: int = 0
        # The entries of a delivery that is not yet in its consumer's hands: one (-1: none), or
        # many.
        self.handing_one: int = -1
        self.handing: Seqs = _NONE
        # Entries that were moved, and are not yet acknowledged here: they count as acknowledged.
        self._moved = 0
        # Entries of transactions that are not committed.
        self.pending: int = 0
        self._first_seq = next_seq
        self._actions_flushed = next_seq
        self.transient: set[int] = set()
        self.flushes: int = 0
        self.flushed_bytes = 0
        self.before_waking: Callable[[], None] = _nothing
        path = os.path.join(directory, journal_format.FILE_NAME)
        self.journal: Journal = Journal(fs, path, poison, at_rest=True)
        self.journal.before_waking = self._waking
        # The positions of a journal at rest, if they are many.
        self._packed = b""
        # The first seq_id after the tail.
        self.tail_end: int = 0
        # The segment that a deliver or ack touched last.
        self.recent: Segment = EMPTY_WINDOW.segment
        self.ahead: ReadAhead = ReadAhead()

    @property
    def live(self) -> int:
        """Messages published and not acknowledged."""
        published = self.next_seq - self._first_seq
        return self._live_before + published - self.acks - self.dropped

    def first_pending(self) -> int:
        """Return the seq_id of the first entry of a transaction that is not committed, or that of
        the next publish if there is none."""
        for segment in self.segments.values() if self.pending else ():
            at = segment.states.find(PENDING)
            if at >= 0:
                return segment.base + at
        return self.next_seq

    def _most_consumed(self) -> int:
        """Count the entries that can be consumed before the file of a segment can go."""
        return min(self.live, self.entry_count)

    @property
    def out(self) -> int:
        """Messages that are with a consumer."""
        return self.taken - self.acks - self.nacks

    def has_any(self) -> bool:
        """Return whether there is any message that is not with a consumer."""
        published = self.next_seq - self._first_seq
        return self._live_before + published - self.dropped > self.taken - self.nacks

    @property
    def dirty(self) -> int:
        """Actions since the last flush (RabbitMQ's dirty_count)."""
        return self.actions - self._actions_flushed

    @property
    def actions(self) -> int:
        """Publishes, deliveries and acks since the queue was opened (counted from any number)."""
        return self.next_seq + self.taken + self.acks + 2 * self.dropped

    # -- rest -----------------------------------------------------------------------------------

    def _waking(self) -> None:
        """Take back what :meth:`rest` has put away, before the journal's file is opened."""
        self.before_waking()
        self.journal.entries = self._most_consumed()
        if self._packed:
            steps = np.frombuffer(zlib.decompress(self._packed), np.int64)
            self.positions = array("q", np.cumsum(steps).tobytes())
            self._packed = b""

    def rest(self) -> None:
        """Close the journal, and put away the memory that the next touch takes back: the maps of
        segments with nothing outstanding, and the positions."""
        tail = self.tail
        self.tail_end = 0
        self.tail = self._reading = EMPTY_WINDOW.segment
        self.recent = EMPTY_WINDOW.segment
        self.journal.rest()
        for segment in list(self.segments.values()):
            if not segment.loaded or segment.outstanding:
                continue
            if segment.dirty or (segment is tail and (segment.unacked or segment.file_size)):
                segment.pack()
            elif segment.unacked or segment.file_size:
                segment.unload()
            else:
                del self.segments[segment.number]
                segment.unload()
        if len(self.positions) > _FEW_POSITIONS:
            # Records of one size are at equal distances, which compress to next to nothing.
            steps = np.diff(np.array(self.positions, np.int64), prepend=0)
            self._packed = zlib.compress(steps.tobytes(), 1)
            self.positions = array("q")

    # -- append ---------------------------------------------------------------------------------

    def append(self, record: bytes) -> int:
        """Append the publish record of ``next_seq``, whole and sealed; return the seq_id.

        Raises :class:`StorageError`; nothing has changed then.
        """
        seq = self.next_seq
        if seq >= self.tail_end:
            self._roll()
        journal = self.journal
        if journal.end + len(record) > journal.limit:
            journal.make_room(len(record))
        tail = self.tail
        self.changing += 1
        words.push(self.positions, journal.store(record))
        tail.states[seq - tail.base] = PUBLISHED
        self.next_seq = seq + 1
        self.changing -= 1
        return seq

    def reserve(self, count: int) -> None:
        """See that ``count`` seq_ids from ``next_seq`` on may be given out, durably; none of them
        is yet. Raises :class:`StorageError`."""
        if self.next_seq + count + self.entry_count > self.seq_file.reserved:
            self.seq_file.reserve(self.next_seq)

    def append_batch(
        self, block: bytes | memoryview, offsets: I64, *, transient: bool = False
    ) -> range:
        """Append publish records from ``next_seq`` on, all or none; return their seq_ids.

        ``offsets``: where in ``block`` each record begins. Raises :class:`StorageError`; nothing
        has changed then.
        """
        first, count = self.next_seq, len(offsets)
        seqs = range(first, first + count)
        if seqs.stop + self.entry_count > self.seq_file.reserved:
            self.seq_file.reserve(seqs.stop)
        runs = []
        while first < seqs.stop:
            segment = self.segment_of(first)
            end = min(seqs.stop, segment.base + self.entry_count)
            runs.append((segment, first - segment.base, end - segment.base))
            first = end
        journal = self.journal
        if journal.end + len(block) > journal.limit:
            journal.make_room(len(block))
        self.changing += 1
        self.positions.frombytes((offsets + journal.append(block)).tobytes())
        if transient:
            self.transient.update(seqs)
        for segment, rel, end in runs:
            segment.states[rel:end] = bytes((PUBLISHED,)) * (end - rel)
        self.next_seq = seqs.stop
        self.tail: Segment = segment
        self.tail_end = segment.base + self.entry_count
        self.changing -= 1
        return seqs

    def _roll(self) -> None:
        """Take the segment of ``next_seq`` as the tail; reserves seq_ids when they run out.

        Raises :class:`StorageError`; nothing has changed then.
        """
        self.reserve(0)
        self.tail = self.segment_of(self.next_seq)
        self.tail_end = self.tail.base + self.entry_count

    # -- deliver --------------------------------------------------------------------------------

    def deliver(self, seq: int) -> bool:
        """Mark a ready entry as out. Return whether it was never delivered before.

        Until :meth:`handed_out` it counts as not yet with its consumer. Raises
        :class:`StorageError`; nothing has changed then.
        """
        segment = self.recent
        rel = seq - segment.base
        if not 0 <= rel < len(segment.states):
            segment = self.recent = self.segment_of(seq)
            rel = seq - segment.base
        journal = self.journal
        fresh = segment.states[rel] == PUBLISHED
        if fresh and journal.end + _WORD_SIZE > journal.word_limit:
            journal.make_room(_WORD_SIZE, reserve=True)
        self.changing += 1
        self.handing_one = seq
        if fresh:
            journal.store_word(DELIVER_BITS | seq)
        segment.states[rel] = OUT
        self.taken += 1
        return fresh

    def deliver_many(self, seqs: Seqs) -> int:
        """Mark ready entries, ascending, as out; tells how many were never delivered before. As
        :meth:`deliver`."""
        fresh = self._with_state(seqs, PUBLISHED)
        records, journal = self._room_for(DELIVER, fresh)
        self.changing += 1
        self.handing = seqs
        if records:
            journal.append(records, reserve=True)
        self._set_states(seqs, OUT)
        self.taken += len(seqs)
        return len(fresh)

    def handed_out(self) -> None:
        """Mark the last delivery as handed to its consumer."""
        self.handing_one = -1
        self.handing = _NONE
        self.changing -= 1

    def note_delivered(self, seqs: I64) -> None:
        """Mark entries as delivered before, and ready again: they come from elsewhere, where they
        were delivered."""
        fresh = self._with_state(seqs, PUBLISHED)
        records, journal = self._room_for(DELIVER, fresh)
        self.changing += 1
        if records:
            journal.append(records, reserve=True)
        self._set_states(fresh, DELIVERED)
        self.changing -= 1

    # -- acknowledge ----------------------------------------------------------------------------

    def acknowledge(self, seq: int) -> bool:
        """Acknowledge an entry that is out; false, and nothing has changed, when it is not.

        Raises :class:`StorageError`; nothing has changed then.
        """
        segment = self.recent
        rel = seq - segment.base
        if not 0 <= rel < len(segment.states):
            segment = self.recent = self.segment_of(seq)
            rel = seq - segment.base
        if segment.states[rel] != OUT:
            return False
        journal = self.journal
        if journal.end + _WORD_SIZE > journal.word_limit:
            journal.make_room(_WORD_SIZE, reserve=True)
        self.changing += 1
        journal.store_word(ACK_BITS | seq)
        segment.states[rel] = ACKED
        self.acks += 1
        if self.transient:
            self.transient.discard(seq)
        self.changing -= 1
        return True

    def acknowledge_many(self, seqs: Seqs) -> None:
        """Acknowledge entries that are out. As :meth:`acknowledge`."""
        records, journal = self._room_for(ACK, seqs)
        self.changing += 1
        self._acknowledged(journal, records, seqs)
        self.acks += len(seqs)
        self.changing -= 1

    def _acknowledged(self, journal: Journal, records: bytes, seqs: Seqs) -> None:
        if records:
            journal.append(records, reserve=True)
        self._set_states(seqs, ACKED)
        if self.transient:
            self.transient.difference_update(_array(seqs).tolist())

    # -- requeue --------------------------------------------------------------------------------

    def requeue(self, seq: int) -> None:
        """Make an entry ready that is out. The journal is not concerned: it is delivered."""
        segment = self.segment_of(seq)
        self.changing += 1
        segment.states[seq - segment.base] = DELIVERED
        self.nacks += 1
        self.changing -= 1

    # -- delay ----------------------------------------------------------------------------------

    def hold(self, seq: int) -> None:
        """Delay an entry that is ready: no read returns it. The journal is not concerned."""
        segment = self.tail
        rel = seq - segment.base
        if not 0 <= rel < len(segment.states):
            segment = self.segment_of(seq)
            rel = seq - segment.base
        if segment.states[rel] == PUBLISHED:
            segment.states[rel] = HELD
        elif segment.states[rel] == DELIVERED:
            segment.states[rel] = HELD_AGAIN

    def hold_many(self, seqs: I64) -> Bools:
        """Delay those of these entries that are ready, and return which are delayed now.

        Segments that are not in memory are not read: their entries are taken for ready.
        Shape ``(n,)``.
        """
        held = np.zeros(len(seqs), np.bool_)
        for segment, mine in self._segments_of(seqs):
            held[mine] = segment.hold(seqs[mine] - segment.base)
        return held

    def bring_all(self, seqs: I64) -> None:
        """Bring the segments of these entries into memory. Damage is reported."""
        for segment, _ in self._segments_of(seqs):
            if not segment.loaded:
                with suppress(DamageError):
                    self.bring(segment)

    def are_there(self, seqs: I64) -> Bools:
        """Return which of these entries are published and not acknowledged. Segments that are not
        in memory are not read: their entries are taken to be there. Shape ``(n,)``."""
        there = np.zeros(len(seqs), np.bool_)
        for segment, mine in self._segments_of(seqs):
            if segment.loaded:
                states = np.frombuffer(segment.states, np.uint8)[seqs[mine] - segment.base]
                there[mine] = (states != ABSENT) & (states != ACKED)
            else:
                there[mine] = True
        return there

    def _segments_of(self, seqs: I64) -> Iterator[tuple[Segment, Bools]]:
        """Yield the segments of these entries, without reading any, each with which entries are in
        it."""
        for number in segment_numbers(seqs, self.entry_count) if len(seqs) else ():
            segment = self.segments.get(number)
            if segment is not None:
                segment.unpack()
                yield segment, seqs // self.entry_count == number

    def is_held(self, seq: int) -> bool:
        """Return whether an entry is delayed. Raises as :meth:`load`."""
        if seq // self.entry_count not in self.segments:
            return False
        return self.state_of(seq) in (HELD, HELD_AGAIN)

    def release(self, seq: int) -> None:
        """Make a delayed entry ready."""
        segment = self.segment_of(seq)
        rel = seq - segment.base
        if segment.states[rel] == HELD:
            segment.states[rel] = PUBLISHED
        elif segment.states[rel] == HELD_AGAIN:
            segment.states[rel] = DELIVERED

    def release_all(self) -> None:
        """Make all delayed entries ready."""
        for segment in self.segments.values():
            segment.release_all()

    # -- transactions ---------------------------------------------------------------------------

    def pend(self, seq: int) -> None:
        """Keep an entry that was just published from all readers. The journal is not concerned."""
        segment = self.tail
        rel = seq - segment.base
        if rel < 0:
            segment = self.segment_of(seq)
            rel = seq - segment.base
        self.changing += 1
        segment.states[rel] = PENDING
        self.pending += 1
        self.changing -= 1

    def admit(self, seq: int) -> None:
        """Make an entry ready whose transaction is committed."""
        segment = self.tail
        rel = seq - segment.base
        if not 0 <= rel < len(segment.states):
            segment = self.segment_of(seq)
            rel = seq - segment.base
        self.changing += 1
        segment.states[rel] = PUBLISHED
        self.pending -= 1
        self.changing -= 1

    # -- move -----------------------------------------------------------------------------------

    def begin_move(self, seq: int) -> bool:
        """Mark an entry that is out as being moved to another queue. Return False, changing
        nothing, if it is not out."""
        segment = self.recent
        rel = seq - segment.base
        if not 0 <= rel < len(segment.states):
            segment = self.recent = self.segment_of(seq)
            rel = seq - segment.base
        if segment.states[rel] != OUT:
            return False
        segment.states[rel] = MOVING
        return True

    def undo_move(self, seq: int) -> None:
        """Mark an entry that was being moved as out."""
        segment = self.segment_of(seq)
        segment.states[seq - segment.base] = OUT

    def count_moved(self, count: int) -> None:
        """Count entries as gone that are in another queue now: :meth:`end_move` comes later."""
        self.changing += 1
        self.acks += count
        self._moved += count
        self.changing -= 1

    def end_move(self, seqs: I64) -> None:
        """Acknowledge entries that were moved and counted. As :meth:`acknowledge`."""
        records, journal = self._room_for(ACK, seqs)
        self.changing += 1
        self._acknowledged(journal, records, seqs)
        self._moved -= len(seqs)
        self.changing -= 1

    # -- drop -----------------------------------------------------------------------------------

    def drop(self, seqs: I64) -> None:
        """Acknowledge entries that are with nobody, and that no consumer will get (expired, purged,
        damaged): deliver and ack go to the journal, as for any other. As :meth:`acknowledge`."""
        states = self.states_of(seqs)
        pending = states == PENDING
        fresh = (states == PUBLISHED) | (states == HELD) | pending
        delivers = self._words(DELIVER, seqs[fresh])
        records = delivers + self._words(ACK, seqs)
        journal = self._make_room(len(records))
        self.changing += 1
        self._acknowledged(journal, records, seqs)
        self.dropped += len(seqs)
        self.pending -= int(pending.sum())
        self.changing -= 1

    def drop_transient(self) -> list[bytes]:
        """Acknowledge the transient messages, which end with the engine's run. Return the message
        ids of those in the message store."""
        stored: list[bytes] = []
        if self.transient:
            seqs = np.array(sorted(self.transient), np.int64)
            states = self.states_of(seqs)
            self._set_states(seqs[states == OUT], DELIVERED)
            going = seqs[(states != ABSENT) & (states != ACKED)]
            for number in segment_numbers(going, self.entry_count):
                segment = self.segments[number]
                rels = going[going // self.entry_count == number] - segment.base
                stored += self.stored_ids(segment, rels)
            self.drop(going)
        return stored

    def purge(self, stored: list[bytes] | None) -> int:
        """Drop all ready and delayed entries; return their number, and put the message ids of
        those in the message store into ``stored`` as they go, if it is given. No flush may be under
        way.

        The files of segments that are not in memory (nothing of theirs is with a consumer or in
        the journal) are deleted at once; for the others acks are appended.
        """
        self.poison.check()
        dropped = 0
        unlinked = False
        for segment in list(self.segments.values()):
            segment.release_all()
            if not segment.loaded and not segment.unpack():
                path = segment_path(self.directory, segment.number)
                going: list[bytes] = []
                if stored is not None:
                    self.load(segment)
                    states = np.frombuffer(segment.states, np.uint8)
                    alive = np.flatnonzero((states == PUBLISHED) | (states == DELIVERED))
                    going = self.stored_ids(segment, alive)
                    segment.unload()
                with storage_errors(path, "the segment can't be deleted"):
                    if segment.file_size:
                        segment_file.delete(self.fs, self.directory, segment.number)
                        unlinked = True
                dropped += segment.stored_unacked
                self.dropped += segment.stored_unacked
                self._actions_flushed += 2 * segment.stored_unacked  # nothing is in the journal
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
            with storage_errors(self.directory, "the directory can't be synced"):
                self.fs.sync_dir(self.directory)
        return dropped

    # -- after a call that was cut short --------------------------------------------------------

    def take_over(self, end: int, held: int, sums: int = 0) -> None:
        """Go on with the journal that an earlier run has left, whose records end at ``end``, and
        with the ``sums`` bytes of its checksums. The queue holds ``held`` messages.

        The queue was just opened, and knows the segments as their files are. Raises
        :class:`StorageError` and :class:`DamageError`.
        """
        path = self.journal.path
        opening = storage_errors(path, "the journal can't be opened")
        with opening, opened(self.fs, path, os.O_RDWR) as fd:
            # A hole in it would need room on the disk at some store into the map.
            self.fs.fallocate(fd, 0, self.fs.fstat(fd).st_size)
        entries = min(held, self.entry_count)
        journal = Journal(
            self.fs, path, self.poison, position=end, entries=entries, kept=True, sums=sums
        )
        journal.before_waking = self._waking
        # The close, or the recovery, that left the journal has synced it.
        journal.synced = end
        journal.highest = len(journal.map)
        self.journal = journal
        walk = walk_journal(journal.map, 0, end)
        for number in segment_numbers(walk.seqs, self.entry_count):
            segment = self.segments.get(number)
            if segment is not None and not segment.loaded:
                self.load(segment)
        published = JournalRecords(path, walk).entries
        if len(published):
            self.positions_base = int(published.seqs[0])
        self.rebuild()
        # Deliveries and acks of the earlier run are not counted.
        self._live_before = sum(segment.unacked for segment in self.segments.values())
        self._first_seq = self.next_seq
        self.taken = self.acks = 0
        self._actions_flushed = self.actions - len(walk)

    def rebuild(self) -> None:
        """Forget the memory of a call that was cut short, and read the journal again.

        States become those of the files, with the journal merged into them; positions and counters
        follow. Entries that are out or being moved stay so, but for those that the call was handing
        out: they are ready again. No flush may be under way. Segment files are not read.
        """
        journal = self.journal
        if journal.end:
            self._journal_data()
        journal.erase_tail()
        walk = walk_journal(journal.map, 0, journal.end)
        records = JournalRecords(journal.path, walk)
        for number in records.segment_numbers(self.entry_count):
            if number not in self.segments:
                self.segments[number] = Segment(number, self.entry_count)
        one = self.handing_one
        handing = _array(self.handing)
        if one >= 0:
            handing = np.append(handing, one)
        for segment in self.segments.values():
            if segment.loaded or segment.unpack():
                self._rebuild_states(segment, records, handing)
        entries = records.entries
        if len(entries):
            self.next_seq: int = max(self.next_seq, int(entries.seqs[-1]) + 1)
        positions = np.full(self.next_seq - self.positions_base, -1, np.int64)
        known = entries.take(entries.seqs >= self.positions_base)
        positions[known.seqs - self.positions_base] = known.offsets
        self.positions: array[int] = array("q", positions.tobytes())
        self.transient.update(walk.seqs[walk.kinds == PUBLISH_TRANSIENT].tolist())
        self.transient = {seq for seq in self.transient if self._may_live(seq)}
        # The next publish takes the right one: the call may have been cut short ahead of that.
        self.tail = EMPTY_WINDOW.segment
        self.tail_end = 0
        self.recent = EMPTY_WINDOW.segment
        self.ahead.forget(next((one.base for one in self.segments.values()), self.next_seq))
        self.handing_one = -1
        self.handing = _NONE
        self._count_again()
        self.changing = 0

    @staticmethod
    def _rebuild_states(segment: Segment, records: JournalRecords, handing: I64) -> None:
        states = np.frombuffer(segment.states, np.uint8)
        held = (states == OUT) | (states == MOVING)
        inside = (handing >= segment.base) & (handing < segment.base + len(states))
        held[handing[inside] - segment.base] = False
        merged = np.frombuffer(segment.filed, np.uint8).copy()
        records.merge_into(merged, segment.base)
        held &= merged == DELIVERED
        merged[held] = states[held]
        merged[(states == PENDING) & (merged == PUBLISHED)] = PENDING
        states[:] = merged

    def _may_live(self, seq: int) -> bool:
        segment = self.segments.get(seq // self.entry_count)
        if segment is None:
            return False
        return not segment.loaded or segment.states[seq - segment.base] not in (ABSENT, ACKED)

    def _count_again(self) -> None:
        """Set the counters of acks and deliveries by what the segments hold."""
        live = sum(segment.unacked for segment in self.segments.values()) - self._moved
        self.pending = sum(segment.pending for segment in self.segments.values())
        out = sum(segment.outstanding for segment in self.segments.values())
        out -= self._moved + self.pending
        published = self.next_seq - self._first_seq
        self.acks = self._live_before + published - self.dropped - live
        self.taken = out + self.acks + self.nacks

    # -- many entries ---------------------------------------------------------------------------

    @staticmethod
    def _words(kind: int, seqs: Seqs) -> bytes:
        """Return a deliver or ack record for each seq_id."""
        bits = kind << TYPE_SHIFT
        if isinstance(seqs, range):
            return words.join_words(bits | seqs.start, len(seqs))
        return (seqs.astype(np.uint64) | np.uint64(bits)).astype(">u8").tobytes()

    def _room_for(self, kind: int, seqs: Seqs) -> tuple[bytes, Journal]:
        """Return a deliver or ack record for each seq_id, and the journal, with room for them."""
        records = self._words(kind, seqs)
        return records, self._make_room(len(records))

    def _make_room(self, size: int) -> Journal:
        journal = self.journal
        if size and journal.end + size > journal.word_limit:
            journal.make_room(size, reserve=True)
        return journal

    def state_of(self, seq: int) -> int:
        """Return the state of an entry that was published."""
        segment = self.segment_of(seq)
        return segment.states[seq - segment.base]

    def _with_state(self, seqs: Seqs, state: int) -> Seqs:
        """Return those of these entries that have this state."""
        return seqs if self.all_are(seqs, state) else _array(seqs)[self.states_of(seqs) == state]

    def _run_of(self, seqs: Seqs) -> tuple[Segment, int, int] | None:
        """Return the segment of these entries, and the first and the end in it, if they are a run
        within one."""
        if not isinstance(seqs, range) or not seqs:
            return None
        segment = self.segment_of(seqs.start)
        rel = seqs.start - segment.base
        end = rel + len(seqs)
        return (segment, rel, end) if end <= self.entry_count else None

    def all_are(self, seqs: Seqs, state: int) -> bool:
        """Return whether these entries, whose segments are loaded, all have this state."""
        run = self._run_of(seqs)
        if run is None:
            return bool((self.states_of(seqs) == state).all())
        segment, first, end = run
        return segment.states.count(state, first, end) == end - first

    def _set_states(self, seqs: Seqs, state: int) -> None:
        """Set the state of entries whose segments are loaded."""
        run = self._run_of(seqs)
        if run is not None:
            segment, first, end = run
            segment.states[first:end] = bytes((state,)) * (end - first)
            return
        some = _array(seqs)
        for segment, inside in self._by_segment(some):
            np.frombuffer(segment.states, np.uint8)[some[inside] - segment.base] = state

    def _by_segment(self, seqs: I64) -> Iterator[tuple[Segment, slice | Bools]]:
        """Group seq_ids by their segments; each group as an index into ``seqs``."""
        if not len(seqs):
            return
        numbers = segment_numbers(seqs, self.entry_count)
        if len(numbers) == 1:
            yield self.segment_of(int(seqs[0])), slice(None)
            return
        for number in numbers:
            yield self.segment_of(number * self.entry_count), seqs // self.entry_count == number

    def states_of(self, seqs: Seqs) -> U8:
        """Return the states of entries that were published."""
        some = _array(seqs)
        states = np.zeros(len(some), np.uint8)
        for segment, inside in self._by_segment(some):
            states[inside] = np.frombuffer(segment.states, np.uint8)[some[inside] - segment.base]
        return states

    def trim_unused(self) -> None:
        """Release the maps of segments that are not in use."""
        self.trim((self.ahead.window.segment, self.recent), self.ahead.next_fetch)

    # -- flush ----------------------------------------------------------------------------------

    def plan(self) -> FlushPlan | None:
        """Part 1 of a flush (:mod:`qindex.index.flush`), or ``None`` when nothing is to be done."""
        front = self.journal.tell()
        if front:
            self._journal_data()
        positions = np.array(self.positions, np.int64)
        plans = []
        for segment in self.segments.values():
            segment.unpack()
            if segment.dirty:
                first = self.positions_base - segment.base
                rel = max(first, 0)
                offsets = positions[rel - first : rel - first + self.entry_count - rel]
                plans.append(plan_segment(segment, rel, offsets))
        if not plans and not front:
            # Repeated deliveries count as actions, and write nothing.
            self._actions_flushed = self.actions
            return None
        return FlushPlan(
            self.directory,
            self.journal.map,
            front,
            self.actions,
            self.next_seq,
            plans,
        )

    def finish(self, plan: FlushPlan, prepared: Retired | None) -> Retired | None:
        """Part 3 of a flush: empty the journal up to the plan's point, and take over what the
        segment files hold now. Returns what :meth:`Journal.retire` is to have, without the lock.
        Raises :class:`StorageError`; writes are then refused."""
        self.journal.entries = self._most_consumed()
        self.changing += 1
        try:
            old = self.journal.rebase(plan.front, prepared)
        except StorageError:
            self.changing -= 1  # the old records stay mapped, at the old positions
            raise
        done = plan.next_seq - self.positions_base
        rest = np.array(self.positions[done:], np.int64)
        rest[rest >= 0] -= plan.front
        self.positions = array("q", rest.tobytes())
        self.positions_base: int = plan.next_seq
        self._actions_flushed = plan.actions
        self.flushes += 1
        for planned in plan.segments:
            self._take_over(planned)
        self.changing -= 1
        return old

    def _take_over(self, planned: SegmentPlan) -> None:
        segment = self.segments[planned.number]
        segment.file_size = planned.file_size
        if planned.deleted:
            segment.filed = bytearray(self.entry_count)
            segment.offsets = segment.lengths = None
            # The file's entries, all acknowledged, are now as if they had never been there.
            states = np.frombuffer(segment.states, np.uint8)
            states[np.frombuffer(planned.states, np.uint8) == ACKED] = ABSENT
            if segment is not self.tail and not states.any():
                del self.segments[planned.number]
                # The read and ack paths keep this object, and must find it empty: a later publish
                # makes another segment of this number.
                segment.unload()
            return
        filed = np.frombuffer(planned.states, np.uint8).copy()
        vanished = (np.frombuffer(planned.filed, np.uint8) == ABSENT) & (filed == ACKED)
        filed[vanished] = ABSENT
        segment.filed = bytearray(filed.tobytes())
        if planned.missing:
            self.report_missing(planned)
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
        """Return the seq_ids up to ``seq_id`` that are with a consumer, ascending."""
        found = [
            np.flatnonzero(np.frombuffer(segment.states, np.uint8) == OUT) + segment.base
            for segment in self.segments.values()
            if segment.loaded and segment.base <= seq_id
        ]
        seqs = np.concatenate(found) if found else np.empty(0, np.int64)
        return seqs[seqs <= seq_id]


def _array(seqs: Seqs) -> I64:
    return np.array(seqs, np.int64) if isinstance(seqs, range) else seqs


def _nothing() -> None:
    """Nobody wants to know."""
