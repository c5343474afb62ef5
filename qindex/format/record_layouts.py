"""Layouts of the two kinds of index file, for :mod:`qindex.format.resynchronise`."""

from __future__ import annotations

from journal import format as journal_format
from journal.format import DELIVER, PUBLISH_PERSISTENT, PUBLISH_TRANSIENT
from journal.replay import Walk, walk_journal
from qindex.format import segment as segment_format
from qindex.format.resynchronise import Data, Elsewhere, Layout
from qindex.format.segment_walk import walk_segment

_MAX_EMBEDDED = (1 << 32) - 1


def journal_layout(seq_limit: int, *, power_lost: bool = False, complete: int = 0) -> Layout:
    """Lay out a journal whose queue has given out no seq_id above ``seq_limit``: one of ours,
    where a limit is known. ``power_lost``, ``complete``: see
    :class:`qindex.format.resynchronise.Layout`."""

    def walk(data: Data, start: int, stop: int, max_records: int) -> Walk:
        return walk_journal(data, start, stop, seq_limit=seq_limit, max_records=max_records)

    def pack_head(kind: int, seq_id: int) -> bytes:
        return journal_format.pack_action(kind, seq_id)

    def read_head(data: Data, offset: int) -> tuple[int, int]:
        (word,) = journal_format.ACTION_WORD.unpack_from(data, offset)
        return word >> journal_format.TYPE_SHIFT, word & journal_format.SEQ_MASK

    return Layout(
        journal_format.PUBLISH_HEAD_SIZE,
        journal_format.ACTION_SIZE,
        walk,
        pack_head,
        read_head,
        first_seq=0,
        end_seq=seq_limit + 1,
        ids_vouch=seq_limit < journal_format.MAX_SEQ_ID,
        power_lost=power_lost,
        complete=complete,
    )


def segment_layout(
    number: int,
    entry_count: int,
    elsewhere: Elsewhere | None = None,
    *,
    power_lost: bool = False,
    complete: int = 0,
) -> Layout:
    """Lay out segment ``number`` of a queue with ``entry_count`` entries a segment.

    ``elsewhere``: what the queue's journal, which is ours, publishes too. ``power_lost``,
    ``complete``: see :class:`qindex.format.resynchronise.Layout`.
    """
    first_seq = number * entry_count

    def walk(data: Data, start: int, stop: int, max_records: int) -> Walk:
        return walk_segment(
            data,
            start,
            stop,
            first_seq=first_seq,
            entry_count=entry_count,
            max_embedded=_MAX_EMBEDDED,
            max_records=max_records,
        )

    def pack_head(kind: int, seq_id: int) -> bytes:
        head = segment_format.PUBLISH | (seq_id - first_seq)
        if kind == PUBLISH_PERSISTENT:
            head |= segment_format.PERSISTENT
        return head.to_bytes(2, "big")

    def read_head(data: Data, offset: int) -> tuple[int, int]:
        head = int.from_bytes(data[offset : offset + 2], "big")
        seq = first_seq + (head & segment_format.REL_MASK)
        if not head & segment_format.PUBLISH:
            return DELIVER, seq
        kind = PUBLISH_PERSISTENT if head & segment_format.PERSISTENT else PUBLISH_TRANSIENT
        return kind, seq

    return Layout(
        segment_format.PUBLISH_HEAD_SIZE,
        segment_format.STEP_SIZE,
        walk,
        pack_head,
        read_head,
        first_seq=first_seq,
        end_seq=first_seq + entry_count,
        elsewhere=elsewhere,
        power_lost=power_lost,
        complete=complete,
    )
