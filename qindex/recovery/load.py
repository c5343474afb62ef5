"""Recovery: read a queue's journal and segments, and say what state each entry is in.

Nothing is written here. An open that may write takes the result, sets damaged bytes aside and
flushes; a read-only view, the command line and verify just look.

What journal and segment say of one entry is merged by :mod:`qindex.index.merge`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from journal import format as journal_format
from journal.files import FileSystem, read_optional
from journal.findings import Cause, Finding
from journal.format import PUBLISH_TRANSIENT, SEQ_MASK
from qindex.format.record_layouts import journal_layout
from qindex.format.resynchronise import Data, Elsewhere, Reading, read_soundly
from qindex.format.segment import PUBLISH_HEAD_SIZE, STEP_SIZE, file_number
from qindex.index.merge import JournalRecords
from qindex.index.segment import DELIVERED, PUBLISHED, Segment, segment_numbers
from qindex.index.segment_scan import read_healed, scan_segment, stored_entries
from qindex.recovery.early_steps import ahead_findings, ahead_of_publishes

__all__ = [
    "JournalEntries",
    "LoadedQueue",
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
    """Merge the journal's records into the segments' states (:mod:`qindex.index.merge`)."""
    walk = reading.walk
    # A deliver or ack counts too: its seq_id was given out, even if its segment is gone.
    loaded.seen = max(loaded.seen, int(walk.seqs.max()) + 1 if len(walk) else 0)
    records = JournalRecords(path, walk)
    count = loaded.entry_count
    fresh = [np.zeros(0, np.bool_)]
    for number in records.segment_numbers(count):
        segment = loaded.segments.get(number)
        if segment is None:
            segment = loaded.segments[number] = Segment(number, count)
        states = np.frombuffer(segment.states, np.uint8)
        merged = records.merge_into(states, segment.base)
        fresh.append(merged.fresh)
        loaded.findings += merged.findings
        if not states.any() and not segment.file_size:
            del loaded.segments[number]
        loaded.transient.difference_update(merged.acked)
    is_transient = walk.seqs[walk.kinds == PUBLISH_TRANSIENT]
    for seq in is_transient.tolist():
        segment = loaded.segments.get(seq // count)
        if segment is not None and segment.states[seq - segment.base] in (PUBLISHED, DELIVERED):
            loaded.transient.add(seq)
    entries = records.entries.take(np.concatenate(fresh))
    loaded.journal = JournalEntries(entries.seqs, entries.offsets, reading.data)
    bare = entries.take(entries.lengths == _JOURNAL_HEAD)
    loaded.stored += stored_entries(
        reading.data,
        bare.seqs,
        bare.offsets + journal_format.ACTION_SIZE,
        np.zeros(len(bare), np.int64),
    )
