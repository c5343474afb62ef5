"""A queue's entries, everything checked: what verify and repair look at.

Unlike the view of a reader, which asks what would be delivered, this one trusts no block checksum
to vouch for records, and gives every entry that is not acknowledged, expired ones included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from journal.findings import Cause, Finding, Kind
from journal.format import DELIVER, PAYLOAD_SIZE
from journal.memory.arrays import I64, U8, U64, Bools
from qindex.format.resynchronise import Data
from qindex.index.pair_scan import Depth, Pair, PinnedPair
from qindex.index.segment import DELIVERED, PUBLISHED
from qindex.index.segment_scan import SegmentScan
from qindex.view.queue_view import QueueView

_ID_SIZE = 16
_TERM = 0x83


@dataclass(slots=True)
class Batch:
    """Entries of one segment, from one file, that are not acknowledged; columns of shape ``(n,)``.

    ``data``: the file's bytes, damage corrected. ``payloads``: offsets of the message ids in it,
    ``offsets``: of the entries in the file ``path``. ``version2``: see
    :class:`qindex.view.columns.Source`; ``bodies`` as there. ``delivered``: they come again as
    redelivered. ``dropped``: transient ones that are not delivered after a restart. ``ids``:
    message ids, shape ``(n, 16)``. ``expiry``: microseconds since 1970. ``sizes``: of the bodies.
    ``embedded``: bytes of the record in the index, 0 = in the message store.
    """

    path: str
    in_journal: bool
    data: Data
    version2: bool
    seqs: I64
    payloads: I64
    offsets: I64
    delivered: Bools
    persistent: Bools
    dropped: Bools
    ids: U8
    expiry: U64
    sizes: I64
    embedded: I64
    bodies: I64 | None = None

    def foreign_records(self) -> Iterator[tuple[int, bytes]]:
        """Give the rows of the entries that embed a record of RabbitMQ's, and these."""
        flat = np.frombuffer(self.data, np.uint8)
        starts = self.payloads + PAYLOAD_SIZE
        rows = np.flatnonzero(self.embedded)
        for at in rows[flat[starts[rows]] == _TERM].tolist():
            start = int(starts[at])
            yield at, bytes(self.data[start : start + int(self.embedded[at])])


class ThoroughView(QueueView):
    """See the module's text. ``unacked``: entries published and not acknowledged, for each segment
    that :meth:`batches` was asked for. ``highest``: the highest seq_id met by then, or -1;
    ``highest_filed``: the highest in the segment files. ``unnamed``: entries given so far that have
    no slot, see :mod:`qindex.index.pair_scan`."""

    _trust_sums = False
    _rescues = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.unacked: dict[int, int] = {}
        self.unnamed: int = 0
        super().__init__(*arguments, **options)
        walk = self.pinned.reading.walk
        self.highest: int = int(walk.seqs.max()) if len(walk) else -1
        self.highest_filed: int = -1

    def _more_findings(self, path: str, scan: SegmentScan) -> list[Finding]:
        walk = scan.walk
        publishes = np.flatnonzero(walk.kinds < DELIVER)
        seqs = walk.seqs[publishes]
        if len(seqs):
            self.highest_filed = max(self.highest_filed, int(seqs.max()))
            self.highest = max(self.highest, self.highest_filed)
        last = np.zeros(len(seqs), np.bool_)
        last[len(seqs) - 1 - np.unique(seqs[::-1], return_index=True)[1]] = True
        found = []
        for at in publishes[~last].tolist():
            what = f"seq_id {int(walk.seqs[at])} is published once more behind this"
            offset, length = int(walk.offsets[at]), int(walk.lengths[at])
            lost, kind = "the last one counts", Kind.DUPLICATE_SEQ_ID
            found.append(Finding(path, offset, length, Cause.DAMAGE, what, lost, kind))
        return found

    def _read_pair(self, pinned: PinnedPair, depth: Depth) -> Pair | None:
        pair = super()._read_pair(pinned, depth)
        self.unnamed += 0 if pair is None else pair.unnamed
        return pair

    def batches(self, number: int) -> Iterator[Batch]:
        """Read segment ``number``: the entries in its file, then those in the journal."""
        merged = self._merged(number, Depth.DECODE)
        if merged is None:
            return
        sources, states, base = merged
        alive = (states == PUBLISHED) | (states == DELIVERED)
        self.unacked[number] = int(alive.sum())
        for source in sources:
            rows = np.flatnonzero(alive[source.seqs - base])
            if not len(rows):
                continue
            payloads = source.offsets[rows] + source.head_size
            heads = source.heads_of(rows)
            persistent, dropped = self._persistence(source, rows, heads)
            seqs = source.seqs[rows]
            self.highest = max(self.highest, int(seqs[-1]))
            yield Batch(
                path=source.path,
                in_journal=source.location == "journal",
                data=source.data,
                version2=source.heads is not None,
                seqs=seqs,
                payloads=payloads,
                offsets=source.places_of(rows),
                delivered=self._redelivered(seqs, states[seqs - base]),
                persistent=persistent,
                dropped=dropped,
                ids=np.ascontiguousarray(heads["id"]).view(np.uint8).reshape(-1, _ID_SIZE),
                expiry=self.expiry_of(source, rows, heads),
                sizes=heads["size"].astype(np.int64),
                embedded=heads["embedded"].astype(np.int64),
                bodies=None if source.bodies is None else source.bodies[rows],
            )

    def all_batches(self) -> Iterator[tuple[int, Batch]]:
        """Read all segments, in order."""
        for number in self.numbers:
            for batch in self.batches(number):
                yield number, batch
