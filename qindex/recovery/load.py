"""Recovery: read a queue's journal and segments, and say what state each entry is in.

Nothing is written here. An open that may write takes the result, sets damaged bytes aside and
flushes; a read-only view, the command line and verify just look.

What journal and segment say of one entry is merged by one rule, which covers every combination
(RabbitMQ's table has gaps that hang the node): *published* if either says so, *delivered* if
either does, *acknowledged* if either does; a deliver or ack of an entry that neither has published
is dropped (its segment was deleted). So a flush that was cut short by a crash, which leaves the
same entries in both, changes nothing.

None of this is damage by itself: after a loss of power any un-synced page of the journal may be
missing, so that a deliver can be there without its publish, and an ack without its deliver.

One combination is doubted: an ack in the journal of an entry that nobody was given. It is taken
as an ack only where later entries were delivered (then its deliver record is what got lost);
otherwise the message stays: a message too many is better than one too few.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from journal import format as journal_format
from journal.files import FileSystem, read_optional
from journal.findings import Cause, Finding, Kind
from journal.format import ACK, DELIVER, PUBLISH_TRANSIENT, SEQ_MASK
from journal.replay import Walk
from qindex.format.record_layouts import journal_layout
from qindex.format.resynchronise import Data, Elsewhere, Reading, read_soundly
from qindex.format.segment import PUBLISH_HEAD_SIZE, STEP_SIZE, file_number
from qindex.index.segment import ABSENT, ACKED, DELIVERED, PUBLISHED, Segment, segment_numbers
from qindex.index.segment_scan import (
    last_of_each,
    read_healed,
    scan_segment,
    stored_entries,
)
from qindex.recovery.early_steps import ahead_findings, ahead_of_publishes

__all__ = [
    "JournalEntries",
    "LoadedQueue",
    "apply_steps",
    "load_queue",
]

_JOURNAL_HEAD = journal_format.PUBLISH_HEAD_SIZE

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


@dataclass(slots=True)
class JournalEntries:
    """Publish records found in a journal that no segment has: sorted by seq_id."""

    seqs: I64
    offsets: I64
    data: Data


@dataclass(slots=True)
class LoadedQueue:
    """A queue as its files have it.

    ``segments``: by number; those that the journal touches are loaded and dirty, others know
    their counts only. ``seen``: one above the highest seq_id met. ``transient``: seq_ids of
    messages published as transient and not acknowledged. ``unacked``: messages held.
    ``sound_files``: what the files of damaged segments (by number) should hold; the states and
    offsets of those are of these bytes. ``stored``: seq_id and message id of each entry whose
    message is in the persistent message store.
    """

    directory: str
    entry_count: int
    segments: SortedDict
    journal: JournalEntries
    seen: int
    transient: set[int]
    journal_size: int
    findings: list[Finding] = field(default_factory=list)
    sound_files: dict[int, bytes] = field(default_factory=dict)
    stored: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def unacked(self) -> int:
        """Messages published and not acknowledged."""
        return sum(segment.unacked for segment in self.segments.values())

    def holds(self, seq_id: int) -> bool | None:
        """Tell whether an entry is published, persistent and not acknowledged; ``None`` when its
        segment is not in memory."""
        segment = self.segments.get(seq_id // self.entry_count)
        if segment is None or seq_id in self.transient:
            return False
        if not segment.loaded:
            return None
        return segment.states[seq_id - segment.base] in (PUBLISHED, DELIVERED)


def load_queue(
    fs: FileSystem,
    directory: str,
    entry_count: int,
    *,
    seq_limit: int = SEQ_MASK,
    given_out: int | None = None,
    power_lost: bool = False,
) -> LoadedQueue:
    """Read all of a queue's directory.

    ``seq_limit``: no seq_id above it was ever given out. ``given_out``: all seq_ids below were
    before the journal's first record; known where no power was lost since. ``power_lost``: see
    :class:`qindex.format.resynchronise.Layout`. Raises :class:`OSError`. Damage is no
    error here: see ``findings``. Memory: one segment file at a time, and the journal.
    """
    segments: SortedDict = SortedDict()
    loaded = LoadedQueue(directory, entry_count, segments, _no_journal(), 0, set(), 0, findings=[])
    journal_path = os.path.join(directory, journal_format.FILE_NAME)
    data = read_optional(fs, journal_path) or b""
    healed = read_healed(fs, journal_path, loaded.findings, data, power_lost)
    layout = journal_layout(seq_limit, power_lost=power_lost, complete=healed.end)
    reading = read_soundly(journal_path, healed.data, layout, healed.whole)
    loaded.findings += reading.findings
    loaded.journal_size = reading.walk.end
    touched = set(segment_numbers(reading.walk.seqs, entry_count))
    # A flush that was cut short may leave a torn entry in a segment; the journal has it whole.
    published = Elsewhere.of(reading.walk, _JOURNAL_HEAD)
    elsewhere = published if seq_limit < SEQ_MASK else None
    for name in sorted(fs.listdir(directory)):
        number = file_number(name)
        if number is not None:
            keep = number in touched
            _load_segment(fs, loaded, name, number, keep, elsewhere, power_lost)
    if given_out is not None:
        _drop_ahead(loaded, journal_path, reading, given_out)
    _merge(loaded, journal_path, reading)
    loaded.stored = [
        (seq, msg_id) for seq, msg_id in loaded.stored if loaded.holds(seq) is not False
    ]
    for segment in segments.values():
        if segment.loaded and not segment.dirty:
            segment.unload()
    return loaded


def _no_journal() -> JournalEntries:
    return JournalEntries(np.empty(0, np.int64), np.empty(0, np.int64), b"")


def _load_segment(
    fs: FileSystem,
    loaded: LoadedQueue,
    name: str,
    number: int,
    keep: bool,
    elsewhere: Elsewhere | None,
    power_lost: bool,
) -> None:
    path = os.path.join(loaded.directory, name)
    findings: list[Finding] = []
    healed = read_healed(fs, path, findings, power_lost=power_lost)
    count = loaded.entry_count
    scan = scan_segment(path, healed.data, number, count, healed.whole, elsewhere, power_lost)
    findings += scan.findings
    if findings:
        loaded.findings += findings
        sound = loaded.sound_files[number] = scan.sound_bytes()
        scan = scan_segment(path, sound, number, loaded.entry_count)
    segment = Segment(number, loaded.entry_count)
    segment.file_size = scan.size
    offsets, lengths = scan.located()
    segment.load(scan.filed, offsets, lengths)
    found_states = np.frombuffer(scan.filed, np.uint8)
    found = np.flatnonzero(found_states)
    if len(found):
        loaded.seen = max(loaded.seen, segment.base + int(found[-1]) + 1)
    loaded.transient.update(scan.transient.tolist())
    alive = (found_states == PUBLISHED) | (found_states == DELIVERED)
    rels = np.flatnonzero(alive)
    loaded.stored += stored_entries(
        scan.data,
        rels + segment.base,
        offsets[rels] + STEP_SIZE,
        lengths[rels] - PUBLISH_HEAD_SIZE,
    )
    if not keep and not segment.dirty:
        segment.unload()
    loaded.segments[number] = segment


def _drop_ahead(loaded: LoadedQueue, path: str, reading: Reading, given_out: int) -> None:
    """Leave out delivers and acks of what was not published by then
    (:mod:`qindex.recovery.early_steps`)."""
    if any(finding.cause is Cause.DAMAGE for finding in reading.findings):
        return  # their publishes may be what is damaged
    # A node that had the queue for a while knows of no other file than its segments.
    ahead = ahead_of_publishes(reading.walk, max(given_out, loaded.seen))
    if ahead.any():
        loaded.findings += ahead_findings(path, reading.walk, ahead)
        reading.walk = reading.walk.take(~ahead)


def _merge(loaded: LoadedQueue, path: str, reading: Reading) -> None:
    """Bring the journal's records into the segments' states; see the module's text."""
    walk = reading.walk
    publishes = walk.kinds < DELIVER
    entries = last_of_each(walk.take(publishes))
    seqs, offsets = entries.seqs, entries.offsets
    # A deliver or ack counts too: its seq_id was given out, even if its segment is gone.
    loaded.seen = max(loaded.seen, int(walk.seqs.max()) + 1 if len(walk) else 0)
    delivered = walk.seqs[walk.kinds == DELIVER]
    last_delivered = int(delivered.max()) if len(delivered) else -1
    in_journal = np.ones(len(seqs), np.bool_)
    count = loaded.entry_count
    for number in segment_numbers(walk.seqs, count):
        segment = loaded.segments.get(number)
        if segment is None:
            segment = loaded.segments[number] = Segment(number, count)
        states = np.frombuffer(segment.states, np.uint8)
        low, high = np.searchsorted(seqs, (segment.base, segment.base + count))
        rels = seqs[low:high] - segment.base
        in_journal[low:high] = states[rels] == ABSENT
        states[rels] = np.maximum(states[rels], PUBLISHED)
        acked = apply_steps(loaded.findings, path, walk, segment.base, states, last_delivered)
        if not states.any() and not segment.file_size:
            del loaded.segments[number]
        loaded.transient.difference_update(acked)
    is_transient = walk.seqs[walk.kinds == PUBLISH_TRANSIENT]
    for seq in is_transient.tolist():
        segment = loaded.segments.get(seq // count)
        if segment is not None and segment.states[seq - segment.base] in (PUBLISHED, DELIVERED):
            loaded.transient.add(seq)
    loaded.journal = JournalEntries(seqs[in_journal], offsets[in_journal], reading.data)
    bare = walk.offsets[publishes & (walk.lengths == _JOURNAL_HEAD)]
    if len(bare):
        chosen = np.isin(loaded.journal.offsets, bare)
        loaded.stored += stored_entries(
            reading.data,
            loaded.journal.seqs[chosen],
            loaded.journal.offsets[chosen] + journal_format.ACTION_SIZE,
            np.zeros(int(chosen.sum()), np.int64),
        )


def apply_steps(
    findings: list[Finding], path: str, walk: Walk, base: int, states: U8, last_delivered: int
) -> list[int]:
    """Bring the delivers and acks of a journal into the ``states`` of the segment whose first
    seq_id is ``base``; gives the seq_ids that were acknowledged. See the module's text.

    ``last_delivered``: the highest seq_id of all delivers in the journal, -1 for none.
    """
    inside = (walk.seqs >= base) & (walk.seqs < base + len(states))
    steps = inside & (walk.kinds >= DELIVER)
    if not steps.any():
        return []
    rels = walk.seqs[steps] - base
    kinds = walk.kinds[steps]
    at = walk.offsets[steps]
    unknown = states[rels] == ABSENT
    delivers = (kinds == DELIVER) & ~unknown
    acks = (kinds == ACK) & ~unknown
    acked_rels = set(rels[kinds == ACK].tolist())
    for index in np.flatnonzero((kinds == DELIVER) & unknown).tolist():
        # With its ack behind it this is what a crash after the deletion of a segment leaves.
        if int(rels[index]) not in acked_rels:
            what = f"deliver of seq_id {base + int(rels[index])}, never published"
            consequence = "dropped; no message is lost"
            findings.append(_step_finding(path, int(at[index]), what, consequence))
    states[rels[delivers]] = np.maximum(states[rels[delivers]], DELIVERED)
    given = states[rels] >= DELIVERED
    doubtful = acks & ~given
    for index in np.flatnonzero(doubtful).tolist():
        seq = base + int(rels[index])
        explained = seq < last_delivered
        consequence = "taken as acknowledged" if explained else "dropped; the message stays"
        what = f"ack of seq_id {seq}, which was never delivered"
        findings.append(_step_finding(path, int(at[index]), what, consequence))
        given[index] = explained
    taken = rels[acks & given]
    states[taken] = ACKED
    return [base + rel for rel in taken.tolist()]


def _step_finding(path: str, offset: int, what: str, consequence: str) -> Finding:
    length = journal_format.ACTION_SIZE
    return Finding(path, offset, length, Cause.CRASH, what, consequence, Kind.STEP)
