"""Read a segment file: walk its records, and stop where they stop making sense.

As :mod:`journal.replay` does for journals: columns instead of objects, runs of publish records of
one length taken at once, and no verdict on what is damaged (:mod:`qindex.segment_scan` gives it).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from journal.files import ReadBuffer
from journal.format import DELIVER, PUBLISH_PERSISTENT, PUBLISH_TRANSIENT
from journal.replay import Ending, Walk
from qindex.segment_format import (
    NEXT_STEP,
    PERSISTENT,
    PUBLISH,
    PUBLISH_HEAD,
    PUBLISH_HEAD_SIZE,
    REL_MASK,
    STEP_SIZE,
)

__all__ = ["walk_segment"]

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
I64 = npt.NDArray[np.int64]

_RUN_PROBE = 16


def walk_segment(
    data: ReadBuffer,
    start: int,
    stop: int,
    *,
    first_seq: int,
    entry_count: int,
    max_embedded: int,
    max_records: int,
) -> Walk:
    """Walk at most about ``max_records`` records of ``data`` from ``start`` to ``stop``.

    ``first_seq``: the seq_id of rel 0. A next-step record is given as of kind ``DELIVER``; which
    step it is, its place among the others of its seq_id tells.

    Stops at the first incomplete record (``TORN``), at zero bytes (``ZEROS``: prefix 00 is no
    record), and at a rel outside of the segment or a record longer than ``max_embedded``
    (``LIMIT``). Never raises on any bytes. O(records), less for runs of equal length.
    """
    view = memoryview(data)[:stop]
    heads: list[U16] = []
    offsets: list[I64] = []
    lengths: list[I64] = []
    one_head: list[int] = []
    one_offset: list[int] = []
    one_length: list[int] = []

    def put_singles() -> None:
        if one_head:
            heads.append(np.array(one_head, np.uint16))
            offsets.append(np.array(one_offset, np.int64))
            lengths.append(np.array(one_length, np.int64))
            for column in (one_head, one_offset, one_length):
                column.clear()

    unpack_head = PUBLISH_HEAD.unpack_from
    position = start
    same_length = 0
    previous_length = 0
    ending = Ending.END
    taken = 0
    while position < stop:
        if taken + len(one_head) >= max_records:
            ending = Ending.PAUSE
            break
        left = stop - position
        if left < STEP_SIZE:
            ending = Ending.TORN
            break
        head = view[position] << 8 | view[position + 1]
        if head & PUBLISH:
            if left < PUBLISH_HEAD_SIZE:
                ending = Ending.TORN
                break
            embedded = unpack_head(view, position)[4]
            if embedded > max_embedded:
                ending = Ending.LIMIT
                break
            length = PUBLISH_HEAD_SIZE + embedded
            if length > left:
                ending = Ending.TORN
                break
        elif head & NEXT_STEP:
            length = STEP_SIZE
        else:
            ending = Ending.ZEROS
            break
        if head & REL_MASK >= entry_count:
            ending = Ending.LIMIT
            break
        one_head.append(head)
        one_offset.append(position)
        one_length.append(length)
        position += length
        same_length = same_length + 1 if length == previous_length else 0
        previous_length = length
        if same_length >= _RUN_PROBE:
            same_length = 0
            count = _run_length(view, position, length, head, entry_count)
            if count:
                taken += len(one_head) + count
                put_singles()
                run = np.ndarray((count,), ">u2", view, position, (length,))
                heads.append(run.astype(np.uint16))
                offsets.append(
                    np.arange(position, position + count * length, length, dtype=np.int64)
                )
                lengths.append(np.full(count, length, np.int64))
                position += count * length
    put_singles()
    all_heads = np.concatenate(heads) if heads else np.empty(0, np.uint16)
    publishes = np.where(all_heads & PERSISTENT, PUBLISH_PERSISTENT, PUBLISH_TRANSIENT)
    return Walk(
        np.where(all_heads & PUBLISH, publishes, DELIVER).astype(np.uint8),
        (all_heads & REL_MASK).astype(np.int64) + first_seq,
        np.concatenate(offsets) if offsets else np.empty(0, np.int64),
        np.concatenate(lengths) if lengths else np.empty(0, np.int64),
        position,
        ending,
    )


def _run_length(view: memoryview, position: int, length: int, head: int, entry_count: int) -> int:
    """Count the records from ``position`` on that have this length and the type of ``head``."""
    room = (len(view) - position) // length
    if room <= 0:
        return 0
    run = np.ndarray((room,), ">u2", view, position, (length,)).astype(np.uint16)
    types = PUBLISH | NEXT_STEP if length == STEP_SIZE else PUBLISH
    good = (run & types == head & types) & (run & REL_MASK < entry_count)
    if length != STEP_SIZE:
        at = position + PUBLISH_HEAD_SIZE - 4
        embedded = np.ndarray((room,), ">u4", view, at, (length,))
        good &= embedded == length - PUBLISH_HEAD_SIZE
    wrong = np.flatnonzero(~good)
    return int(wrong[0]) if len(wrong) else room
