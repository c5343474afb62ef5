"""The merge rule: one answer from what a journal and a segment file say of an entry.

It covers every combination (RabbitMQ's table has gaps that hang the node). An entry is *published*
if either says so, *delivered* if either does, *acknowledged* if either does. A deliver or ack of an
entry that neither has published is dropped: its segment was deleted. So a flush that a crash cut
short, which leaves the same entries in both, changes nothing.

None of this is damage by itself. After a loss of power any page of the journal that was not synced
may be missing, so that a deliver can be there without its publish, and an ack without its deliver.

One combination is doubted: an ack in the journal of an entry that was never delivered. It counts
only where later entries were delivered: then its deliver record is lost. Otherwise the message
stays: a message too many is better than one too few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from journal.findings import Cause, Finding, Kind
from journal.format import ACK, ACTION_SIZE, DELIVER
from journal.memory.arrays import U8, Bools
from journal.replay import Walk
from qindex.index.segment import ABSENT, ACKED, DELIVERED, PUBLISHED, segment_numbers
from qindex.index.segment_scan import last_of_each, places


@dataclass(slots=True)
class Merged:
    """The result for one segment.

    ``entries``: the journal's publish records of this segment, sorted by seq_id. ``fresh``: which
    of them the segment file does not have. ``acked``: seq_ids that the journal acknowledged.
    ``findings``: steps that do not fit.
    """

    entries: Walk
    fresh: Bools
    acked: list[int]
    findings: list[Finding]


class JournalRecords:
    """The records of the journal ``path``, ready to be merged into segments."""

    def __init__(self, path: str, walk: Walk) -> None:
        self._path = path
        self._walk = walk
        is_step = walk.kinds >= DELIVER
        self.entries: Walk = last_of_each(walk.take(~is_step))
        """Publish records, sorted by seq_id, each once."""
        self._steps = steps = walk.take(np.flatnonzero(is_step))
        delivered = steps.seqs[steps.kinds == DELIVER]
        self._last_delivered = int(delivered.max()) if len(delivered) else -1
        # So that those of a segment are found without looking at all.
        self._by_seq = np.argsort(steps.seqs, kind="stable")
        self._sorted_seqs = steps.seqs[self._by_seq]

    def segment_numbers(self, entry_count: int) -> list[int]:
        """Return the numbers of the segments that the journal has records of, ascending."""
        return segment_numbers(self._walk.seqs, entry_count)

    def merge_into(self, states: U8, base: int) -> Merged:
        """Merge the journal into the ``states`` of the segment whose first seq_id is ``base``.
        They are the states as the segment's file has them."""
        low, high = np.searchsorted(self.entries.seqs, (base, base + len(states)))
        entries = self.entries.take(slice(low, high))
        rels = places(entries.seqs, base)
        fresh = states[rels] == ABSENT
        states[rels] = np.maximum(states[rels], PUBLISHED)
        findings: list[Finding] = []
        acked = self._apply_steps(states, base, findings)
        return Merged(entries, fresh, acked, findings)

    def _apply_steps(self, states: U8, base: int, findings: list[Finding]) -> list[int]:
        low, high = np.searchsorted(self._sorted_seqs, (base, base + len(states)))
        if low == high:
            return []
        steps = self._steps.take(np.sort(self._by_seq[low:high]))
        rels = steps.seqs - base
        kinds = steps.kinds
        at = steps.offsets
        unknown = states[rels] == ABSENT
        delivers = (kinds == DELIVER) & ~unknown
        acks = (kinds == ACK) & ~unknown
        acked_rels = set(rels[kinds == ACK].tolist())
        for index in np.flatnonzero((kinds == DELIVER) & unknown).tolist():
            # With its ack after it, it comes of a crash after the deletion of a segment.
            if int(rels[index]) not in acked_rels:
                what = f"deliver of seq_id {base + int(rels[index])}, never published"
                findings.append(self._finding(at[index], what, "dropped; no message is lost"))
        states[rels[delivers]] = np.maximum(states[rels[delivers]], DELIVERED)
        given = states[rels] >= DELIVERED
        for index in np.flatnonzero(acks & ~given).tolist():
            seq = base + int(rels[index])
            explained = seq < self._last_delivered
            consequence = "taken as acknowledged" if explained else "dropped; the message stays"
            what = f"ack of seq_id {seq}, which was never delivered"
            findings.append(self._finding(at[index], what, consequence))
            given[index] = explained
        taken = rels[acks & given]
        states[taken] = ACKED
        return [base + rel for rel in taken.tolist()]

    def _finding(self, offset: int, what: str, consequence: str) -> Finding:
        return Finding(
            self._path, int(offset), ACTION_SIZE, Cause.CRASH, what, consequence, Kind.STEP
        )
