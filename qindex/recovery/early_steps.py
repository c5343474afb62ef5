"""Deliver and ack records that are before any publish that they can be of.

An engine appends the publish of a message before its deliver, and that before its ack; and before
the front of a journal is dropped, ``qindex.seq`` says which seq_ids it gave out. So where no power
was lost since, a deliver or ack of a seq_id that was not given out by then is not a crash's work.
"""

from __future__ import annotations

import numpy as np

from journal.findings import Cause, Finding, Kind
from journal.format import ACK, ACTION_SIZE, DELIVER
from journal.memory.arrays import Bools
from journal.replay import Walk


def ahead_of_publishes(walk: Walk, given_out: int) -> Bools:
    """Return which records of a journal are delivers or acks of seq_ids that were not given out
    when they were appended; all below ``given_out`` were before. O(records)."""
    is_publish = walk.kinds < DELIVER
    if is_publish.all():
        return ~is_publish
    known = np.maximum.accumulate(np.where(is_publish, walk.seqs + 1, given_out))
    ahead: Bools = ~is_publish & (walk.seqs >= np.maximum(known, given_out))
    return ahead


def ahead_findings(path: str, walk: Walk, ahead: Bools) -> list[Finding]:
    """Report the records of the journal ``path`` that are ``ahead``."""
    findings = []
    for at in np.flatnonzero(ahead).tolist():
        step, lost = "deliver", "another message may come without its redelivered flag"
        if walk.kinds[at] == ACK:
            step, lost = "ack", "another message may be delivered again"
        what = f"{step} of seq_id {int(walk.seqs[at])}, which was not published by then"
        offset = int(walk.offsets[at])
        kind = Kind.STEP
        findings.append(Finding(path, offset, ACTION_SIZE, Cause.DAMAGE, what, lost, kind))
    return findings
