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
from journal.block_sums import BLOCK, Healed, heal, read_sums
from journal.files import FileSystem, ReadBuffer, read_file, read_optional
from journal.findings import Cause, Finding, Kind
from journal.format import ACK, DELIVER, PUBLISH_TRANSIENT, SEQ_MASK
from journal.replay import Walk
from qindex.layouts import journal_layout, segment_layout
from qindex.record_format import gather_bytes
from qindex.segment import ABSENT, ACKED, DELIVERED, PUBLISHED, Segment, segment_numbers
from qindex.segment_format import PUBLISH_HEAD_SIZE, STEP_SIZE, file_number
from qindex.sound_read import Data, Elsewhere, Reading, read_soundly
from qindex.steps import ahead_findings, ahead_of_publishes

__all__ = [
    "JournalEntries",
    "LoadedQueue",
    "SegmentScan",
    "apply_steps",
    "healed_findings",
    "last_of_each",
    "load_queue",
    "places",
    "read_healed",
    "scan_segment",
    "stored_entries",
]

MSG_ID_SIZE = 16
_JOURNAL_HEAD = journal_format.PUBLISH_HEAD_SIZE

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


@dataclass(slots=True)
class SegmentScan:
    """What one segment file holds.

    ``filed``: a byte of state for each entry. ``transient``: seq_ids of transient messages.
    ``data``: the file with its damage corrected where that was possible. ``entries``: of ``walk``
    the publish record of each entry, ascending by seq_id; ``rels``: where they are in ``filed``.
    """

    filed: bytearray
    transient: I64
    size: int
    data: Data
    findings: list[Finding]
    walk: Walk
    entries: Walk
    rels: I64 | slice

    def located(self) -> tuple[I64, I64]:
        """Give offset and length, in bytes, of each entry's publish record; -1: there is none."""
        offsets, lengths = np.full((2, len(self.filed)), -1, np.int64)
        offsets[self.rels] = self.entries.offsets
        lengths[self.rels] = self.entries.lengths
        return offsets, lengths

    def sound_bytes(self) -> bytes:
        """Give the file as it should be: its sound records, those that were kept, and no more."""
        ignored = {finding.offset for finding in self.findings if finding.consequence == DROPPED}
        view = memoryview(self.data)
        return b"".join(
            view[at : at + length]
            for at, length in zip(
                self.walk.offsets.tolist(), self.walk.lengths.tolist(), strict=True
            )
            if at not in ignored
        )


DROPPED = "dropped"
"""The consequence of a record that is whole but can't be right."""


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


def stored_entries(
    data: ReadBuffer, seqs: I64, payloads: I64, embedded: I64
) -> list[tuple[int, bytes]]:
    """Give seq_id and message id of the entries that embed no record.

    ``payloads``: offsets of the message ids in ``data``.
    """
    stored = np.flatnonzero(embedded == 0)
    if not len(stored):
        return []
    ids = np.ascontiguousarray(gather_bytes(data, payloads[stored], MSG_ID_SIZE))
    return list(
        zip(seqs[stored].tolist(), ids.view(f"V{MSG_ID_SIZE}").ravel().tolist(), strict=True)
    )


def scan_segment(
    path: str,
    data: Data,
    number: int,
    entry_count: int,
    verified: bool = False,
    elsewhere: Elsewhere | None = None,
    power_lost: bool = False,
) -> SegmentScan:
    """Scan the bytes of one segment file. Never raises on any bytes.

    ``verified``: checksums of all its bytes were found to hold; those of records are not taken.
    ``elsewhere``, ``power_lost``: see :func:`qindex.layouts.segment_layout`.
    """
    filed = np.zeros(entry_count, np.uint8)
    layout = segment_layout(number, entry_count, elsewhere, power_lost=power_lost)
    reading = read_soundly(path, data, layout, verified)
    walk, findings = reading.walk, reading.findings
    base = number * entry_count
    is_step = walk.kinds >= DELIVER
    any_steps = is_step.any()
    entries = last_of_each(walk.take(~is_step) if any_steps else walk)
    rels = places(entries.seqs, base)
    filed[rels] = PUBLISHED
    if any_steps:
        steps = walk.seqs[is_step] - base
        step_offsets = walk.offsets[is_step]
        published = np.full(entry_count, len(data), np.int64)
        published[rels] = entries.offsets
        in_place = published[steps] < step_offsets
        counts = np.bincount(steps[in_place], minlength=entry_count)
        filed += np.minimum(counts, ACKED - PUBLISHED).astype(np.uint8)
        lost = [one.offset for one in findings if power_lost and one.cause is Cause.CRASH]
        for at in step_offsets[~in_place].tolist():
            # Of an entry before it that did not reach the disk; else nothing explains it.
            cause = Cause.CRASH if lost and at > min(lost) else Cause.DAMAGE
            what = "deliver or ack before any publish"
            findings.append(Finding(path, at, 2, cause, what, DROPPED, Kind.STEP))
        for rel in np.flatnonzero(counts > ACKED - PUBLISHED).tolist():
            what = f"more than one ack of seq_id {base + rel}"
            for at in step_offsets[in_place & (steps == rel)][ACKED - PUBLISHED :].tolist():
                findings.append(Finding(path, at, 2, Cause.DAMAGE, what, DROPPED, Kind.STEP))
    alive = filed != ABSENT
    alive &= filed != ACKED
    is_transient = walk.seqs[walk.kinds == PUBLISH_TRANSIENT]
    transient = is_transient[alive[is_transient - base]]
    return SegmentScan(
        bytearray(filed.tobytes()),
        transient,
        len(data),
        reading.data,
        findings,
        walk,
        entries,
        rels,
    )


def read_healed(
    fs: FileSystem,
    path: str,
    findings: list[Finding],
    data: bytes | None = None,
    power_lost: bool = False,
) -> Healed:
    """Read an index file and put right what its sum file (:mod:`journal.block_sums`) finds wrong;
    each place is added to ``findings``. ``data``: the file's bytes, if they were read.

    Raises :class:`OSError`.
    """
    if data is None:
        data = read_file(fs, path)
    healed = heal(data, read_sums(fs, path), power_lost=power_lost)
    findings += healed_findings(path, healed, power_lost)
    return healed


def healed_findings(path: str, healed: Healed, power_lost: bool = False) -> list[Finding]:
    """Tell what the sum file of ``path`` found wrong in it. ``power_lost``: what was not synced
    may be lost, so that the sums may be ahead of the file."""
    findings = []
    for at in healed.fixed:
        what, consequence = "one flipped bit", "put right by the checksum of its block: none lost"
        # The one bit of a byte that was zero: of a record that had not reached the disk.
        lost = power_lost and healed.data[at].bit_count() == 1
        cause = Cause.CRASH if lost else Cause.DAMAGE
        findings.append(Finding(path, at, 1, cause, what, consequence, Kind.CORRECTED))
    for at in healed.broken:
        # Not damage by itself: after a loss of power the sums may be ahead of the file. What is
        # wrong with publish records, their own checksums tell.
        length = min(BLOCK, len(healed.data) - at)
        what, consequence = "the checksum of the block does not hold", "its records are checked"
        findings.append(Finding(path, at, length, Cause.CRASH, what, consequence, Kind.CHECKSUM))
    return findings


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
    :class:`qindex.sound_read.Layout`. Raises :class:`OSError`. Damage is no
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
    """Leave out delivers and acks of what was not published by then (:mod:`qindex.steps`)."""
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


def last_of_each(walk: Walk) -> Walk:
    """Sort publish records by seq_id; of several of one, keep the last: an earlier one was
    overtaken (its publish never returned)."""
    if (walk.seqs[1:] > walk.seqs[:-1]).all():
        return walk
    order = np.lexsort((walk.offsets, walk.seqs))
    seqs = walk.seqs[order]
    return walk.take(order[np.append(seqs[1:] != seqs[:-1], True)])


def places(seqs: I64, base: int) -> I64 | slice:
    """Tell where these seq_ids (ascending, each once) are in a map that begins with that of
    ``base``: a slice, with which nothing is copied, where none is missing between them."""
    count = len(seqs)
    if count and int(seqs[-1]) - int(seqs[0]) == count - 1:
        first = int(seqs[0]) - base
        return slice(first, first + count)
    return seqs - base


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
