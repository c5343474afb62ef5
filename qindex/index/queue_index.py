"""The queue index: one queue's journal, its segments with their state maps, and the flush.

Everything here is called with the queue's lock held, but for :func:`qindex.index.flush.write_plan`,
which the flush calls without it. The hot paths (publish, deliver, ack) are in
:mod:`qindex.queue.queue`, which works on the attributes of this class directly.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from journal import format as journal_format
from journal.durations import NO_DURATIONS, Durations
from journal.errors import StorageError
from journal.files import FileSystem
from journal.format import ACK, DELIVER, TYPE_SHIFT
from journal.journal import Journal, Retired
from journal.poison import Poison
from journal.rested import RestedJournal, rest
from qindex.format.segment import file_name
from qindex.index.flush import FlushPlan, SegmentPlan, plan_segment, remove_sums
from qindex.index.index_reader import IndexReader
from qindex.index.read_ahead import NOTHING_FETCHED
from qindex.index.segment import ABSENT, ACKED, DELIVERED, OUT, PUBLISHED, Segment, segment_numbers
from qindex.index.seq_ids import SeqFile

__all__ = ["QueueIndex"]

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class QueueIndex(IndexReader):
    """Journal, segments and counters of one queue.

    Counters, each raised by one statement of a hot path, from which the others follow: ``taken``
    (deliveries), ``acks`` (of deliveries), ``nacks``, ``dropped`` (acknowledged without having
    been delivered). ``tail_end``: the first seq_id behind the tail.
    ``journal``: at rest until it is needed, and after :meth:`rest`; ``before_waking`` is called
    before its file is opened.
    """

    __slots__ = ("acks", "tail_end", "taken", "transient")

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
        self.taken = 0
        self.acks = 0
        self.nacks = 0
        self.dropped = 0
        self._first_seq = next_seq
        self._actions_flushed = next_seq
        self.transient: set[int] = set()
        self.flushes = 0
        self.flushed_bytes = 0
        self._syncs_before = 0
        self._sync_durations_before = NO_DURATIONS
        self.before_waking: Callable[[], None] = _nothing
        self.journal: Journal | RestedJournal = self._rested_journal(used=False)
        self.tail_end = 0

    @property
    def live(self) -> int:
        """Messages published and not acknowledged."""
        published = self.next_seq - self._first_seq
        return self._live_before + published - self.acks - self.dropped

    def _most_consumed(self) -> int:
        """Count the entries that can be consumed before the file of a segment can go."""
        return min(self.live, self.entry_count)

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

    # -- the journal's file ---------------------------------------------------------------------

    def _rested_journal(self, *, used: bool) -> RestedJournal:
        path = os.path.join(self.directory, journal_format.FILE_NAME)
        return RestedJournal(self.fs, path, self.poison, self._wake_journal, used=used)

    def _wake_journal(self) -> Journal:
        if isinstance(self.journal, RestedJournal):
            self.before_waking()
            at_rest = self.journal
            entries = self._most_consumed()
            self.journal = Journal(
                self.fs, at_rest.path, self.poison, entries=entries, rested=at_rest.used
            )
        return self.journal

    def rest(self) -> None:
        """Close the journal, which a flush has just emptied, and give back the memory of what can
        be had again: the next touch takes it. Raises as :meth:`Journal.sync`."""
        journal = self.journal
        if isinstance(journal, Journal):
            rest(journal)
            self._syncs_before += journal.syncs
            self._sync_durations_before += journal.sync_durations
            self.journal = self._rested_journal(used=True)
        tail = self.tail
        self.tail = self._reading = NOTHING_FETCHED.segment
        self.tail_end = 0
        for segment in list(self.segments.values()):
            if not segment.loaded or segment.outstanding or segment.dirty:
                continue
            if not segment.unacked and not segment.file_size:
                del self.segments[segment.number]
                segment.unload()
            elif segment is tail:
                segment.pack()
            else:
                segment.unload()

    @property
    def syncs(self) -> int:
        """How many syncs of the journal have been made."""
        return self._syncs_before + self.journal.syncs

    @property
    def sync_durations(self) -> Durations:
        """How long they took."""
        return self._sync_durations_before + self.journal.sync_durations

    def roll(self) -> Segment:
        """Take the segment of ``next_seq`` as the tail; reserves seq_ids when they run out.

        Raises :class:`StorageError`; nothing has changed then.
        """
        if self.next_seq + self.entry_count > self.seq_file.reserved:
            self.seq_file.reserve(self.next_seq)
        self.tail = self.segment_of(self.next_seq)
        self.tail_end = self.tail.base + self.entry_count
        return self.tail

    # -- actions on many entries ----------------------------------------------------------------

    def append_actions(self, kind: int, seqs: I64) -> None:
        """Append a deliver or ack record for each seq_id, in one piece."""
        if len(seqs):
            words = seqs.astype(np.uint64) | np.uint64(kind << TYPE_SHIFT)
            self.journal.append(words.astype(">u8").tobytes(), reserve=True)

    def _run_of(self, seqs: I64) -> tuple[Segment, int, int] | None:
        """Give the segment of these entries, and the first and the end in it, if they are a run."""
        count = len(seqs)
        if not count:
            return None
        first = int(seqs[0])
        if int(seqs[-1]) - first != count - 1 or (count > 2 and not (np.diff(seqs) == 1).all()):
            return None
        segment = self.segment_of(first)
        rel = first - segment.base
        return (segment, rel, rel + count) if rel + count <= self.entry_count else None

    def all_are(self, seqs: I64, state: int) -> bool:
        """Tell whether these entries, whose segments are loaded, all have this state."""
        run = self._run_of(seqs)
        if run is None:
            return bool((self.states_of(seqs) == state).all())
        segment, first, end = run
        return segment.states.count(state, first, end) == end - first

    def set_states(self, seqs: I64, state: int) -> None:
        """Set the state of entries whose segments are loaded."""
        run = self._run_of(seqs)
        if run is not None:
            segment, first, end = run
            segment.states[first:end] = bytes((state,)) * (end - first)
            return
        for segment, inside in self._by_segment(seqs):
            np.frombuffer(segment.states, np.uint8)[seqs[inside] - segment.base] = state

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
        """Part 1 of a flush (:mod:`qindex.index.flush`), or ``None`` when nothing is to be done."""
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
        self.journal.entries = self._most_consumed()
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


def _nothing() -> None:
    """Nobody wants to know."""
