"""Message ids of one queue: each entry has its own.

Most embedded messages have an id that ends in their seq_id (:mod:`qindex.queue.producing`): two of
those are the same only if their seq_ids are. So only the others are kept and compared with each
other, and with the runs of the first sort: seq_ids that have one first half. Messages that a
RabbitMQ node made are left out: there a queue may hold one twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from journal.findings import Cause, Finding, Kind
from journal.format import ACTION_SIZE, PAYLOAD_SIZE
from journal.memory.arrays import I64, U64, Bools
from qindex.format.message_record import MAGIC
from qindex.format.segment import STEP_SIZE
from qindex.format.stored_id import vouches
from qindex.recovery.columns import Entries

_LOST = "the messages can't be told apart"


@dataclass(slots=True)
class _Others:
    """Entries of one file whose ids do not follow from their seq_ids; columns of shape ``(n,)``,
    ``ids`` of ``(n, 2)``: two halves. ``length``: bytes of a record's head."""

    path: str
    seqs: I64
    offsets: I64
    ids: U64
    length: int


@dataclass(slots=True)
class QueueIds:
    """Takes the batches of a queue, and tells which ids are twice. Memory: 32 bytes for each
    entry whose id does not follow from its seq_id."""

    _others: list[_Others] = field(default_factory=list)
    _runs: dict[int, tuple[int, int]] = field(default_factory=dict)

    def take(self, batch: Entries) -> None:
        """Take the entries of a batch in. O(n)."""
        halves = np.ascontiguousarray(batch.ids).view(">u8").reshape(-1, 2).astype(np.uint64)
        own = (batch.embedded > 0) & (halves[:, 1] == batch.seqs.astype(np.uint64))
        rows = np.flatnonzero(~own & _is_ours(batch))
        if len(rows):
            offsets = batch.offsets[rows]
            length = (ACTION_SIZE if batch.location == "journal" else STEP_SIZE) + PAYLOAD_SIZE
            self._others.append(
                _Others(batch.path, batch.seqs[rows], offsets, halves[rows], length)
            )
        rows = np.flatnonzero(own)
        if not len(rows):
            return
        firsts, seqs = halves[rows, 0], batch.seqs[rows]
        starts = np.flatnonzero(np.diff(firsts, prepend=~firsts[:1]) != 0).tolist()
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            first, low, high = int(firsts[start]), int(seqs[start]), int(seqs[end - 1])
            before = self._runs.get(first, (low, high))
            self._runs[first] = min(low, before[0]), max(high, before[1])

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each entry whose id an entry before it has. O(n log n)."""
        if not self._others:
            return
        ids = np.concatenate([one.ids for one in self._others])
        order = np.lexsort((ids[:, 1], ids[:, 0]))
        ordered = ids[order]
        twice = np.zeros(len(ids), np.bool_)
        twice[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
        for first, (low, high) in self._runs.items():
            twice |= (ids[:, 0] == first) & (ids[:, 1] >= low) & (ids[:, 1] <= high)
        at = 0
        for one in self._others:
            for row in np.flatnonzero(twice[at : at + len(one.seqs)]).tolist():
                msg_id = one.ids[row].astype(">u8").tobytes().hex()
                what = f"seq_id {int(one.seqs[row])}: another entry has its message id {msg_id}"
                place = int(one.offsets[row])
                yield Finding(
                    one.path, place, one.length, Cause.DAMAGE, what, _LOST, Kind.DUPLICATE_MSG_ID
                )
            at += len(one.seqs)


def _is_ours(batch: Entries) -> Bools:
    """Return which entries are of messages that our engine made."""
    flat = np.frombuffer(batch.data, np.uint8)
    embedded = batch.embedded > 0
    ours: Bools = np.zeros(len(batch.seqs), np.bool_)
    ours[embedded] = flat[batch.payloads[embedded] + PAYLOAD_SIZE] == MAGIC[0]
    ours[~embedded] = vouches(batch.ids[~embedded], batch.sizes[~embedded])
    return ours
