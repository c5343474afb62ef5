"""Scan the bytes of a segment file: the state that it gives each entry, and the damage in it.

Nothing is written here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from journal.block_sums import BLOCK, Healed, heal, read_sums
from journal.findings import Cause, Finding, Kind
from journal.format import DELIVER
from journal.fs.files import FileSystem, ReadBuffer, read_file
from journal.memory.arrays import I64, U8
from journal.replay import Walk
from qindex.format.message_record import gather_bytes
from qindex.format.record_layouts import segment_layout
from qindex.format.resynchronise import Data, Elsewhere, read_soundly
from qindex.index.segment import ACKED, PUBLISHED

MSG_ID_SIZE = 16


_NO_STEPS = np.empty(0, np.bool_)


@dataclass(slots=True)
class SegmentScan:
    """The content of one segment file.

    ``filed``: a byte of state for each entry. ``data``: the file with its damage corrected where
    that was possible. ``entries``: of ``walk`` the publish record of each entry, ascending by
    seq_id; ``rels``: where they are in ``filed``.
    """

    filed: bytearray
    size: int
    data: Data
    findings: list[Finding]
    walk: Walk
    entries: Walk
    rels: I64 | slice

    @property
    def unacked(self) -> int:
        """Entries published less acknowledged. O(entries that are there)."""
        acked = 0
        if ACKED in self.filed:
            acked = int(np.count_nonzero(self.states() == ACKED))
        return len(self.entries) - acked

    def states(self) -> U8:
        """Return the state of each of ``entries``, as the file has it."""
        return np.frombuffer(self.filed, np.uint8)[self.rels]

    def located(self) -> tuple[I64, I64]:
        """Return offset and length, in bytes, of each entry's publish record; -1: there is none."""
        offsets, lengths = np.full((2, len(self.filed)), -1, np.int64)
        offsets[self.rels] = self.entries.offsets
        lengths[self.rels] = self.entries.lengths
        return offsets, lengths

    def sound_bytes(self) -> bytes:
        """Return the file as it should be: its sound records, the kept ones, and no more."""
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


def stored_entries(
    data: ReadBuffer, seqs: I64, payloads: I64, embedded: I64
) -> list[tuple[int, bytes]]:
    """Return seq_id and message id of the entries that embed no record.

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
    verified: int = 0,
    elsewhere: Elsewhere | None = None,
    power_lost: bool = False,
    complete: int = 0,
) -> SegmentScan:
    """Scan the bytes of one segment file. Never raises on any bytes.

    ``verified``: bytes from the start whose checksums were found to hold; those of the records in
    them are not taken.
    ``elsewhere``, ``power_lost``, ``complete``: see
    :func:`qindex.format.record_layouts.segment_layout`.
    """
    states = bytearray(entry_count)
    filed = np.frombuffer(states, np.uint8)
    layout = segment_layout(
        number, entry_count, elsewhere, power_lost=power_lost, complete=complete
    )
    reading = read_soundly(path, data, layout, verified)
    walk, findings = reading.walk, reading.findings
    base = number * entry_count
    any_steps = DELIVER in walk.kinds.tobytes()
    is_step = walk.kinds >= DELIVER if any_steps else _NO_STEPS
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
            # It is of an earlier entry that did not reach the disk; nothing else explains it.
            cause = Cause.CRASH if lost and at > min(lost) else Cause.DAMAGE
            what = "deliver or ack before any publish"
            findings.append(Finding(path, at, 2, cause, what, DROPPED, Kind.STEP))
        for rel in np.flatnonzero(counts > ACKED - PUBLISHED).tolist():
            what = f"more than one ack of seq_id {base + rel}"
            for at in step_offsets[in_place & (steps == rel)][ACKED - PUBLISHED :].tolist():
                findings.append(Finding(path, at, 2, Cause.DAMAGE, what, DROPPED, Kind.STEP))
    return SegmentScan(
        states,
        len(data),
        reading.data,
        findings,
        walk,
        entries,
        rels,
    )


def empty_scan(number: int, entry_count: int) -> SegmentScan:
    """Return the scan of a segment that has no file."""
    return scan_segment("", b"", number, entry_count)


def read_healed(
    fs: FileSystem,
    path: str,
    findings: list[Finding],
    data: Data | None = None,
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
    """Return the flaws that the sum file of ``path`` has found in it, as findings. ``power_lost``:
    unsynced bytes may be lost, so that the sums may be ahead of the file."""
    findings = []
    for at in healed.fixed:
        what, consequence = "one flipped bit", "put right by the checksum of its block: none lost"
        # The only bit of a byte that was zero is of a record that had not reached the disk.
        lost = power_lost and healed.data[at].bit_count() == 1
        cause = Cause.CRASH if lost else Cause.DAMAGE
        findings.append(Finding(path, at, 1, cause, what, consequence, Kind.CORRECTED))
    for at in healed.broken:
        # It is not damage by itself: after a loss of power the sums may be ahead of the file.
        # Publish records have their own checksums, which tell of theirs.
        length = min(BLOCK, len(healed.data) - at)
        what, consequence = "the checksum of the block does not hold", "its records are checked"
        findings.append(Finding(path, at, length, Cause.CRASH, what, consequence, Kind.CHECKSUM))
    return findings


def last_of_each(walk: Walk) -> Walk:
    """Sort publish records by seq_id; of several of one, keep the last: an earlier one was
    overtaken (its publish never returned)."""
    if len(walk) < 2 or (walk.seqs[1:] > walk.seqs[:-1]).all():
        return walk
    order = np.lexsort((walk.offsets, walk.seqs))
    seqs = walk.seqs[order]
    return walk.take(order[np.append(seqs[1:] != seqs[:-1], True)])


def places(seqs: I64, base: int) -> I64 | slice:
    """Return where these seq_ids (ascending, each once) are in a map that begins with that of
    ``base``: a slice, with which nothing is copied, where none is missing between them."""
    count = len(seqs)
    if count and int(seqs[-1]) - int(seqs[0]) == count - 1:
        first = int(seqs[0]) - base
        return slice(first, first + count)
    return seqs - base
